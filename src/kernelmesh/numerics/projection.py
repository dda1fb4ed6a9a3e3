"""Projections onto some of a function's points, by matrix products and one factorization instead of point after point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.numerics.products import product

__all__ = ["Selection", "select", "without"]

# A point whose distance² to the span of others is at most this share of the largest κ(x, x) does not widen that span.
_BASIS = 1e-8
# A point whose distance² to a span is at most this share of κ(x, x) lies in it.
_DEPENDENT = 1e-12
# So many points are chosen at a time.
_BLOCK = 32


@dataclass(frozen=True, eq=False)
class Selection:
    """f̃ over a dictionary and those of the new points that it needs."""

    kept: Ints
    """Which of the new points."""
    coefficients: Floats
    """Of those."""
    weights: Floats
    """Of the dictionary's points."""
    square_norm: float
    """Of the part over the dictionary alone."""
    square_error: float
    """‖f̃ − its projection onto the dictionary and the points that are kept‖²."""


def select(
    f: Expansion,
    inverse: InverseGram,
    square_norm: float,
    points: Floats,
    coefficients: Floats,
    shrink: float,
    square_budget: float,
    most: int,
) -> Selection | None:
    """The projection of f̃ = s f + Σ_x κ(x, ·) a_x onto D and as many of the new points X as the budget asks for.

    With G = κ(X, D), T = P Gᵀ A are the weights of the projection onto D alone, and R = κ(X, X) A − G T are the values at X
    of what is missing, whose squared norm is ⟨A, R⟩. While that is too much, the points where most is missing join, a block
    at a time and at most `most` in all: with S = κ(X, X) − G P Gᵀ and F the columns of its Cholesky factor that belong to
    the chosen points J, R loses F L⁻¹ R_J. In the end the other points Q give S_JJ⁻¹ S_JQ A_Q to the chosen ones. None when
    `most` rules out so few that looking for them is not worth it.

    O(n (n + M)) values of the kernel for n new points, and O(n M) for each chosen one; greedy removal of all n of them, which
    leaves fewer points, would take O(n² (n + M)) without the help of BLAS.
    """
    cross, gram = f.kernel(points, f.centers), f.kernel(points, points)
    own = gram.diagonal().copy()
    missing = product(gram, coefficients) - product(cross, _applied(inverse, product(cross.T, coefficients)))
    error = float((coefficients * missing).sum())
    if error > square_budget and most < len(points) <= 2 * most:
        return None
    chosen, factor, lifted = np.empty(0, dtype=np.int64), np.empty((len(points), 0)), np.empty((0, f.order))
    open_ = np.ones(len(points), dtype=np.bool_)
    while error > square_budget and len(chosen) < most and open_.any():
        score = np.where(open_ & (own > 0.0), np.einsum("ij,ij->i", missing, missing), -1.0)
        block = np.argsort(-score, kind="stable")[: min(_BLOCK, most - len(chosen), int(open_.sum()))]
        open_[block] = False
        rows = inverse.lift(inverse.padded(cross[block]))[:, : f.order]
        schur = gram[:, block] - product(cross, rows.T) - product(factor, factor[block].T)
        turn, lower = _pivoted(schur[block], _BASIS * float(own.max()))
        block, columns = block[turn], _solve(lower, np.ascontiguousarray(schur[:, turn].T))
        missing -= product(columns.T, _solve(lower, missing[block]))
        error = float((coefficients * missing).sum())
        chosen, lifted = np.concatenate([chosen, block]), np.concatenate([lifted, rows[turn]])
        factor = np.concatenate([factor, columns.T], axis=1)
    rest = np.setdiff1d(np.arange(len(points)), chosen)
    onto, left = product(cross[rest].T, coefficients[rest]), coefficients[rest]
    share = product(np.ascontiguousarray(gram[np.ix_(chosen, rest)]), left) - product(lifted, onto)
    lower = np.tril(factor[chosen])
    share = _solve(lower, _solve(lower, share), transposed=True)
    gained = _applied(inverse, onto) - product(lifted.T, share)
    image = onto - product(cross[chosen].T, share)
    grown = shrink**2 * square_norm + float(((2.0 * shrink * f.weights + gained) * image).sum())
    return Selection(chosen, coefficients[chosen] + share, shrink * f.weights + gained, max(grown, 0.0), max(error, 0.0))


def _applied(inverse: InverseGram, right: Floats) -> Floats:
    """P X."""
    return np.ascontiguousarray(inverse.lift(inverse.padded(np.ascontiguousarray(right.T)))[:, : len(right)].T)


def _pivoted(gram: Floats, tolerance: float) -> tuple[Ints, Floats]:
    """Points that span what all of them span, almost, and the Cholesky factor of their Gram matrix."""
    from scipy.linalg import lapack

    factor, turn, rank, _ = lapack.dpstrf(gram, lower=1, tol=tolerance)
    return turn[:rank].astype(np.int64) - 1, np.tril(factor[:rank, :rank])


def without(f: Expansion, leaving: Ints, budget: float, *, max_left: int) -> Expansion:
    """f with as few of the leaving points as the budget allows, and at most `max_left`; all other points stay.

    With L Lᵀ = K_DD for the points D that stay and Y = L⁻¹ K_DR for those that are to leave, S = K_RR − YᵀY is what D does
    not span of R. Greedy removal in that space finds the points I that must be kept and the others N, whose weights go to
    W_I + S_II⁻¹ S_IN W_N, and what is left of them to the points that stay: W_D + L⁻ᵀ (Y W_R − Y_I W_I).

    The result depends on the function alone, not on how it came about: whoever has the same function gets the same bits.
    O(M² (M + R)) with M points that stay, in matrix products.
    """
    from scipy.linalg import lapack

    stays = np.ones(f.order, dtype=np.bool_)
    stays[leaving] = False
    staying = np.flatnonzero(stays)
    basis, lower = _basis(f, staying)
    points, weights = f.centers[leaving], f.weights[leaving]
    reduced = _solve(lower, f.kernel(f.centers[basis], points))
    schur = f.kernel(points, points) - product(reduced.T, reduced)
    kept = _needed(schur, f.kernel.diag(points), weights, budget, max_left)
    dropped = np.setdiff1d(np.arange(len(points)), kept)
    after, gone = weights[kept], product(reduced, weights)
    if len(kept):
        factor, failed = lapack.dpotrf(schur[np.ix_(kept, kept)], lower=1)
        if failed:  # they cannot be told apart to rounding: then nobody leaves
            return f
        share, _ = lapack.dpotrs(factor, product(schur[np.ix_(kept, dropped)], weights[dropped]), lower=1)
        after = after + share
        gone -= product(np.ascontiguousarray(reduced[:, kept]), np.ascontiguousarray(after))
    out = f.weights.copy()
    out[basis] += _solve(lower, gone, transposed=True)
    centers = np.concatenate([f.centers[staying], points[kept]])
    return Expansion.trusted(f.kernel, centers, np.concatenate([out[staying], after]))


def _basis(f: Expansion, staying: Ints) -> tuple[Ints, Floats]:
    if not len(staying):
        return staying, np.empty((0, 0))
    gram = f.kernel(f.centers[staying], f.centers[staying])
    turn, lower = _pivoted(gram, _BASIS * float(gram.diagonal().max()))
    return staying[turn], lower


def _solve(lower: Floats, right: Floats, *, transposed: bool = False) -> Floats:
    """L⁻¹ X, or L⁻ᵀ X."""
    from scipy.linalg import lapack

    if not len(lower) or not right.shape[1]:
        return np.zeros_like(right)
    solved, _ = lapack.dtrtrs(lower, right, lower=1, trans=1 if transposed else 0)
    return np.ascontiguousarray(solved)


def _needed(schur: Floats, own: Floats, weights: Floats, budget: float, max_left: int) -> Ints:
    """Which points greedy removal keeps, where S is their Gram matrix."""
    apart = np.flatnonzero(schur.diagonal() > _DEPENDENT * own)
    stays, *_ = compiled.pruning.choose_alone(
        schur[np.ix_(apart, apart)], weights[apart], _DEPENDENT, min(budget, 1e150) ** 2, max_left
    )
    return apart[stays]
