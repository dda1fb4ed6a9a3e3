"""Second-order steps: the small dense algebra of a mini-batch, and the choice of points by their effect on the loss."""

import math

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats
from kernelmesh.numerics.compiled.jit import (
    Classes,
    Flags,
    Indices,
    Matrix,
    OwnMatrix,
    Vector,
    compile_on_first_call,
    compiled,
)
from kernelmesh.numerics.compiled.linear import (
    cholesky,
    doubled,
    pivoted_cholesky,
    refit,
    solve,
    solve_transposed,
    transposed,
    triangle,
)
from kernelmesh.numerics.compiled.losses import fill_softmax

__all__ = ["apart", "choose", "covariance", "factorize", "implicit_softmax", "lost", "novel", "overlook", "prior"]
__all__ += ["refine", "relift"]

_EPS = float(np.finfo(np.float64).eps)
# The tolerance on the limits of the variance of f(x) before R is recomputed, relative to the prior variance.
_ROUNDING = 1e-6
# The largest harmless negative variance: its product with the curvature of the loss matters, which is about 1.
_NOTICEABLE = 1e-3


@compile_on_first_call()
def covariance(cross: Matrix, lifted: Matrix, prior: Vector) -> tuple[OwnMatrix, bool]:
    """T = H κ(D, X) for H = κ(X, D) R, made symmetric, and whether it is valid; `lifted` is H.

    The variance of f(x) can be neither negative nor larger than before the first sample, `prior`.
    """
    order = cross.shape[1]
    if order == 0:
        return np.zeros((cross.shape[0], cross.shape[0])), True
    out: Floats = np.dot(lifted, cross.T)
    for i in range(out.shape[0]):
        for j in range(i):
            here = 0.5 * (out[i, j] + out[j, i])
            out[i, j] = here
            out[j, i] = here
    sound = True
    for i in range(out.shape[0]):
        least = -min(_ROUNDING * prior[i], _NOTICEABLE)
        sound = sound and least <= out[i, i] <= (1.0 + _ROUNDING) * prior[i]
    return out, sound


@compiled()
def _factorize(covariance: Floats, root: Floats) -> Floats:
    n = root.size
    square = np.empty((n, n))
    largest = 0.0
    for i in range(n):
        for j in range(n):
            square[i, j] = root[i] * covariance[i, j] * root[j]
        largest = max(largest, square[i, i])
    # next to a very large T the identity is lost to rounding, and an ill-conditioned R makes T even more indefinite
    extra = _EPS * n * largest
    for i in range(n):
        square[i, i] += 1.0 + extra
    lower = cholesky(square)
    while extra < largest and not np.isfinite(lower[n - 1, n - 1]):
        for i in range(n):
            square[i, i] += 99.0 * extra
        extra *= 100.0
        lower = cholesky(square)
    return lower


@compile_on_first_call()
def factorize(covariance: Matrix, root: Vector) -> OwnMatrix:
    """L with L Lᵀ = I + √h T √h."""
    return _factorize(covariance, root)


@compiled(fastmath={"contract", "reassoc"})
def _refine(
    lower: Floats, root: Floats, covariance: Floats, start: Floats, here: Floats, slope: Floats, force: Floats, there: Floats
) -> float:
    rows, outputs = start.shape
    for b in range(rows):
        for c in range(outputs):
            force[b, c] = slope[b, c] / root[b] + root[b] * (start[b, c] - here[b, c]) if root[b] > 0.0 else 0.0
    solve(lower, force)
    solve_transposed(lower, force)
    for b in range(rows):
        for c in range(outputs):
            force[b, c] *= root[b]
    moved = 0.0
    image = np.dot(covariance, force)
    for b in range(rows):
        for c in range(outputs):
            new = start[b, c] - image[b, c]
            moved = max(moved, abs(new - here[b, c]))
            there[b, c] = new
    return moved


@compile_on_first_call()
def refine(
    lower: Matrix, root: Vector, covariance: Matrix, start: Matrix, here: Matrix, slope: Matrix
) -> tuple[OwnMatrix, OwnMatrix, float]:
    """One step towards a = ℓ'(z), z = z₀ − T a: a ← (I + h T)⁻¹ [ℓ'(z) + h (z₀ − z)] with h = root², then z ← z₀ − T a.

    `lower` is `factorize(T, root)`. Returns a, z and the change of z.
    """
    force, there = np.empty(start.shape), np.empty(start.shape)
    moved = _refine(lower, root, covariance, start, here, slope, force, there)
    return force, there, moved


@compile_on_first_call()
def implicit_softmax(
    start: Matrix, covariance: Matrix, y: Classes, iterations: int, settled: float
) -> tuple[OwnMatrix, OwnMatrix]:
    """The implicit step of the softmax loss, whose curvature is at most ½ (Böhning): a and z."""
    root = np.full(start.shape[0], np.sqrt(0.5))
    lower = _factorize(covariance, root)
    force, slope, values = np.empty(start.shape), np.empty(start.shape), np.empty(start.shape[0])
    there = start.copy()
    for _ in range(iterations):
        fill_softmax(there, y, values, slope)
        if _refine(lower, root, covariance, start, there, slope, force, there) < settled:
            break
    return force, there


@compile_on_first_call()
def overlook(force: Matrix, gram: Matrix, regularization: float, limit: float) -> tuple[Indices, float]:
    """The samples that may be worth a point, and a bound on the cost of ignoring the others; `gram` is κ(X, X).

    Together, points at the samples F lower the loss by at most ½ ‖Σ_F a_b κ(x_b, ·)‖² / λ, their gain if no other point
    contributed. The samples with the smallest individual gains are ignored while this bound stays within the limit.
    """
    rows, outputs = force.shape
    gains = np.zeros(rows)
    for b in range(rows):
        for c in range(outputs):
            gains[b] += force[b, c] * force[b, c]
        gains[b] *= 0.5 * gram[b, b] / regularization
    turn = np.argsort(gains)
    spent, few = 0.0, 0
    while few < rows:
        b = turn[few]
        total = spent + gains[b]
        for f in turn[:few]:
            along = 0.0
            for c in range(outputs):
                along += force[b, c] * force[f, c]
            total += along * gram[b, f] / regularization
        if not total <= limit:
            break
        spent = max(total, 0.0)
        few += 1
    return np.sort(turn[few:]), spent


@compile_on_first_call()
def apart(rows: Indices, cross: Matrix, own: Vector, diagonal: Vector, tolerance: float) -> Indices:
    """Those of the samples `rows` that may be new to the dictionary, judging by its single points.

    The distance² to the span is at most that to one line, κ(x, x) − κ(x, d)² / κ(d, d); if that is within
    tolerance · κ(x, x) for some d, a sample is not new, and P is not needed. `diagonal` is κ(d, d).
    """
    kept = np.empty(rows.size, dtype=np.bool_)
    for i in range(rows.size):
        b = rows[i]
        limit = (1.0 - tolerance) * own[b]
        kept[i] = True
        for d in range(cross.shape[1]):
            if cross[b, d] * cross[b, d] >= limit * diagonal[d] and diagonal[d] > 0.0:
                kept[i] = False
                break
    return rows[kept]


@compile_on_first_call()
def novel(
    schur: OwnMatrix, rows: Indices, cross: Matrix, lifted: Matrix, own: Vector, tolerance: float, force: Matrix
) -> tuple[Indices, float]:
    """Which of the samples `rows` are new to the dictionary, and a bound on their gain, times λ.

    `schur` is κ(X, X_rows) and becomes S = κ(X, X_rows) − κ(X, D) Zᵀ, Z = `lifted`. A sample is new if its distance² to
    the span of the dictionary and of the other new ones exceeds tolerance · κ(x, x). Together, points I lower the loss by at
    most ½ tr(aᵀ S_·I S_II⁻¹ S_I· a) / λ: the minimum is convex in T, and this is its slope. The bound is NaN if S is not
    finite or has a negative diagonal, because then P is not an inverse.
    """
    order, many = cross.shape[1], rows.size
    if order > 0 and many > 0:
        schur -= np.dot(cross, transposed(lifted))
    square, own_rows = np.empty((many, many)), np.empty(many)
    for i in range(many):
        own_rows[i] = own[rows[i]]
        for j in range(many):
            square[i, j] = schur[rows[i], j]
            if not np.isfinite(square[i, j]):
                return rows[:0].copy(), np.nan
        if square[i, i] < -1e-6 * own_rows[i]:
            return rows[:0].copy(), np.nan
    turn, rank, lower = pivoted_cholesky(square, own_rows, tolerance)
    chosen = turn[:rank].copy()
    if rank == 0:
        return chosen, 0.0
    image = np.zeros((rank, force.shape[1]))
    for b in range(force.shape[0]):
        for a in range(rank):
            for c in range(force.shape[1]):
                image[a, c] += schur[b, chosen[a]] * force[b, c]
    solve(triangle(lower, chosen), image)
    return chosen, 0.5 * (image * image).sum()


@compiled(fastmath={"contract", "reassoc"})
def _fill_column(inverse: Floats, left: Floats, right: Floats, directions: Floats, gone: int, j: int, column: Floats) -> None:
    """column ← R̃_:j of R̃ = R ⊕ 0 + VᵀY − UᵀU, with U = directions[:gone]."""
    order, n = len(inverse), column.size
    for i in range(n):
        column[i] = 0.0
    if j < order:
        for i in range(order):
            column[i] = inverse[j, i]
    for a in range(left.shape[0]):
        here = left[a, j]
        if here != 0.0:
            for i in range(n):
                column[i] += here * right[a, i]
    for a in range(gone):
        here = directions[a, j]
        for i in range(n):
            column[i] -= here * directions[a, i]


@compiled(fastmath={"contract", "reassoc"})
def _prune(
    inverse: Floats, left: Floats, right: Floats, weights: Floats, budget: float, max_order: int
) -> tuple[NDArray[np.bool_], float]:
    """Remove the point of least cost, ½ ‖W_j‖² / R̃_jj, while the sum stays within the budget or too many points are left.

    R̃ = R ⊕ 0 + VᵀY with R = inverse, V = left, Y = right. Removing j subtracts u uᵀ, u = R̃_:j / √R̃_jj,
    from R̃ and u W_j / √R̃_jj from the weights; only the diagonal and the columns of removed points are ever computed.
    `weights` is C × n and is overwritten.
    """
    rank, n = left.shape
    order = len(inverse)
    diagonal, power, cost, least_allowed = np.zeros(n), np.zeros(n), np.empty(n), np.empty(n)
    for a in range(rank):
        for i in range(n):
            diagonal[i] += left[a, i] * right[a, i]
    for i in range(n):
        if i < order:
            diagonal[i] += inverse[i, i]
        least_allowed[i] = 1e-10 * abs(diagonal[i])
    for values in weights:
        for i in range(n):
            power[i] += values[i] * values[i]
    stays = np.ones(n, dtype=np.bool_)
    gone, spent = 0, 0.0
    directions = np.empty((min(n, 64), n))
    column = np.empty(n)
    while gone < n:
        least = np.inf
        j = -1
        for i in range(n):
            if stays[i]:
                cost[i] = power[i] / diagonal[i]
                if cost[i] < least:
                    least = cost[i]
                    j = i
        if j < 0 or (spent + 0.5 * least > budget and n - gone <= max_order):
            break
        spent += 0.5 * least
        if gone == directions.shape[0]:
            directions = doubled(directions, n)
        _fill_column(inverse, left, right, directions, gone, j, column)
        root = math.sqrt(diagonal[j])
        stays[j] = False
        for i in range(n):
            directions[gone, i] = column[i] / root
        gone += 1
        refit(weights, j, directions[gone - 1], root, n, power)
        for i in range(n):
            diagonal[i] = max(diagonal[i] - directions[gone - 1, i] * directions[gone - 1, i], least_allowed[i])
    return stays, spent


@compile_on_first_call()
def prior(schur: Matrix, chosen: Indices, regularization: float) -> tuple[OwnMatrix, OwnMatrix, OwnMatrix]:
    """What new points I add to the covariance: (λ S_II)⁻¹, E = S_·I (λ S_II)⁻¹ and E S_I·; `schur` is S_·I."""
    new = chosen.size
    square = np.empty((new, new))
    for a in range(new):
        for b in range(new):
            square[a, b] = schur[chosen[a], b]
    lower = cholesky(square)
    inverse = np.eye(new)
    solve(lower, inverse)
    solve_transposed(lower, inverse)
    for a in range(new):
        for b in range(new):
            inverse[a, b] /= regularization
    spread = np.dot(schur, inverse)
    return inverse, spread, np.dot(spread, schur.T)


@compile_on_first_call()
def choose(
    inverse: Matrix,
    lifted: Matrix,
    entering: Matrix,
    prior: Matrix,
    spread: Matrix,
    lower: Matrix,
    root: Vector,
    force: Matrix,
    weights: Matrix,
    budget: float,
    max_order: int,
) -> tuple[Flags, float]:
    """Which of the old points, then of the new ones, stay, and the increase of the loss when the others are removed.

    With Z the rows `entering` of the new points over the old ones, H = `lifted`, J = [I, E] with E = `spread`, and
    V = [[H, 0], [−Z, I]], the covariance after the step over all points is R ⊕ 0 + Vᵀ Ω V,
    Ω = 0 ⊕ (λS)⁻¹ − Jᵀ √h (I + √h T √h)⁻¹ √h J, and the weights are W − Vᵀ Jᵀ a. `lower` is the factor of I + √h T √h.
    """
    batch, new = spread.shape
    order, outputs = weights.shape
    joint = np.zeros((batch, batch + new))  # J
    scaled = np.zeros((batch, batch + new))
    for b in range(batch):
        joint[b, b] = 1.0
        scaled[b, b] = root[b]
        for q in range(new):
            joint[b, batch + q] = spread[b, q]
            scaled[b, batch + q] = root[b] * spread[b, q]
    solve(lower, scaled)
    middle = -np.dot(transposed(scaled), scaled)  # Ω
    for a in range(new):
        for b in range(new):
            middle[batch + a, batch + b] += prior[a, b]
    basis = np.zeros((batch + new, order + new))  # V
    basis[:batch, :order] = lifted
    for q in range(new):
        for i in range(order):
            basis[batch + q, i] = -entering[q, i]
        basis[batch + q, order + q] = 1.0
    image = np.dot(middle, basis)
    step = np.dot(transposed(force), np.dot(joint, basis))
    candidates = np.empty((outputs, order + new))
    for c in range(outputs):
        for i in range(order):
            candidates[c, i] = weights[i, c] - step[c, i]
        for i in range(order, order + new):
            candidates[c, i] = -step[c, i]
    return _prune(inverse, basis, image, candidates, budget, max_order)


@compile_on_first_call()
def relift(
    lifted: Matrix,
    cross: Matrix,
    leaving: Indices,
    arriving: Matrix,
    gained: Matrix,
    lost: Matrix,
    rows: Matrix,
    block: Matrix,
) -> tuple[OwnMatrix, OwnMatrix]:
    """H = κ(X, D) R for the R after a planned exchange: over the old points (0 for those that leave) and the new ones.

    With C = Q_Rᵀ the factor of R_RR, removing the points R leaves H − (C⁻¹ H_Rᵀ)ᵀ Q; the entering points then add
    (κ(X, D) Yᵀ) Y + κ(X, X_I) [rows] over the old ones, and are themselves κ(X, D) [rows]ᵀ + κ(X, X_I) [block].
    """
    order = cross.shape[1]
    old = lifted.copy()
    if leaving.size > 0:
        lower = transposed(lost[:, leaving])
        at = transposed(old[:, leaving])
        solve(lower, at)
        old -= np.dot(transposed(at), lost)
        old[:, leaving] = 0.0
    if rows.shape[0] == 0:
        return old, np.zeros((len(old), 0))
    fresh = np.dot(arriving, block)
    if order > 0:
        fresh += np.dot(cross, transposed(rows))
        old += np.dot(np.dot(cross, transposed(gained)), gained)
    old += np.dot(arriving, rows)
    old[:, leaving] = 0.0
    return old, fresh


@compile_on_first_call()
def lost(covariance: Matrix, root: Vector, lifted: Matrix) -> OwnMatrix:
    """G with which R becomes R − GᵀG: G = L⁻¹ √h H, L Lᵀ = I + √h T √h."""
    lower = _factorize(covariance, root)
    out = np.empty(lifted.shape)
    for b in range(lifted.shape[0]):
        for i in range(lifted.shape[1]):
            out[b, i] = root[b] * lifted[b, i]
    solve(lower, out)
    return out
