"""The laws of kernels."""

import copy

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.testing.laws import require, require_close, require_role, require_round_trip

__all__ = ["check_kernel"]


def check_kernel(kernel: Kernel, *, dimension: int = 3) -> None:
    """Check that a kernel is symmetric, positive semidefinite, and consistent however it is called.

    Parameters
    ----------
    kernel : Kernel
        The kernel to check.
    dimension : int
        The dimension of the 30 points to check it at, from a standard normal distribution.

    Raises
    ------
    AssertionError
        Says which law is broken, and how.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> check_kernel(Gaussian(bandwidth=0.7))
    """
    owner = repr(kernel)
    require_role(kernel, Kernel, owner)
    points = np.random.default_rng(0).standard_normal((30, dimension))
    before = points.copy()
    gram = kernel(points, points)
    _check_gram(kernel, points, gram, owner)
    few, others = points[:7], points[-5:]
    block = kernel(few, others)
    pairs = [[kernel(x[None], z[None])[0, 0] for z in others] for x in few]
    require_close(pairs, block, owner, "must return the same value for a pair as for a block of points", relative=1e-9)
    require_close(kernel(points, points), gram, owner, "must return the same values when called again")
    none = points[:0]
    for left, right, shape in ((few, none, (len(few), 0)), (none, few, (0, len(few)))):
        found = kernel(left, right).shape
        require(found == shape, owner, f"must return a matrix of shape {shape} if one side is empty", found)
    found = kernel.diag(none).shape
    require(found == (0,), owner, "must have a diag of shape (0,) for no points", found)
    require(bool((points == before).all()), owner, "must not modify its points", "points that changed")
    require(copy.deepcopy(kernel) == kernel, owner, "must equal a copy of itself", "a copy that differs")
    require_round_trip("kernel", kernel, owner)


def _check_gram(kernel: Kernel, points: Floats, gram: Floats, owner: str) -> None:
    shape = (len(points), len(points))
    require(gram.shape == shape, owner, f"must return a matrix of shape {shape} for {len(points)} points", gram.shape)
    require(gram.dtype == np.float64, owner, "must return float64", gram.dtype)
    require(bool(np.isfinite(gram).all()), owner, "must be finite", "values that are not")
    size = float(np.abs(gram).max())
    require_close(gram, gram.T, owner, "must be symmetric, κ(x, z) = κ(z, x)", relative=1e-10, absolute=1e-13 * size)
    least = float(np.linalg.eigvalsh(gram).min())
    law = "must have a positive semidefinite Gram matrix"
    require(least >= -1e-10 * max(size, 1e-300) * len(gram), owner, law, f"an eigenvalue of {least:.6g}")
    require_close(kernel.diag(points), np.diagonal(gram), owner, "must have a diag that agrees with κ(x, x)", relative=1e-10)
