"""What a round of every protocol costs, compared with the paper's penalty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from cases import BATCH, Line
from kernelmesh import (
    Agent,
    ConsensusProtocol,
    Diffusion,
    Gaussian,
    Gradient,
    Graph,
    Hilbert,
    Komp,
    Landmarks,
    Logistic,
    Penalty,
    Relay,
    simulate,
)
from kernelmesh.checks import Floats
from kernelmesh.streams import Batch

_AGENTS, _DIMENSION, _OUTPUTS = 4, 16, 26
_BUDGETS = {"steady": 0.05, "moving": 0.2}
_ORDERS = (50, 200, 500)
_MEASURED = 32
"""Rounds at the end that are looked at: several waves of a relay."""
_MEAN, _WORST = 5.0, 50.0
"""What a round may cost by one of `Penalty`: on average, when dictionaries have settled, and at worst."""
PROTOCOLS: dict[str, ConsensusProtocol] = {
    "penalty": Penalty(coupling=0.05),
    "penalty, implicit": Penalty(coupling=0.05, implicit=True),
    "hilbert": Hilbert(coupling=0.05),
    "diffusion": Diffusion(),
    "relay": Relay(),
}


class Stream:
    """Mini-batches of 26 classes with three clusters each: from a pool of samples that all agents share, or new ones."""

    def __init__(self, seed: int, pool: int | None) -> None:
        self._rng, self._pool = np.random.default_rng([1, seed]), pool

    def __iter__(self) -> Iterator[Batch]:
        means = np.random.default_rng(0).standard_normal((3 * _OUTPUTS, _DIMENSION))
        pool = None if self._pool is None else _draw(np.random.default_rng(2), means, self._pool)
        while True:
            if pool is None:
                yield _draw(self._rng, means, BATCH)
            else:
                chosen = self._rng.choice(len(pool.points), size=BATCH, replace=False)
                yield Batch(pool.points[chosen], pool.targets[chosen])


def _draw(rng: np.random.Generator, means: Floats, rows: int) -> Batch:
    cluster = rng.integers(len(means), size=rows)
    return Batch(means[cluster] + 0.6 * rng.standard_normal((rows, _DIMENSION)), cluster % _OUTPUTS)


class Cost(NamedTuple):
    """CPU seconds of a round per agent, in the last rounds and at worst; points; numbers over an edge each way and round."""

    mean: float
    worst: float
    order: int
    floats: float


def cost(protocol: ConsensusProtocol, order: int, what: str) -> Cost:
    """A network of four agents in a ring, from nothing."""
    task: dict[str, Any] = {
        "dimension": _DIMENSION,
        "outputs": _OUTPUTS,
        "kernel": Gaussian(bandwidth=2.0),
        "loss": Logistic(),
        "protocol": protocol,
    }
    if isinstance(protocol, Relay):
        agent = Agent(**task, learner=Landmarks(max_order=order))
    else:
        cap = order if what == "moving" else None
        agent = Agent(**task, learner=Gradient(step_size=3.0, compression=Komp(budget=_BUDGETS[what], max_order=cap)))
    graph, rounds = Graph.ring(_AGENTS), order // 16 + 2 * _MEASURED
    streams = [Stream(i, order if what == "steady" else None) for i in range(_AGENTS)]
    taken, sent, began = [], [], time.process_time()
    for after in simulate(agent, graph, streams):
        now = time.process_time()
        taken.append((now - began) / _AGENTS)
        sent.append(float(after.floats_sent.sum()))
        order = max(after.orders)
        if after.number == rounds:
            break
        began = time.process_time()
    floats = (sent[-1] - sent[-1 - _MEASURED]) / _MEASURED / (2 * len(graph.edges))
    return Cost(float(np.mean(taken[-_MEASURED:])), max(taken[1:]), order, floats)


def consensus() -> list[Line]:
    """A round per agent of every protocol, over one of `Penalty`; p = 16, C = 26, four agents in a ring, from nothing.

    Steady: samples from a pool of M and a budget with which nearly all of them stay. Moving: new samples in every round, and
    a cap of M that is far too small for them. The mean is over the last 32 rounds, the worst round is that of the whole run
    but the first; both are over the mean of `Penalty`.
    """
    lines = []
    with threadpool_limits(1):
        for each in PROTOCOLS.values():  # compiles
            for what in _BUDGETS:
                cost(each, _ORDERS[0], what)
        for order in _ORDERS:
            for what in _BUDGETS:
                found = {name: cost(each, order, what) for name, each in PROTOCOLS.items()}
                base = found["penalty"].mean
                lines += [_line(f"{what} {order}, {name}", taken, base, what) for name, taken in found.items()]
    return lines


def _line(label: str, taken: Cost, base: float, what: str) -> Line:
    mean, worst = taken.mean / base, taken.worst / base
    shown = (
        f"{mean:.2f}×, worst round {worst:.1f}×; {1e3 * taken.mean:.2f} ms, {taken.order} points, {taken.floats:.0f} floats"
    )
    if what == "steady":
        return Line(label, shown, f"≤ {_MEAN:g}×, worst ≤ {_WORST:g}×", mean <= _MEAN and worst <= _WORST)
    return Line(label, shown, f"worst ≤ {_WORST:g}×", worst <= _WORST)
