"""Points that agents come to share: unions, selection, and projections onto them."""

from __future__ import annotations

import math
from typing import cast
from weakref import ref

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.products import product

__all__ = ["agreed", "factor", "inverse", "lower_root", "novel", "projection", "united"]

# Added to K, as a share of κ(z, z): points that different agents propose at the same time may nearly coincide.
_NUGGET = 1e-8


def united(centers: Floats, others: Floats) -> tuple[Floats, Ints]:
    """The union of two sets of points, the first ones first, and where in it the others stand."""
    if others is centers:
        return centers, np.arange(len(others))
    if (known := _PLACES.get(centers, others)) is not None:
        return centers, known
    if len(others) <= len(centers) and np.array_equal(centers[: len(others)], others):
        return centers, np.arange(len(others))
    fresh, place = compiled.symmetric.places(np.concatenate([centers, others]).view(np.uint64), len(centers))
    if len(fresh):
        return np.concatenate([centers, others[fresh]]), place
    _PLACES.keep(centers, others, place)
    return centers, place


class _Places:
    """A cache of positions of points among others, for pairs of read-only arrays that are still alive.

    Agents that share their points hold them in different orders and look up each other's in every exchange.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[ref[Floats], ref[Floats], Ints]] = {}

    def get(self, centers: Floats, others: Floats) -> Ints | None:
        first, second, place = self._found.get((id(centers), id(others)), (None, None, None))
        return place if first is not None and first() is centers and second is not None and second() is others else None

    def keep(self, centers: Floats, others: Floats, place: Ints) -> None:
        if centers.flags.writeable or others.flags.writeable:
            return
        key = id(centers), id(others)

        def drop(_: object) -> None:
            self._found.pop(key, None)

        self._found[key] = ref(centers, drop), ref(others, drop), place


_PLACES = _Places()


def agreed(kernel: Kernel, centers: Floats, *, novelty: float, max_order: int) -> Ints:
    """Which points of a union stay: all agents with the same union keep the same ones.

    They are considered in the order of a hash of their bits. So the point that comes first of all stays wherever it has
    arrived, then the first of those that it does not make superfluous, and so on: the sets of all agents become one.
    """
    turn = np.argsort(compiled.folding.hashes(np.ascontiguousarray(centers).view(np.uint64)), kind="stable")
    # given landmarks are as they are
    tolerance = 0.0 if math.isinf(novelty) else novelty
    return compiled.symmetric.spanning(kernel(centers, centers), turn, tolerance, max_order)


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


def inverse(kernel: Kernel, centers: Floats) -> Floats:
    """(K + nugget)⁻¹."""
    gram = kernel(centers, centers)
    gram[np.diag_indices(len(gram))] += _NUGGET * kernel.diag(centers)
    if not len(gram):
        return gram
    from scipy.linalg import lapack

    lower, _ = lapack.dpotri(lower_root(gram, what="values of the kernel"), lower=1, overwrite_c=1)
    found = np.ascontiguousarray(lower.T)
    compiled.symmetric.mirror(found)
    return found


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


def projection(kernel: Kernel, centers: Floats, stays: Ints, *, inverse: Floats) -> Floats:
    """The matrix that takes weights over all points to those of the projection onto the ones that stay, whose P is given."""
    left = np.ones(len(centers), dtype=bool)
    left[stays] = False
    leaves = np.flatnonzero(left)
    onto = np.zeros((len(stays), len(centers)))
    onto[np.arange(len(stays)), stays] = 1.0
    here, there = (np.ascontiguousarray(centers[some]) for some in (stays, leaves))
    onto[:, leaves] = product(inverse, kernel(here, there))
    return onto
