"""Losses that need more than one pass over the outputs of a sample."""

import numpy as np

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics.compiled.jit import Classes, Indices, Matrix, OwnMatrix, OwnVector, compile_on_first_call, compiled

__all__ = ["margins", "softmax", "softmax_curvature"]


@compile_on_first_call()
def softmax(z: Matrix, y: Classes, values: OwnVector, slopes: OwnMatrix) -> None:
    """values = log Σ_d exp(z_d) − z_y for each row, slopes = exp(z_d) / Σ_d' exp(z_d') − [d = y]."""
    fill_softmax(z, y, values, slopes)


@compiled()
def fill_softmax(z: Floats, y: Ints, values: Floats, slopes: Floats) -> None:
    """`softmax` for compiled code."""
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


@compile_on_first_call()
def softmax_curvature(z: Matrix, least: float) -> OwnVector:
    """‖H‖² / tr H for each row, H = diag(p) − p pᵀ, p the softmax of z; at least `least`."""
    rows, outputs = z.shape
    out = np.empty(rows)
    p = np.empty(outputs)
    for i in range(rows):
        top = z[i, 0]
        for d in range(1, outputs):
            top = max(top, z[i, d])
        total = 0.0
        for d in range(outputs):
            p[d] = np.exp(z[i, d] - top)
            total += p[d]
        second, third = 0.0, 0.0
        for d in range(outputs):
            share = p[d] / total
            second += share * share
            third += share * share * share
        out[i] = max((second - 2.0 * third + second * second) / max(1.0 - second, 1e-300), least)
    return out


@compile_on_first_call()
def margins(z: Matrix, y: Classes) -> tuple[OwnVector, Indices]:
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
