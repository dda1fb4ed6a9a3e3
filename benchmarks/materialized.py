"""What ours is compared with: matching pursuit the textbook way, as existing code does it.

The inverse Gram matrix of all candidates is formed anew in each step, and points are removed one by one with a rank-one
update of the whole matrix. It plays the same role as `kernelmesh.Komp` and reaches the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelmesh.numerics.compression import CompressionReport, Model, Update
from kernelmesh.numerics.function import Function


@dataclass(frozen=True)
class Materialized:
    """Algorithm 2 with a materialized inverse; `jitter` is what such code adds to survive duplicates."""

    budget: float = 0.0
    jitter: float = 1e-10

    def start(self, function: Function) -> Model:
        """Nothing is kept between steps but the function itself."""
        return Model(function, square_norm=function.inner(function))

    def budget_at(self, samples: int, *, unit: float, parsimony: float) -> float:
        """The same at all times."""
        return self.budget

    def absorb(self, model: Model, update: Update, *, budget: float) -> tuple[Model, CompressionReport]:
        """Stack, invert, remove one by one."""
        f = model.function
        centers = np.vstack([f.points, update.points])
        weights = np.vstack([update.shrink * f.weights, update.coefficients])
        gram = f.kernel(centers, centers)
        gram[np.diag_indices_from(gram)] += self.jitter
        inverse = np.linalg.inv(gram)
        error = 0.0
        removed = 0
        while len(weights):
            costs = (weights**2).sum(axis=1) / np.diag(inverse)
            j = int(costs.argmin())
            if error + costs[j] > budget**2:
                break
            error += float(costs[j])
            column = inverse[:, j].copy()
            weights = weights - np.outer(column, weights[j] / column[j])
            inverse -= np.outer(column, column / column[j])
            weights = np.delete(weights, j, axis=0)
            centers = np.delete(centers, j, axis=0)
            inverse = np.delete(np.delete(inverse, j, axis=0), j, axis=1)
            removed += 1
        function = Function.of(f.kernel, centers, weights)
        return Model(function), CompressionReport(error=math.sqrt(error), budget=budget, removed=removed)
