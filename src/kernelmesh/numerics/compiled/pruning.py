"""Greedy choice of the points that a function keeps.

The inverse Gram matrix of all candidates is P̃ = P ⊕ 0 + VᵀV − UᵀU with U empty at first. Removing j adds ‖W_j‖² / P̃_jj to
the squared error and subtracts u uᵀ, u = P̃_:j / √P̃_jj, from P̃; only its diagonal and the columns of removed points are ever
computed. As long as only new points are removed, u becomes a row of V by a rotation and is dropped rather than subtracted:
for points that nearly coincide, P̃ is huge, and subtracting would cancel all digits. If an old point is removed while P̃ is
huge, P is first merged into V by its Cholesky factor.
"""

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.jit import Flags, Matrix, OwnMatrix, Vector, compile_on_first_call, compiled
from kernelmesh.numerics.compiled.linear import (
    cholesky,
    doubled,
    pivoted_cholesky,
    refit,
    solve,
    solve_transposed,
    subtract_rows,
    transposed,
    triangle,
)

__all__ = ["choose"]


@compiled()
def _growth(gram: Floats, cross: Floats, weights: Floats, coefficients: Floats, shrink: float) -> float:
    batch, outputs = coefficients.shape
    moved = np.dot(gram, coefficients)
    total = 0.0
    for i in range(batch):
        for c in range(outputs):
            total += coefficients[i, c] * moved[i, c]
    if weights.shape[0] > 0:
        here = np.dot(cross, weights)
        for i in range(batch):
            for c in range(outputs):
                total += 2.0 * shrink * coefficients[i, c] * here[i, c]
    return total


@compiled(fastmath={"contract", "reassoc"})
def _reflect(factor: Floats, rank: int, j: int, width: int, mirror: Floats, image: Floats) -> None:
    """Rotate the rows of V so that column j is zero except in the last row; VᵀV does not change.

    A Householder reflection of the rows, starting at the first one with a nonzero entry in column j (V is triangular over the
    new points). Its rounding errors are relative to the entries of V, the square roots of those of P̃.
    """
    first = 0
    while first < rank - 1 and factor[first, j] == 0.0:
        first += 1
    if first == rank - 1:
        return
    size = 0.0
    for a in range(first, rank - 1):
        mirror[a] = factor[a, j]
        size += mirror[a] * mirror[a]
    last = factor[rank - 1, j]
    length = np.sqrt(size + last * last)
    mirror[rank - 1] = last + length if last >= 0.0 else last - length
    scale = -2.0 / (size + mirror[rank - 1] * mirror[rank - 1])
    for i in range(width):
        image[i] = 0.0
    subtract_rows(image, factor, mirror, first, rank, width)  # image = −mirrorᵀ V
    a = first
    while a + 4 <= rank:
        m0, m1, m2, m3 = scale * mirror[a], scale * mirror[a + 1], scale * mirror[a + 2], scale * mirror[a + 3]
        for i in range(width):
            factor[a, i] -= m0 * image[i]
            factor[a + 1, i] -= m1 * image[i]
            factor[a + 2, i] -= m2 * image[i]
            factor[a + 3, i] -= m3 * image[i]
        a += 4
    while a < rank:
        m0 = scale * mirror[a]
        for i in range(width):
            factor[a, i] -= m0 * image[i]
        a += 1


@compiled()
def _join(inverse: Floats, order: int, who: Ints, width: int, factor: Floats, rank: int) -> Floats:
    """V with the rows of R on top, where RᵀR = P, so that P̃ = VᵀV."""
    old = np.flatnonzero(who[:width] < order)
    count = old.size
    square = inverse[who[old]][:, who[old]]
    root = cholesky(square)
    out = np.zeros((count + rank, width))
    for a in range(count):
        for b in range(a, count):
            out[a, old[b]] = root[b, a]
    for a in range(rank):
        for i in range(width):
            out[count + a, i] = factor[a, i]
    return out


@compiled(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
def _drop(
    inverse: Floats,
    order: int,
    who: Ints,
    left: int,
    factor: Floats,
    rank: int,
    diagonal: Floats,
    floor: Floats,
    column: Floats,
) -> float:
    """Drop the last row of V, whose column `left` is zero elsewhere; u goes to `column`. Returns the row's entry there.

    The diagonal of P̃ is reduced by u², or recomputed if too few digits would be left. `order` is 0 once P is in V.
    """
    digits = 1.0
    for i in range(left):
        column[i] = factor[rank - 1, i]
        fresh = diagonal[i] - column[i] * column[i]
        digits = min(digits, fresh / diagonal[i])
        diagonal[i] = max(fresh, floor[i])
    if digits < 1e-4:
        for i in range(left):
            diagonal[i] = inverse[who[i], who[i]] if who[i] < order else 0.0
        for a in range(rank - 1):
            for i in range(left):
                diagonal[i] += factor[a, i] * factor[a, i]
        for i in range(left):
            diagonal[i] = max(diagonal[i], floor[i])
    return float(factor[rank - 1, left])


@compiled(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
def _subtract(
    inverse: Floats,
    order: int,
    who: Ints,
    left: int,
    factor: Floats,
    rank: int,
    directions: Floats,
    gone: int,
    diagonal: Floats,
    floor: Floats,
    column: Floats,
    here: Floats,
) -> float:
    """Form u = P̃_:j / √P̃_jj for the point j at `left` in `column`, and add it to the rows of U. Returns √P̃_jj."""
    if who[left] < order:
        row = inverse[who[left]]
        for i in range(left):
            column[i] = row[who[i]] if who[i] < order else 0.0
    else:
        for i in range(left):
            column[i] = 0.0
    for a in range(rank):
        here[a] = -factor[a, left]
    subtract_rows(column, factor, here, 0, rank, left)
    for a in range(gone):
        here[a] = directions[a, left]
    subtract_rows(column, directions, here, 0, gone, left)
    root = np.sqrt(diagonal[left])
    for i in range(left):
        column[i] /= root
        directions[gone, i] = column[i]
        diagonal[i] = max(diagonal[i] - column[i] * column[i], floor[i])
    return float(root)


@compiled()
def _largest(diagonal: Floats, floor: Floats, width: int) -> float:
    """The largest P̃_ii κ(d_i, d_i), which measures how close points are to each other."""
    out = 0.0
    for i in range(width):
        out = max(out, diagonal[i] / floor[i])
    return out


# Sums and minima may be reordered, and no cost is NaN, so that the loops over all candidates use vector registers.
@compiled(inline="always")
def _cheapest(power: Floats, diagonal: Floats, left: int, cost: Floats) -> tuple[int, float]:
    """The point whose removal costs least, ‖W_j‖² / P̃_jj, and that cost."""
    least = np.inf
    for i in range(left):
        cost[i] = power[i] / diagonal[i]
        least = min(least, cost[i])
    j = 0
    while j < left - 1 and cost[j] != least:
        j += 1
    return j, least


@compiled(inline="always")
def _swap(
    j: int, last: int, who: Ints, diagonal: Floats, floor: Floats, factor: Floats, rank: int, directions: Floats, gone: int
) -> None:
    """Swap the removed point with the last one, so that loops over the others get shorter."""
    who[j], who[last] = who[last], who[j]
    diagonal[j], diagonal[last] = diagonal[last], diagonal[j]
    floor[j], floor[last] = floor[last], floor[j]
    for a in range(rank):
        factor[a, j], factor[a, last] = factor[a, last], factor[a, j]
    for a in range(gone):
        directions[a, j], directions[a, last] = directions[a, last], directions[a, j]


@compiled(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
def _prune(
    inverse: Floats,
    factor: Floats,
    weights: Floats,
    diagonal: Floats,
    floor: Floats,
    error: float,
    budget: float,
    max_order: int,
) -> tuple[NDArray[np.bool_], float]:
    """Remove points while the squared error stays within the squared budget, or while more than `max_order` points are left.

    P = inverse and V = factor. `weights` is C × n, `diagonal` is diag(P̃), `floor` bounds it, P̃_jj ≥ 1 / κ(d_j, d_j); all
    but `inverse` are overwritten: the remaining candidates are kept together at the front, so that loops get shorter.
    Returns which points stay, and the squared error.
    """
    outputs, n = weights.shape
    rank, old = factor.shape[0], len(inverse)  # 0 once P is part of V
    stays, who = np.ones(n, dtype=np.bool_), np.arange(n)
    left, gone = n, 0
    directions = np.empty((min(n, 64), n))
    column, here, power, cost = np.empty(n), np.empty(n), np.zeros(n), np.empty(n)
    for c in range(outputs):
        for i in range(n):
            power[i] += weights[c, i] * weights[c, i]
    while left > 0:
        j, least = _cheapest(power, diagonal, left, cost)
        if not error + least <= budget and left <= max_order:
            break
        error += least
        stays[who[j]] = False
        left -= 1
        _swap(j, left, who, diagonal, floor, factor, rank, directions, gone)
        for c in range(outputs):
            weights[c, j], weights[c, left] = weights[c, left], weights[c, j]
        # where precision requires it, few candidates are pruned entirely by orthogonal steps
        if gone == 0 and who[left] < old and n <= 512 and _largest(diagonal, floor, left + 1) > 1e9:
            factor = _join(inverse, old, who, left + 1, factor, rank)
            rank, old = factor.shape[0], 0
        if gone == 0 and who[left] >= old:
            _reflect(factor, rank, left, left + 1, here, column)
            root = _drop(inverse, old, who, left, factor, rank, diagonal, floor, column)
            rank -= 1
        else:
            if gone == directions.shape[0]:
                directions = doubled(directions, n)
            root = _subtract(inverse, old, who, left, factor, rank, directions, gone, diagonal, floor, column, here)
            gone += 1
        refit(weights, left, column, root, left, power)
    return stays, error


@compiled()
def _lift(inverse: Floats, cross: Floats, gram: Floats, lifted: Floats) -> None:
    """lifted ← Z = κ(X, D) P, gram ← S = κ(X, X) − Z κ(D, X)."""
    np.dot(cross, inverse, lifted)
    gram -= np.dot(cross, lifted.T)


@compiled()
def _blur(inverse: Floats, own_old: Floats, coefficients: Floats, own: Floats, tolerance: float, limit: float) -> float:
    """The rounding error of S due to P: smaller distances² (relative to κ) cannot be distinguished from 0.

    Infinite if it exceeds the tolerance and what it does to f̃ could exceed the limit.
    """
    largest, total = 0.0, 0.0
    for i in range(len(inverse)):
        largest = max(largest, inverse[i, i] * own_old[i])
    blur = 16.0 * 2.2e-16 * largest
    if blur > tolerance:
        for i in range(coefficients.shape[0]):
            for c in range(coefficients.shape[1]):
                total += own[i] * coefficients[i, c] * coefficients[i, c]
    return np.inf if blur * total > limit else blur


@compiled()
def _fold(
    candidates: Floats,
    order: int,
    independent: Ints,
    dependent: Ints,
    lower: Floats,
    top: Floats,
    lifted: Floats,
    schur: Floats,
    coefficients: Floats,
) -> float:
    """Fold dependent new points R into the candidates' weights: T = S_II⁻¹ S_IR, A_I += T A_R, W += (Z_R − Z_I T) A_R.

    Returns the squared error, ‖Σ_R a_r κ(x_r, ·) − its projection‖² = Σ A_Rᵀ S_RR A_R − ‖L⁻¹ S_IR A_R‖².
    """
    if dependent.size == 0:
        return 0.0
    outputs, new = coefficients.shape[1], independent.size
    rest = coefficients[dependent]
    share = np.zeros((new, outputs))
    for a in range(new):
        for r in range(dependent.size):
            for c in range(outputs):
                share[a, c] += lower[a, dependent[r]] * rest[r, c]
    error = 0.0
    for r in range(dependent.size):
        for q in range(dependent.size):
            for c in range(outputs):
                error += rest[r, c] * schur[dependent[r], dependent[q]] * rest[q, c]
    for a in range(new):
        for c in range(outputs):
            error -= share[a, c] * share[a, c]
    solve_transposed(top, share)
    for c in range(outputs):
        for a in range(new):
            candidates[c, order + a] += share[a, c]
            for i in range(order):
                candidates[c, i] -= lifted[independent[a], i] * share[a, c]
        for r in range(dependent.size):
            for i in range(order):
                candidates[c, i] += lifted[dependent[r], i] * rest[r, c]
    return max(error, 0.0)


@compiled()
def _factor(top: Floats, independent: Ints, lifted: Floats, order: int) -> Floats:
    """V = L⁻¹ [Z_I, −1], with which the inverse Gram matrix of all candidates is P ⊕ 0 + VᵀV."""
    new = independent.size
    factor = np.zeros((new, order + new))
    for a in range(new):
        for i in range(order):
            factor[a, i] = lifted[independent[a], i]
        factor[a, order + a] = -1.0
    solve(top, factor)
    return factor


@compiled()
def _diagonal(inverse: Floats, factor: Floats, own: Floats) -> tuple[Floats, Floats]:
    """The diagonal of P ⊕ 0 + VᵀV, and what it is at least: 1 / κ(d, d)."""
    diagonal, floor = np.zeros(own.size), np.empty(own.size)
    for a in range(len(factor)):
        for i in range(own.size):
            diagonal[i] += factor[a, i] * factor[a, i]
    for i in range(own.size):
        if i < len(inverse):
            diagonal[i] += inverse[i, i]
        floor[i] = 1.0 / own[i] if own[i] > 0.0 else 1.0
        diagonal[i] = max(diagonal[i], floor[i])
    return diagonal, floor


@compile_on_first_call()
def choose(
    inverse: Matrix,
    cross: Matrix,
    gram: OwnMatrix,
    lifted: OwnMatrix,
    own_old: Vector,
    weights: Matrix,
    shrink: float,
    square_norm: float,
    coefficients: Matrix,
    tolerance: float,
    budget: float,
    max_order: int,
) -> tuple[int, Flags, OwnMatrix, float, float, int]:
    """Which points a function keeps when the new points X with coefficients A join it, by greedy removal from all of them.

    `cross` is κ(X, D), `gram` is κ(X, X) and becomes S = κ(X, X) − κ(X, D) P κ(D, X), `lifted` is filled with Z = κ(X, D) P,
    `own_old` is κ(d, d), `square_norm` is ‖shrink · f‖², `budget` is ε². Dependent new points are folded in first.

    Returns how many points change (0: the new ones replace nothing; −1: P is too ill-conditioned for such a budget); which of
    the old points, then of the new ones stay; the weights of the old points in case nothing changes; the growth of ‖f‖²;
    the squared error; and how many new points were dependent.
    """
    order, batch = len(inverse), len(coefficients)
    added = _growth(gram, cross, weights, coefficients, shrink)
    own, replaced = np.diag(gram).copy(), shrink * weights
    if order > 0:
        _lift(inverse, cross, gram, lifted)
        replaced += np.dot(transposed(lifted), coefficients)
    limit = min(0.01 * budget, max(1e-10 * (square_norm + added), 0.0))  # a sum near 0 can round below it
    tolerance = max(tolerance, _blur(inverse, own_old, coefficients, own, tolerance, limit))
    if not tolerance < np.inf:
        return -1, np.zeros(0, dtype=np.bool_), replaced, added, 0.0, 0
    turn, new, lower = pivoted_cholesky(gram, own, tolerance)
    independent, dependent = turn[:new], turn[new:]
    top = triangle(lower, independent)
    candidates = transposed(np.concatenate((shrink * weights, coefficients[independent])))
    error = _fold(candidates, order, independent, dependent, lower, top, lifted, gram, coefficients)
    factor = _factor(top, independent, lifted, order)
    diagonal, floor = _diagonal(inverse, factor, np.concatenate((own_old, own[independent])))
    known = inverse
    # for many new points, all of P̃ is computed, unless points are so close to each other that digits would be lost
    if new > 64 and _largest(diagonal, floor, order + new) < 1e6:
        whole = np.dot(transposed(factor), factor)
        whole[:order, :order] += inverse
        known, factor = whole, np.empty((0, order + new))
    stays, error = _prune(known, factor, candidates, diagonal, floor, error, budget, max_order)

    changes, keep = _chosen(stays, order, batch, independent)
    return changes, keep, replaced, added, error, dependent.size


@compiled()
def _chosen(stays: NDArray[np.bool_], order: int, batch: int, independent: Ints) -> tuple[int, NDArray[np.bool_]]:
    """How many points change, and which of the old points, then of all new ones stay."""
    keep = np.zeros(order + batch, dtype=np.bool_)
    keep[:order] = stays[:order]
    keep[order + independent] = stays[order:]
    return order - int(stays[:order].sum()) + int(stays[order:].sum()), keep
