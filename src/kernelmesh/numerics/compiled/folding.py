"""Merging of equal points."""

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Ints
from kernelmesh.numerics.compiled.jit import Bits, Indices, Matrix, OwnMatrix, compile_on_first_call, compiled

__all__ = ["fold"]


@compiled()
def _hash(bits: NDArray[np.uint64], row: int) -> np.uint64:
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for k in range(bits.shape[1]):
        mixed = (mixed ^ bits[row, k]) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return mixed


@compiled()
def _first_of_equals(bits: NDArray[np.uint64]) -> Ints:
    """For each row, the first row with the same bits, by a hash table with twice as many slots as rows."""
    rows, columns = bits.shape
    size = 4
    while size < 2 * rows:
        size *= 2
    places = np.full(size, -1, dtype=np.int64)
    first = np.empty(rows, dtype=np.int64)
    for i in range(rows):
        mixed = _hash(bits, i)
        place = np.int64(mixed & np.uint64(size - 1))
        first[i] = -1
        while first[i] < 0:
            j = places[place]
            if j < 0:
                places[place] = i
                first[i] = i
            else:
                same = True
                for k in range(columns):
                    same = same and bits[i, k] == bits[j, k]
                if same:
                    first[i] = j
            place = (place + 1) & (size - 1)
    return first


@compile_on_first_call()
def fold(bits: Bits, old: int, coefficients: Matrix) -> tuple[Indices, OwnMatrix, bool]:
    """Sum the coefficients of equal points. `bits` holds those of `old` points, then of the new points with coefficients.

    Returns the new points that equal no earlier point; the sums for the old points and then for those; and whether any new
    point equals an old one. The sums are empty if no new point equals any other.
    """
    rows, outputs = coefficients.shape
    first = _first_of_equals(bits)
    place = np.empty(rows, dtype=np.int64)  # the position among the old points and the fresh ones
    fresh = np.empty(rows, dtype=np.int64)
    count, touches = 0, False
    for i in range(rows):
        if first[old + i] == old + i:
            place[i] = old + count
            fresh[count] = i
            count += 1
        elif first[old + i] < old:
            place[i] = first[old + i]
            touches = True
        else:
            place[i] = place[first[old + i] - old]
    if count == rows:
        return fresh, np.empty((0, outputs)), False
    sums = np.zeros((old + count, outputs))
    for i in range(rows):
        for d in range(outputs):
            sums[place[i], d] += coefficients[i, d]
    return fresh[:count], sums, touches
