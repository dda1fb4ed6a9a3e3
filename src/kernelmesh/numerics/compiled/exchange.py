"""Updates of P and of the weights when points leave and enter a dictionary."""

import numpy as np

from kernelmesh.numerics.compiled.jit import Indices, Matrix, OwnMatrix, OwnVector, compile_on_first_call
from kernelmesh.numerics.compiled.linear import cholesky, solve, solve_transposed, transposed

__all__ = ["exchange", "place", "spread_rows"]


@compile_on_first_call()
def exchange(
    inverse: Matrix,
    order: int,
    leaving: Indices,
    kept: Indices,
    lifted: Matrix,
    schur: Matrix,
    weights: Matrix,
    shrink: float,
    coefficients: Matrix,
) -> tuple[OwnMatrix, OwnMatrix, OwnMatrix, OwnMatrix, OwnMatrix, OwnMatrix]:
    """Compute the updates of P and of the weights when old points R leave and some new ones I, `kept`, enter.

    The old ones leave first, so that P never contains two points that nearly coincide, and no digits cancel. With
    E = P_RR = C Cᵀ, Q = C⁻¹ P_R: and U = C⁻¹ Z_IRᵀ, removing R leaves P − QᵀQ, and relative to it the entering points have
    Z' = Z_I − UᵀQ and S' = S_II + UᵀU = L Lᵀ. With Y = L⁻¹ Z', P becomes [[P − QᵀQ + YᵀY, −YᵀL⁻¹], [−L⁻ᵀY, S'⁻¹]].

    The dropped new points N change the weights of the old ones, W += Z_Nᵀ A_N. The weights of the entering points change by
    T = S'⁻¹ (UᵀC⁻¹ W_R + S_IN A_N), and those of the old ones become W − Qᵀ C⁻¹ W_R − Z'ᵀ T.

    Returns Y, Q, the rows of the entering points over the old ones and over each other, the weights of the old points (those
    of the leaving ones are meaningless) and of the entering ones. No argument is modified.
    """
    dropped = np.ones(len(coefficients), dtype=np.bool_)
    dropped[kept] = False
    others = np.flatnonzero(dropped)

    rest = coefficients[others]
    staying = shrink * weights
    if order > 0:
        staying += np.dot(transposed(lifted[others, :order]), rest)
    arriving = coefficients[kept]
    gained = lifted[kept]  # Z_I, then Z', then Y
    square = schur[kept][:, kept]  # S_II, then S'
    share = np.dot(schur[kept][:, others], rest)
    lost = inverse[leaving]
    if leaving.size > 0:
        at = transposed(gained[:, leaving])
        pivots = cholesky(lost[:, leaving])
        solve(pivots, lost)
        solve(pivots, at)
        behind = staying[leaving]
        solve(pivots, behind)
        turned = transposed(at)
        gained -= np.dot(turned, lost)
        square += np.dot(turned, at)
        share += np.dot(turned, behind)
        staying -= np.dot(transposed(lost[:, :order]), behind)

    lower = cholesky(square)
    solve(lower, share)
    solve_transposed(lower, share)
    arriving += share
    if order > 0:
        staying -= np.dot(transposed(gained[:, :order]), share)
    solve(lower, gained)
    back = np.eye(kept.size)
    solve(lower, back)
    turned = transposed(back)
    return gained, lost, -np.dot(turned, gained), np.dot(turned, back), staying, arriving


@compile_on_first_call()
def place(
    inverse: OwnMatrix, old: int, order: int, movers: Indices, gaps: Indices, slots: Indices, rows: OwnMatrix, block: Matrix
) -> None:
    """Move remaining rows beyond the new end into the gaps, write the rows of the entering points, and clear the rest."""
    inverse[gaps] = inverse[movers]
    inverse[:, gaps] = inverse[:, movers]
    rows[:, gaps] = rows[:, movers]
    rows[:, slots] = block
    inverse[slots] = rows
    inverse[:, slots] = rows.T
    inverse[:, order:old] = 0.0
    inverse[order:old] = 0.0


@compile_on_first_call()
def spread_rows(flat: OwnVector, order: int, old_width: int, new_width: int) -> None:
    """Change the row length of the leading `order` × `order` block in a flat buffer from old_width to new_width.

    Everything outside the block becomes zero. The buffer must be large enough for both layouts.
    """
    for k in range(order):
        i = order - 1 - k if new_width > old_width else k  # an order in which no row is overwritten before it has moved
        row = flat[i * old_width : i * old_width + order].copy()
        flat[i * new_width : i * new_width + order] = row
        flat[i * new_width + order : (i + 1) * new_width] = 0.0
    flat[order * new_width : new_width * new_width] = 0.0
