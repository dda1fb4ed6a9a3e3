"""Points that agents come to share: unions, selection, and projections onto them."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.kernels import Kernel

__all__ = ["agreed", "factor", "inverse", "lifted", "lower_root", "novel", "on_grid", "united"]

# Numbers larger than this have no fractional part.
_INTEGERS = 2.0**52
# Added to K, as a share of κ(z, z): points that different agents propose at the same time may nearly coincide.
_NUGGET = 1e-8


def united(centers: Floats, *others: Floats) -> tuple[Floats, list[Ints]]:
    """The union of sets of points, the first set first, and where in it the points of each other set stand."""
    same = np.arange(len(centers))
    # agents that have come to share their points have them in one order
    data = centers.tobytes()
    are_same = [own is centers or (own.shape == centers.shape and own.tobytes() == data) for own in others]
    if all(are_same):
        return centers, [same] * len(others)
    rows = np.concatenate([centers, *[own for own, is_same in zip(others, are_same, strict=True) if not is_same]])
    fresh, place = compiled.symmetric.places(rows.view(np.uint64), len(centers))
    placed, start = [], 0
    for own, is_same in zip(others, are_same, strict=True):
        placed.append(same if is_same else place[start : start + len(own)])
        start += 0 if is_same else len(own)
    return np.concatenate([centers, rows[len(centers) :][fresh]]) if len(fresh) else centers, placed


def agreed(kernel: Kernel, centers: Floats, *, novelty: float, max_order: int, gram: Floats | None = None) -> Ints:
    """Which points of a union stay: all agents with the same union keep the same ones. `gram` is κ(Z, Z), if it is known.

    They are considered, and returned, in the order of a hash of their bits. So the point that comes first of all stays
    wherever it has arrived, then the first of those that it does not make superfluous, and so on: the sets of all agents
    become one, in one order. Given landmarks, with infinite novelty, are returned in the order in which they are.
    """
    turn = np.argsort(compiled.folding.hashes(np.ascontiguousarray(centers).view(np.uint64)), kind="stable")
    are_given = math.isinf(novelty)
    gram = kernel(centers, centers) if gram is None else gram
    stays = compiled.symmetric.spanning(gram, turn, 0.0 if are_given else novelty, max_order)
    return np.sort(stays) if are_given else stays


def novel(kernel: Kernel, points: Floats, cross: Floats, lifted: Floats, *, novelty: float, room: int) -> tuple[Ints, Floats]:
    """The points whose distance² to the span of Z and of each other exceeds ν κ(x, x), at most `room` of them.

    Given κ(X, Z) and κ(X, Z) P; with the Schur complement of those points, to which the nugget is added.
    """
    own = kernel.diag(points)
    if not math.isfinite(float(np.add.reduce(own))):
        raise FloatingPointError("κ(x, x) of the new samples is not finite")
    if room <= 0 or math.isinf(novelty):
        return np.arange(0), np.empty((0, 0))
    schur = kernel(points, points)
    nothing = np.zeros((len(points), 1))
    chosen, _ = compiled.newton.novel(schur, np.arange(len(points)), cross, lifted, own, novelty, nothing)
    chosen = chosen[:room]
    square = np.ascontiguousarray(schur[np.ix_(chosen, chosen)])
    square[np.diag_indices(len(chosen))] += _NUGGET * own[chosen]
    return chosen, square


def on_grid(points: Floats, spacing: float) -> Floats:
    """Round each coordinate to a multiple of the spacing, to the same bits on every host.

    >>> on_grid(np.array([[0.7, -0.1]]), 0.5)
    array([[0.5, 0. ]])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.round(points / spacing)
        rounded = steps * spacing
    # numbers so large that the grid is finer than they are, or that they round to infinity, stay as they are
    rounded = np.where((np.abs(steps) < _INTEGERS) & np.isfinite(rounded), rounded, points)
    return rounded + 0.0  # −0.0 becomes 0.0, because points are compared by their bits


def inverse(kernel: Kernel, centers: Floats, gram: Floats | None = None) -> Floats:
    """(K + nugget)⁻¹; it overwrites K, if it is given."""
    gram = _with_nugget(kernel, centers, kernel(centers, centers) if gram is None else gram)
    if not len(gram):
        return gram
    from scipy.linalg import lapack

    lower, _ = lapack.dpotri(lower_root(gram, what="values of the kernel"), lower=1, overwrite_c=1)
    found = np.ascontiguousarray(lower.T)
    compiled.symmetric.mirror(found)
    return found


def _with_nugget(kernel: Kernel, centers: Floats, gram: Floats) -> Floats:
    gram.reshape(-1)[:: len(gram) + 1] += _NUGGET * kernel.diag(centers)
    return gram


def lower_root(square: Floats, *, what: str = "statistics") -> Floats:
    """A lower triangular factor; a little is added to the diagonal where rounding has made the matrix indefinite.

    It overwrites the matrix, as `factor` does.
    """
    diagonal = np.diagonal(square).copy()
    largest = float(np.abs(diagonal).max(initial=0.0))
    if not math.isfinite(largest):
        raise FloatingPointError(f"the {what} are no longer finite")
    for share in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
        if share:  # the strictly lower triangle is still intact
            half = np.tril(square, -1)
            square[:] = half + half.T + np.diag(diagonal + share * largest)
        found = factor(square)
        if found is not None:
            return found
    raise FloatingPointError(f"the {what} are no longer positive definite")


def factor(square: Floats) -> Floats | None:
    """The lower triangular factor of a matrix, which it overwrites; None if the matrix is not positive definite.

    As in LAPACK, entries above the diagonal are undefined.
    """
    from scipy.linalg import lapack

    found, failed = lapack.dpotrf(square.T, lower=1, clean=0, overwrite_a=1)
    return None if failed else cast(Floats, found)


def lifted(kernel: Kernel, centers: Floats, others: Floats) -> Floats:
    """(K + nugget)⁻¹ κ(Z, X): the weights over Z of the projection of each κ(x, ·)."""
    if not len(centers):
        return np.empty((0, len(others)))
    from scipy.linalg import lapack

    root = lower_root(_with_nugget(kernel, centers, kernel(centers, centers)), what="values of the kernel")
    return np.ascontiguousarray(lapack.dpotrs(root, kernel(centers, others), lower=1)[0])
