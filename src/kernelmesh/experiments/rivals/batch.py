"""Learners that have all the data at once: a kernel SVM, and kernel logistic regression."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from sklearn.svm import SVC

from kernelmesh.checks import Floats
from kernelmesh.experiments.rivals.base import Data, Outcome
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic

__all__ = ["kernel_logistic", "svm"]


def svm(data: Data) -> Outcome:
    """scikit-learn's support vector machine with the same kernel, C = 10."""
    machine = SVC(C=10.0, gamma=0.5 / data.bandwidth**2).fit(data.points, data.labels)
    score = float(machine.score(data.held_points, data.held_labels))
    kept = machine.support_vectors_.size + machine.dual_coef_.size
    return Outcome(score, score, kept, 0.0)


def kernel_logistic(data: Data, *, regularization: float = 1e-4) -> Outcome:
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
    return Outcome(score, score, data.points.size + weights.size, 0.0)
