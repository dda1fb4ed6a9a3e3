"""Kernels: positive semidefinite functions of two points, closed under sums, products and scaling.

`k(X, Z)` returns κ for all pairs of rows, n × m, and `k.diag(X)` returns κ(x, x) only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, integer, non_negative, positive
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.distances import squared_distances
from kernelmesh.numerics.products import product
from kernelmesh.registry import register

__all__ = ["Algebra", "Gaussian", "Kernel", "Laplacian", "Linear", "Matern32", "Matern52", "Polynomial", "Product", "Scaled"]
__all__ += ["Sum", "Weighted", "check_kernel", "largest_value"]


@runtime_checkable
class Kernel(Protocol):
    """A kernel κ(x, z): symmetric, with a positive semidefinite Gram matrix for any points.

    The interface of kernels: any object with `__call__` and `diag`. `kernelmesh.testing.check_kernel` checks
    a kernel, and `register("kernel")` makes it available in files and on the command line.

    Examples
    --------
    >>> isinstance(Gaussian(bandwidth=0.5) + Linear(), Kernel)
    True
    """

    def __call__(self, left: Floats, right: Floats, /) -> Floats:
        """κ(left_i, right_j) for all pairs."""

    def diag(self, points: Floats, /) -> Floats:
        """κ(x_i, x_i)."""


class Algebra:
    """A base class that provides `k1 + k2`, `k1 * k2` and `2.0 * k`."""

    def __add__(self: Kernel, other: Kernel) -> Sum:
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum(self, other)

    def __mul__(self: Kernel, other: Kernel | float) -> Product | Scaled:
        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, int | float | np.number):
            return Scaled(self, factor=float(other))
        return NotImplemented

    __rmul__ = __mul__


@dataclass(frozen=True, kw_only=True)
class _Stationary(Algebra):
    """A kernel of the distance with κ(x, x) = 1."""

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        bandwidth = positive(type(self).__name__, "bandwidth", self.bandwidth)
        if not 1e-150 <= bandwidth <= 1e150:  # its square must be a number too
            raise InvalidArgument(type(self).__name__, "bandwidth", "be between 1e-150 and 1e150", self.bandwidth)

    def diag(self, points: Floats) -> Floats:
        return np.ones(len(points))


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Gaussian(_Stationary):
    """κ(x, z) = exp(−‖x − z‖² / (2 d²)) with bandwidth d.

    Parameters
    ----------
    bandwidth : float
        d, the distance over which functions vary.

    Examples
    --------
    >>> float(Gaussian(bandwidth=1.0)(np.array([[0.0]]), np.array([[2.0]]))[0, 0]) == math.exp(-2)
    True
    """

    def __call__(self, left: Floats, right: Floats) -> Floats:
        exponent = squared_distances(left, right, scale=-0.5 / self.bandwidth**2)
        return np.exp(exponent, out=exponent)


@register("kernel")
@dataclass(frozen=True)
class Weighted(Algebra):
    """κ(w ∘ x, w ∘ z): a kernel of points whose features are multiplied by weights.

    Parameters
    ----------
    kernel : Kernel
        κ.
    weights : tuple of float
        w, one number for each feature.

    Examples
    --------
    >>> kernel = Weighted(Gaussian(bandwidth=1.0), weights=(1.0, 0.0))
    >>> float(kernel(np.array([[0.0, 5.0]]), np.array([[0.0, -3.0]]))[0, 0])
    1.0
    """

    kernel: Kernel
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        check_kernel("Weighted", self.kernel)
        if not isinstance(self.weights, tuple):
            raise InvalidArgument("Weighted", "weights", "be a tuple", self.weights)
        for weight in self.weights:
            non_negative("Weighted", "each weight", weight)

    def __call__(self, left: Floats, right: Floats) -> Floats:
        weights = np.array(self.weights)
        return self.kernel(left * weights, right * weights)

    def diag(self, points: Floats) -> Floats:
        return self.kernel.diag(points * np.array(self.weights))


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Laplacian(_Stationary):
    """κ(x, z) = exp(−‖x − z‖ / d) with the Euclidean norm and bandwidth d.

    Parameters
    ----------
    bandwidth : float
        d, the distance over which functions vary.

    Examples
    --------
    >>> float(Laplacian(bandwidth=2.0)(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]))[0, 0]) == math.exp(-2.5)
    True
    """

    def __call__(self, left: Floats, right: Floats) -> Floats:
        return np.exp(-np.sqrt(squared_distances(left, right, scale=1.0 / self.bandwidth**2)))


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Matern32(_Stationary):
    """κ(x, z) = (1 + s) exp(−s), s = √3 ‖x − z‖ / d.

    Parameters
    ----------
    bandwidth : float
        d, the distance over which functions vary.

    Examples
    --------
    >>> float(Matern32(bandwidth=1.0)(np.array([[0.0]]), np.array([[0.0]]))[0, 0])
    1.0
    """

    def __call__(self, left: Floats, right: Floats) -> Floats:
        s = np.minimum(np.sqrt(squared_distances(left, right, scale=3.0 / self.bandwidth**2)), 1e3)  # exp(−s) is 0 there
        return (1.0 + s) * np.exp(-s)


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Matern52(_Stationary):
    """κ(x, z) = (1 + s + s²/3) exp(−s), s = √5 ‖x − z‖ / d.

    Parameters
    ----------
    bandwidth : float
        d, the distance over which functions vary.

    Examples
    --------
    >>> float(Matern52(bandwidth=1.0)(np.array([[0.0]]), np.array([[0.0]]))[0, 0])
    1.0
    """

    def __call__(self, left: Floats, right: Floats) -> Floats:
        s = np.minimum(np.sqrt(squared_distances(left, right, scale=5.0 / self.bandwidth**2)), 1e3)  # exp(−s) is 0 there
        return (1.0 + s + s * s / 3.0) * np.exp(-s)


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Polynomial(Algebra):
    """κ(x, z) = (xᵀz + b)^q with offset b ≥ 0 and degree q = 1, 2, ….

    Parameters
    ----------
    degree : int
        The degree q.
    offset : float
        The offset b.

    Examples
    --------
    >>> float(Polynomial(degree=2, offset=1.0)(np.array([[2.0]]), np.array([[3.0]]))[0, 0])
    49.0
    """

    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        integer("Polynomial", "degree", self.degree, minimum=1)
        non_negative("Polynomial", "offset", self.offset)

    def __call__(self, left: Floats, right: Floats) -> Floats:
        return _inner(left, right, self.offset) ** self.degree

    def diag(self, points: Floats) -> Floats:
        squares: Floats = np.einsum("ij,ij->i", points, points)
        return (squares + self.offset) ** self.degree


@register("kernel")
@dataclass(frozen=True, kw_only=True)
class Linear(Algebra):
    """κ(x, z) = xᵀz + b with offset b ≥ 0.

    Parameters
    ----------
    offset : float
        The offset b.

    Examples
    --------
    >>> float(Linear()(np.array([[2.0, 1.0]]), np.array([[3.0, 1.0]]))[0, 0])
    7.0
    """

    offset: float = 0.0

    def __post_init__(self) -> None:
        non_negative("Linear", "offset", self.offset)

    def __call__(self, left: Floats, right: Floats) -> Floats:
        return _inner(left, right, self.offset)

    def diag(self, points: Floats) -> Floats:
        squares: Floats = np.einsum("ij,ij->i", points, points)
        return squares + self.offset


def _inner(left: Floats, right: Floats, offset: float) -> Floats:
    if left.size == 0 or right.size == 0:
        return np.full((left.shape[0], right.shape[0]), offset)
    return product(left, right.T) + offset


@dataclass(frozen=True)
class _Pair(Algebra):
    """Two kernels."""

    first: Kernel
    second: Kernel

    def __post_init__(self) -> None:
        _check_parts(type(self).__name__, self.first, self.second)


@register("kernel")
@dataclass(frozen=True)
class Sum(_Pair):
    """κ = κ₁ + κ₂, written `k1 + k2`."""

    def __call__(self, left: Floats, right: Floats) -> Floats:
        return self.first(left, right) + self.second(left, right)

    def diag(self, points: Floats) -> Floats:
        return self.first.diag(points) + self.second.diag(points)


@register("kernel")
@dataclass(frozen=True)
class Product(_Pair):
    """κ = κ₁ κ₂, written `k1 * k2`."""

    def __call__(self, left: Floats, right: Floats) -> Floats:
        return self.first(left, right) * self.second(left, right)

    def diag(self, points: Floats) -> Floats:
        return self.first.diag(points) * self.second.diag(points)


@register("kernel")
@dataclass(frozen=True)
class Scaled(Algebra):
    """κ = a κ₁ with a > 0, written `a * k1`."""

    kernel: Kernel
    factor: float

    def __post_init__(self) -> None:
        _check_parts("Scaled", self.kernel)
        positive("Scaled", "factor", self.factor)

    def __call__(self, left: Floats, right: Floats) -> Floats:
        return self.factor * self.kernel(left, right)

    def diag(self, points: Floats) -> Floats:
        return self.factor * self.kernel.diag(points)


def _check_parts(owner: str, *parts: object) -> None:
    for part in parts:
        check_kernel(owner, part, argument="each part")


def largest_value(kernel: Kernel) -> float:
    """The largest κ(x, x) of any point; infinite if it has no limit or it is not known.

    >>> largest_value(2.0 * Gaussian()), largest_value(Linear())
    (2.0, inf)
    """
    if isinstance(kernel, _Stationary):
        return 1.0
    if isinstance(kernel, Weighted):
        return largest_value(kernel.kernel)
    if isinstance(kernel, Scaled):
        return kernel.factor * largest_value(kernel.kernel)
    return math.inf


def check_kernel(owner: str, kernel: object, *, argument: str = "kernel") -> Kernel:
    """Reject anything that is not a kernel."""
    if not isinstance(kernel, Kernel) or isinstance(kernel, type):
        raise InvalidArgument(owner, argument, "be a kernel", kernel, remedy="for example Gaussian(bandwidth=1.0)")
    return kernel
