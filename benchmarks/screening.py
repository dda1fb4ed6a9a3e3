"""What screening costs where nobody is bad, and what a flood of far points costs where it screens."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cases import Line, at_most
from kernelmesh import (
    Agent,
    Diffusion,
    ExactDiffusion,
    Faults,
    Gaussian,
    Graph,
    Komp,
    Landmarks,
    Logistic,
    Mixture,
    Round,
    Screening,
    SharedStatistics,
    simulate,
)
from kernelmesh.runtimes.attacks import FarPoints
from kernelmesh.streams import ArrayStream

_AGENTS, _BATCH, _ROUNDS = 20, 32, 120
_BAD, _FIRST = (2, 6, 11, 15), 61
_WARM = 33
_GRAPH = Graph.random(_AGENTS, probability=0.2, rng=np.random.default_rng(0))
_COMPRESSED: dict[str, Any] = {"step_size": 3.0, "compression": Komp(budget=0.2)}
_PROTOCOLS: dict[str, dict[str, Any]] = {
    "shared statistics": {"rule": Landmarks(), "consensus": SharedStatistics()},
    "exact diffusion": {**_COMPRESSED, "consensus": ExactDiffusion(budget=0.05)},
    "diffusion": {**_COMPRESSED, "consensus": Diffusion()},
}
_MIXTURE = Mixture.draw(rng=np.random.default_rng(1))
_HELD = _MIXTURE.sample(5000, rng=np.random.default_rng(2))


def _streams(partition: str) -> list[ArrayStream]:
    out = []
    for i in range(_AGENTS):
        points, labels = _MIXTURE.sample(4 * _BATCH * _ROUNDS, rng=np.random.default_rng([3, i]))
        seen = np.isin(labels, (i % 5, (i + 1) % 5)) if partition == "two-class" else np.ones(len(labels), dtype=bool)
        rows = np.flatnonzero(seen)[: _BATCH * _ROUNDS]
        out.append(ArrayStream(points[rows], labels[rows], batch_size=_BATCH))
    return out


def _clocked(rounds: Iterator[Round]) -> Iterator[tuple[Round, float]]:
    """Each round, and the CPU seconds that it took."""
    while True:
        began = time.process_time()
        now = next(rounds, None)
        if now is None:
            return
        yield now, time.process_time() - began


def _accuracy(now: Round, without: tuple[int, ...] = ()) -> float:
    right = [(f(_HELD[0]).argmax(axis=1) == _HELD[1]).mean() for i, f in enumerate(now.functions) if i not in without]
    return 100.0 * float(np.mean(right))


def _peace(name: str, partition: str) -> list[Line]:
    """The same network with and without screening, round by round in turns."""
    open_ = Agent(dimension=2, outputs=5, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), **_PROTOCOLS[name])
    screened = dataclasses.replace(open_, screening=Screening())
    seconds, last = {True: 0.0, False: 0.0}, {}
    for each in (open_, screened):  # long enough that everything is compiled
        for _ in zip(range(_WARM), simulate(each, _GRAPH, _streams(partition)), strict=False):
            pass
    runs = {each.screening is not None: _clocked(simulate(each, _GRAPH, _streams(partition))) for each in (open_, screened)}
    for number in range(_ROUNDS):
        for which in (True, False) if number % 2 else (False, True):
            last[which], spent = next(runs[which])
            seconds[which] += spent
    where, apart = f"{name}, {partition}", _accuracy(last[True]) - _accuracy(last[False])
    more = int(last[True].bytes_sent.sum() - last[False].bytes_sent.sum())
    return [
        at_most(f"{where}: CPU time with screening / without", seconds[True] / seconds[False], 1.2),
        at_most(f"{where}: accuracy without screening less accuracy with it", -apart, 0.3, " points"),
        Line(f"{where}: bytes more with screening", f"{more}", "0", more == 0),
    ]


class _Clocked(FarPoints):
    """Far points, and the CPU seconds that inventing them took, which are not those of honest agents."""

    spent = 0.0

    def distort(self, *args: Any) -> Any:
        began = time.process_time()
        try:
            return super().distort(*args)
        finally:
            _Clocked.spent += time.process_time() - began


def _flood(name: str) -> list[Line]:
    """Far points from four of twenty agents, next to the same network in peace, both screened, round by round."""
    agent = Agent(
        dimension=2, outputs=5, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), screening=Screening(), **_PROTOCOLS[name]
    )
    faults = Faults(byzantine={bad: [(_Clocked(), _FIRST, _ROUNDS)] for bad in _BAD}, rng=np.random.default_rng(0))
    runs = {
        bad: _clocked(simulate(agent, _GRAPH, _streams("two-class"), faults=faults if bad else None)) for bad in (False, True)
    }
    seconds, orders, now = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}, {}
    for number in range(_ROUNDS):
        for bad, rounds in runs.items():
            before = _Clocked.spent
            now[bad], spent = next(rounds)
            if number >= _FIRST:
                seconds[bad] += spent - (_Clocked.spent - before)
                mean = float(np.mean([f.order for i, f in enumerate(now[bad].functions) if i not in _BAD]))
                orders[bad] = max(orders[bad], mean)
    lost = _accuracy(now[False], _BAD) - _accuracy(now[True], _BAD)
    return [
        at_most(f"{name}: model order under a flood of far points / in peace", orders[True] / orders[False], 2.0),
        at_most(f"{name}: CPU time of a round under the flood / in peace", seconds[True] / seconds[False], 2.0),
        at_most(f"{name}: accuracy lost under the flood", lost, 3.0, " points"),
    ]


def screening() -> list[Line]:
    """20 agents, 120 rounds. In peace screening must cost next to nothing; four bad agents must not swell the others."""
    with threadpool_limits(1):
        lines = [line for name in _PROTOCOLS for partition in ("identical", "two-class") for line in _peace(name, partition)]
        return lines + [line for name in _PROTOCOLS for line in _flood(name)]
