"""Kernel expansions f(x) = Σ_m κ(d_m, x) w_m as immutable values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats, matrix
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.kernels import Kernel, check_kernel
from kernelmesh.numerics.products import product

__all__ = ["Expansion", "padded"]

# The number of rows of a Gram matrix computed at a time if only sums over it are needed.
_BLOCK = 512


@dataclass(frozen=True, eq=False)
class Expansion:
    """f(x) = Σ_m κ(d_m, x) w_m with centers d (M × p) and weights w (M × C). Its arrays are read-only copies.

    Parameters
    ----------
    kernel : Kernel
        κ.
    centers : ndarray of shape (M, p)
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
    >>> f = Expansion(Gaussian(bandwidth=1.0), np.array([[0.0]]), np.array([[2.0]]))
    >>> f(np.array([[0.0]]))
    array([[2.]])
    >>> f.norm()
    2.0
    """

    kernel: Kernel
    centers: Floats
    weights: Floats

    def __post_init__(self) -> None:
        check_kernel("Expansion", self.kernel)
        centers = matrix("Expansion", "centers", self.centers).copy()
        weights = matrix("Expansion", "weights", self.weights, rows=len(centers)).copy()
        centers.flags.writeable = weights.flags.writeable = False
        object.__setattr__(self, "centers", centers)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def trusted(cls, kernel: Kernel, centers: Floats, weights: Floats) -> Expansion:
        """An expansion over valid arrays that are not modified elsewhere; they are neither checked nor copied."""
        self = object.__new__(cls)
        centers.setflags(write=False)
        weights.setflags(write=False)
        self.__dict__.update(kernel=kernel, centers=centers, weights=weights)
        return self

    @classmethod
    def zero(cls, kernel: Kernel, *, dimension: int, outputs: int) -> Expansion:
        """The function that is 0 everywhere: an empty dictionary."""
        return cls.trusted(kernel, np.empty((0, dimension)), np.empty((0, outputs)))

    def widened(self, *, dimension: int, outputs: int) -> Expansion:
        """The same function with more features, which are 0 at all centers, and more outputs, which are 0.

        Kernels of distances or inner products do not change when points are padded with zeros.
        """
        centers, weights = padded(self.centers, dimension), padded(self.weights, outputs)
        return Expansion.trusted(self.kernel, centers, weights)

    @property
    def order(self) -> int:
        """The model order M: the number of points in the dictionary."""
        return len(self.centers)

    @property
    def dimension(self) -> int:
        """p, the length of a point."""
        return int(self.centers.shape[1])

    @property
    def outputs(self) -> int:
        """C, the number of functions over the dictionary."""
        return int(self.weights.shape[1])

    def __call__(self, points: Floats) -> Floats:
        """f at each row of `points`: n × C."""
        points = matrix("Expansion", "points", points, columns=self.dimension)
        if len(points) <= 4 * _BLOCK:
            return self.evaluate(points)
        blocks = [self.evaluate(points[start : start + _BLOCK]) for start in range(0, len(points), _BLOCK)]
        return np.concatenate(blocks)

    def evaluate(self, points: Floats) -> Floats:
        """f at points known to be valid (a C-ordered matrix of finite numbers)."""
        if len(self.centers) == 0:
            return np.zeros((len(points), self.weights.shape[1]))
        return product(self.kernel(points, self.centers), self.weights)

    def from_cross(self, cross: Floats) -> Floats:
        """f at points whose κ(X, D) is known."""
        if self.order == 0:
            return np.zeros((len(cross), self.outputs))
        return product(cross, self.weights)

    def inner(self, other: Expansion) -> float:
        """⟨f, g⟩ in the Hilbert space, summed over the outputs."""
        self._check_alike(other)
        return float((other.weights * self(other.centers)).sum())

    def norm(self) -> float:
        """‖f‖ in the Hilbert space, over all outputs jointly."""
        return math.sqrt(max(self.inner(self), 0.0))

    def distance(self, other: Expansion) -> float:
        """‖f − g‖ in the Hilbert space."""
        self._check_alike(other)
        both = Expansion.trusted(
            self.kernel, np.concatenate([self.centers, other.centers]), np.concatenate([self.weights, -other.weights])
        )
        return both.norm()

    def _check_alike(self, other: Expansion) -> None:
        if other.kernel != self.kernel or other.outputs != self.outputs:
            raise InvalidArgument("Expansion", "other", f"have kernel {self.kernel} and {self.outputs} outputs", other.kernel)


def padded(table: Floats, columns: int) -> Floats:
    """The table padded with columns of zeros."""
    out = np.zeros((len(table), columns))
    out[:, : table.shape[1]] = table
    return out
