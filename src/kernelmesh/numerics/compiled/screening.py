"""Received functions on an agent's own samples."""

import math

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.folding import first_of_equals, numbered
from kernelmesh.numerics.compiled.jit import (
    Bits,
    Classes,
    Indices,
    Matrix,
    OwnMatrix,
    OwnVector,
    Vector,
    compile_on_first_call,
    compiled,
)
from kernelmesh.numerics.compiled.linear import transposed

__all__ = ["far", "gap", "merged", "outputs", "size", "squares"]


@compile_on_first_call()
def merged(bits: Bits, old: int) -> tuple[OwnMatrix, Indices, bool]:
    """The points that are new, the index of each point among the `old` ones followed by these, and whether all are finite.

    `bits` holds those of the old points, no two of which are equal, and then of the others.
    """
    fresh, place = numbered(first_of_equals(bits), old)
    points, out, total = bits.view(np.float64), np.empty((fresh.shape[0], bits.shape[1])), 0.0
    for i in range(fresh.shape[0]):
        for k in range(bits.shape[1]):
            out[i, k] = points[old + fresh[i], k]
            total += 0.0 * out[i, k]
    return out, place, total == 0.0


@compiled()
def _is_far(cross: Floats, own: float, columns: Floats, least: float) -> bool:
    for j in range(len(cross)):  # noqa: SIM110 - generators cannot be compiled, and nothing is near to what is not a number
        if abs(cross[j]) > least * math.sqrt(own * columns[j]):
            return False
    return True


@compile_on_first_call()
def far(cross: Matrix, rows: Vector, columns: Vector, least: float) -> Indices:
    """The points Z whose correlation with every point X is at most `least`, given κ(Z, X), κ(z, z) and κ(x, x)."""
    out, count = np.empty(cross.shape[0], dtype=np.int64), 0
    for i in range(cross.shape[0]):
        if _is_far(cross[i], rows[i], columns, least):
            out[count] = i
            count += 1
    return out[:count].copy()


@compiled(fastmath={"reassoc", "contract"}, error_model="numpy")
def _fill(own: Floats, new: Floats, place: Ints, weights: Floats, start: int, stop: int, there: Floats) -> float:
    """there = f_j(X)ᵀ for the function with these rows of `weights`; returns Σ_m ‖w_m‖."""
    columns, samples = there.shape
    for c in range(columns):
        for b in range(samples):
            there[c, b] = 0.0
    size = 0.0
    for m in range(start, stop):
        square = 0.0
        row = own[place[m]] if place[m] < own.shape[0] else new[place[m] - own.shape[0]]
        for c in range(columns):
            weight = weights[m, c]
            square += weight * weight
            for b in range(samples):
                there[c, b] += weight * row[b]
        size += math.sqrt(square)
    return size


@compile_on_first_call(fastmath={"reassoc", "contract"})
def size(weights: Matrix, moments: Matrix) -> float:
    """Σ_m ‖w_m‖ + Σ_mn |Θ_mn|."""
    out = 0.0
    for m in range(weights.shape[0]):
        square = 0.0
        for c in range(weights.shape[1]):
            square += weights[m, c] * weights[m, c]
        out += math.sqrt(square)
    for m in range(moments.shape[0]):
        for n in range(moments.shape[1]):
            out += abs(moments[m, n])
    return out


@compile_on_first_call()
def squares(outputs: Matrix, functions: int) -> OwnVector:
    """The squared norm of each function's outputs, which are stacked by rows."""
    rows, out = outputs.shape[0] // functions, np.zeros(functions)
    for j in range(functions):
        for b in range(j * rows, (j + 1) * rows):
            for c in range(outputs.shape[1]):
                out[j] += outputs[b, c] * outputs[b, c]
    return out


@compiled()
def _larger(left: float, right: float) -> float:
    """The larger number; infinite if one is not a number."""
    return max(left, right) if left == left and right == right else np.inf


@compile_on_first_call()
def gap(
    here: Matrix,
    cross: Matrix,
    new: Matrix,
    place: Classes,
    counts: Classes,
    weights: Matrix,
    rows: Vector,
    others: Vector,
    least: float,
) -> tuple[float, float, float, int]:
    """The largest ‖f_j(X) − f(X)‖² of several functions f_j, ‖f(X)‖², the largest Σ_m ‖w_m‖, and how many points are far.

    The functions are given as in `outputs`; `far` says when a row of `new` is far.
    """
    samples, columns = here.shape
    own, there = transposed(cross), np.empty((columns, samples))
    square, most, largest, at = 0.0, 0.0, 0.0, 0
    for b in range(samples):
        for c in range(columns):
            square += here[b, c] * here[b, c]
    for j in range(counts.shape[0]):
        size = _fill(own, new, place, weights, at, at + counts[j], there)
        at += counts[j]
        apart = 0.0
        for b in range(samples):
            for c in range(columns):
                apart += (there[c, b] - here[b, c]) ** 2
        most, largest = _larger(most, apart), _larger(largest, size)
    strangers = 0
    for i in range(new.shape[0]):
        strangers += _is_far(new[i], rows[i], others, least)
    return most, square, largest, strangers


@compile_on_first_call()
def outputs(
    here: Matrix, cross: Matrix, new: Matrix, place: Classes, counts: Classes, weights: Matrix
) -> tuple[OwnMatrix, float]:
    """f(X), 0 and f_j(X) of several functions f_j, stacked by rows, and the largest Σ_m ‖w_m‖.

    f_j has the next counts[j] rows of `weights`. Their points are given by `place`, as indices of the points D followed by F.
    `here` is f(X), `cross` is κ(X, D), and the first columns of `new` are κ(F, X).
    """
    samples, columns = here.shape
    own, there = transposed(cross), np.empty((columns, samples))
    functions = counts.shape[0] + 2
    out = np.zeros((functions * samples, columns))
    for b in range(samples):
        for c in range(columns):
            out[b, c] = here[b, c]
    largest, at = 0.0, 0
    for j in range(counts.shape[0]):
        size = _fill(own, new, place, weights, at, at + counts[j], there)
        at += counts[j]
        largest = _larger(largest, size)
        for b in range(samples):
            for c in range(columns):
                out[(j + 2) * samples + b, c] = there[c, b]
    return out, largest
