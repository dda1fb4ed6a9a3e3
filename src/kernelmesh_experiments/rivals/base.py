"""The interface of methods for comparison."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh import ArrayStream, Graph
from kernelmesh_experiments.samples import Samples
from kernelmesh_experiments.settings import Floats

__all__ = ["Data", "Record", "Score"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Data(Samples):
    """Training and test samples, the network, and the settings that all methods share."""

    classes: int
    graph: Graph
    bandwidth: float
    batch_size: int
    epochs: int
    seed: int
    checkpoints: tuple[int, ...] = ()
    """After how many samples per agent online methods are measured, besides the end."""

    def streams(self, agents: int) -> list[ArrayStream]:
        """Every agent sees all samples in each epoch, in an order of its own."""
        return [
            ArrayStream(self.points, self.labels, batch_size=self.batch_size, passes=self.epochs, rng=own)
            for own in self.rng(1).spawn(agents)
        ]

    def rng(self, use: int) -> np.random.Generator:
        """A generator for one use, apart from all others."""
        return np.random.default_rng([self.seed, use])

    def score(self, outputs: Floats) -> float:
        """The accuracy of outputs at the held-out points."""
        return float((outputs.argmax(axis=1) == self.held_labels).mean())

    def validation(self, at_most: int) -> Data:
        """The task that methods are tuned on: a fifth of some training samples is held out, and no test sample is seen."""
        chosen = self.rng(5).permutation(len(self.points))[:at_most]
        held, kept = np.split(chosen, [max(len(chosen) // 5, 1)])
        return dataclasses.replace(
            self,
            points=self.points[kept],
            labels=self.labels[kept],
            held_points=self.points[held],
            held_labels=self.labels[held],
            checkpoints=(),
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """The accuracy and cost of a method."""

    accuracy_mean: float
    accuracy_worst: float
    points: float
    """Points, landmarks, features or atoms that one agent keeps."""
    stored_floats: float
    """What one agent keeps for predicting."""
    bytes_per_sample: float
    cpu_seconds: float
    """For learning, all agents together."""
    path: Sequence[tuple[int, float, float, float]]
    """At some numbers of samples per agent: the number, the mean accuracy, the points, the CPU seconds until then."""


Judge = Callable[[], Sequence[float] | Floats]
"""Gives the accuracy of every agent."""


class Record:
    """How a method gets on, with a CPU clock that stands still while that is measured."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._due = sorted(data.checkpoints, reverse=True)
        self._path: list[tuple[int, float, float, float]] = []
        self._not_counted = 0.0
        self._began = time.process_time()

    def take(self, samples: int, judge: Judge, points: float) -> None:
        """Measure if a checkpoint has been reached."""
        if not self._due or samples < self._due[-1]:
            return
        while self._due and samples >= self._due[-1]:
            self._due.pop()
        self._measure(samples, judge, points)

    def finish(self, samples: int, judge: Judge, *, points: float, stored: float, traffic: float = 0.0) -> Score:
        """Measure the end."""
        self._path = [line for line in self._path if line[0] < samples]
        scores = self._measure(samples, judge, points)
        return Score(
            accuracy_mean=float(np.mean(scores)),
            accuracy_worst=float(min(scores)),
            points=points,
            stored_floats=stored,
            bytes_per_sample=traffic,
            cpu_seconds=self._path[-1][-1],
            path=self._path,
        )

    def _measure(self, samples: int, judge: Judge, points: float) -> Sequence[float] | Floats:
        now = time.process_time()
        scores = judge()
        self._path.append((samples, float(np.mean(scores)), float(points), now - self._began - self._not_counted))
        self._not_counted += time.process_time() - now
        return scores
