"""Updates of P and of the weights when old points R leave a dictionary and some new ones I enter.

The old ones leave first, so that P never contains two points that nearly coincide, and no digits cancel. With
E = P_RR = C Cᵀ, Q = C⁻¹ P_R: and U = C⁻¹ Z_IRᵀ, removing R leaves P − QᵀQ, and relative to it the entering points have
Z' = Z_I − UᵀQ and S' = S_II + UᵀU = L Lᵀ. With Y = L⁻¹ Z', P becomes [[P − QᵀQ + YᵀY, −YᵀL⁻¹], [−L⁻ᵀY, S'⁻¹]].

The dropped new points N change the weights of the old ones, W += Z_Nᵀ A_N. The weights of the entering points change by
T = S'⁻¹ (UᵀC⁻¹ W_R + S_IN A_N), and those of the old ones become W − Qᵀ C⁻¹ W_R − Z'ᵀ T.
"""

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.jit import Indices, Matrix, OwnMatrix, compile_on_first_call, compiled
from kernelmesh.numerics.compiled.linear import cholesky, solve, solve_transposed, transposed

__all__ = ["apply", "exchange"]


@compile_on_first_call()
def exchange(
    inverse: Matrix,
    leaving: Indices,
    kept: Indices,
    lifted: Matrix,
    schur: Matrix,
    weights: Matrix,
    shrink: float,
    coefficients: Matrix,
) -> tuple[OwnMatrix, OwnMatrix, OwnMatrix, OwnMatrix, OwnMatrix, OwnMatrix]:
    """Compute the updates when the old points `leaving` leave and the new ones `kept` enter.

    Returns Y, Q, the rows of the entering points over the old ones and over each other, the weights of the old points (those
    of the leaving ones are meaningless) and of the entering ones.
    """
    order = len(inverse)
    dropped = np.ones(len(coefficients), dtype=np.bool_)
    dropped[kept] = False
    others = np.flatnonzero(dropped)
    rest = coefficients[others]
    staying = shrink * weights
    if order > 0:
        staying += np.dot(transposed(lifted[others]), rest)
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
        staying -= np.dot(transposed(lost), behind)

    lower = cholesky(square)
    solve(lower, share)
    solve_transposed(lower, share)
    arriving += share
    if order > 0:
        staying -= np.dot(transposed(gained), share)
    rows, block = _entering(lower, gained)
    return gained, lost, rows, block, staying, arriving


@compiled()
def _entering(lower: Floats, gained: Floats) -> tuple[Floats, Floats]:
    """Y ← L⁻¹ Z', and the rows of the entering points, −L⁻ᵀ Y over the old ones and S'⁻¹ over each other."""
    solve(lower, gained)
    back = np.eye(len(lower))
    solve(lower, back)
    turned = transposed(back)
    return -np.dot(turned, gained), np.dot(turned, back)


@compile_on_first_call()
def apply(
    out: OwnMatrix,
    inverse: Matrix,
    movers: Indices,
    gaps: Indices,
    slots: Indices,
    gained: Matrix,
    lost: Matrix,
    rows: Matrix,
    block: Matrix,
    less: Matrix,
) -> None:
    """P + YᵀY − QᵀQ over the points that remain, each in its place, with the rows of the entering points; less GᵀG.

    The caller allocates `out`: NumPy asks for large pages, without which new memory would cost more than the product.
    """
    order = len(out)
    if order == 0:
        return
    shared = min(order, len(inverse))
    split, total = len(gained), len(gained) + len(lost)
    terms = np.zeros((total + len(less), order))
    for a in range(total):
        _place(terms[a], gained[a] if a < split else lost[a - split], shared, movers, gaps, slots)
    for a in range(len(less)):
        for j in range(order):
            terms[total + a, j] = less[a, j]
    signed = terms.copy()
    for a in range(split, len(terms)):
        for j in range(order):
            signed[a, j] = -terms[a, j]
    np.dot(transposed(terms), signed, out)
    _add_old(out, inverse, shared, movers, gaps, slots)
    for a in range(slots.size):
        row = np.zeros(order)
        _place(row, rows[a], shared, movers, gaps, slots)
        for j in range(order):
            out[slots[a], j] += row[j]
            out[j, slots[a]] += row[j]
        for b in range(slots.size):
            out[slots[a], slots[b]] += block[a, b]


@compiled()
def _place(target: Floats, row: Floats, shared: int, movers: Ints, gaps: Ints, slots: Ints) -> None:
    """target ← a row over the old points, over those that remain, each in its place; 0 for the entering ones."""
    for j in range(shared):
        target[j] = row[j]
    for g in range(gaps.size):
        target[gaps[g]] = row[movers[g]]
    for s in range(slots.size):
        target[slots[s]] = 0.0


@compiled()
def _add_old(out: Floats, inverse: Floats, shared: int, movers: Ints, gaps: Ints, slots: Ints) -> None:
    """Add P among the old points that remain: whole rows, so that the loop uses vector registers, but for a few columns."""
    few = gaps.size
    columns = np.empty(few + slots.size, dtype=np.int64)
    source = np.arange(len(out))
    for g in range(gaps.size):
        columns[g] = gaps[g]
        source[gaps[g]] = movers[g]
    for s in range(slots.size):
        source[slots[s]] = -1
        if slots[s] < shared:
            columns[few] = slots[s]
            few += 1
    before = np.empty(few)
    for i in range(len(out)):
        if source[i] >= 0:
            row = inverse[source[i]]
            for c in range(few):
                before[c] = out[i, columns[c]]
            for j in range(shared):
                out[i, j] += row[j]
            for c in range(few):
                out[i, columns[c]] = before[c] + (row[movers[c]] if c < gaps.size else 0.0)
