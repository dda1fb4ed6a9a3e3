"""What a relay makes of lost, late and repeated messages, of absent and restored agents, and of a partition."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from cases import Line
from kernelmesh import Agent, Gaussian, Graph, Landmarks, Logistic, Mixture, Relay
from kernelmesh.checks import Floats, Ints

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from relay_network import Network, half

_AGENTS, _CLASSES, _BATCH, _BATCHES = 20, 5, 16, 100
_SEEDS = range(3)
_SETTLE = 100  # rounds after the last sample
_ALLOWED = 0.5  # points
_FIRST, _LENGTH = 40, 30  # the round of the first fault, and how many it lasts


class Task(NamedTuple):
    """A mixture, of which every agent sees one class."""

    neighbors: list[Any]
    batches: list[list[tuple[Floats, Ints]]]
    points: Floats
    labels: Ints

    @classmethod
    def draw(cls, seed: int) -> Task:
        rng = np.random.default_rng(seed)
        mixture = Mixture.draw(classes=_CLASSES, rng=rng)
        points, labels = mixture.sample(2 * _AGENTS * _BATCH * _BATCHES, rng=rng)
        batches = []
        for i in range(_AGENTS):
            own = np.flatnonzero(labels == i % _CLASSES)[i // _CLASSES :: _AGENTS // _CLASSES][: _BATCH * _BATCHES]
            batches.append([(points[rows], labels[rows]) for rows in np.array_split(own, _BATCHES)])
        graph = Graph.random(_AGENTS, probability=0.2, rng=rng)
        return cls(list(graph.neighbors), batches, *mixture.sample(5000, rng=rng))


def _absences(network: Network) -> None:
    """Each agent in turn, the root too, and two at a time, is away and misses what is said."""
    if network.round >= _FIRST and network.round % _LENGTH == 0:
        network.down.clear()
        if network.round < _FIRST + _LENGTH * _AGENTS // 2:
            first = 2 * ((network.round - _FIRST) // _LENGTH)
            network.kill(first)
            network.kill(first + 1)


def _restored(network: Network) -> None:
    """An agent goes on from the state that it had so many rounds earlier."""
    if network.round == _FIRST:
        network.kept = network.snapshot(3)
    if network.round == _FIRST + _LENGTH:
        network.restore_old(3, network.kept)


def _partition(network: Network) -> None:
    """Two halves do not hear each other."""
    if network.round == _FIRST:
        network.cut(half(network.neighbors))
    if network.round == _FIRST + _LENGTH:
        network.cut(set())


def _nothing(network: Network) -> None:
    """Nothing happens."""


_CALM = "calm"
_FAULTS: dict[str, tuple[dict[str, Any], Callable[[Network], None]]] = {
    _CALM: ({}, _nothing),
    **{f"{loss:.0%} of the messages lost": ({"loss": loss}, _nothing) for loss in (0.1, 0.3, 0.6)},
    "messages up to 10 rounds late": ({"delay": 10}, _nothing),
    "half of the messages twice, up to 10 rounds late": ({"delay": 10, "duplication": 0.5}, _nothing),
    f"each agent away for {_LENGTH} rounds, two at a time": ({}, _absences),
    f"an agent restored from a state {_LENGTH} rounds older": ({}, _restored),
    f"two halves apart for {_LENGTH} rounds": ({}, _partition),
}


class Reached(NamedTuple):
    """The mean and the worst agent's accuracy, the worst one's at the last sample, and how many rounds it took to learn."""

    mean: float
    worst: float
    at_last_sample: float
    rounds: int


def _run(task: Task, options: dict[str, Any], happens: Callable[[Network], None]) -> Reached:
    agent = Agent(
        dimension=2, outputs=_CLASSES, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), learner=Landmarks(), protocol=Relay()
    )
    network = Network(agent, task.neighbors, task.batches, seed=1, **options)
    while network.down or not network.streams_ended:
        happens(network)
        network.step()
    rounds, early = network.round, min(network.accuracy(task.points, task.labels).values())
    network.run(_SETTLE)
    found = list(network.accuracy(task.points, task.labels).values())
    return Reached(float(np.mean(found)), min(found), early, rounds)


def faults() -> list[Line]:
    """Twenty agents with one class of five each, 100 mini-batches of 16, seeds 0 to 2: accuracy in %, disturbed and calm.

    What counts is the worst agent 100 rounds after the last sample, while messages go on to be lost, late or repeated.
    """
    tasks = [Task.draw(seed) for seed in _SEEDS]
    lines, calm = [], np.zeros(len(tasks))
    with threadpool_limits(1):
        for what, (options, happens) in _FAULTS.items():
            runs = [_run(task, options, happens) for task in tasks]
            mean, worst, early, rounds = np.mean(runs, axis=0)
            shown = f"worst agent {worst:.2f}, mean {mean:.2f}; worst at the last sample {early:.2f}, in round {rounds:.0f}"
            if what == _CALM:
                calm = np.array([run.worst for run in runs])
                lines.append(Line(what, shown))
            else:
                behind = float(np.mean(calm - [run.worst for run in runs]))
                target = f"within {_ALLOWED:g} points of calm"
                lines.append(Line(what, f"{behind:+.2f} behind calm; {shown}", target, abs(behind) <= _ALLOWED))
            print(lines[-1].what, lines[-1].shown, file=sys.stderr, flush=True)
    return lines
