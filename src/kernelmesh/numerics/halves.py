"""Symmetric matrices in half the memory, for storage between uses."""

from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.numerics import compiled

__all__ = ["Half", "halved", "whole"]

# Matrices of more rows stay whole: copying them back and forth would take a noticeable part of a step, and networks of so
# many agents that memory matters have smaller ones.
_LARGE = 256


@dataclass(frozen=True, eq=False, slots=True)
class Half:
    """The lower triangle of a symmetric matrix, row by row."""

    numbers: Floats
    order: int


def halved(square: Floats) -> Floats | Half:
    """The half of a matrix that is symmetric to the last bit and not large; any other matrix unchanged.

    >>> halved(np.array([[1.0, 2.0], [2.0, 3.0]])).numbers
    array([1., 2., 3.])
    """
    if len(square) > _LARGE:
        return square
    table = np.ascontiguousarray(square)
    if not compiled.symmetric.is_symmetric(table):
        return square
    return Half(compiled.symmetric.lower_half(table), len(table))


def whole(kept: Floats | Half) -> Floats:
    """The full matrix, bit for bit; a new array if a half was stored.

    >>> whole(halved(np.array([[1.0, 2.0], [2.0, 3.0]])))
    array([[1., 2.],
           [2., 3.]])
    """
    return compiled.symmetric.whole(kept.numbers, kept.order) if isinstance(kept, Half) else kept
