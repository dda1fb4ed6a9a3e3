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
from kernelmesh.streams import Batch

_AGENTS, _DIMENSION, _OUTPUTS = 4, 16, 26
_FINE, _COARSE = 0.05, 0.2
"""Budgets: one with which dictionaries hold the whole pool, and one with which they hold a part of it."""
_MEASURED = 24


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
    """CPU seconds of a round per agent in the last rounds, the worst of all rounds, and the largest dictionary."""

    median: float
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
    return Cost(float(np.median(taken[-_MEASURED:])), max(taken[1:]), order)


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


def consensus() -> list[Line]:
    """A round per agent of protocols that exchange functions, over one of `Penalty` (p = 16, C = 26, four in a ring).

    Steady: samples from a pool of M and a budget with which nearly all of them stay (ε = 0.05), or about half (0.2).
    Moving: new samples in every round, and a cap of M that is far too small for them. The median is over the last 24 rounds,
    in which dictionaries have settled where they do; the worst round is that of the whole run but the first.
    """
    lines = []
    with threadpool_limits(1):
        for protocol in protocols(_COARSE).values():  # compiles
            cost(protocol, 300, budget=_COARSE, capped=False)
            cost(protocol, 200, budget=_COARSE, capped=True)
        for order in (50, 200, 500):
            for what, budget, capped in (("steady", _FINE, False), ("coarse", _COARSE, False), ("moving", _COARSE, True)):
                found = {
                    name: cost(protocol, order, budget=budget, capped=capped) for name, protocol in protocols(budget).items()
                }
                penalty = found.pop("penalty")
                shown = f"{1e3 * penalty.median:.2f} ms (M = {penalty.order})"
                lines.append(Line(f"{what} {order}, penalty", shown))
                for name, taken in found.items():
                    label, ratio = f"{what} {order}, {name} (M = {taken.order})", taken.median / penalty.median
                    lines.append(at_most(label, ratio, 5.0) if what == "steady" else Line(label, f"{ratio:.2f}×"))
                    lines.append(at_most(f"{label}: worst round", taken.worst / penalty.median, 50.0))
    return lines
