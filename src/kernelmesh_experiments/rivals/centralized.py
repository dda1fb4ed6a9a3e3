"""Learners that have all the data in one place: a kernel SVM, kernel logistic regression, kernel SGD with a budget."""

import numpy as np
from scipy.optimize import minimize
from sklearn.svm import SVC

from kernelmesh import Gaussian, Logistic
from kernelmesh_experiments.rivals.base import Data, Record, Score
from kernelmesh_experiments.settings import Floats

__all__ = ["kernel_logistic", "remove_smallest", "svm"]


def svm(data: Data, *, c: float = 10.0) -> Score:
    """scikit-learn's support vector machine with the same kernel."""
    record = Record(data)
    machine = SVC(C=c, gamma=0.5 / data.bandwidth**2).fit(data.points, data.labels)
    stored = machine.support_vectors_.size + machine.dual_coef_.size

    def judge() -> list[float]:
        return [float(machine.score(data.held_points, data.held_labels))]

    return record.finish(judge, points=len(machine.support_), stored=stored)


def kernel_logistic(data: Data, *, regularization: float = 1e-4) -> Score:
    """Multinomial kernel logistic regression on all samples, to the minimum."""
    record = Record(data)
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

    def judge() -> list[float]:
        return [data.score(kernel(data.held_points, data.points) @ weights)]

    return record.finish(judge, points=n, stored=data.points.size + weights.size)


def remove_smallest(data: Data, *, order: int, step: float, regularization: float) -> Score:
    """Online kernel SGD: when there are too many points, the one with the smallest weight goes, and nothing is refitted."""
    record = Record(data)
    kernel, loss = Gaussian(bandwidth=data.bandwidth), Logistic()
    centers = np.empty((0, data.points.shape[1]))
    weights = np.empty((0, data.classes))

    def judge() -> list[float]:
        return [data.score(kernel(data.held_points, centers) @ weights)]

    for batch in data.streams(1)[0]:
        z = kernel(batch.points, centers) @ weights
        push = -step / len(z) * loss.slope(z, batch.targets)
        centers = np.concatenate([centers, batch.points])
        weights = np.concatenate([(1 - step * regularization) * weights, push])
        if len(weights) > order:
            size = (weights**2).sum(axis=1)
            kept = np.sort(np.argpartition(size, len(size) - order)[len(size) - order :])
            centers, weights = centers[kept], weights[kept]
    return record.finish(judge, points=len(centers), stored=centers.size + weights.size)
