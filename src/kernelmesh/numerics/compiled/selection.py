"""Projection of a function onto a dictionary and as few of its own points as a budget requires."""

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.jit import Indices, Matrix, OwnMatrix, Vector, compile_on_first_call, compiled
from kernelmesh.numerics.compiled.linear import solve, solve_transposed, transposed

__all__ = ["project"]


@compiled()
def _shares(
    chosen: Ints, columns: Floats, cross: Floats, lifted: Floats, schur: Floats, coefficients: Floats
) -> tuple[Floats, Floats, Floats]:
    """A_J + Y, V and K V; the rows of `columns` are those of Lᵀ with L Lᵀ = S_JJ, over all points."""
    rest = coefficients.copy()
    rest[chosen] = 0.0
    after = coefficients[chosen]
    if chosen.size > 0:
        lower = np.zeros((chosen.size, chosen.size))
        for a in range(chosen.size):
            for b in range(a + 1):
                lower[a, b] = columns[b, chosen[a]]
        share = np.dot(schur[chosen], rest)
        solve(lower, share)
        solve_transposed(lower, share)
        after += share
        rest[chosen] = -share
    return after, np.dot(transposed(lifted), rest), np.dot(transposed(cross), rest)


@compiled(fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
def _select(
    schur: Floats, own: Floats, coefficients: Floats, missing: Floats, error: float, tolerance: float, budget: float
) -> tuple[Ints, Floats, float]:
    """Add points while the squared error is too large; returns them, their columns of a factor of S, and the error."""
    n, outputs = coefficients.shape
    chosen = np.empty(n, dtype=np.int64)
    columns = np.zeros((0 if error <= budget else n, n))
    left = np.diag(schur).copy()
    count = 0
    while error > budget and count < n:
        best, gain = -1, 0.0
        for i in range(n):
            if left[i] > tolerance * own[i]:
                size = 0.0
                for c in range(outputs):
                    size += missing[i, c] * missing[i, c]
                if size > gain * left[i]:
                    best, gain = i, size / left[i]
        if best < 0:
            break
        column = columns[count]
        for i in range(n):
            column[i] = schur[best, i]
        for a in range(count):
            here = columns[a, best]
            for i in range(n):
                column[i] -= here * columns[a, i]
        root = np.sqrt(left[best])
        for i in range(n):
            column[i] /= root
            left[i] -= column[i] * column[i]
        left[best] = 0.0
        for c in range(outputs):
            here = missing[best, c] / root
            for i in range(n):
                missing[i, c] -= column[i] * here
        error -= gain
        chosen[count] = best
        count += 1
    return chosen[:count], columns[:count], max(error, 0.0)


@compile_on_first_call()
def project(
    inverse: Matrix, own_old: Vector, cross: Matrix, gram: Matrix, coefficients: Matrix, tolerance: float, budget: float
) -> tuple[bool, Indices, OwnMatrix, OwnMatrix, OwnMatrix, float]:
    """s = Σ_x κ(x, ·) a_x projected onto a dictionary D and as few of its points X as the budget requires.

    `cross` is G = κ(X, D), `gram` is κ(X, X), `own_old` is κ(d, d), and `budget` is the largest squared error. With Z = G P
    and the Schur complement S = κ(X, X) − Z Gᵀ, the residual of s has the values R = S A at X and the squared norm ⟨A, R⟩.
    While that exceeds the budget, the point that reduces it most, by ‖R_j‖² / S_jj, joins, and S is reduced by its column.
    Points whose distance² to the span is at most tolerance · κ(x, x) cannot join. The other points Q add Y = S_JJ⁻¹ S_JQ A_Q
    to the weights of the chosen ones J, and V = Z_Qᵀ A_Q − Z_Jᵀ Y to those of the dictionary.

    Returns whether P can resolve such a small budget, and if so J, A_J + Y, V, K V and the squared error.
    """
    order = cross.shape[1]
    own = np.diag(gram).copy()
    blur, size = 0.0, 0.0
    for i in range(order):
        blur = max(blur, inverse[i, i] * own_old[i])
    for i in range(own.size):
        for c in range(coefficients.shape[1]):
            size += own[i] * coefficients[i, c] * coefficients[i, c]
    lifted = np.dot(cross, np.ascontiguousarray(inverse[:order, :order]))
    schur = gram - np.dot(lifted, transposed(cross))
    missing = np.dot(schur, coefficients)
    error = max(float((coefficients * missing).sum()), 0.0)
    fine = 16.0 * 2.2e-16 * blur * size <= 0.01 * budget
    if not fine:
        error = 0.0
    chosen, columns, error = _select(schur, own, coefficients, missing, error, tolerance, budget)
    after, gained, image = _shares(chosen, columns, cross, lifted, schur, coefficients)
    return fine, chosen, after, gained, image, error
