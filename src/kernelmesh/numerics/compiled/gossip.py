"""Exchanges of all agents of a network at once, over tables with one row per agent or per edge.

Sums are computed in the same order as by a single agent, so that they round the same.
"""

import numpy as np

from kernelmesh.numerics.compiled.jit import Classes, Matrix, OwnMatrix, Vector, compile_on_first_call

__all__ = ["add_flows", "mix", "sum_flows"]


@compile_on_first_call(nogil=True)
def mix(table: Matrix, starts: Classes, neighbors: Classes, weights: Vector, own: Vector) -> OwnMatrix:
    """own_i · row_i + Σ_j weight_ij · row_j over the neighbors j of each agent i, those from starts_i to starts_{i+1}."""
    rows, columns = table.shape
    out = np.zeros((rows, columns))
    for i in range(rows):
        for n in range(starts[i], starts[i + 1]):
            weight, j = weights[n], neighbors[n]
            for k in range(columns):
                out[i, k] += weight * table[j, k]
        for k in range(columns):
            out[i, k] += own[i] * table[i, k]
    return out


@compile_on_first_call(nogil=True)
def add_flows(flows: Matrix, table: Matrix, first: Classes, second: Classes, weights: Vector) -> OwnMatrix:
    """flow_e + weight_e · (row of the second end − row of the first)."""
    edges, columns = flows.shape
    out = np.empty((edges, columns))
    for e in range(edges):
        i, j, weight = first[e], second[e], weights[e]
        for k in range(columns):
            out[e, k] = (-weight * table[i, k] + weight * table[j, k]) + flows[e, k]
    return out


@compile_on_first_call(nogil=True)
def sum_flows(flows: Matrix, starts: Classes, edges: Classes, signs: Vector) -> OwnMatrix:
    """Σ sign · flow over the edges of each agent, those from starts_i to starts_{i+1}."""
    rows, columns = starts.shape[0] - 1, flows.shape[1]
    out = np.zeros((rows, columns))
    for i in range(rows):
        for n in range(starts[i], starts[i + 1]):
            sign, e = signs[n], edges[n]
            for k in range(columns):
                out[i, k] += sign * flows[e, k]
    return out
