"""Two functions over one dictionary, stacked as one function with twice as many outputs."""

import numpy as np

from kernelmesh.numerics.compiled.jit import Matrix, OwnMatrix, compile_on_first_call

__all__ = ["split", "stack"]


@compile_on_first_call()
def stack(first: Matrix, scale: float, second: Matrix, kept: float, gained: float) -> OwnMatrix:
    """[scale · first, kept · second + gained · first]."""
    rows, outputs = first.shape
    out = np.empty((rows, 2 * outputs))
    for i in range(rows):
        for c in range(outputs):
            out[i, c] = scale * first[i, c]
            out[i, outputs + c] = kept * second[i, c] + gained * first[i, c]
    return out


@compile_on_first_call()
def split(both: Matrix, scale: float) -> tuple[OwnMatrix, OwnMatrix]:
    """The two halves of the columns; the first half is divided by the scale."""
    rows, outputs = both.shape[0], both.shape[1] // 2
    first, second = np.empty((rows, outputs)), np.empty((rows, outputs))
    for i in range(rows):
        for c in range(outputs):
            first[i, c] = both[i, c] / scale
            second[i, c] = both[i, outputs + c]
    return first, second
