"""The inverse Gram matrix P = K⁻¹ of a dictionary, as a value that follows points which leave and enter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.products import product, without_square

__all__ = ["Exchange", "InverseGram", "Layout"]


class Layout(NamedTuple):
    """Where the points of a dictionary are after some have left and others have entered.

    Survivors keep their place, except those behind the new end, which move into the gaps (`movers` → `gaps`); the entering
    points take `slots`.
    """

    order: int
    """How many points there are then."""
    leaving: Ints
    kept: Ints
    """Which of the new points enter."""
    movers: Ints
    gaps: Ints
    slots: Ints

    @classmethod
    def of(cls, stays: NDArray[np.bool_], old: int) -> Layout:
        """After those leave that do not stay, of the old points and then of the new ones."""
        leaving, kept = np.flatnonzero(~stays[:old]), np.flatnonzero(stays[old:])
        new, order = len(kept), old + len(kept) - len(leaving)
        free = np.concatenate([leaving[: leaving.searchsorted(order)], np.arange(old, order)])
        return cls(order, leaving, kept, order + np.flatnonzero(stays[order:old]), free[new:], free[:new])

    def arrange(self, staying: Floats, entering: Floats) -> Floats:
        """Rows that belong to the old points and to the entering ones, each in its place."""
        out = np.empty((self.order, staying.shape[1]))
        shared = min(self.order, len(staying))
        out[:shared] = staying[:shared]
        out[self.gaps] = staying[self.movers]
        out[self.slots] = entering
        return out


class Exchange(NamedTuple):
    """What an exchange of points does to P and to the weights: P + YᵀY − QᵀQ over the old points, and rows for new ones."""

    gained: Floats
    """Y."""
    lost: Floats
    """Q."""
    rows: Floats
    """Of the new P, for the entering points over the old ones."""
    block: Floats
    """Of the new P, for the entering points over each other."""
    staying: Floats
    """The weights of the old points in the projection onto the points that remain."""
    arriving: Floats
    """The weights of the entering points."""


@dataclass(frozen=True, eq=False)
class InverseGram:
    """P = K⁻¹ for the M points of a dictionary.

    Parameters
    ----------
    matrix : ndarray of shape (M, M)
        P.
    changes : int
        The number of updates since P was computed from the points; each adds rounding errors.
    probed : int
        The value of `changes` when its drift was last measured.
    bound : float
        The drift beyond which it is computed again.
    """

    matrix: Floats
    changes: int = 0
    probed: int = 0
    bound: float = 1e-8

    def __post_init__(self) -> None:
        self.matrix.setflags(write=False)

    @classmethod
    def empty(cls) -> InverseGram:
        """That of no points."""
        return cls(np.empty((0, 0)))

    @classmethod
    def of(cls, kernel: Kernel, points: Floats) -> InverseGram | None:
        """P of these points; None if K is not positive definite to rounding."""
        from scipy.linalg import lapack

        if not len(points):
            return cls.empty()
        found, failed = lapack.dpotrf(kernel(points, points).T, lower=1, clean=0, overwrite_a=1)
        if not failed:
            found, failed = lapack.dpotri(found, lower=1, overwrite_c=1)
        shares = found.diagonal() * kernel.diag(points)  # κ(x, x) by the distance² to the other points
        # beyond 10¹², too many of 16 digits are lost
        if failed or not np.isfinite(shares).all() or shares.max() > 1e12:
            return None
        lower = np.tril(found)
        return cls(np.ascontiguousarray(lower + np.tril(lower, -1).T))

    @property
    def order(self) -> int:
        """M."""
        return len(self.matrix)

    def renewed(self, kernel: Kernel, points: Floats) -> InverseGram | None:
        """P recomputed from the points, if that is possible."""
        fresh = self.of(kernel, points)
        return None if fresh is None else replace(self, matrix=fresh.matrix)

    def watched(self, kernel: Kernel, points: Floats, every: int) -> tuple[InverseGram | None, bool]:
        """P, and whether it had drifted: after every so many changes one column is measured, and P recomputed if it is off.

        It is another column each time: the golden ratio visits all of them.
        """
        if self.changes - self.probed < every or not self.order:
            return self, False
        index = int(self.order * math.modf(self.changes / every * 0.6180339887498949)[0])
        probed = replace(self, probed=self.changes)
        if self.drift(kernel, points, index) <= self.bound:
            return probed, False
        fresh = probed.renewed(kernel, points)
        if fresh is None:
            return None, True
        # where the points themselves are nearly dependent no inverse is exact: ask for what a fresh one achieves
        return replace(fresh, bound=max(self.bound, 10.0 * fresh.drift(kernel, points, index))), True

    def drift(self, kernel: Kernel, points: Floats, index: int) -> float:
        """‖(P K − I) e_j‖₁ for one point j of the dictionary: how far P is from the inverse, in O(M (M + p))."""
        image = product(kernel(points[index : index + 1], points), self.matrix)[0]
        image[index] -= 1.0
        return float(np.abs(image).sum())

    def exchange(
        self, layout: Layout, *, lifted: Floats, schur: Floats, weights: Floats, shrink: float, coefficients: Floats
    ) -> Exchange:
        """Work out an exchange of points.

        Of the new points X with the coefficients A, `lifted` is κ(X, D) P and `schur` κ(X, X) − κ(X, D) P κ(D, X).
        """
        return Exchange(
            *compiled.exchange.exchange(
                self.matrix, layout.leaving, layout.kept, lifted, schur, weights, shrink, coefficients
            )
        )

    def after(self, layout: Layout, exchange: Exchange, less: Floats) -> InverseGram:
        """P after an exchange, less GᵀG with G = `less` over the points as they are then."""
        matrix = np.empty((layout.order, layout.order))
        compiled.exchange.apply(
            matrix,
            self.matrix,
            layout.movers,
            layout.gaps,
            layout.slots,
            exchange.gained,
            exchange.lost,
            exchange.rows,
            exchange.block,
            less,
        )
        return InverseGram(matrix, self.changes + 1, self.probed, self.bound)

    def less(self, terms: Floats) -> InverseGram:
        """P − GᵀG with G = `terms`."""
        return InverseGram(without_square(self.matrix, terms), self.changes + 1, self.probed, self.bound)
