"""Matrix products on one BLAS.

NumPy and SciPy each bundle a BLAS with its own thread pool; when both are used in turn, their idle threads compete for
the cores, which costs milliseconds at random. Everything large goes through SciPy's, which numba uses too. SciPy's wrappers
want Fortran order: the transpose of a C-ordered matrix is one, so nothing is copied.
"""

from functools import cache
from typing import Any, cast

from kernelmesh.checks import Floats

__all__ = ["accumulate", "product"]

# Below this many multiplications NumPy's product stays on one thread and is called faster.
_SMALL = 100_000


@cache
def _blas() -> Any:
    """SciPy's BLAS, imported when it is first needed."""
    from scipy.linalg import blas

    return blas


def product(left: Floats, right: Floats) -> Floats:
    """left @ right, C-ordered; neither is copied when each is C-ordered or the transpose of one that is."""
    if left.size * right.shape[1] <= _SMALL:
        out: Floats = left @ right
        return out
    # (A B)ᵀ = Bᵀ Aᵀ, and dgemm returns Fortran order: its transpose is what we want
    a, flip_a = (right.T, 0) if right.T.flags.f_contiguous else (right, 1)
    b, flip_b = (left.T, 0) if left.T.flags.f_contiguous else (left, 1)
    return cast(Floats, _blas().dgemm(1.0, a, b, trans_a=flip_a, trans_b=flip_b).T)


def accumulate(target: Floats, left: Floats, right: Floats) -> None:
    """target += leftᵀ @ right in place; `target` is square and C-ordered, the others have one row per term."""
    result = _blas().dgemm(1.0, right.T, left.T, 1.0, target.T, trans_b=1, overwrite_c=1)
    assert result.base is target or result.ctypes.data == target.ctypes.data, "BLAS copied the target"
