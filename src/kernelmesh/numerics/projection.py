"""Projections onto some of a function's points, by matrix products and one factorization instead of point by point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.products import product

__all__ = ["Selection", "select", "values_at_own", "without"]

# A point whose distance² to the span of others is at most this share of the largest κ(x, x) does not widen that span.
_BASIS = 1e-8
# A point whose distance² to a span is at most this share of κ(x, x) lies in it.
_DEPENDENT = 1e-12
# So many points are chosen at a time.
_BLOCK = 32
# So many rows of a matrix of kernel values are formed at a time where only a product with it is wanted.
_ROWS = 256


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
    *,
    cross: Floats | None = None,
    values: Floats | None = None,
) -> Selection | None:
    """The projection of f̃ = s f + Σ_x κ(x, ·) a_x onto D and as many of the new points X as the budget asks for.

    With G = κ(X, D), T = P Gᵀ A are the weights of the projection onto D alone, and R = κ(X, X) A − G T are the values at X
    of what is missing, whose squared norm is ⟨A, R⟩. While that is too much, the points where most is missing join, a block
    at a time and at most `most` in all: with S = κ(X, X) − G P Gᵀ and F the columns of its Cholesky factor that belong to
    the chosen points J, R loses F L⁻¹ R_J. In the end the other points Q give S_JJ⁻¹ S_JQ A_Q to the chosen ones. None when
    `most` rules out so few that looking for them is not worth it. The caller may have G already, and κ(X, X) A, the `values`.

    O(n (n + M)) values of the kernel for n new points, and O(n M) for each chosen one; greedy removal of all n of them, which
    leaves fewer points, would take O(n² (n + M)) without the help of BLAS.
    """
    cross = f.kernel(points, f.centers) if cross is None else cross
    task = _Task(f.kernel, points, coefficients, cross, lambda rows: inverse.lift(inverse.padded(rows))[:, : f.order])
    missing = task.missing(values)
    error = float((coefficients * missing).sum())
    if error > square_budget and most < len(points) <= 2 * most:
        return None
    kept, after, gained, image, error = task.solve(missing, error, square_budget, most)
    grown = shrink**2 * square_norm + float(((2.0 * shrink * f.weights + gained) * image).sum())
    return Selection(kept, after, shrink * f.weights + gained, max(grown, 0.0), error)


@dataclass(frozen=True, eq=False)
class _Task:
    """Σ_x κ(x, ·) a_x, to be projected onto D and some of the points X."""

    kernel: Kernel
    points: Floats
    coefficients: Floats
    cross: Floats
    """G = κ(X, D)."""
    lift: Callable[[Floats], Floats]
    """Rows over D times P."""
    prune: bool = False
    """Whether to go without those of the chosen points that the budget can do without."""

    @cached_property
    def onto(self) -> Floats:
        """Gᵀ A."""
        return product(self.cross.T, self.coefficients)

    @cached_property
    def gained(self) -> Floats:
        """P Gᵀ A: the weights of the projection onto D alone."""
        return np.ascontiguousarray(self.lift(np.ascontiguousarray(self.onto.T)).T)

    def missing(self, values: Floats | None = None) -> Floats:
        """What D misses, at the points: κ(X, X) A − G P Gᵀ A; the first term may be known."""
        if values is None:
            values = values_at_own(self.kernel, self.points, self.coefficients)
        return values - product(self.cross, self.gained)

    def solve(
        self, missing: Floats, error: float, square_budget: float, most: int
    ) -> tuple[Ints, Floats, Floats, Floats, float]:
        """Which points join, their weights, what the weights of D gain, K times that, and the squared error."""
        chosen, factor, lifted, near, error = self._chosen(missing, error, square_budget, most)
        own = self.coefficients[chosen]
        # the points that do not join give S_JJ⁻¹ S_JQ A_Q to those that do
        share = product(near.T, self.coefficients) - product(near[chosen].T, own)
        share -= product(lifted, self.onto - product(self.cross[chosen].T, own))
        lower = np.tril(factor[chosen])
        after = own + _solve(lower, _solve(lower, share), transposed=True)
        if self.prune and len(chosen):
            left, square = max(square_budget - error, 0.0), product(lower, lower.T)
            kept, after, _, more, _ = compiled.pruning.compress(square, after, _DEPENDENT, left, len(chosen))
            chosen, lifted, error = chosen[kept], lifted[kept], error + more
        gained = self.gained - product(lifted.T, after)
        image = self.onto - product(self.cross[chosen].T, after)
        return chosen, after, gained, image, max(error, 0.0)

    def _chosen(
        self, missing: Floats, error: float, square_budget: float, most: int
    ) -> tuple[Ints, Floats, Floats, Floats, float]:
        """The points J that join, the columns of a Cholesky factor of S that belong to them, G_J P, κ(X, J) and the error."""
        points, cross, rows_of = self.points, self.cross, self.kernel
        own, count = self.kernel.diag(points), len(points)
        chosen, factor, near = np.empty(0, dtype=np.int64), np.empty((count, 0)), np.empty((count, 0))
        lifted = np.empty((0, cross.shape[1]))
        open_ = np.ones(count, dtype=np.bool_)
        while error > square_budget and len(chosen) < most and open_.any():
            score = np.where(open_ & (own > 0.0), np.einsum("ij,ij->i", missing, missing), -1.0)
            block = np.argsort(-score, kind="stable")[: min(_BLOCK, most - len(chosen), int(open_.sum()))]
            open_[block] = False
            rows, gram = self.lift(cross[block]), rows_of(points, points[block])
            schur = gram - product(cross, rows.T) - product(factor, factor[block].T)
            turn, lower = _pivoted(schur[block], _BASIS * float(own.max()))
            block, columns = block[turn], _solve(lower, np.ascontiguousarray(schur[:, turn].T))
            missing = missing - product(columns.T, _solve(lower, missing[block]))
            error = float((self.coefficients * missing).sum())
            chosen, lifted = np.concatenate([chosen, block]), np.concatenate([lifted, rows[turn]])
            factor, near = np.concatenate([factor, columns.T], axis=1), np.concatenate([near, gram[:, turn]], axis=1)
        return chosen, factor, lifted, near, error


def values_at_own(kernel: Kernel, points: Floats, weights: Floats) -> Floats:
    """κ(X, X) W, of which every value of the kernel is formed once, a block of rows at a time."""
    out = np.zeros((len(points), weights.shape[1]))
    for start in range(0, len(points), _ROWS):
        stop = min(start + _ROWS, len(points))
        rows = kernel(points[start:stop], points[start:])
        out[start:stop] += product(rows, weights[start:])
        if stop < len(points):
            out[stop:] += product(rows[:, stop - start :].T, weights[start:stop])
    return out


def _pivoted(gram: Floats, tolerance: float) -> tuple[Ints, Floats]:
    """Points that span what all of them span, almost, and the lower Cholesky factor of their Gram matrix, which is lost."""
    from scipy.linalg import lapack

    # the transpose is in the order that LAPACK wants, and so is the factor; what is above its diagonal is not read
    factor, turn, rank, _ = lapack.dpstrf(gram.T, lower=1, tol=tolerance, overwrite_a=1)
    return turn[:rank].astype(np.int64) - 1, np.asfortranarray(factor[:rank, :rank])


def without(f: Expansion, leaving: Ints, budget: float, *, max_left: int) -> Expansion:
    """f with as few of the leaving points as the budget allows, and at most `max_left`; all other points stay.

    With L Lᵀ = K_DD for the points D that stay, points join as in `select`, a block of those where most is missing at a time,
    and then those go again that the budget can do without.

    The result depends on the function alone, not on how it came about: whoever has the same function gets the same bits.
    O(M³) with M points that stay for one factorization, and O(M (M + R)) for each of R leaving points that is kept.
    """
    stays = np.ones(f.order, dtype=np.bool_)
    stays[leaving] = False
    staying = np.flatnonzero(stays)
    basis, lower = _basis(f, staying)
    points, weights = f.centers[leaving], f.weights[leaving]

    def lift(rows: Floats) -> Floats:
        return _solve(lower, _solve(lower, np.ascontiguousarray(rows.T)), transposed=True).T

    task = _Task(f.kernel, points, weights, f.kernel(points, f.centers[basis]), lift, prune=True)
    missing = task.missing()
    error = float((weights * missing).sum())
    kept, after, gained, *_ = task.solve(missing, error, min(budget, 1e150) ** 2, max_left)
    out = f.weights.copy()
    out[basis] += gained
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
