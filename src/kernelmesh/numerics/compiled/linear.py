"""Small linear algebra for compiled code: triangular factors, and copies of matrices in other layouts."""

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.jit import compiled

__all__ = ["cholesky", "doubled", "pivoted_cholesky", "refit", "solve", "solve_transposed"]
__all__ += ["subtract_rows", "transposed", "triangle"]

# The block size of factorizations and solves, in rows; earlier rows contribute by one matrix product per block.
_BLOCK = 64


@compiled(fastmath={"contract", "reassoc"})
def subtract_rows(target: Floats, table: Floats, factors: Floats, start: int, stop: int, width: int) -> None:
    """target −= Σ_a factors[a] · table[a] over start ≤ a < stop.

    Short rows are processed four at a time, to read `target` less often; long ones are left to BLAS and its threads.
    """
    if stop - start >= 8 and table.shape[1] >= 1024:
        total = np.dot(factors[start:stop], table[start:stop])
        for i in range(width):
            target[i] -= total[i]
        return
    a = start
    while a + 4 <= stop:
        f0, f1, f2, f3 = factors[a], factors[a + 1], factors[a + 2], factors[a + 3]
        for i in range(width):
            target[i] -= (table[a, i] * f0 + table[a + 1, i] * f1) + (table[a + 2, i] * f2 + table[a + 3, i] * f3)
        a += 4
    while a < stop:
        here = factors[a]
        for i in range(width):
            target[i] -= table[a, i] * here
        a += 1


@compiled(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
def pivoted_cholesky(schur: Floats, own: Floats, tolerance: float) -> tuple[Ints, int, Floats]:
    """S = L Lᵀ on the points turn[:rank]; the rest have a distance² of at most tolerance · κ(x, x) to their span.

    Returns turn, rank and Lᵀ: column i belongs to point i. LAPACK's pstrf does the same with one tolerance for all points;
    mini-batches are so small that calling it would cost more than the work.
    """
    n = own.size
    turn = np.arange(n)
    lower = np.zeros((n, n))
    left, scale, share, factors = np.diag(schur).copy(), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        scale[i] = 1.0 / own[i] if own[i] > 0.0 else 0.0  # becomes 0 once the point has been chosen
    rank = 0
    for a in range(n):
        largest = 0.0
        for i in range(n):
            share[i] = left[i] * scale[i]
            largest = max(largest, share[i])
        if not largest > tolerance:
            break
        pivot = 0
        while share[pivot] != largest:
            pivot += 1
        scale[pivot] = 0.0
        place = a
        while turn[place] != pivot:
            place += 1
        turn[place] = turn[a]
        turn[a] = pivot
        row = lower[a]
        for i in range(n):
            row[i] = schur[pivot, i]
        for b in range(a):
            factors[b] = lower[b, pivot]
        subtract_rows(row, lower, factors, 0, a, n)
        root = np.sqrt(left[pivot])
        for i in range(n):
            row[i] /= root
            left[i] -= row[i] * row[i]
        row[pivot] = root
        rank += 1
    return turn, rank, lower


@compiled()
def triangle(lower: Floats, chosen: Ints) -> Floats:
    """L over the points that `pivoted_cholesky` has chosen, from its Lᵀ."""
    out = np.zeros((chosen.size, chosen.size))
    for a in range(chosen.size):
        for b in range(a + 1):
            out[a, b] = lower[b, chosen[a]]
    return out


@compiled()
def cholesky(square: Floats) -> Floats:
    """Lower triangular L with L Lᵀ = square; NaN if the matrix is not positive definite."""
    n = square.shape[0]
    lower = np.zeros((n, n))
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for i in range(start, n):
            for j in range(start, min(i + 1, stop)):
                lower[i, j] = square[i, j]
        if start > 0:
            # the finished columns of the rows from `start` on, times those of this block
            done = np.ascontiguousarray(lower[start:, :start])
            taken = np.dot(done, done[: stop - start].T)
            for i in range(start, n):
                for j in range(start, min(i + 1, stop)):
                    lower[i, j] -= taken[i - start, j - start]
        for i in range(start, n):
            for j in range(start, min(i + 1, stop)):
                total = lower[i, j]
                for k in range(start, j):
                    total -= lower[i, k] * lower[j, k]
                lower[i, j] = np.sqrt(total) if i == j else total / lower[j, j]
            for j in range(i + 1, stop):
                lower[i, j] = 0.0
    return lower


@compiled()
def solve(lower: Floats, rows: Floats) -> None:
    """rows ← lower⁻¹ rows."""
    n, width = rows.shape
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        if start > 0:
            known = np.dot(np.ascontiguousarray(lower[start:stop, :start]), rows[:start])
            for i in range(stop - start):
                for j in range(width):
                    rows[start + i, j] -= known[i, j]
        for i in range(start, stop):
            subtract_rows(rows[i], rows, lower[i], start, i, width)
            here = 1.0 / lower[i, i]
            for j in range(width):
                rows[i, j] *= here


@compiled()
def solve_transposed(lower: Floats, rows: Floats) -> None:
    """rows ← lower⁻ᵀ rows."""
    n, width = rows.shape
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            here = lower[k, i]
            for j in range(width):
                rows[i, j] -= here * rows[k, j]
        here = 1.0 / lower[i, i]
        for j in range(width):
            rows[i, j] *= here


@compiled(inline="always")
def refit(weights: Floats, gone: int, column: Floats, root: float, left: int, power: Floats) -> None:
    """W −= u W_j / √P_jj for a point j that is removed, u = P_:j / √P_jj; `weights` is Wᵀ, and `power` becomes ‖W_i‖²."""
    for i in range(left):
        power[i] = 0.0
    for c in range(weights.shape[0]):
        share = weights[c, gone] / root
        for i in range(left):
            weights[c, i] -= column[i] * share
            power[i] += weights[c, i] * weights[c, i]


@compiled()
def transposed(table: Floats) -> Floats:
    """The transpose as a contiguous array."""
    return np.ascontiguousarray(table.T)


@compiled()
def doubled(table: Floats, max_rows: int) -> Floats:
    """The table with room for twice as many rows, up to `max_rows`."""
    out = np.empty((min(max_rows, 2 * table.shape[0]), table.shape[1]))
    for i in range(len(table)):
        for j in range(table.shape[1]):
            out[i, j] = table[i, j]
    return out
