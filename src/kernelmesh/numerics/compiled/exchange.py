"""Points that leave and enter a dictionary: what becomes of P and of the weights."""

from __future__ import annotations

import numpy as np
from numba import types

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.jit import compile_on_first_call, in_matrix, indices, matrix, vector
from kernelmesh.numerics.compiled.linear import (
    add,
    block_of,
    cholesky,
    rows_of,
    scaled,
    solve,
    solve_transposed,
    transposed,
)

__all__ = ["exchange", "place", "spread_rows"]

_Exchange = types.Tuple((matrix, matrix, matrix, matrix, matrix, matrix))


@compile_on_first_call(
    _Exchange(in_matrix, types.int64, indices, indices, in_matrix, in_matrix, in_matrix, types.float64, in_matrix)
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
    """Work out what becomes of P and of the weights when old points R leave and some new ones I, `kept`, enter.

    The old ones leave first, so that no two points that nearly coincide are ever in P together and nothing cancels. With
    E = P_RR = C Cᵀ, Q = C⁻¹ P_R: and U = C⁻¹ Z_IRᵀ, taking R out leaves P − QᵀQ, and relative to it the entering points have
    Z' = Z_I − UᵀQ and S' = S_II + UᵀU = L Lᵀ. With Y = L⁻¹ Z', P becomes [[P − QᵀQ + YᵀY, −YᵀL⁻¹], [−L⁻ᵀY, S'⁻¹]].

    The new points N that were dropped give W += Z_Nᵀ A_N to the old ones; what R and the rest of N leave behind goes to the
    entering ones, T = S'⁻¹ (UᵀC⁻¹ W_R + S_IN A_N), and to the old ones, W − Qᵀ C⁻¹ W_R − Z'ᵀ T.

    Returns Y, Q, the rows of the entering points over the old ones and over each other, the weights of the old points (those
    of the leaving ones are meaningless) and of the entering ones. Nothing is changed.
    """
    batch, outputs = coefficients.shape
    width = inverse.shape[1]
    new, gone = kept.size, leaving.size
    dropped = np.ones(batch, dtype=np.bool_)
    for a in range(new):
        dropped[kept[a]] = False
    others = np.flatnonzero(dropped)

    rest = rows_of(coefficients, others, outputs)
    staying = scaled(weights, shrink)
    if order > 0:
        add(staying, np.dot(transposed(rows_of(lifted, others, order), order), rest), 1.0)
    arriving = rows_of(coefficients, kept, outputs)
    gained = rows_of(lifted, kept, width)  # Z_I, then Z', then Y
    square = block_of(schur, kept, kept)  # S_II, then S'
    share = np.dot(block_of(schur, kept, others), rest)
    lost = rows_of(inverse, leaving, width)
    if gone > 0:
        corner = np.empty((gone, gone))
        at = np.empty((gone, new))
        for r in range(gone):
            for q in range(gone):
                corner[r, q] = lost[r, leaving[q]]
            for a in range(new):
                at[r, a] = gained[a, leaving[r]]
        pivots = cholesky(corner)
        solve(pivots, lost)
        solve(pivots, at)
        behind = rows_of(staying, leaving, outputs)
        solve(pivots, behind)
        turned = transposed(at, new)
        add(gained, np.dot(turned, lost), -1.0)
        add(square, np.dot(turned, at), 1.0)
        add(share, np.dot(turned, behind), 1.0)
        add(staying, np.dot(transposed(lost, order), behind), -1.0)

    lower = cholesky(square)
    solve(lower, share)
    solve_transposed(lower, share)
    add(arriving, share, 1.0)
    if order > 0:
        add(staying, np.dot(transposed(gained, order), share), -1.0)
    solve(lower, gained)
    back = np.eye(new)
    solve(lower, back)
    turned = transposed(back, new)
    rows = scaled(np.dot(turned, gained), -1.0)
    block = np.dot(turned, back)
    return gained, lost, rows, block, staying, arriving


@compile_on_first_call(types.void(matrix, types.int64, types.int64, indices, indices, indices, matrix, in_matrix))
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


@compile_on_first_call(types.void(vector, types.int64, types.int64, types.int64))
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
