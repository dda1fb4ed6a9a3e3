"""Functions received from neighbors, as a part of an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.projection import Selection, values_at_own

__all__ = ["Received"]

# A point whose distance² to a span is at most this share of κ(x, x) lies in it.
_DEPENDENT = 1e-12


@dataclass(frozen=True, eq=False)
class Received:
    """s = Σ_n κ(z_n, ·) w_n: the sum of functions received from neighbors, as a part of an update.

    `distinct` says that no two of the points are equal. What was found out about s and a dictionary is kept, for sums that
    act in several rounds; it follows from the rest, so that whoever has lost it finds the same.
    """

    points: Floats
    weights: Floats
    distinct: bool = False
    _notes: _Notes = field(default_factory=lambda: _Notes(), repr=False)

    @classmethod
    def of(cls, terms: Sequence[tuple[Floats, Floats]]) -> Received:
        """Σ of functions, each given by its points and weights."""
        points, weights = zip(*terms, strict=True)
        return cls(np.concatenate(points), np.concatenate(weights))

    def put_together(self) -> Received:
        """The same with equal points made one."""
        fresh, sums, _ = compiled.folding.fold(self.points.view(np.uint64), 0, self.weights)
        if len(fresh) < len(self.points):
            return Received(self.points[fresh], sums, distinct=True)
        return Received(self.points, self.weights, distinct=True)

    def with_weights(self, weights: Floats) -> Received:
        """Another function over the same points."""
        return Received(self.points, weights, self.distinct, self._notes)

    def values(self, kernel: Kernel) -> Floats:
        """s at its own points."""
        notes = self._notes
        if notes.values is None or notes.values[0] is not self.weights:
            notes.values = self.weights, values_at_own(kernel, self.points, self.weights)
        return notes.values[1]

    def settle(
        self, f: Expansion, inverse: InverseGram, square_norm: float, shrink: float, square_budget: float
    ) -> Selection | None:
        """shrink · f + s projected onto the dictionary of f and those few points of s that the budget asks for.

        `kernelmesh.numerics.projection.select` for a few points: a compiled loop takes them one by one, each time the best.
        None when P cannot resolve so fine a budget.
        """
        notes = self._notes
        if not notes.fits(f, inverse, self.weights, square_budget):
            if notes.gram is None:
                notes.gram = f.kernel(self.points, self.points)
            cross, own = f.kernel(self.points, f.centers), f.kernel.diag(f.centers)
            found = compiled.selection.project(
                inverse.buffer, own, cross, notes.gram, self.weights, _DEPENDENT, square_budget
            )
            notes.take(f, inverse, self.weights, square_budget, found)
        assert notes.found is not None
        fine, kept, after, gained, image, error = notes.found
        if not fine:
            return None
        before = shrink * f.weights
        moved = before + gained
        grown = shrink**2 * square_norm + float(np.vdot(before + moved, image))
        return Selection(kept, after, moved, max(grown, 0.0), error)


_Found = tuple[bool, Ints, Floats, Floats, Floats, float]


class _Notes:
    """The Gram matrix of the points, the newest projection (of which weights, onto which dictionary), and s at its points."""

    gram: Floats | None = None
    found: _Found | None = None
    values: tuple[Floats, Floats] | None = None
    _centers: Floats | None = None
    _weights: Floats | None = None
    _state: tuple[int, int, float] = (0, 0, 0.0)

    def fits(self, f: Expansion, inverse: InverseGram, weights: Floats, square_budget: float) -> bool:
        if self._centers is not f.centers or self._state != (inverse.generation, inverse.rebuilt, square_budget):
            return False
        return self._weights is not None and (self._weights is weights or np.array_equal(self._weights, weights))

    def take(self, f: Expansion, inverse: InverseGram, weights: Floats, square_budget: float, found: _Found) -> None:
        self._centers, self._weights, self.found = f.centers, weights, found
        self._state = inverse.generation, inverse.rebuilt, square_budget
