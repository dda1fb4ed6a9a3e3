"""Streams from arrays in memory, and ways to deal rows out to agents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.checks import Floats, Ints, Told, matrix, refuse, whole
from kernelmesh.streams.role import Batch

__all__ = ["ArrayStream", "deal"]


@dataclass(frozen=True, eq=False)
class ArrayStream:
    """The rows of an array in mini-batches, in order, or in a new random order in each pass when a generator is given.

    The last mini-batch of a pass may be short.

    >>> [len(batch.points) for batch in ArrayStream(np.zeros((5, 1)), np.zeros(5), batch_size=2)]
    [2, 2, 1]
    """

    points: Floats
    targets: Any
    batch_size: int = 32
    passes: int = 1
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", matrix("ArrayStream", "points", self.points))
        object.__setattr__(self, "targets", np.asarray(self.targets))
        whole("ArrayStream", "batch_size", self.batch_size, least=1)
        whole("ArrayStream", "passes", self.passes, least=1)
        if len(self.targets) != len(self.points):
            raise refuse("ArrayStream", "targets", f"have {len(self.points)} rows", Told(f"shape {self.targets.shape}"))

    def __len__(self) -> int:
        """How many mini-batches there are."""
        return self.passes * -(-len(self.points) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.passes):
            rows = np.arange(len(self.points))
            if self.rng is not None:
                self.rng.shuffle(rows)
            for start in range(0, len(rows), self.batch_size):
                here = rows[start : start + self.batch_size]
                yield Batch(self.points[here], self.targets[here])


def deal(rows: int, *, agents: int, rng: np.random.Generator) -> list[Ints]:
    """Deal row numbers out like cards: shuffled, then as evenly as possible.

    >>> sorted(len(hand) for hand in deal(7, agents=3, rng=np.random.default_rng(0)))
    [2, 2, 3]
    """
    whole("deal", "rows", rows, least=0)
    whole("deal", "agents", agents, least=1)
    shuffled = rng.permutation(rows)
    return [shuffled[agent::agents] for agent in range(agents)]
