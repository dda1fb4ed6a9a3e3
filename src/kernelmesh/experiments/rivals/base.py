"""What every method gets and what it must give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh import ArrayStream, Graph
from kernelmesh.checks import Floats
from kernelmesh.experiments.samples import Samples

__all__ = ["Data", "Score"]


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


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a method reached and what it cost."""

    accuracy_mean: float
    accuracy_worst: float
    stored_floats: float
    """What one agent keeps for predicting."""
    bytes_per_sample: float

    @classmethod
    def of(cls, accuracies: Sequence[float] | Floats, *, stored: float, traffic: float = 0.0) -> Score:
        """From the accuracy of every agent."""
        return cls(
            accuracy_mean=float(np.mean(accuracies)),
            accuracy_worst=float(min(accuracies)),
            stored_floats=stored,
            bytes_per_sample=traffic,
        )
