"""Orthonormal coordinates of the span of a list of points that only grows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.products import product

__all__ = ["Basis"]


@dataclass(frozen=True, eq=False)
class Basis:
    """φ(x) = L⁻¹ κ(Z, x) with L Lᵀ = κ(Z, Z), so that κ(x, x') ≈ φ(x)ᵀ φ(x').

    f(x) = wᵀ φ(x) is a function in the span of the points, with ‖f‖ = ‖w‖. The first m coordinates depend on the first m
    points only: whoever has a longer list of points has all coordinates of those who have less.

    Parameters
    ----------
    kernel : Kernel
        κ.
    points : ndarray of shape (M, p)
        Z.
    root : ndarray of shape (M, M)
        L, lower triangular.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> basis = Basis.over(Gaussian(), np.array([[0.0], [3.0]]))
    >>> x = np.array([[0.0], [1.0]])
    >>> basis.extended(np.array([[1.0]])).features(x).round(3)
    array([[1.   , 0.   , 0.   ],
           [0.607, 0.129, 0.785]])
    """

    kernel: Kernel
    points: Floats
    root: Floats

    @classmethod
    def over(cls, kernel: Kernel, points: Floats) -> Basis:
        """The coordinates over a list of points."""
        empty = cls(kernel, np.empty((0, points.shape[1])), np.empty((0, 0)))
        return empty.extended(points) if len(points) else empty

    @property
    def order(self) -> int:
        """M, the number of points."""
        return len(self.points)

    def features(self, points: Floats) -> Floats:
        """φ of each row: n × M."""
        return self.lifted(self.kernel(points, self.points))

    def lifted(self, cross: Floats) -> Floats:
        """φ of points whose κ(X, Z) is known."""
        return _solved(self.root, cross)

    def extended(self, points: Floats) -> Basis:
        """The coordinates over a list with more points at the end."""
        old, new = self.order, len(points)
        across = self.features(points)
        schur = self.kernel(points, points) - product(across, across.T)
        schur[np.diag_indices(new)] += 1e-8 * self.kernel.diag(points)  # given points may nearly coincide
        root = np.zeros((old + new, old + new))
        root[:old, :old], root[old:, :old], root[old:, old:] = self.root, across, _factor(schur)
        return Basis(self.kernel, np.concatenate([self.points, points]), root)

    def novel(self, points: Floats, *, novelty: float, room: int, features: Floats | None = None) -> Ints:
        """The rows whose distance² to the span of the list and of each other exceeds ν κ(x, x); at most `room` of them."""
        if room <= 0 or math.isinf(novelty) or not len(points):
            return np.arange(0)
        own = self.kernel.diag(points)
        if not math.isfinite(float(np.add.reduce(own))):
            raise FloatingPointError("κ(x, x) of the samples is not finite")
        across = self.features(points) if features is None else features
        nothing, schur = np.zeros((len(points), 1)), self.kernel(points, points)
        chosen, _ = compiled.newton.novel(schur, np.arange(len(points)), across, across, own, novelty, nothing)
        return chosen[:room]

    def function(self, weights: Floats) -> Function:
        """f(x) = wᵀ φ(x) as a kernel expansion over the points, with the weights L⁻ᵀ w."""
        return Function(self.kernel, self.points, _solved(self.root, weights.T, transposed=True).T.copy())

    def coordinates(self, function: Function) -> Floats:
        """w of the projection of a function onto the span."""
        return product(self.features(function.points).T, function.weights)

    def across(self, other: Basis) -> Floats:
        """P, so that P φ_other are the coordinates of what φ_other stands for, projected onto this span."""
        return _solved(other.root, self.features(other.points).T)


def _solved(root: Floats, rows: Floats, *, transposed: bool = False) -> Floats:
    """L⁻¹ r, or L⁻ᵀ r, for each row r."""
    import scipy.linalg.lapack as lapack

    if not len(root) or not len(rows):
        return np.empty((len(rows), len(root)))
    # to LAPACK, which counts columns first, L is the upper triangular Lᵀ, and the rows are columns: nothing is copied
    found, failed = lapack.dtrtrs(root.T, np.ascontiguousarray(rows).T, lower=0, trans=0 if transposed else 1)
    if failed:
        raise FloatingPointError("the values of the kernel are no longer positive definite")
    solved: Floats = found.T
    return solved


def _factor(square: Floats) -> Floats:
    """L; a little is added to the diagonal where rounding has made the matrix indefinite."""
    import scipy.linalg.lapack as lapack

    scale = float(np.abs(np.diagonal(square)).max(initial=0.0))
    if not math.isfinite(float(np.add.reduce(square, axis=None))):
        raise FloatingPointError("the values of the kernel are no longer finite")
    for share in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        found, failed = lapack.dpotrf(square + share * scale * np.eye(len(square)), lower=1, clean=1)
        if not failed:
            return np.ascontiguousarray(found)
    raise FloatingPointError("the values of the kernel are no longer positive definite")
