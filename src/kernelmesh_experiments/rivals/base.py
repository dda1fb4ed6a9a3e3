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


Judge = Callable[[], Sequence[float] | Floats]
"""Gives the accuracy of every agent."""


class Record:
    """The CPU clock of a method, which its tests do not count for."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._began = time.process_time()

    def finish(self, judge: Judge, *, points: float, stored: float, traffic: float = 0.0) -> Score:
        """Stop the clock, then measure."""
        seconds = time.process_time() - self._began
        scores = judge()
        return Score(
            accuracy_mean=float(np.mean(scores)),
            accuracy_worst=float(min(scores)),
            points=points,
            stored_floats=stored,
            bytes_per_sample=traffic,
            cpu_seconds=seconds,
        )
