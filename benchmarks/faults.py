"""What a network with shared points makes of lost messages, a restored agent and a partition, next to one without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cases import Line, at_most
from kernelmesh import (
    Agent,
    Averaged,
    Expansion,
    Faults,
    Gaussian,
    Graph,
    Landmarks,
    Logistic,
    Mixture,
    Round,
    SharedDictionary,
    SharedDiffusion,
    SharedStatistics,
    State,
    simulate,
)
from kernelmesh.checks import Floats
from kernelmesh.streams import ArrayStream

_AGENTS, _CLASSES, _BATCH, _ROUNDS, _IDLE = 10, 5, 16, 300, 20
_KILLED, _LATEST, _KEPT = 3, 150, 110  # an agent, the round after which it is killed, and the one that its file is from
_SPLIT = range(80, 180)
_GRAPH = Graph.random(_AGENTS, probability=0.2, rng=np.random.default_rng(0))

_PROTOCOLS: dict[str, dict[str, Any]] = {
    "shared statistics": {"rule": Landmarks(), "consensus": SharedStatistics()},
    "shared diffusion": {
        "rule": Averaged(),
        "step_size": 10.0,
        "compression": SharedDictionary(),
        "consensus": SharedDiffusion(),
    },
}


class Task:
    """A mixture, of which every agent sees one class."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        mixture = Mixture.draw(classes=_CLASSES, rng=rng)
        self.points, self.labels = mixture.sample(2 * _AGENTS * _BATCH * _ROUNDS, rng=rng)
        self.held_points, self.held_labels = mixture.sample(5000, rng=rng)

    def streams(self, first: int, last: int, late: dict[int, int] | None = None) -> list[ArrayStream]:
        """Mini-batches `first` to `last` of every agent; those of agents that are `late` begin so many earlier."""
        out = []
        for i in range(_AGENTS):
            rows = np.flatnonzero(self.labels == i % _CLASSES)[i // _CLASSES :: _AGENTS // _CLASSES]
            back = _BATCH * (late or {}).get(i, 0)
            mine = rows[_BATCH * first - back : _BATCH * last - back]
            out.append(ArrayStream(self.points[mine], self.labels[mine], batch_size=_BATCH))
        return out

    def accuracies(self, functions: Sequence[Expansion]) -> Floats:
        """Of every agent, in percent."""
        return np.array([100.0 * (f(self.held_points).argmax(axis=1) == self.held_labels).mean() for f in functions])


def _ended(rounds: Iterator[Round]) -> Round:
    *_, last = rounds
    return last


def undisturbed(agent: Agent, task: Task) -> Round:
    return _ended(simulate(agent, _GRAPH, task.streams(0, _ROUNDS)))


def lossy(agent: Agent, task: Task) -> Round:
    faults = Faults(drop=0.3, rng=np.random.default_rng(1))
    return _ended(simulate(agent, _GRAPH, task.streams(0, _ROUNDS), faults=faults))


def restored(agent: Agent, task: Task) -> Round:
    """An agent goes on from an older state, and from where its stream was then."""
    kept: State | None = None
    for now in simulate(agent, _GRAPH, task.streams(0, _LATEST)):
        if now.number == _KEPT:
            kept = now.states[_KILLED].copy()
    assert kept is not None
    states = [kept if i == _KILLED else state for i, state in enumerate(now.states)]
    streams = task.streams(_LATEST, _ROUNDS, late={_KILLED: _LATEST - _KEPT})
    return _ended(simulate(agent, _GRAPH, streams, states=states))


def parted(agent: Agent, task: Task) -> Round:
    """Two halves that do not hear each other for a hundred rounds."""
    halves = [(i, j) for i, j in _GRAPH.edges if (i < _AGENTS // 2) == (j < _AGENTS // 2)]
    faults = Faults(edges=lambda number: halves if number in _SPLIT else _GRAPH.edges)
    return _ended(simulate(agent, _GRAPH, task.streams(0, _ROUNDS), faults=faults))


_DISTURBED: dict[str, Callable[[Agent, Task], Round]] = {
    "30 % of the messages lost": lossy,
    "an agent killed and restored from a state 40 rounds older": restored,
    "a partition of 100 rounds": parted,
}


def settled(agent: Agent, last: Round) -> Round:
    """Some more rounds in which nobody sees anything new, so that what was proposed or offered last arrives."""
    streams = [
        ArrayStream(np.tile(f.centers[:1], (_IDLE, 1)), np.full(_IDLE, i % _CLASSES), batch_size=1)
        for i, f in enumerate(last.functions)
    ]
    return _ended(simulate(agent, _GRAPH, streams, states=last.states))


def dictionaries(functions: Sequence[Expansion]) -> int:
    """How many different sets of points there are."""
    return len({frozenset(map(bytes, f.centers)) for f in functions})


def imbalance(states: Sequence[State]) -> float:
    """max |Σ_i Σ_j λ_ij| / max |λ_ij|: 0 where what has left one agent has arrived at another."""
    duals = [edge.dual for state in states for edge in state.edges.values() if edge.dual is not None]
    points, place = np.unique(np.concatenate([dual.centers for dual in duals]), axis=0, return_inverse=True)
    total = np.zeros((len(points), duals[0].outputs))
    np.add.at(total, place.ravel(), np.concatenate([dual.weights for dual in duals]))
    return float(np.abs(total).max() / max(np.abs(dual.weights).max() for dual in duals))


def faults() -> list[Line]:
    """Ten agents with one class each, 300 mini-batches of 16, seeds 0 and 1: accuracy in %, disturbed and not."""
    lines = []
    for name, learning in _PROTOCOLS.items():
        agent = Agent(dimension=2, outputs=_CLASSES, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), **learning)
        found: dict[str, list[tuple[float, float]]] = {}
        sets, largest = 0, 0.0
        for seed in range(2):
            task = Task(seed)
            with threadpool_limits(1):
                for what, run in {"undisturbed": undisturbed, **_DISTURBED}.items():
                    last = run(agent, task)
                    right = task.accuracies(last.functions)
                    found.setdefault(what, []).append((float(right.mean()), float(right.min())))
                    calm = settled(agent, last)
                    sets = max(sets, dictionaries(calm.functions))
                    largest = max(largest, imbalance(calm.states))
        means = {what: np.mean(runs, axis=0) for what, runs in found.items()}
        for what, (mean, worst) in means.items():
            lines.append(Line(f"{name}: {what}", f"{mean:.2f} (worst {worst:.2f})"))
        for what in _DISTURBED:
            gap = float(np.abs(means[what] - means["undisturbed"]).max())
            lines.append(at_most(f"{name}: {what}, mean and worst agent apart from undisturbed", gap, 0.5, " points"))
        lines.append(at_most(f"{name}: different dictionaries in the end", sets, 1, ""))
        lines.append(
            Line(f"{name}: sum of all flows or duals over the largest", f"{largest:.1e}", "≤ 1e-12", largest <= 1e-12)
        )
    return lines
