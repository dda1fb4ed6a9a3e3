"""Streams from arrays in memory, and ways to split rows among agents."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np

from kernelmesh.checks import Floats, Ints, integer, matrix
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.streams.base import Batch

__all__ = ["ArrayStream", "StreamSlice", "deal", "starts_of"]


@dataclass(eq=False)
class ArrayStream:
    """The rows of an array in mini-batches, in order, or in a new random order in each pass if a generator is given.

    The remaining rows at the end of a pass form a mini-batch if they are at least half of one; otherwise they join the one
    before, because a step gives a few samples as much weight as a full mini-batch.

    Parameters
    ----------
    points : array-like of shape (rows, dimension)
        The points.
    targets : array-like of shape (rows,) or (rows, outputs)
        Their targets: class numbers, or values.
    batch_size : int
        Rows per mini-batch.
    passes : int
        The number of passes over the rows.
    rng : numpy.random.Generator, optional
        Shuffles the rows before each pass.

    Examples
    --------
    >>> [len(batch.points) for batch in ArrayStream(np.zeros((11, 1)), np.zeros(11), batch_size=4)]
    [4, 4, 3]
    >>> [len(batch.points) for batch in ArrayStream(np.zeros((9, 1)), np.zeros(9), batch_size=4)]
    [4, 5]
    """

    points: Floats
    targets: Any
    batch_size: int = 32
    passes: int = 1
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        self.points, self.targets = matrix("ArrayStream", "points", self.points), np.asarray(self.targets)
        integer("ArrayStream", "batch_size", self.batch_size, minimum=1)
        integer("ArrayStream", "passes", self.passes, minimum=1)
        if len(self.targets) != len(self.points):
            found = Verbatim(f"shape {self.targets.shape}")
            raise InvalidArgument("ArrayStream", "targets", f"have {len(self.points)} rows", found)

    def __len__(self) -> int:
        """The number of mini-batches."""
        return self.passes * len(self._starts())

    def _starts(self) -> list[int]:
        """The first row of each mini-batch of a pass."""
        return starts_of(len(self.points), self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.passes):
            rows = np.arange(len(self.points))
            if self.rng is not None:
                self.rng.shuffle(rows)
            edges = [*self._starts(), len(rows)]
            for start, stop in pairwise(edges):
                here = rows[start:stop]
                yield Batch(self.points[here], self.targets[here])


def starts_of(rows: int, size: int) -> list[int]:
    """The first row of each mini-batch of so many rows.

    >>> starts_of(11, 4), starts_of(9, 4)
    ([0, 4, 8], [0, 4])
    """
    starts = list(range(0, rows, size))
    return starts[:-1] if len(starts) > 1 and 2 * (rows % size) < size and rows % size else starts


@dataclass(frozen=True, eq=False)
class StreamSlice:
    """Some mini-batches of a stream: from index `start` up to, but not including, `stop`.

    >>> stream = ArrayStream(np.arange(12.0)[:, None], np.zeros(12), batch_size=4)
    >>> [batch.points[0, 0] for batch in StreamSlice(stream, 1, 3)]
    [np.float64(4.0), np.float64(8.0)]
    """

    stream: ArrayStream
    start: int
    stop: int

    def __len__(self) -> int:
        return max(min(self.stop, len(self.stream)) - self.start, 0)

    @property
    def rows(self) -> int:
        """The number of rows in these mini-batches."""
        count = len(self)
        return self._before(self.start + count) - self._before(self.start) if count else 0

    def _before(self, index: int) -> int:
        """The number of rows of the stream before a mini-batch."""
        passes, rest = divmod(index, len(self.stream) // self.stream.passes)
        return passes * len(self.stream.points) + rest * self.stream.batch_size

    def __iter__(self) -> Iterator[Batch]:
        return islice(iter(self.stream), self.start, self.stop)


def deal(rows: int, *, agents: int, rng: np.random.Generator) -> list[Ints]:
    """Split row numbers among agents: shuffled, and as evenly as possible.

    >>> sorted(len(hand) for hand in deal(7, agents=3, rng=np.random.default_rng(0)))
    [2, 2, 3]
    """
    integer("deal", "rows", rows, minimum=0)
    integer("deal", "agents", agents, minimum=1)
    shuffled = rng.permutation(rows)
    return [shuffled[agent::agents] for agent in range(agents)]
