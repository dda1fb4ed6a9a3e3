"""Sums over samples: all that a second-order learner needs to know about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.products import product

__all__ = ["Sums", "added"]


@dataclass(frozen=True, eq=False)
class Sums:
    """Θ = Σ_t h_t φ_t φ_tᵀ and β = Σ_t φ_t τ_tᵀ over samples in the coordinates φ of a `Basis`, and whose samples they are.

    The coordinates are nested: of two bases over lists of points that begin alike, the longer one only adds coordinates. So
    sums over a shorter list are sums over a longer one, with zeros at the end. Θ is kept as its lower triangle, row by row,
    where those zeros are at the end too. Adding never makes Θ indefinite.

    Parameters
    ----------
    moments : ndarray of shape (M (M + 1) / 2,)
        The lower triangle of Θ.
    weights : ndarray of shape (M, C)
        β.
    samples : float
        The number of samples; less than one each if old ones count less.
    roll : int
        The members whose samples these are, one bit each. Sums with a member in common are never added.
    features : ndarray of shape (2, p) or (0, 0)
        Σ x and Σ x², until the agents have agreed on the scales of the features.
    trials : tuple of Sums
        Sums with kernels that are compared, until the agents have agreed on one.

    Examples
    --------
    >>> here = Sums.of(np.array([[1.0, 0.0]]), np.array([[2.0]]), samples=1.0, roll=0b01)
    >>> there = Sums.of(np.array([[3.0, 1.0]]), np.array([[1.0]]), samples=1.0, roll=0b10)
    >>> both = added([here, there], outputs=1)
    >>> both.square(), both.weights.ravel(), both.samples, bin(both.roll)
    (array([[10.,  3.],
           [ 3.,  1.]]), array([5., 1.]), 2.0, '0b11')
    """

    moments: Floats
    weights: Floats
    samples: float = 0.0
    roll: int = 0
    features: Floats = field(default_factory=partial(np.empty, (0, 0)))
    trials: tuple[Sums, ...] = ()

    @classmethod
    def zero(cls, outputs: int, *, roll: int = 0) -> Sums:
        """The sums of no samples over no points."""
        return cls(np.empty(0), np.empty((0, outputs)), roll=roll)

    @classmethod
    def of(cls, rows: Floats, targets: Floats, *, samples: float, roll: int = 0) -> Sums:
        """Θ = rowsᵀ rows and β = rowsᵀ targets: rows are √h φ, and targets τ/√h."""
        return cls(_lower(product(rows.T, rows)), product(rows.T, targets), samples, roll)

    @property
    def order(self) -> int:
        """M, the number of points."""
        return len(self.weights)

    @property
    def trace(self) -> float:
        """tr Θ."""
        return float(np.add.reduce(self.moments[_diagonal(self.order)]))

    def square(self) -> Floats:
        """Θ as a matrix."""
        upper = _upper(self.moments, self.order)
        return upper + np.triu(upper, 1).T

    def is_definite(self, tolerance: float) -> bool:
        """Whether Θ has no negative eigenvalues, up to this fraction of its diagonal."""
        import scipy.linalg.lapack as lapack

        order = len(self.weights)
        if not order:
            return True
        upper = _upper(self.moments, order)
        diagonal = upper.T.reshape(-1)[:: order + 1]
        diagonal *= 1.0 + tolerance
        # where the truth is 0, sums in other coordinates may be less by rounding; sums of no samples are 0 everywhere
        diagonal += max(1e-12 * float(diagonal.max()), np.finfo(float).tiny)
        return not lapack.dpotrf(upper, lower=0, clean=0, overwrite_a=1)[1]

    def times(self, factor: float) -> Sums:
        """The sums with all samples weighted by a factor."""
        return replace(
            self,
            moments=factor * self.moments,
            weights=factor * self.weights,
            samples=factor * self.samples,
            features=factor * self.features,
        )

    def within(self, across: Floats) -> Sums:
        """The sums in other coordinates P φ: P Θ Pᵀ and P β."""
        image = product(product(across, self.square()), across.T)
        return replace(self, moments=_lower(image), weights=product(across, self.weights))

    def solve(self, regularization: float) -> Floats:
        """w = (λ I + Θ)⁻¹ β, the coordinates of the function that minimizes the quadratic model of all losses.

        Rounding, or numbers of 16 bits on the wire, may have made Θ slightly indefinite: then λ is raised until it is not.
        """
        import scipy.linalg.lapack as lapack

        order = len(self.weights)
        if not order:
            return self.weights
        extra = 0.0
        for _ in range(60):
            upper = _upper(self.moments, order)
            upper.T.reshape(-1)[:: order + 1] += regularization + extra
            factor, failed = lapack.dpotrf(upper, lower=0, clean=0, overwrite_a=1)
            if not failed:
                return np.ascontiguousarray(lapack.dpotrs(factor, self.weights, lower=0)[0])
            extra = max(4.0 * extra, regularization, 1e-12 * self.trace)
        raise FloatingPointError("the sums are no longer finite")


def added(parts: Iterable[Sums], *, outputs: int) -> Sums:
    """The sum of sums over lists of points that begin alike; the caller has made sure that no member is in two of them."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    order = 0
    for part in parts:
        order = max(order, len(part.weights))
    moments, weights = np.zeros(order * (order + 1) // 2), np.zeros((order, outputs))
    samples, roll, features, trials = 0.0, 0, None, []
    for part in parts:
        moments[: len(part.moments)] += part.moments
        weights[: len(part.weights)] += part.weights
        samples += part.samples
        roll |= part.roll
        if part.features.size:
            features = part.features if features is None else features + part.features
        if part.trials:
            trials.append(part.trials)
    features = np.empty((0, 0)) if features is None else features
    return Sums(moments, weights, samples, roll, features, _added_trials(trials, outputs) if trials else ())


def _added_trials(trials: list[tuple[Sums, ...]], outputs: int) -> tuple[Sums, ...]:
    """The sums of trials; those over fewer points than others are out of date."""
    newest = max(each[0].order for each in trials)
    current = [each for each in trials if each[0].order == newest]
    return tuple(added(each, outputs=outputs) for each in zip(*current, strict=True))


def _diagonal(order: int) -> Ints:
    """Where the diagonal stands in a lower triangle."""
    return np.arange(order) * (np.arange(order) + 3) // 2


def _lower(square: Floats) -> Floats:
    """The lower triangle of a symmetric matrix, row by row."""
    import scipy.linalg.lapack as lapack

    # in LAPACK's order, by columns, these are the columns of the upper triangle
    packed: Floats = lapack.dtrttp(square.T, uplo="U")[0]
    return packed


def _upper(moments: Floats, order: int) -> Floats:
    """The matrix whose upper triangle, in LAPACK's order, has these entries; the rest is 0."""
    import scipy.linalg.lapack as lapack

    if not order:
        return np.empty((0, 0))
    upper: Floats = lapack.dtpttr(order, moments, uplo="U")[0]
    return upper
