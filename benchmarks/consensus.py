"""What a round of the protocols that exchange functions costs, compared with the paper's penalty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from cases import BATCH, Line, at_most
from kernelmesh import (
    Agent,
    Consensus,
    Diffusion,
    ExactDiffusion,
    Gaussian,
    Graph,
    Hilbert,
    Komp,
    Landmarks,
    Logistic,
    Penalty,
    Proximal,
    SharedStatistics,
    Symmetric,
    simulate,
)
from kernelmesh.checks import Floats
from kernelmesh.experiments.heterogeneous import Config
from kernelmesh.experiments.mixture import Task
from kernelmesh.streams import Batch

_AGENTS, _DIMENSION, _OUTPUTS = 4, 16, 26
_FINE, _COARSE = 0.05, 0.2
"""Budgets: one with which dictionaries hold the whole pool, and one with which they hold a part of it."""
_MEASURED = 30
"""Rounds at the end that are looked at: as many as there are in several periods of every usual k."""


class Stream:
    """Mini-batches of 26 classes with three clusters each: from a pool of samples that all agents share, or new ones."""

    def __init__(self, seed: int, rounds: int, pool: int | None) -> None:
        self._rng, self._rounds, self._pool = np.random.default_rng([1, seed]), rounds, pool

    def __len__(self) -> int:
        return self._rounds

    def __iter__(self) -> Iterator[Batch]:
        means = np.random.default_rng(0).standard_normal((3 * _OUTPUTS, _DIMENSION))
        pool = None if self._pool is None else _draw(np.random.default_rng(2), means, self._pool)
        for _ in range(self._rounds):
            if pool is None:
                yield _draw(self._rng, means, BATCH)
            else:
                chosen = self._rng.choice(len(pool.points), size=BATCH, replace=False)
                yield Batch(pool.points[chosen], pool.targets[chosen])


def _draw(rng: np.random.Generator, means: Floats, rows: int) -> Batch:
    cluster = rng.integers(len(means), size=rows)
    return Batch(means[cluster] + 0.6 * rng.standard_normal((rows, _DIMENSION)), cluster % _OUTPUTS)


class Cost(NamedTuple):
    """CPU seconds of a round per agent: in the last rounds, in those of them that had an exchange, and at worst.

    Also the points of the largest dictionary.
    """

    mean: float
    exchange: float
    worst: float
    order: int


def cost(consensus: Consensus, order: int, *, budget: float, capped: bool) -> Cost:
    """A network of four agents in a ring, from nothing.

    With a pool of `order` samples dictionaries grow until the budget is met, and then hardly change. With new
    samples in every round and a cap, which is far too small for them, a large part of every dictionary is exchanged in every
    round for ever.
    """
    task: dict[str, Any] = {
        "dimension": _DIMENSION,
        "outputs": _OUTPUTS,
        "kernel": Gaussian(bandwidth=2.0),
        "loss": Logistic(),
    }
    if consensus.exchange.statistics:
        agent = Agent(**task, rule=Landmarks(max_order=order), consensus=consensus)
    else:
        compression = Komp(budget=budget, max_order=order if capped else None)
        agent = Agent(**task, step_size=3.0, compression=compression, consensus=consensus)
    rounds = order // 16 + 2 * _MEASURED
    streams = [Stream(i, rounds, None if capped else order) for i in range(_AGENTS)]
    taken, began = [], time.process_time()
    order = 0
    for after in simulate(agent, Graph.ring(_AGENTS), streams):
        now = time.process_time()
        taken.append((now - began) / _AGENTS)
        began, order = now, max(f.order for f in after.functions)
    last = np.array(taken[-_MEASURED:])
    numbers = np.arange(len(taken) - len(last), len(taken)) + 1
    talked = [consensus.exchanges(int(number)) for number in numbers]
    return Cost(float(last.mean()), float(np.median(last[talked])), max(taken[1:]), order)


def protocols(budget: float) -> dict[str, Consensus]:
    return {
        "penalty": Penalty(coupling=0.05),
        "proximal": Proximal(coupling=0.05),
        "symmetric": Symmetric(coupling=0.05),
        "hilbert": Hilbert(coupling=0.05),
        "diffusion": Diffusion(),
        "exact diffusion": ExactDiffusion(budget=budget / 4, every=ExactDiffusion.usual_every),
        "exact diffusion, k = 1": ExactDiffusion(budget=budget / 4),
        "shared statistics": SharedStatistics(),
    }


def paper() -> list[Line]:
    """Exact diffusion at its usual k on the paper's network of twenty agents, over `Penalty`: CPU time of whole runs."""
    lines = []
    for partition, passes in (("identical", 1), ("one-class", 5)):
        every = {"penalty": 1, "exact-diffusion": ExactDiffusion.usual_every}
        configs = {
            name: Config(protocol=name, rule="gradient", every=k, partition=partition, passes=passes)
            for name, k in every.items()
        }
        turns = [{name: _seconds(config) for name, config in configs.items()} for _ in range(6)][1:]  # the first compiles
        ratio = float(np.median([turn["exact-diffusion"] / turn["penalty"] for turn in turns]))
        lines.append(at_most(f"paper's network, {partition}, exact diffusion, k = {every['exact-diffusion']}", ratio, 2.0))
    return lines


def _seconds(config: Config) -> float:
    network = Task.draw(config).network()
    began = time.process_time()
    for _ in simulate(network.agent, network.graph, network.streams):
        pass
    return time.process_time() - began


def consensus() -> list[Line]:
    """A round per agent of every protocol, over one of `Penalty` (p = 16, C = 26, four in a ring); the paper's network first.

    Steady: samples from a pool of M and a budget with which nearly all of them stay (ε = 0.05), or about half (0.2).
    Moving: new samples in every round, and a cap of M that is far too small for them. The mean is over the last 30 rounds,
    in which dictionaries have settled where they do, and so is the median of rounds with an exchange; the worst round is that
    of the whole run but the first. All three are over the mean of `Penalty`.
    """
    lines = []
    with threadpool_limits(1):
        lines += paper()
        for protocol in protocols(_COARSE).values():  # compiles
            cost(protocol, 300, budget=_COARSE, capped=False)
            cost(protocol, 200, budget=_COARSE, capped=True)
        for order in (50, 200, 500):
            for what, budget, capped in (("steady", _FINE, False), ("coarse", _COARSE, False), ("moving", _COARSE, True)):
                found = {
                    name: cost(protocol, order, budget=budget, capped=capped) for name, protocol in protocols(budget).items()
                }
                penalty = found.pop("penalty")
                shown = f"{1e3 * penalty.mean:.2f} ms (M = {penalty.order})"
                lines.append(Line(f"{what} {order}, penalty", shown))
                for name, taken in found.items():
                    label, ratio = f"{what} {order}, {name} (M = {taken.order})", taken.mean / penalty.mean
                    lines.append(at_most(label, ratio, 5.0) if what == "steady" else Line(label, f"{ratio:.2f}×"))
                    lines.append(Line(f"{label}: exchange", f"{taken.exchange / penalty.mean:.2f}×"))
                    lines.append(at_most(f"{label}: worst round", taken.worst / penalty.mean, 50.0))
    return lines
