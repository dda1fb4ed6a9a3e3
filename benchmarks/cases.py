"""What is measured. Each case returns lines with a value and, where one is set, a target."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelmesh import Agent, Function, Gaussian, Gradient, Komp, Local, Logistic
from kernelmesh.numerics.compression import Model, Update
from kernelmesh.numerics.products import product
from kernelmesh.streams import ArrayStream, Mixture
from materialized import Materialized

BATCH = 32


class Line(NamedTuple):
    """One row of a table."""

    what: str
    shown: str
    target: str = ""
    reached: bool = True


def at_least(what: str, value: float, target: float) -> Line:
    return Line(what, f"{value:.1f}×", f"≥ {target:g}×", bool(value >= target))


def at_most(what: str, value: float, target: float, unit: str = "×") -> Line:
    return Line(what, f"{value:.2f}{unit}", f"≤ {target:g}{unit}", bool(value <= target))


def alternate(*jobs: Callable[[], Any], rounds: int) -> list[float]:
    """The median time of each job, taken in turn so that a noisy neighbor hits all of them."""
    times: list[list[float]] = [[] for _ in jobs]
    for job in jobs:
        job()
    for _ in range(rounds):
        for job, taken in zip(jobs, times, strict=True):
            began = time.perf_counter()
            job()
            taken.append(time.perf_counter() - began)
    return [float(np.median(taken)) for taken in times]


def small_step() -> list[Line]:
    """One step of an agent on the paper's mixture (M ≈ 18, p = 2, C = 5) against the materialized way."""
    rng = np.random.default_rng(0)
    points, labels = Mixture.draw(rng=rng).sample(5000, rng=rng)
    batches = list(ArrayStream(points, labels))[:-1]

    def learner(compression: Any) -> tuple[Callable[[], None], Callable[[], Function]]:
        agent = Agent(
            dimension=2,
            outputs=5,
            kernel=Gaussian(bandwidth=0.6),
            loss=Logistic(),
            learner=Gradient(step_size=3.0, compression=compression),
            protocol=Local(),
        )
        state, turn = agent.start(), 0

        def step() -> None:
            nonlocal state, turn
            batch = batches[turn % len(batches)]
            state, _ = agent.step(state, batch.points, batch.targets)
            turn += 1

        return step, lambda: state.function

    budget = 0.04 * 3**1.5
    (ours, our_function), (theirs, their_function) = learner(Komp(budget=budget)), learner(Materialized(budget))
    for _ in range(100):
        ours()
        theirs()
    fast, slow = alternate(ours, theirs, rounds=300)
    gap = our_function().distance(their_function()) / our_function().norm()
    return [
        at_least(f"step at M={our_function().order}, materialized / ours", slow / fast, 10),
        Line("our step", f"{fast * 1e6:.0f} µs"),
        Line("relative distance of the two functions after 401 steps", f"{gap:.1e}"),
    ]


class Bench:
    """A dictionary of M random points in p dimensions with C outputs, and mini-batches that do as they are told."""

    def __init__(self, order: int, dimension: int, outputs: int) -> None:
        self.rng = np.random.default_rng(0)
        self.order, self.dimension, self.outputs = order, dimension, outputs
        self.kernel = Gaussian(bandwidth=float(np.sqrt(dimension)))
        function = Function.of(self.kernel, self.points(order), self.rng.standard_normal((order, outputs)))
        self.model = Komp().start(function)

    def points(self, rows: int) -> np.ndarray:
        return self.rng.standard_normal((rows, self.dimension))

    def product(self) -> None:
        """What large steps are compared with: one product of the batch's kernel values with P."""
        assert self.model.inverse is not None
        product(self.cross, self.model.inverse.matrix)

    def step(self, *, heavy: int) -> Callable[[], None]:
        """A mini-batch of which `heavy` points have coefficients like the old weights and the others next to none.

        The light ones are dropped again, the heavy ones mostly take the places of others: a cap keeps M where it is.
        """
        budget, komp = 0.5 if heavy else 1e-3, Komp(max_order=self.order)

        def job() -> None:
            push = self.push.copy()
            push[heavy:] *= 1e-6
            self.model, _ = komp.absorb(self.model, Update(self.batch, push), budget=budget)

        return job

    def draw(self) -> None:
        self.cross = self.rng.random((BATCH, self.model.function.order))
        self.batch = self.points(BATCH)
        self.push = self.rng.standard_normal((BATCH, self.outputs))


def measured(bench: Bench, job: Callable[[], None], rounds: int) -> tuple[float, float, float, float]:
    """Median times of P @ k, of the kernel values, of the job, and how many points it swapped."""
    products, kernels, jobs, swaps = [], [], [], []
    for turn in range(rounds + 1):
        bench.draw()
        before = bench.model.function.points
        times = []
        for task in (bench.product, lambda: bench.kernel(bench.batch, bench.model.function.points), job):
            began = time.perf_counter()
            task()
            times.append(time.perf_counter() - began)
        if turn:  # the first one compiles
            products.append(times[0])
            kernels.append(times[1])
            jobs.append(times[2])
            after = bench.model.function.points
            swaps.append(0 if after is before else int((before[: len(after)] != after[: len(before)]).any(axis=1).sum()))
    return float(np.median(products)), float(np.median(kernels)), float(np.median(jobs)), float(np.mean(swaps))


def materialized_step(bench: Bench, rounds: int) -> float:
    """A step the textbook way in which the batch only replaces itself: 32 removals, as in every other step here."""
    memory = Model(bench.model.function)
    core = Materialized()
    taken = []
    for _ in range(rounds):
        bench.draw()
        began = time.perf_counter()
        core.absorb(memory, Update(bench.batch, bench.push * 1e-6), budget=1e-3)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def large_step() -> list[Line]:
    """One step at M = 4300, p = 256, C = 13 against the materialized way and against the one product P @ k."""
    bench = Bench(4300, 256, 13)
    one, _, swap, swapped = measured(bench, bench.step(heavy=BATCH // 2), 15)
    full, _, everything, all_swapped = measured(bench, bench.step(heavy=BATCH), 15)
    again, kernel, idle, _ = measured(bench, bench.step(heavy=0), 15)
    slow = materialized_step(bench, 1)
    return [
        at_least(f"step at M=4300 with {all_swapped:.0f} of 32 points swapped, materialized / ours", slow / everything, 40),
        at_most(f"step with {swapped:.0f} of 32 points swapped, everything included / one product P @ k", swap / one, 3),
        Line(f"the same with {all_swapped:.0f} of 32 points swapped", f"{everything / full:.2f}×"),
        at_most("step when the batch only replaces itself, without its kernel values / P @ k", (idle - kernel) / again, 1.5),
        Line("P @ k", f"{again * 1e3:.0f} ms"),
        Line("kernel values of the batch / P @ k", f"{kernel / again:.2f}×"),
        Line("materialized step", f"{slow:.1f} s"),
    ]


def growth() -> list[Line]:
    """How step time grows with M from 250 to 4000 (p = 32, C = 5): the slope of a straight line through the logarithms."""
    orders = [250, 500, 1000, 2000, 4000]
    swap, idle = [], []
    for order in orders:
        bench = Bench(order, 32, 5)
        swap.append(measured(bench, bench.step(heavy=BATCH), 15)[2])
        idle.append(measured(bench, bench.step(heavy=0), 15)[2])

    def exponent(times: list[float]) -> float:
        return float(np.polyfit(np.log(orders), np.log(times), 1)[0])

    lines = [
        at_most("exponent of step time in M, points swapped", exponent(swap), 2.1, ""),
        at_most("exponent of step time in M, batch replaces itself", exponent(idle), 2.1, ""),
    ]
    for order, a, b in zip(orders, swap, idle, strict=True):
        lines.append(Line(f"M={order}: swapped, replaced", f"{a * 1e3:.2f} ms, {b * 1e3:.2f} ms"))
    return lines


def _grow_to(order: int, dimension: int, outputs: int, sender: Any) -> None:
    rng = np.random.default_rng(0)
    kernel, komp = Gaussian(bandwidth=float(np.sqrt(dimension))), Komp()
    memory = komp.start(Function.zero(kernel, dimension=dimension, outputs=outputs))

    def learn(memory: Model) -> Model:
        change = Update(rng.standard_normal((BATCH, dimension)), rng.standard_normal((BATCH, outputs)))
        return komp.absorb(memory, change, budget=1e-6)[0]

    while memory.function.order < 256:  # everything is compiled and loaded
        memory = learn(memory)
    memory = komp.start(Function.zero(kernel, dimension=dimension, outputs=outputs))
    base = _status("VmRSS")
    while memory.function.order < order:
        memory = learn(memory)
    komp = Komp(max_order=order)
    for _ in range(20):
        memory = learn(memory)
    sender.send((base, _status("VmHWM"), memory.function.order))


def _status(entry: str) -> int:
    """Bytes from the kernel's account of this process (getrusage would count what the parent had before the start)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(entry))


def memory() -> list[Line]:
    """Peak memory of one agent that grows from nothing to M = 4300 (p = 256, C = 13) and then swaps points for a while."""
    order, dimension, outputs = 4300, 256, 13
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_grow_to, args=(order, dimension, outputs, sender))
    process.start()
    base, peak, reached = receiver.recv()
    process.join()
    need = (reached**2 + reached * (dimension + outputs)) * 8  # P exists twice while points are exchanged
    return [
        at_most(f"peak above the process's base at M={reached} / (M² + M(p + C)) · 8 bytes", (peak - base) / need, 2.3),
        Line("peak above base", f"{(peak - base) / 2**20:.0f} MiB"),
    ]


CASES: dict[str, Callable[[], list[Line]]] = {
    "small_step": small_step,
    "large_step": large_step,
    "growth": growth,
    "memory": memory,
}
