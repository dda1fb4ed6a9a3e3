"""Reservoir sampling: a uniform sample of a stream in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, integer, matrix
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics import compiled

__all__ = ["MAX_ROWS", "Reservoir"]

MAX_ROWS = 1 << 16
"""The maximum number of rows in a reservoir."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reservoir:
    """P(row t is kept after n rows) = min(1, size / n) for every t ≤ n: Vitter's algorithm R.

    Row t, counted from 1, is kept if t ≤ size; otherwise it takes the place of row j, drawn from 1 … t, if j ≤ size. A value:
    `add` and `spent` return the reservoir that follows. What is drawn depends on the seed and the counts alone, so whoever
    has these numbers continues with the same draws.

    Parameters
    ----------
    size : int
        The maximum number of rows.
    seed : int
        From 0 to 2⁶² − 1.
    points, targets : ndarray or None
        The rows in the reservoir; None before the first.
    seen : int
        The number of rows seen.
    drawn : int
        The number of mini-batches drawn and used.
    rows : int
        The number of rows in the latest mini-batch, which is how many are drawn.

    Examples
    --------
    >>> reservoir = Reservoir.named("north", size=4)
    >>> for start in range(0, 100, 10):
    ...     x = np.arange(start, start + 10.0)[:, None]
    ...     reservoir = reservoir.add(x, x[:, 0])
    >>> reservoir.seen, reservoir.kept
    (100, 4)
    >>> points, targets = reservoir.draw()
    >>> sorted(points[:, 0]) == sorted(reservoir.points[:, 0])
    True
    """

    size: int
    seed: int
    points: Floats | None = None
    targets: NDArray[Any] | None = None
    seen: int = 0
    drawn: int = 0
    rows: int = 0

    @classmethod
    def named(cls, name: Hashable, *, size: int) -> Reservoir:
        """An empty one whose draws are those of this name."""
        digest = hashlib.blake2b(str(name).encode(), digest_size=8).digest()
        return cls(size=size, seed=int.from_bytes(digest, "big") >> 2)

    @property
    def kept(self) -> int:
        """How many rows are there to draw from."""
        return 0 if self.points is None else len(self.points)

    def add(self, points: Floats, targets: NDArray[Any]) -> Reservoir:
        """A mini-batch has come; it has been checked."""
        places = compiled.sampling.places(self.seed, self.seen, len(points), self.size)
        stays = np.flatnonzero(places >= 0)
        seen, rows = self.seen + len(points), len(points)
        if not len(stays):
            return replace(self, seen=seen, rows=rows)
        kept = min(seen, self.size)
        return replace(
            self,
            points=_placed(self.points, kept, places[stays], points[stays]),
            targets=_placed(self.targets, kept, places[stays], targets[stays]),
            seen=seen,
            rows=rows,
        )

    def draw(self) -> tuple[Floats, NDArray[Any]]:
        """The mini-batch that is next: different rows, as many as the newest mini-batch had, or all."""
        assert self.points is not None
        assert self.targets is not None
        chosen = compiled.sampling.subset(self.seed, self.drawn, self.kept, min(self.rows, self.kept))
        return self.points[chosen], self.targets[chosen]

    def spent(self) -> Reservoir:
        """The mini-batch that `draw` gives has been used: there will be another one."""
        return replace(self, drawn=self.drawn + 1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but the seed, for a file."""
        out: dict[str, NDArray[Any]] = {"clock": np.array([self.size, self.seen, self.drawn, self.rows], dtype=np.int64)}
        if self.points is not None and self.targets is not None:
            out |= {"points": self.points, "targets": self.targets}
        return out

    def restored(self, arrays: Mapping[str, NDArray[Any]], *, dimension: int) -> Reservoir:
        """The one that `arrays` has taken apart, of the same name; targets are for the caller to check."""
        size, seen, drawn, rows = (integer("file", "reservoir.clock", n, minimum=0) for n in arrays["clock"])
        if not 0 < size <= MAX_ROWS or not min(rows, 1) == min(seen, 1) or rows > seen:
            raise InvalidArgument("file", "reservoir.clock", "be that of a reservoir", Verbatim([size, seen, drawn, rows]))
        kept = min(size, seen)
        found = replace(self, size=size, seen=seen, drawn=drawn, rows=rows, points=None, targets=None)
        if not kept:
            return found
        points = matrix("file", "reservoir.points", arrays["points"], columns=dimension, rows=kept)
        return replace(found, points=points, targets=arrays["targets"])


def _placed(before: NDArray[Any] | None, kept: int, places: NDArray[np.int64], rows: NDArray[Any]) -> NDArray[Any]:
    """A copy, grown to `kept` rows, with rows put in their places."""
    after = np.empty((kept, *rows.shape[1:]), dtype=rows.dtype)
    if before is not None:
        after[: len(before)] = before
    after[places] = rows
    return after
