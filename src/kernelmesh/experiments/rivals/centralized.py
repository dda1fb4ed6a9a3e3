"""Learners that have all the data in one place: a kernel SVM, kernel logistic regression, kernel SGD with a budget."""

import numpy as np
from scipy.optimize import minimize

from kernelmesh import Gaussian, Logistic
from kernelmesh.checks import Floats
from kernelmesh.experiments.rivals.base import Data, Score

__all__ = ["kernel_logistic", "remove_smallest", "svm"]


def svm(data: Data) -> Score:
    """scikit-learn's support vector machine with the same kernel, C = 10."""
    score, machine = data.batch_svm(gamma=0.5 / data.bandwidth**2)
    return Score.of([score], stored=machine.support_vectors_.size + machine.dual_coef_.size)


def kernel_logistic(data: Data, *, regularization: float = 1e-4) -> Score:
    """Multinomial kernel logistic regression on all samples, to the minimum."""
    kernel, loss, n = Gaussian(bandwidth=data.bandwidth), Logistic(), len(data.points)
    gram = kernel(data.points, data.points)
    gram[np.diag_indices(n)] += 1e-8
    root = np.linalg.cholesky(gram)

    def objective(flat: Floats) -> tuple[float, Floats]:
        theta = flat.reshape(n, data.classes)
        z = root @ theta
        value = float(loss.value(z, data.labels).mean()) + 0.5 * regularization * float((theta**2).sum())
        return value, (root.T @ (loss.slope(z, data.labels) / n) + regularization * theta).ravel()

    start = np.zeros(n * data.classes)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    weights = np.linalg.solve(root.T, found.x.reshape(n, data.classes))
    score = data.score(kernel(data.held_points, data.points) @ weights)
    return Score.of([score], stored=data.points.size + weights.size)


def remove_smallest(data: Data, *, order: int, step: float, regularization: float) -> Score:
    """Online kernel SGD: when there are too many points, the one with the smallest weight goes, and nothing is refitted."""
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
    return Score.of([score], stored=centers.size + weights.size)
