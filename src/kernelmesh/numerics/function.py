"""Kernel expansions f(x) = Σ_m κ(d_m, x) w_m as immutable values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kernelmesh.checks import Floats, matrix
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.kernels import Kernel, check_kernel
from kernelmesh.numerics.products import product

__all__ = ["Function", "padded"]


@dataclass(frozen=True, eq=False)
class Function:
    """f(x) = Σ_m κ(d_m, x) w_m with points d (M × p) and weights w (M × C). Its arrays are read-only.

    The constructor neither checks nor copies; use `Function.of` for arrays from outside.

    Parameters
    ----------
    kernel : Kernel
        κ.
    points : ndarray of shape (M, p)
        The points d, the dictionary.
    weights : ndarray of shape (M, C)
        Their weights w, one column per output.

    Attributes
    ----------
    order : int
        M, the model order: the number of points in the dictionary.
    dimension : int
        p, the length of a point.
    outputs : int
        C, the number of functions over the dictionary.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> f = Function.of(Gaussian(bandwidth=1.0), np.array([[0.0]]), np.array([[2.0]]))
    >>> f(np.array([[0.0]]))
    array([[2.]])
    >>> f.norm()
    2.0
    """

    kernel: Kernel
    points: Floats
    weights: Floats

    def __post_init__(self) -> None:
        self.points.setflags(write=False)
        self.weights.setflags(write=False)

    @classmethod
    def of(cls, kernel: Kernel, points: Any, weights: Any) -> Self:
        """A function over arrays from outside, which are checked and copied."""
        check_kernel("Function", kernel)
        points = matrix("Function", "points", points).copy()
        return cls(kernel, points, matrix("Function", "weights", weights, rows=len(points)).copy())

    @classmethod
    def zero(cls, kernel: Kernel, *, dimension: int, outputs: int) -> Self:
        """The function that is 0 everywhere: an empty dictionary."""
        return cls(kernel, np.empty((0, dimension)), np.empty((0, outputs)))

    def widened(self, *, dimension: int, outputs: int) -> Function:
        """The same function with more features, which are 0 at all points, and more outputs, which are 0.

        Kernels of distances or inner products do not change when points are padded with zeros.
        """
        points, weights = padded(self.points, dimension), padded(self.weights, outputs)
        return Function(self.kernel, points, weights)

    @property
    def order(self) -> int:
        """The model order M: the number of points in the dictionary."""
        return len(self.points)

    @property
    def dimension(self) -> int:
        """p, the length of a point."""
        return int(self.points.shape[1])

    @property
    def outputs(self) -> int:
        """C, the number of functions over the dictionary."""
        return int(self.weights.shape[1])

    def __call__(self, points: Floats) -> Floats:
        """f at each row of `points`: n × C."""
        points = matrix("Function", "points", points, columns=self.dimension)
        block = 512  # rows of the Gram matrix are computed at a time, since only sums over it are needed
        if len(points) <= 4 * block:
            return self.evaluate(points)
        blocks = [self.evaluate(points[start : start + block]) for start in range(0, len(points), block)]
        return np.concatenate(blocks)

    def evaluate(self, points: Floats) -> Floats:
        """f at points known to be valid (a C-ordered matrix of finite numbers)."""
        if len(self.points) == 0:
            return np.zeros((len(points), self.weights.shape[1]))
        return product(self.kernel(points, self.points), self.weights)

    def from_cross(self, cross: Floats) -> Floats:
        """f at points whose κ(X, D) is known."""
        if not len(self.points):
            return np.zeros((len(cross), self.outputs))
        return product(cross, self.weights)

    def inner(self, other: Function) -> float:
        """⟨f, g⟩ in the Hilbert space, summed over the outputs."""
        self._check_alike(other)
        return float((other.weights * self(other.points)).sum())

    def norm(self) -> float:
        """‖f‖ in the Hilbert space, over all outputs jointly."""
        return math.sqrt(max(self.inner(self), 0.0))

    def distance(self, other: Function) -> float:
        """‖f − g‖ in the Hilbert space."""
        self._check_alike(other)
        both = Function(
            self.kernel, np.concatenate([self.points, other.points]), np.concatenate([self.weights, -other.weights])
        )
        return both.norm()

    def _check_alike(self, other: Function) -> None:
        if other.kernel != self.kernel or other.outputs != self.outputs:
            raise InvalidArgument("Function", "other", f"have kernel {self.kernel} and {self.outputs} outputs", other.kernel)


def padded(table: Floats, columns: int) -> Floats:
    """The table padded with columns of zeros."""
    out = np.zeros((len(table), columns))
    out[:, : table.shape[1]] = table
    return out
