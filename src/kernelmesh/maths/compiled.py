"""The loops that are compiled by numba.

Each function has exactly one signature whose inputs are read-only arrays (writable ones are accepted too), so nothing is
compiled twice, and is compiled when it is first called, so importing costs nothing. The machine code is cached on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints

__all__ = [
    "choose",
    "exchange",
    "growth",
    "margins",
    "pairwise_squares",
    "place",
    "repair_squares",
    "softmax",
    "spread_rows",
]

F = TypeVar("F", bound=Callable[..., Any])

# Rows that a triangular factorisation or solution takes at a time; what lies before them goes through one matrix product.
_BLOCK = 64

# Up to this many candidates are pruned with orthogonal steps throughout where precision asks for it.
_SMALL = 512

_in_matrix = types.Array(types.float64, 2, "C", readonly=True)
_in_vector = types.Array(types.float64, 1, "C", readonly=True)
_matrix = types.Array(types.float64, 2, "C")
_vector = types.Array(types.float64, 1, "C")
_indices = types.Array(types.int64, 1, "C")


def _compiled(**options: Any) -> Callable[[F], F]:
    """A helper that only compiled code calls; it is compiled as part of its caller."""
    return cast(Callable[[F], F], njit(**options))


def _compile_on_first_call(signature: Any, **options: Any) -> Callable[[F], F]:
    """Compile a function when it is first called, and put the compiled one in its place in this module.

    Callers must write `compiled.name(…)`: a name they had imported would keep going through this detour.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def first(*arguments: Any) -> Any:
            ready = njit(signature, cache=True, error_model="numpy", **options)(function)
            globals()[function.__name__] = ready
            return ready(*arguments)

        return cast(F, first)

    return decorate


# Sums may be reordered and fused: this is what lets the inner loop use vector registers.
@_compile_on_first_call(types.void(_in_matrix, _in_matrix, types.float64, _matrix), fastmath={"reassoc", "contract"})
def pairwise_squares(left: Floats, right: Floats, scale: float, out: Floats) -> None:
    """out[i, j] = scale · ‖left_i − right_j‖², from the differences themselves."""
    width = left.shape[1]
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            total = 0.0
            for k in range(width):
                gap = left[i, k] - right[j, k]
                total += gap * gap
            out[i, j] = scale * total


@_compile_on_first_call(
    types.void(_in_matrix, _in_matrix, _in_vector, _in_vector, types.float64, _matrix),
    fastmath={"reassoc", "contract"},
)
def repair_squares(
    left: Floats, right: Floats, left_squares: Floats, right_squares: Floats, scale: float, out: Floats
) -> None:
    """Turn inner products in `out` into scaled squared distances; where the difference cancels, take it from the coordinates.

    ‖x‖² + ‖z‖² − 2 xᵀz loses all digits of small distances, and points that nearly coincide are the ones that decide
    whether a Gram matrix can be inverted.
    """
    width = left.shape[1]
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            size = left_squares[i] + right_squares[j]
            square = size - 2.0 * out[i, j]
            if square < 1e-5 * size:
                square = 0.0
                for k in range(width):
                    gap = left[i, k] - right[j, k]
                    square += gap * gap
            out[i, j] = scale * square


@_compile_on_first_call(types.void(_vector, types.int64, types.int64, types.int64))
def spread_rows(flat: Floats, order: int, old_width: int, new_width: int) -> None:
    """Move the leading `order` × `order` block inside one flat buffer from row length old_width to new_width.

    Everything outside the block becomes zero. The buffer must hold the wider of the two layouts.
    """
    if new_width > old_width:
        for i in range(order - 1, -1, -1):
            for j in range(order - 1, -1, -1):
                flat[i * new_width + j] = flat[i * old_width + j]
            for j in range(order, new_width):
                flat[i * new_width + j] = 0.0
    else:
        for i in range(order):
            for j in range(order):
                flat[i * new_width + j] = flat[i * old_width + j]
            for j in range(order, new_width):
                flat[i * new_width + j] = 0.0
    for i in range(order * new_width, new_width * new_width):
        flat[i] = 0.0


@_compile_on_first_call(types.float64(_in_matrix, _in_matrix, _in_matrix, _in_matrix, types.float64))
def growth(gram: Floats, cross: Floats, weights: Floats, coefficients: Floats, shrink: float) -> float:
    """‖s f + Σ a_b κ(x_b, ·)‖² − s² ‖f‖² = 2 s Σ a_b f(x_b) + Σ a_b a_b' κ(x_b, x_b')."""
    return _growth(gram, cross, weights, coefficients, shrink)


@_compiled()
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


_class_numbers = types.Array(types.int64, 1, "C", readonly=True)


@_compile_on_first_call(types.void(_in_matrix, _class_numbers, _vector, _matrix))
def softmax(z: Floats, y: Ints, values: Floats, slopes: Floats) -> None:
    """values = log Σ_d exp(z_d) − z_y for each row, slopes = exp(z_d) / Σ_d' exp(z_d') − [d = y]."""
    rows, outputs = z.shape
    for i in range(rows):
        top = z[i, 0]
        for d in range(1, outputs):
            top = max(top, z[i, d])
        total = 0.0
        for d in range(outputs):
            slopes[i, d] = np.exp(z[i, d] - top)
            total += slopes[i, d]
        for d in range(outputs):
            slopes[i, d] /= total
        slopes[i, y[i]] -= 1.0
        values[i] = np.log(total) + top - z[i, y[i]]


@_compile_on_first_call(types.Tuple((_vector, _indices))(_in_matrix, _class_numbers))
def margins(z: Floats, y: Ints) -> tuple[Floats, Ints]:
    """1 + z_r − z_y for each row, with the strongest rival r = argmax_{d ≠ y} z_d (the first among equals), and r."""
    rows, outputs = z.shape
    short = np.empty(rows)
    rivals = np.empty(rows, dtype=np.int64)
    for i in range(rows):
        rival = 1 if y[i] == 0 else 0
        for d in range(rival + 1, outputs):
            if d != y[i] and z[i, d] > z[i, rival]:
                rival = d
        rivals[i] = rival
        short[i] = 1.0 + z[i, rival] - z[i, y[i]]
    return short, rivals


@_compiled(fastmath={"contract", "reassoc"})
def _subtract_rows(target: Floats, table: Floats, factors: Floats, start: int, stop: int, width: int) -> None:
    """target −= Σ_a factors[a] · table[a] over start ≤ a < stop, four rows at a time so that `target` is read less often."""
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


@_compiled(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
def _pivoted_cholesky(schur: Floats, own: Floats, tolerance: float) -> tuple[Ints, int, Floats]:
    """S = L Lᵀ on the points turn[:rank]; the rest have a distance² of at most tolerance · κ(x, x) to their span.

    Returns turn, rank and Lᵀ: column i belongs to point i. LAPACK's pstrf does the same with one tolerance for all points;
    mini-batches are so small that calling it would cost more than the work.
    """
    n = own.size
    turn = np.arange(n)
    lower = np.zeros((n, n))
    left = np.empty(n)
    scale = np.empty(n)
    share = np.empty(n)
    factors = np.empty(n)
    for i in range(n):
        left[i] = schur[i, i]
        scale[i] = 1.0 / own[i] if own[i] > 0.0 else 0.0  # becomes 0 when the point has had its turn
    rank = 0
    for a in range(n):
        most = 0.0
        for i in range(n):
            share[i] = left[i] * scale[i]
            most = max(most, share[i])
        if not most > tolerance:
            break
        pivot = 0
        while share[pivot] != most:
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
        _subtract_rows(row, lower, factors, 0, a, n)
        root = np.sqrt(left[pivot])
        for i in range(n):
            row[i] /= root
            left[i] -= row[i] * row[i]
        row[pivot] = root
        rank += 1
    return turn, rank, lower


@_compiled()
def _corner(table: Floats, start: int, stop: int, width: int) -> Floats:
    """Rows start … stop − 1 as far as column `width`, in one piece."""
    out = np.empty((stop - start, width))
    for i in range(start, stop):
        for j in range(width):
            out[i - start, j] = table[i, j]
    return out


@_compiled()
def _transposed(table: Floats, width: int) -> Floats:
    """The first `width` columns as rows, in one piece."""
    out = np.empty((width, table.shape[0]))
    for i in range(table.shape[0]):
        for j in range(width):
            out[j, i] = table[i, j]
    return out


@_compiled()
def _add(target: Floats, table: Floats, factor: float) -> None:
    """target += factor · table."""
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] += factor * table[i, j]


@_compiled()
def _scaled(table: Floats, factor: float) -> Floats:
    out = np.empty(table.shape)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            out[i, j] = factor * table[i, j]
    return out


@_compiled()
def _cholesky(square: Floats) -> Floats:
    """Lower triangular L with L Lᵀ = square; NaN where the matrix is not positive definite."""
    n = square.shape[0]
    lower = np.zeros((n, n))
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for i in range(start, n):
            for j in range(start, min(i + 1, stop)):
                lower[i, j] = square[i, j]
        if start > 0:
            # the rows from `start` on, as far as they are done, against those of this block
            done = _corner(lower, start, n, start)
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


@_compiled()
def _solve(lower: Floats, rows: Floats) -> None:
    """rows ← lower⁻¹ rows."""
    n, width = rows.shape
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        if start > 0:
            taken = np.dot(_corner(lower, start, stop, start), rows[:start])
            for i in range(start, stop):
                for j in range(width):
                    rows[i, j] -= taken[i - start, j]
        for i in range(start, stop):
            _subtract_rows(rows[i], rows, lower[i], start, i, width)
            here = 1.0 / lower[i, i]
            for j in range(width):
                rows[i, j] *= here


@_compiled()
def _solve_transposed(lower: Floats, rows: Floats) -> None:
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


@_compiled()
def _block(square: Floats, rows: Ints, columns: Ints) -> Floats:
    out = np.empty((rows.size, columns.size))
    for i in range(rows.size):
        for j in range(columns.size):
            out[i, j] = square[rows[i], columns[j]]
    return out


@_compiled()
def _take(table: Floats, rows: Ints, width: int) -> Floats:
    out = np.empty((rows.size, width))
    for i in range(rows.size):
        for j in range(width):
            out[i, j] = table[rows[i], j]
    return out


@_compiled(fastmath={"contract", "reassoc"})
def _reflect(factor: Floats, rank: int, j: int, width: int, mirror: Floats, image: Floats) -> None:
    """Rotate the rows of V so that column j is zero but for the last row; VᵀV stays as it is.

    A Householder reflection of the rows from the first one in which column j is not zero (V is triangular over the new
    points). Its rounding is relative to the entries of V, the square roots of those of P̃.
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
    _subtract_rows(image, factor, mirror, first, rank, width)  # image = −mirrorᵀ V
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


@_compiled()
def _join(inverse: Floats, order: int, who: Ints, width: int, factor: Floats, rank: int) -> Floats:
    """V with the rows of R on top, where RᵀR is P: then P̃ is VᵀV alone."""
    old = np.empty(order, dtype=np.int64)
    count = 0
    for i in range(width):
        if who[i] < order:
            old[count] = i
            count += 1
    square = np.empty((count, count))
    for a in range(count):
        for b in range(count):
            square[a, b] = inverse[who[old[a]], who[old[b]]]
    root = _cholesky(square)
    out = np.zeros((count + rank, width))
    for a in range(count):
        for b in range(a, count):
            out[a, old[b]] = root[b, a]
    for a in range(rank):
        for i in range(width):
            out[count + a, i] = factor[a, i]
    return out


# Sums and minima may be reordered, and no cost is NaN: the loops over all candidates use vector registers.
@_compiled(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
def _prune(
    inverse: Floats,
    order: int,
    factor: Floats,
    weights: Floats,
    diagonal: Floats,
    floor: Floats,
    error: float,
    budget: float,
    most: int,
) -> tuple[NDArray[np.bool_], float]:
    """Remove points while the squared error stays within the squared budget, or while more than `most` points are left.

    The inverse Gram matrix of all candidates is P̃ = P ⊕ 0 + VᵀV − UᵀU with P = inverse[:order, :order], V = factor and
    U empty at first. Removing j adds ‖W_j‖² / P̃_jj to the squared error and takes u uᵀ, u = P̃_:j / √P̃_jj, off P̃; only its
    diagonal and the columns of removed points are ever formed. As long as only new points have gone, u is a row of V once
    that is rotated, and is dropped instead of subtracted: between points that nearly coincide P̃ is huge, and subtracting
    huge numbers would leave none of their digits. When an old point goes while P̃ is huge, P joins V by its Cholesky factor.

    `weights` is C × n, `diagonal` is diag(P̃), `floor` bounds it from below (P̃_jj ≥ 1 / κ(d_j, d_j)); all arrays but
    `inverse` are used up: the candidates that are left are kept together in front, so that the loops get shorter.
    Returns who stays and the squared error.
    """
    outputs, n = weights.shape
    rank = factor.shape[0]
    stays = np.ones(n, dtype=np.bool_)
    who = np.arange(n)
    left = n
    gone = 0
    joined = False
    floor_scale = 0.0
    for i in range(n):
        floor_scale = max(floor_scale, 1.0 / floor[i])
    directions = np.empty((min(n, 64), n))
    column = np.empty(n)
    here = np.empty(max(n, rank))
    power = np.zeros(n)
    cost = np.empty(n)
    for c in range(outputs):
        for i in range(n):
            power[i] += weights[c, i] * weights[c, i]
    while left > 0:
        least = np.inf
        for i in range(left):
            cost[i] = power[i] / diagonal[i]
            least = min(least, cost[i])
        if not error + least <= budget and left <= most:
            break
        j = 0
        while j < left - 1 and cost[j] != least:
            j += 1
        error += least
        stays[who[j]] = False

        # the removed point and the last one change places, and the loops end before it
        left -= 1
        who[j], who[left] = who[left], who[j]
        diagonal[j], diagonal[left] = diagonal[left], diagonal[j]
        floor[j] = floor[left]
        for a in range(rank):
            factor[a, j], factor[a, left] = factor[a, left], factor[a, j]
        for a in range(gone):
            directions[a, j], directions[a, left] = directions[a, left], directions[a, j]
        for c in range(outputs):
            weights[c, j], weights[c, left] = weights[c, left], weights[c, j]

        if gone == 0 and not joined and who[left] < order and n <= _SMALL:
            largest = 0.0
            for i in range(left + 1):
                largest = max(largest, diagonal[i] * floor_scale)
            if largest > 1e6:
                factor = _join(inverse, order, who, left + 1, factor, rank)
                rank = factor.shape[0]
                joined = True
        if gone == 0 and (joined or who[left] >= order):
            _reflect(factor, rank, left, left + 1, here, column)
            rank -= 1
            pivot = factor[rank, left]
            scale = 1.0 / pivot
            digits = 1.0
            for i in range(left):
                column[i] = factor[rank, i]
                fresh = diagonal[i] - column[i] * column[i]
                digits = min(digits, fresh / diagonal[i])
                diagonal[i] = max(fresh, floor[i])
                power[i] = 0.0
            if digits < 1e-4:  # too few would be left of some entry: sum it up again
                for i in range(left):
                    diagonal[i] = inverse[who[i], who[i]] if who[i] < order and not joined else 0.0
                for a in range(rank):
                    for i in range(left):
                        diagonal[i] += factor[a, i] * factor[a, i]
                for i in range(left):
                    diagonal[i] = max(diagonal[i], floor[i])
        else:
            if who[left] < order:
                row = inverse[who[left]]
                for i in range(left):
                    column[i] = row[who[i]] if who[i] < order else 0.0
            else:
                for i in range(left):
                    column[i] = 0.0
            for a in range(rank):
                here[a] = -factor[a, left]
            _subtract_rows(column, factor, here, 0, rank, left)
            for a in range(gone):
                here[a] = directions[a, left]
            _subtract_rows(column, directions, here, 0, gone, left)
            if gone == directions.shape[0]:
                wider = np.empty((min(n, 2 * gone), n))
                for a in range(gone):
                    for i in range(left):
                        wider[a, i] = directions[a, i]
                directions = wider
            scale = 1.0 / np.sqrt(diagonal[left])
            for i in range(left):
                column[i] *= scale
                directions[gone, i] = column[i]
                diagonal[i] = max(diagonal[i] - column[i] * column[i], floor[i])
                power[i] = 0.0
            gone += 1
        for c in range(outputs):
            share = weights[c, left] * scale
            for i in range(left):
                weights[c, i] -= column[i] * share
                power[i] += weights[c, i] * weights[c, i]
    return stays, error


@_compile_on_first_call(
    types.Tuple((types.int64, types.Array(types.boolean, 1, "C"), _matrix, types.float64, types.float64, types.int64))(
        _in_matrix,
        types.int64,
        _in_matrix,
        _matrix,
        _matrix,
        _in_vector,
        _in_matrix,
        types.float64,
        types.float64,
        _in_matrix,
        types.float64,
        types.float64,
        types.int64,
    )
)
def choose(
    inverse: Floats,
    order: int,
    cross: Floats,
    gram: Floats,
    lifted: Floats,
    own_old: Floats,
    weights: Floats,
    shrink: float,
    square_norm: float,
    coefficients: Floats,
    tolerance: float,
    budget: float,
    most: int,
) -> tuple[int, NDArray[np.bool_], Floats, float, float, int]:
    """Which points a function keeps when the new points X with coefficients A join it, by greedy removal from all of them.

    `cross` is κ(X, D), `gram` is κ(X, X) and becomes S = κ(X, X) − κ(X, D) P κ(D, X), `lifted` is filled with Z = κ(X, D) P,
    `own_old` is κ(d, d), `square_norm` is ‖shrink · f‖², `budget` is ε². Dependent new points R are folded into the
    independent ones I first: T = S_II⁻¹ S_IR, A_I += T A_R, W += (Z_R − Z_I T) A_R.

    Returns how many points change (0 when the old ones all stay and the new ones all go, −1 when P is too ill-conditioned
    for so fine a budget); which of the old points, then of the new ones stay; the weights of the old points in case nothing
    changes; the growth of ‖f‖² before compression; the squared error; and how many new points were dependent.
    """
    batch, outputs = coefficients.shape
    added = _growth(gram, cross, weights, coefficients, shrink)
    own = np.empty(batch)
    for i in range(batch):
        own[i] = gram[i, i]
    schur = gram
    replaced = _scaled(weights, shrink)
    if order > 0:
        padded = np.zeros((batch, inverse.shape[0]))
        for i in range(batch):
            for j in range(order):
                padded[i, j] = cross[i, j]
        np.dot(padded, inverse, lifted)
        _add(schur, np.dot(padded, lifted.T), -1.0)
        _add(replaced, np.dot(_transposed(lifted, order), coefficients), 1.0)
    # S carries the rounding of P: what is smaller cannot be told from 0, however fine the tolerance asked for
    largest = 0.0
    for i in range(order):
        largest = max(largest, inverse[i, i] * own_old[i])
    blur = 16.0 * 2.2e-16 * largest
    if blur > tolerance:
        size = 0.0
        for i in range(batch):
            for c in range(outputs):
                size += own[i] * coefficients[i, c] * coefficients[i, c]
        if blur * size > min(0.01 * budget, 1e-10 * (square_norm + added)):
            return -1, np.zeros(0, dtype=np.bool_), replaced, added, 0.0, 0
        tolerance = blur
    turn, new, lower = _pivoted_cholesky(schur, own, tolerance)
    independent = turn[:new]
    dependent = turn[new:]
    top = np.zeros((new, new))
    for a in range(new):
        for b in range(a + 1):
            top[a, b] = lower[b, independent[a]]
    n = order + new

    candidates = np.empty((outputs, n))
    for c in range(outputs):
        for i in range(order):
            candidates[c, i] = shrink * weights[i, c]
        for a in range(new):
            candidates[c, order + a] = coefficients[independent[a], c]
    error = 0.0
    if dependent.size > 0:
        rest = _take(coefficients, dependent, outputs)
        share = np.zeros((new, outputs))
        for a in range(new):
            for r in range(dependent.size):
                for c in range(outputs):
                    share[a, c] += lower[a, dependent[r]] * rest[r, c]
        # ‖Σ_R a_r κ(x_r, ·) − its projection‖² = Σ A_Rᵀ S_RR A_R − ‖L⁻¹ S_IR A_R‖²
        for r in range(dependent.size):
            for q in range(dependent.size):
                for c in range(outputs):
                    error += rest[r, c] * schur[dependent[r], dependent[q]] * rest[q, c]
        for a in range(new):
            for c in range(outputs):
                error -= share[a, c] * share[a, c]
        error = max(error, 0.0)
        _solve_transposed(top, share)
        for c in range(outputs):
            for a in range(new):
                candidates[c, order + a] += share[a, c]
                here = share[a, c]
                row = independent[a]
                for i in range(order):
                    candidates[c, i] -= lifted[row, i] * here
            for r in range(dependent.size):
                here = rest[r, c]
                row = dependent[r]
                for i in range(order):
                    candidates[c, i] += lifted[row, i] * here

    # P̃ = P ⊕ 0 + VᵀV with V = L⁻¹ [Z_I, −1]
    factor = np.zeros((new, n))
    for a in range(new):
        for i in range(order):
            factor[a, i] = lifted[independent[a], i]
        factor[a, order + a] = -1.0
    _solve(top, factor)
    diagonal = np.zeros(n)
    floor = np.empty(n)
    for a in range(new):
        for i in range(n):
            diagonal[i] += factor[a, i] * factor[a, i]
    for i in range(n):
        if i < order:
            diagonal[i] += inverse[i, i]
            size = own_old[i]
        else:
            size = own[independent[i - order]]
        floor[i] = 1.0 / size if size > 0.0 else 1.0
        diagonal[i] = max(diagonal[i], floor[i])

    stays, error = _prune(inverse, order, factor, candidates, diagonal, floor, error, budget, most)
    keep = np.zeros(order + batch, dtype=np.bool_)
    changes = 0
    for i in range(order):
        keep[i] = stays[i]
        changes += not stays[i]
    for a in range(new):
        keep[order + independent[a]] = stays[order + a]
        changes += stays[order + a]
    return changes, keep, replaced, added, error, dependent.size


_Exchange = types.Tuple((_matrix, _matrix, _matrix, _matrix, _matrix, _matrix))


@_compile_on_first_call(
    _Exchange(
        _in_matrix, types.int64, _indices, _indices, _in_matrix, _in_matrix, _in_matrix, types.float64, _in_matrix
    )
)
def exchange(
    inverse: Floats,
    order: int,
    leaving: Ints,
    kept: Ints,
    lifted: Floats,
    schur: Floats,
    weights: Floats,
    shrink: float,
    coefficients: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Work out what becomes of P and of the weights when old points leave and some new ones, `kept`, enter.

    With S_II = L Lᵀ for the entering points and Y = L⁻¹ Z_I, the inverse Gram matrix of D and X_I together is
    P̃ = [[P + YᵀY, −YᵀL⁻¹], [−L⁻ᵀY, S_II⁻¹]]; taking the leaving points R out subtracts P̃_:R P̃_RR⁻¹ P̃_R:.

    Returns Y, Q (P becomes P + YᵀY − QᵀQ), the rows of the entering points over the old ones and over each other, the
    weights of the old points (those of the leaving ones are meaningless) and of the entering ones. Nothing is changed.
    """
    batch, outputs = coefficients.shape
    width = inverse.shape[1]
    new, gone = kept.size, leaving.size
    dropped = np.ones(batch, dtype=np.bool_)
    for a in range(new):
        dropped[kept[a]] = False
    others = np.flatnonzero(dropped)

    # the new points that were dropped, projected on what stays: A_I + T A_R and W + (Z_R − Z_I T) A_R, T = S_II⁻¹ S_IR
    rest = _take(coefficients, others, outputs)
    lower = _cholesky(_block(schur, kept, kept))
    share = np.dot(_block(schur, kept, others), rest)
    _solve(lower, share)
    _solve_transposed(lower, share)
    arriving = _take(coefficients, kept, outputs)
    _add(arriving, share, 1.0)
    gained = _take(lifted, kept, width)
    staying = _scaled(weights, shrink)
    if order > 0:
        _add(staying, np.dot(_transposed(_take(lifted, others, order), order), rest), 1.0)
        _add(staying, np.dot(_transposed(gained, order), share), -1.0)

    _solve(lower, gained)
    back = np.eye(new)
    _solve(lower, back)
    turned = _transposed(back, new)
    rows = _scaled(np.dot(turned, gained), -1.0)
    block = np.dot(turned, back)

    lost = _take(inverse, leaving, width)
    if gone > 0:
        at = np.empty((gone, new))
        lost_new = np.empty((gone, new))
        for r in range(gone):
            for a in range(new):
                at[r, a] = gained[a, leaving[r]]
                lost_new[r, a] = rows[a, leaving[r]]
        _add(lost, np.dot(at, gained), 1.0)
        square = np.empty((gone, gone))
        for r in range(gone):
            for q in range(gone):
                square[r, q] = lost[r, leaving[q]]
        pivots = _cholesky(square)
        _solve(pivots, lost)
        _solve(pivots, lost_new)
        turned = _transposed(lost_new, new)
        _add(rows, np.dot(turned, lost), -1.0)
        _add(block, np.dot(turned, lost_new), -1.0)
        scaled = _take(staying, leaving, outputs)
        _solve(pivots, scaled)
        _add(staying, np.dot(_transposed(lost, order), scaled), -1.0)
        _add(arriving, np.dot(turned, scaled), -1.0)
    return gained, lost, rows, block, staying, arriving


@_compile_on_first_call(
    types.void(_matrix, types.int64, types.int64, _indices, _indices, _indices, _matrix, _in_matrix)
)
def place(
    inverse: Floats, old: int, order: int, movers: Ints, gaps: Ints, slots: Ints, rows: Floats, block: Floats
) -> None:
    """Move the survivors behind the new end into the gaps, write the entering points' rows, and clear what is behind."""
    width = inverse.shape[0]
    for m in range(movers.size):
        for i in range(width):
            inverse[gaps[m], i] = inverse[movers[m], i]
    for i in range(width):
        for m in range(movers.size):
            inverse[i, gaps[m]] = inverse[i, movers[m]]
    for a in range(slots.size):
        for m in range(movers.size):
            rows[a, gaps[m]] = rows[a, movers[m]]
        for b in range(slots.size):
            rows[a, slots[b]] = block[a, b]
        for i in range(width):
            inverse[slots[a], i] = rows[a, i]
    for i in range(width):
        for a in range(slots.size):
            inverse[i, slots[a]] = rows[a, i]
    for i in range(width):
        for j in range(order, old):
            inverse[i, j] = 0.0
    for i in range(order, old):
        for j in range(width):
            inverse[i, j] = 0.0
