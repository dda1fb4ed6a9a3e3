"""Symmetric matrices: packed triangles, sums over different dictionaries, and points that span others."""

import numpy as np
from numpy.typing import NDArray

from kernelmesh.numerics.compiled.folding import first_of_equals, numbered
from kernelmesh.numerics.compiled.jit import (
    Bits,
    Classes,
    Indices,
    Matrix,
    OwnBits,
    OwnMatrix,
    OwnVector,
    Vector,
    compile_on_first_call,
    compiled,
)

__all__ = [
    "add_difference",
    "add_half",
    "add_known",
    "add_rows",
    "add_square",
    "apart",
    "copy_up",
    "folded",
    "folded_half",
    "is_symmetric",
    "lower_half",
    "mirror",
    "norms",
    "places",
    "projected",
    "spanning",
    "taken",
    "weigh",
    "weigh_upper",
    "whole",
]

# The block size, in points.
_BLOCK = 32


@compile_on_first_call()
def lower_half(square: Matrix) -> OwnVector:
    """The lower triangle, row by row."""
    n = square.shape[0]
    out = np.empty(n * (n + 1) // 2)
    at = 0
    for i in range(n):
        for j in range(i + 1):
            out[at] = square[i, j]
            at += 1
    return out


@compile_on_first_call()
def whole(half: Vector, n: int) -> OwnMatrix:
    """The symmetric n × n matrix with this lower triangle."""
    out = np.empty((n, n))
    at = 0
    for i in range(n):
        for j in range(i + 1):
            out[i, j] = half[at]
            at += 1
    _mirrored_up(out)
    return out


@compile_on_first_call()
def copy_up(square: OwnMatrix) -> None:
    """Copy the lower triangle to the upper one."""
    _mirrored_up(square)


@compiled()
def _mirrored_up(square: NDArray[np.float64]) -> None:
    """Copy the lower triangle to the upper one, block by block to stay in the cache."""
    n = square.shape[0]
    for top in range(0, n, _BLOCK):
        for left in range(0, top + 1, _BLOCK):
            for j in range(left, min(left + _BLOCK, n)):
                for i in range(max(top, j + 1), min(top + _BLOCK, n)):
                    square[j, i] = square[i, j]


@compile_on_first_call()
def is_symmetric(square: Matrix) -> bool:
    """Whether a matrix equals its transpose to the last bit."""
    n = square.shape[0]
    for top in range(0, n, _BLOCK):
        for left in range(0, top + 1, _BLOCK):
            for i in range(top, min(top + _BLOCK, n)):
                for j in range(left, min(left + _BLOCK, i)):
                    if square[i, j] != square[j, i]:
                        return False
    return True


@compile_on_first_call()
def mirror(square: OwnMatrix) -> None:
    """Copy the upper triangle to the lower one, block by block to stay in the cache."""
    n = square.shape[0]
    for top in range(0, n, _BLOCK):
        for left in range(0, top + 1, _BLOCK):
            for i in range(top, min(top + _BLOCK, n)):
                for j in range(left, min(left + _BLOCK, i)):
                    square[i, j] = square[j, i]


@compile_on_first_call()
def weigh(out: OwnMatrix, factor: float, first: Matrix, second: Matrix) -> None:
    """out ← factor · first + second."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = factor * first[i, j] + second[i, j]


@compile_on_first_call()
def weigh_upper(out: OwnMatrix, factor: float, first: Matrix, second: Matrix) -> None:
    """out ← factor · first + second, on and above the diagonal."""
    for i in range(out.shape[0]):
        one, other, row = first[i, i:], second[i, i:], out[i, i:]
        for j in range(row.shape[0]):
            row[j] = factor * one[j] + other[j]


@compile_on_first_call()
def folded(bits: Bits) -> OwnBits:
    """The XOR of the bits of each column, without signs."""
    out = np.zeros(bits.shape[1], dtype=np.uint64)
    for i in range(bits.shape[0]):
        for j in range(bits.shape[1]):
            out[j] ^= bits[i, j] & np.uint64(0x7FFFFFFFFFFFFFFF)
    return out


@compile_on_first_call()
def places(bits: Bits, old: int) -> tuple[Indices, Indices]:
    """Which points are new, and the index of each point among the `old` ones followed by the new ones.

    `bits` holds those of the old points and then of the others. Of others that are equal, only the first is new.
    """
    return numbered(first_of_equals(bits), old)


@compile_on_first_call()
def add_rows(target: OwnMatrix, place: Indices, rows: Matrix, factor: float) -> None:
    """target[place] += factor · rows."""
    for i in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            target[place[i], c] += factor * rows[i, c]


@compiled()
def _are_in_turn(place: NDArray[np.int64]) -> bool:
    """Whether the places are 0, 1, 2, …"""
    for i in range(place.shape[0]):  # noqa: SIM110 - generators cannot be compiled
        if place[i] != i:
            return False
    return True


@compile_on_first_call()
def add_square(target: OwnMatrix, place: Indices, square: Matrix, factor: float) -> None:
    """target[place, place] += factor · square."""
    n = square.shape[0]
    if _are_in_turn(place):
        for i in range(n):
            for j in range(n):
                target[i, j] += factor * square[i, j]
        return
    columns = place.view(np.uint64)  # unsigned: no check for negative indices
    for i in range(n):
        row = target[place[i]]
        for j in range(n):
            row[columns[j]] += factor * square[i, j]


@compiled()
def _add_entry(half: NDArray[np.float64], p: int, q: int, value: float, twice: bool) -> None:
    """half[p, q] += value, where `half` is the lower triangle of a symmetric matrix; twice if two equal points meet."""
    if q > p:
        half[q * (q + 1) // 2 + p] += value
    else:
        half[p * (p + 1) // 2 + q] += value
        if twice and p == q:
            half[p * (p + 1) // 2 + q] += value


@compile_on_first_call()
def add_half(target: OwnVector, place: Indices, half: Vector) -> None:
    """target[place, place] += half, both of them lower triangles of symmetric matrices."""
    if _are_in_turn(place):
        for k in range(half.shape[0]):
            target[k] += half[k]
        return
    at = 0
    for i in range(place.shape[0]):
        for j in range(i + 1):
            _add_entry(target, place[i], place[j], half[at], j < i)
            at += 1


@compiled()
def _start(row: int, n: int, is_packed: bool) -> int:
    """Where a row begins: rows have n numbers, or, if they are packed, only those up to the diagonal."""
    return row * (row + 1) // 2 if is_packed else row * n


@compiled()
def _scatter(
    rows: NDArray[np.float64], top: int, bottom: int, place: NDArray[np.int64], square: NDArray[np.float64], sign: float
) -> None:
    """Add ± a symmetric matrix at these places to the rows from `top` to `bottom`, of which the lower triangle counts."""
    turn = np.argsort(place)
    rising = place[turn]
    for a in range(rising.shape[0]):
        if not top <= rising[a] < bottom:
            continue
        row, out, end = square[turn[a]], rows[rising[a] - top], a + 1
        while end < rising.shape[0] and rising[end] == rising[a]:  # two equal points
            end += 1
        for b in range(end):
            out[rising[b]] += sign * row[turn[b]]


@compiled()
def _inverse(place: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """The inverse of a permutation of n numbers; empty if it is none."""
    out = np.full(n, -1)
    for i in range(place.shape[0]):
        if out[place[i]] >= 0:
            return out[:0]
        out[place[i]] = i
    return out if place.shape[0] == n else out[:0]


@compiled()
def _picked(row: NDArray[np.float64], at: NDArray[np.uint64], count: int, out: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first `count` of the numbers at these places, written to `out`."""
    for j in range(count):
        out[j] = row[at[j]]
    return out


@compile_on_first_call()
def add_difference(
    target: OwnVector,
    sums: OwnMatrix,
    top: int,
    bottom: int,
    at_first: Indices,
    first: Matrix,
    first_sums: Matrix,
    at_second: Indices,
    second: Matrix,
    second_sums: Matrix,
    factor: float,
) -> None:
    """target[…] += factor · (second − first), each over its own places, and the same for sums; rows from `top` to `bottom`.

    `target` holds the lower triangle of a symmetric matrix row by row, or all of the matrix, of which only the lower triangle
    is changed.
    """
    n, outputs = sums.shape
    is_packed = target.shape[0] < n * n
    from_first, from_second = _inverse(at_first, n), _inverse(at_second, n)
    if from_first.shape[0] == n and from_second.shape[0] == n:  # the usual case: the same points, in other orders
        one_at, other_at = from_first.view(np.uint64), from_second.view(np.uint64)  # unsigned: no check for negative indices
        is_first_in_turn, is_second_in_turn = _are_in_turn(at_first), _are_in_turn(at_second)
        picked_first, picked_second = np.empty(n), np.empty(n)
        for i in range(top, bottom):
            start = _start(i, n, is_packed)
            one, other, row = first[one_at[i]], second[other_at[i]], target[start : start + i + 1]
            if not is_first_in_turn:  # picking and subtracting in one loop would not be vectorized
                one = _picked(one, one_at, i + 1, picked_first)
            if not is_second_in_turn:
                other = _picked(other, other_at, i + 1, picked_second)
            for j in range(i + 1):
                row[j] += factor * (other[j] - one[j])
            for c in range(outputs):
                sums[i, c] += factor * (second_sums[other_at[i], c] - first_sums[one_at[i], c])
        return
    gap, between = np.zeros((bottom - top, n)), np.zeros((n, outputs))
    _scatter(gap, top, bottom, at_second, second, 1.0)
    _scatter(gap, top, bottom, at_first, first, -1.0)
    for i in range(at_second.shape[0]):
        for c in range(outputs):
            between[at_second[i], c] += second_sums[i, c]
    for i in range(at_first.shape[0]):
        for c in range(outputs):
            between[at_first[i], c] -= first_sums[i, c]
    for i in range(top, bottom):
        start = _start(i, n, is_packed)
        row = target[start : start + i + 1]
        for j in range(i + 1):
            row[j] += factor * gap[i - top, j]
        for c in range(outputs):
            sums[i, c] += factor * between[i, c]


@compile_on_first_call()
def folded_half(half: Vector, n: int) -> OwnBits:
    """`folded` of the symmetric n × n matrix with this lower triangle."""
    out = np.zeros(n, dtype=np.uint64)
    bits = half.view(np.uint64)
    at = 0
    for i in range(n):
        own, row = np.uint64(0), bits[at : at + i]
        for j in range(i):
            out[j] ^= row[j]
            own ^= row[j]
        out[i] ^= own ^ bits[at + i]
        at += i + 1
    for j in range(n):
        out[j] &= np.uint64(0x7FFFFFFFFFFFFFFF)
    return out


@compile_on_first_call()
def taken(square: Matrix, rows: Indices, columns: Indices) -> OwnMatrix:
    """square[rows, columns]."""
    out, at = np.empty((rows.shape[0], columns.shape[0])), columns.view(np.uint64)  # unsigned: no check for negative indices
    for i in range(rows.shape[0]):
        row = square[rows[i]]
        for j in range(columns.shape[0]):
            out[i, j] = row[at[j]]
    return out


@compile_on_first_call()
def projected(square: Matrix, stays: Indices, leaves: Indices, lifted: Matrix) -> OwnMatrix:
    """Θ_ss + T Θ_ls + Θ_sl Tᵀ + T Θ_ll Tᵀ for T = `lifted`: Θ_ss + T Y + (T Y)ᵀ with Y = Θ_ls + ½ Θ_ll Tᵀ."""
    n, gone = stays.shape[0], leaves.shape[0]
    turned, across = np.empty((gone, n)), np.empty((gone, n))
    for k in range(gone):
        for i in range(n):
            turned[k, i] = lifted[i, k]
    for k in range(gone):
        for i in range(n):
            across[k, i] = square[leaves[k], stays[i]]
        for other in range(gone):
            part = 0.5 * square[leaves[k], leaves[other]]
            for i in range(n):
                across[k, i] += part * turned[other, i]
    out = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            out[i, j] = square[stays[i], stays[j]]
        for k in range(gone):
            left, right = turned[k, i], across[k, i]
            for j in range(i + 1):
                out[i, j] += left * across[k, j] + right * turned[k, j]
    _mirrored_up(out)
    return out


@compile_on_first_call()
def add_known(sums: OwnMatrix, moments: OwnMatrix, place: Classes, rows: Matrix, square: Matrix, factor: float) -> None:
    """sums[place] += factor · rows and moments[place, place] += factor · square, except at places beyond the end."""
    old, known, count = sums.shape[0], np.empty(place.shape[0], dtype=np.int64), 0
    for i in range(place.shape[0]):
        if place[i] < old:
            known[count] = i
            count += 1
    columns, among = place.view(np.uint64), known.view(np.uint64)  # unsigned: no check for negative indices
    for a in range(count):
        i = among[a]
        for c in range(rows.shape[1]):
            sums[columns[i], c] += factor * rows[i, c]
        row, other = moments[columns[i]], square[i]
        if count == place.shape[0]:
            for j in range(count):
                row[columns[j]] += factor * other[j]
        else:
            for b in range(count):
                row[columns[among[b]]] += factor * other[among[b]]


# Allow reordered and fused sums, so that the inner loops can use vector registers.
@compile_on_first_call(fastmath={"reassoc", "contract"})
def norms(weights: Matrix, moments: Matrix) -> tuple[float, float]:
    """‖β‖² and ‖Θ‖² for β, Θ = `weights`, `moments`."""
    sums, square = 0.0, 0.0
    for i in range(weights.shape[0]):
        for c in range(weights.shape[1]):
            sums += weights[i, c] * weights[i, c]
        for j in range(weights.shape[0]):
            square += moments[i, j] * moments[i, j]
    return sums, square


@compile_on_first_call(fastmath={"reassoc", "contract"})
def apart(place: Classes, weights: Matrix, moments: Matrix, sums: Matrix, square: Matrix) -> tuple[float, float]:
    """‖β' − β‖² and ‖Θ' − Θ‖² for β', Θ' = `sums`, `square`; infinite if a point occurs twice.

    `place` holds the index of each point of β', Θ' among those of β, Θ, or of new points after these; each counts as 0 at
    points that it lacks. Both Θ are symmetric.
    """
    old, rows = weights.shape[0], sums.shape[0]
    has = np.zeros(old + rows, dtype=np.bool_)
    shared = 0
    for i in range(rows):
        if place[i] >= old + rows or has[place[i]]:
            return np.inf, np.inf
        has[place[i]] = True
        shared += place[i] < old
    between, off, diagonal = 0.0, 0.0, 0.0
    columns = place.view(np.uint64)  # unsigned: no check for negative indices
    for i in range(rows):
        other = square[i]
        if place[i] >= old:
            for c in range(weights.shape[1]):
                between += sums[i, c] * sums[i, c]
            for j in range(i):
                off += other[j] * other[j]
            diagonal += other[i] * other[i]
            continue
        for c in range(weights.shape[1]):
            gap = weights[columns[i], c] - sums[i, c]
            between += gap * gap
        row = moments[columns[i]]
        if shared == rows:
            for j in range(i):
                gap = row[columns[j]] - other[j]
                off += gap * gap
        else:
            for j in range(i):
                gap = other[j] if place[j] >= old else row[columns[j]] - other[j]
                off += gap * gap
        diagonal += (row[columns[i]] - other[i]) ** 2
    across = 2.0 * off + diagonal
    for i in range(old if shared < old else 0):
        if not has[i]:
            for c in range(weights.shape[1]):
                between += weights[i, c] * weights[i, c]
        for j in range(old):
            if not (has[i] and has[j]):
                across += moments[i, j] * moments[i, j]
    return between, across


@compile_on_first_call()
def spanning(gram: Matrix, turn: Indices, tolerance: float, limit: int) -> Indices:
    """Keep each point, in turn, whose distance² to the span of those kept before it exceeds tolerance · κ(x, x).

    Returns at most `limit` points, in turn. A Cholesky factorization, a block at a time.
    """
    n = gram.shape[0]
    ordered = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            ordered[i, j] = gram[turn[i], turn[j]]
    factor = np.empty((min(limit, n), n))  # rows of the factor, over all later points
    kept = np.empty(min(limit, n), dtype=np.int64)
    count = 0
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        block = ordered[start : start + size, start:].copy()
        if count:
            earlier = factor[:count, start:].copy()
            block -= np.dot(earlier[:, :size].copy().T, earlier)
        for j in range(size):
            if count == limit:
                break
            if not block[j, j] > tolerance * ordered[start + j, start + j]:
                continue
            row = block[j] / np.sqrt(block[j, j])
            factor[count, start:], kept[count] = row, turn[start + j]
            count += 1
            for i in range(j + 1, size):
                for k in range(i, n - start):
                    block[i, k] -= row[i] * row[k]
    return kept[:count].copy()
