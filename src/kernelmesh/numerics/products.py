"""Matrix products on one BLAS.

NumPy and SciPy each bundle a BLAS with its own thread pool; when both are used in turn, their idle threads compete for
the cores, which costs milliseconds at random. Everything large goes through SciPy's, which numba uses too. SciPy's wrappers
want Fortran order: the transpose of a C-ordered matrix is one, so nothing is copied.
"""

from typing import cast

from kernelmesh.checks import Floats

__all__ = ["product", "without_square"]


def product(left: Floats, right: Floats) -> Floats:
    """left @ right, C-ordered; neither is copied when each is C-ordered or the transpose of one that is."""
    if left.size * right.shape[1] <= 100_000:  # NumPy stays on one thread and is called faster
        out: Floats = left @ right
        return out
    from scipy.linalg import blas  # imported when it is first needed

    # (A B)ᵀ = Bᵀ Aᵀ, and dgemm returns Fortran order: its transpose is what we want
    a, flip_a = (right.T, 0) if right.T.flags.f_contiguous else (right, 1)
    b, flip_b = (left.T, 0) if left.T.flags.f_contiguous else (left, 1)
    return cast(Floats, blas.dgemm(1.0, a, b, trans_a=flip_a, trans_b=flip_b).T)


def without_square(square: Floats, rows: Floats) -> Floats:
    """S − RᵀR for symmetric S; both are C-ordered."""
    if not rows.size:
        return square
    from scipy.linalg import blas

    return cast(Floats, blas.dgemm(-1.0, rows.T, rows.T, 1.0, square.T, trans_b=1).T)
