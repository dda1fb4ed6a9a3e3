"""Online kernel SGD with a budget: when there are too many points, the one with the smallest weight goes."""

from __future__ import annotations

import numpy as np

from kernelmesh.experiments.rivals.base import Data, Outcome
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic

__all__ = ["remove_smallest"]


def remove_smallest(data: Data, *, order: int, step: float, regularization: float) -> Outcome:
    """One learner with all the data; nothing is refitted when a point is removed."""
    kernel, loss = Gaussian(bandwidth=data.bandwidth), Logistic()
    centers = np.empty((0, data.points.shape[1]))
    weights = np.empty((0, data.classes))
    for batch in data.streams(1)[0]:
        z = kernel(batch.points, centers) @ weights
        push = -step / len(z) * loss.slope(z, batch.targets)
        centers = np.concatenate([centers, batch.points])
        weights = np.concatenate([(1 - step * regularization) * weights, push])
        if len(weights) > order:
            size = (weights**2).sum(axis=1)
            kept = np.sort(np.argpartition(size, len(size) - order)[len(size) - order :])
            centers, weights = centers[kept], weights[kept]
    score = data.score(kernel(data.held_points, centers) @ weights)
    return Outcome(score, score, centers.size + weights.size, 0.0)
