"""Sufficient statistics of samples over a dictionary: all that a second-order learner needs to know about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernelmesh.checks import Floats, Ints, matrix
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics import compiled
from kernelmesh.numerics.expansion import Expansion, padded
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.landmarks import inverse, united
from kernelmesh.numerics.products import product

__all__ = ["Difference", "Statistics", "Sums", "Total"]

Sums = tuple[Floats, Floats]
"""Θ and β."""
# Sums are formed in blocks of this many rows, which stay in the cache until all terms are added.
_ROWS = 128


class Difference(NamedTuple):
    """factor · (second − first), and where the points of each of the two stand in a union."""

    factor: float
    at_first: Ints
    first: Sums
    at_second: Ints
    second: Sums

    def add_to(self, entries: Floats, weights: Floats, top: int, bottom: int) -> None:
        """Add it to some of the rows of sums, and round as if the difference had been computed before."""
        ends = self.at_first, *self.first, self.at_second, *self.second
        compiled.symmetric.add_difference(entries, weights, top, bottom, *ends, self.factor)


@dataclass(frozen=True, eq=False)
class Statistics(Expansion):
    """Θ = Σ_t h_t c_t c_tᵀ and β = Σ_t c_t τ_tᵀ, where κ(x_t, ·) ≈ Σ_m c_tm κ(z_m, ·) over a dictionary Z.

    Every sample is represented by the nearest point of span(Z), with a curvature h and a target h z − ℓ'(z). So sums
    of statistics over different dictionaries are sums over the union, where rows of missing points are 0.

    Parameters
    ----------
    kernel : Kernel
        κ.
    centers : ndarray of shape (M, p)
        Z.
    weights : ndarray of shape (M, C)
        β.
    moments : ndarray of shape (M, M)
        Θ, symmetric.
    definite : bool
        Whether Θ is known to have no negative eigenvalues of a relevant size.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> here = Statistics(Gaussian(), np.array([[0.0]]), np.array([[1.0]]), np.array([[2.0]]))
    >>> there = Statistics(Gaussian(), np.array([[5.0]]), np.array([[3.0]]), np.array([[4.0]]))
    >>> here.plus([(0.5, there)]).moments
    array([[2., 0.],
           [0., 2.]])
    """

    moments: Floats
    definite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        moments = matrix("Statistics", "moments", self.moments, rows=len(self.centers), columns=len(self.centers)).copy()
        if not (moments == moments.T).all():
            raise InvalidArgument("Statistics", "moments", "be symmetric", Verbatim("a matrix that is not"))
        moments.flags.writeable = False
        object.__setattr__(self, "moments", moments)

    @classmethod
    def gathered(
        cls, kernel: Kernel, centers: Floats, weights: Floats, moments: Floats, *, definite: bool = False
    ) -> Statistics:
        """Statistics over valid arrays that are not modified elsewhere; they are neither checked nor copied."""
        self = object.__new__(cls)
        for array in (centers, weights, moments):
            array.flags.writeable = False
        self.__dict__.update(kernel=kernel, centers=centers, weights=weights, moments=moments, definite=definite)
        return self

    @classmethod
    def nothing(cls, kernel: Kernel, centers: Floats, outputs: int) -> Statistics:
        """Statistics of no samples over these points."""
        order = len(centers)
        return cls.gathered(kernel, centers, np.zeros((order, outputs)), np.zeros((order, order)), definite=True)

    def widened(self, *, dimension: int, outputs: int) -> Statistics:
        centers, weights = padded(self.centers, dimension), padded(self.weights, outputs)
        return Statistics.gathered(self.kernel, centers, weights, self.moments, definite=self.definite)

    @classmethod
    def of(cls, function: Expansion) -> Statistics:
        """Statistics as they are; any other function as statistics with Θ = 0."""
        if isinstance(function, Statistics):
            return function
        moments = np.zeros((function.order, function.order))
        return cls.gathered(function.kernel, function.centers, function.weights, moments, definite=True)

    def plus(self, terms: Iterable[tuple[float, Statistics]]) -> Statistics:
        """The sum with these multiples of other statistics, over the union of all points, starting with its own.

        It is definite if all terms are and no factor is negative.
        """
        terms = list(terms)
        centers, placed = united(self.centers, *(other.centers for _, other in terms))
        order = len(centers)
        weights, moments = np.zeros((order, self.outputs)), None
        weights[: self.order] = self.weights
        for (factor, other), place in zip(terms, placed, strict=True):
            compiled.symmetric.add_rows(weights, place, other.weights, factor)
            if moments is None and order == self.order == len(place) and np.array_equal(place, np.arange(order)):
                moments = np.empty((order, order))  # the common case, in one pass
                compiled.symmetric.weigh(moments, factor, other.moments, self.moments)
                continue
            if moments is None:
                moments = self._padded(order)
            compiled.symmetric.add_square(moments, place, other.moments, factor)
        moments = self._padded(order) if moments is None else moments
        definite = self.definite and all(factor >= 0.0 and other.definite for factor, other in terms)
        return Statistics.gathered(self.kernel, centers, weights, moments, definite=definite)

    def plus_differences(self, centers: Floats, differences: Sequence[Difference]) -> Statistics:
        """The sum with differences of other statistics, over a union of all points that starts with its own.

        It is not known to be definite.
        """
        order, old = len(centers), self.order
        weights, moments = np.zeros((order, self.outputs)), (np.empty if order == old else np.zeros)((order, order))
        weights[:old] = self.weights
        for top in range(0, order, _ROWS):
            bottom = min(top + _ROWS, order)
            known = min(bottom, old)
            moments[top:known, :known] = self.moments[top:known, :known]
            for difference in differences:
                difference.add_to(moments.reshape(-1), weights, top, bottom)
        compiled.symmetric.copy_up(moments)
        return Statistics.gathered(self.kernel, centers, weights, moments)

    def _padded(self, order: int) -> Floats:
        """A writable copy of Θ, padded with zeros for more points."""
        if order == self.order:
            return self.moments.copy()
        moments = np.zeros((order, order))
        moments[: self.order, : self.order] = self.moments
        return moments

    def known(self, *, definite: bool) -> Statistics:
        """The same statistics with `definite` set."""
        if definite == self.definite:
            return self
        return Statistics.gathered(self.kernel, self.centers, self.weights, self.moments, definite=definite)

    def reordered(self, turn: Ints) -> Statistics:
        """The same statistics with their points in another order."""
        centers, moments = np.ascontiguousarray(self.centers[turn]), compiled.symmetric.taken(self.moments, turn, turn)
        return Statistics.gathered(self.kernel, centers, self.weights[turn], moments, definite=self.definite)

    def restricted(self, stays: Ints, gram: Floats | None = None) -> tuple[Statistics, Floats]:
        """The statistics over some of the points, with samples projected onto their span; and P of these points.

        `gram` is κ(Z, Z), if it is known.
        """
        gram = self.kernel(self.centers, self.centers) if gram is None else gram
        left = np.ones(self.order, dtype=bool)
        left[stays] = False
        leaves = np.flatnonzero(left)
        centers = np.ascontiguousarray(self.centers[stays])
        held = inverse(self.kernel, centers, compiled.symmetric.taken(gram, stays, stays))
        lifted = product(held, compiled.symmetric.taken(gram, stays, leaves))
        moments = compiled.symmetric.projected(self.moments, stays, leaves, lifted)
        sums = self.weights[stays] + product(lifted, self.weights[leaves])
        return Statistics.gathered(self.kernel, centers, sums, moments, definite=self.definite), held


@dataclass(frozen=True, eq=False)
class Total:
    """A sum of statistics over M points; its arrays change as terms are added.

    Parameters
    ----------
    half : ndarray of shape (M (M + 1) / 2,)
        The lower triangle of Θ, row by row.
    weights : ndarray of shape (M, C)
        β.

    Examples
    --------
    >>> total = Total.zero(2, 1)
    >>> total.add(np.array([1]), np.array([3.0]), np.array([[5.0]]))
    >>> total.moments
    array([[0., 0.],
           [0., 3.]])
    """

    half: Floats
    weights: Floats

    @classmethod
    def zero(cls, order: int, outputs: int) -> Total:
        """The sum of nothing."""
        return cls(np.zeros(order * (order + 1) // 2), np.zeros((order, outputs)))

    @property
    def moments(self) -> Floats:
        """Θ."""
        return compiled.symmetric.whole(self.half, len(self.weights))

    def add(self, place: Ints, half: Floats, weights: Floats) -> None:
        """Add statistics given by the lower triangle of Θ, and by β; `place` says where their points stand."""
        compiled.symmetric.add_half(self.half, place, half)
        compiled.symmetric.add_rows(self.weights, place, weights, 1.0)

    def add_difference(self, difference: Difference) -> None:
        """Add factor · (second − first), and round as if the difference had been computed before."""
        difference.add_to(self.half, self.weights, 0, len(self.weights))

    def projected(self, lifted: Floats) -> Total:
        """The sum over the first points, given the weights with which they represent the others."""
        order = len(lifted)
        stays, leaves = np.arange(order), np.arange(order, len(self.weights))
        moments = compiled.symmetric.projected(self.moments, stays, leaves, lifted)
        return Total(compiled.symmetric.lower_half(moments), self.weights[:order] + product(lifted, self.weights[order:]))
