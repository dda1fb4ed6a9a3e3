"""Squared Euclidean distances that stay accurate for points that nearly coincide."""

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.numerics import compiled
from kernelmesh.numerics.products import product

__all__ = ["squared_distances"]


def squared_distances(left: Floats, right: Floats, *, scale: float = 1.0) -> Floats:
    """Scale · ‖left_i − right_j‖² for all pairs, exactly 0 for equal points.

    >>> squared_distances(np.array([[0.0, 3.0]]), np.array([[4.0, 0.0], [0.0, 3.0]]))
    array([[25.,  0.]])
    """
    # in few coordinates the differences themselves are taken, which rounds least
    if left.shape[1] <= 12 or left.shape[0] == 0 or right.shape[0] == 0:
        out = np.empty((left.shape[0], right.shape[0]))
        compiled.distances.pairwise_squares(left, right, scale, out)
        return out
    out = product(left, right.T)
    compiled.distances.repair_squares(
        left, right, np.einsum("ij,ij->i", left, left), np.einsum("ij,ij->i", right, right), scale, out
    )
    return out
