"""Decentralized discriminative dictionary learning (D4L), which the paper compares with.

Each agent keeps a dictionary D (p × k, columns in the unit ball) and a linear classifier W on sparse codes. The code of a
sample is α(x, D) = argmin ½‖x − Dα‖² + λ₁‖α‖₁ + ½λ₂‖α‖². Task-driven dictionary learning differentiates the classification
loss through the code: with β supported where α is, (D_Sᵀ D_S + λ₂ I) β_S = ∂h/∂α_S, the gradient in D is
−D β αᵀ + (x − Dα) βᵀ. Agents agree by a saddle-point method: a multiplier per edge is raised by the difference of the ends
and pulls on both.
"""

import numpy as np

from kernelmesh import Logistic
from kernelmesh.checks import Floats
from kernelmesh.experiments.rivals.base import Data, Record, Score
from kernelmesh.messages import SentFunction, wire_size

__all__ = ["d4l"]

_ITERATIONS = 100


def d4l(data: Data, *, atoms: int, step: float, sparsity: float = 0.1, ridge: float = 0.1, dual_step: float = 0.1) -> Score:
    """The whole network for one run, measured at its end only: coding the test samples takes as long as many rounds."""
    record, graph, loss, rng = Record(data), data.graph, Logistic(), data.rng(4)
    agents, width = len(graph), data.points.shape[1]
    # codes see centered and scaled inputs; every agent starts from the same random samples as atoms
    center, scale = data.points.mean(axis=0), data.points.std() or 1.0
    start = ((data.points[rng.choice(len(data.points), atoms)] - center) / scale).T
    start = start + 0.01 * rng.standard_normal(start.shape)
    dictionary = np.repeat(_in_ball(start)[None], agents, axis=0)
    classifier = np.zeros((agents, atoms + 1, data.classes))
    pulls = [np.zeros_like(dictionary), np.zeros_like(classifier)]
    seen, sent = 0, 0

    def judge() -> list[float]:
        held = (data.held_points - center) / scale
        codes = (_codes(held, own, sparsity, ridge) for own in dictionary)
        pairs = zip(codes, classifier, strict=True)
        return [data.score(np.column_stack([code, np.ones(len(code))]) @ own) for code, own in pairs]

    for number, batches in enumerate(zip(*data.streams(agents), strict=True)):
        rate = step / np.sqrt(1.0 + number / 50)
        slopes = [np.zeros_like(dictionary), np.zeros_like(classifier)]
        for i, batch in enumerate(batches):
            x = (batch.points - center) / scale
            codes = _codes(x, dictionary[i], sparsity, ridge)
            ones = np.column_stack([codes, np.ones(len(codes))])
            push = loss.slope(ones @ classifier[i], batch.targets) / len(x)
            slopes[1][i] = ones.T @ push + 1e-4 * classifier[i]
            beta = _through(codes, push @ classifier[i][:-1].T, dictionary[i], ridge)
            slopes[0][i] = -dictionary[i] @ (beta.T @ codes) + (x - codes @ dictionary[i].T).T @ beta
            seen += len(x)
        parts = [dictionary, classifier]
        for part, pull in zip(parts, pulls, strict=True):
            for i, j in graph.edges:
                gap = part[i] - part[j]
                pull[i] += dual_step * gap
                pull[j] -= dual_step * gap
        dictionary = np.stack([_in_ball(d) for d in dictionary - rate * (slopes[0] + pulls[0])])
        classifier = classifier - rate * (10.0 * slopes[1] + pulls[1])
        sent += 2 * len(graph.edges) * (wire_size(SentFunction(dictionary[0], dictionary[0])).bytes // 2)
        sent += 2 * len(graph.edges) * 8 * classifier[0].size
    stored = (width + data.classes) * atoms
    return record.finish(seen // agents, judge, points=atoms, stored=stored, traffic=sent / seen)


def _in_ball(dictionary: Floats) -> Floats:
    """Columns at most of length one."""
    return np.asarray(dictionary / np.maximum(np.linalg.norm(dictionary, axis=0), 1.0))


def _codes(x: Floats, dictionary: Floats, sparsity: float, ridge: float) -> Floats:
    """Elastic-net codes of all rows at once, by accelerated proximal gradient."""
    gram, against = dictionary.T @ dictionary, x @ dictionary
    rate = 1.0 / (np.linalg.norm(gram, 2) + ridge)
    codes = ahead = np.zeros_like(against)
    momentum = 1.0
    for _ in range(_ITERATIONS):
        moved = ahead - rate * (ahead @ gram - against + ridge * ahead)
        new = np.sign(moved) * np.maximum(np.abs(moved) - rate * sparsity, 0.0)
        grown = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        ahead = new + (momentum - 1) / grown * (new - codes)
        codes, momentum = new, grown
    return codes


def _through(codes: Floats, slope: Floats, dictionary: Floats, ridge: float) -> Floats:
    """β of every row: the classification slope carried through the code, on its support."""
    beta = np.zeros_like(codes)
    for row, support in enumerate(codes != 0):
        if support.any():
            part = dictionary[:, support]
            system = part.T @ part + ridge * np.eye(part.shape[1])
            beta[row, support] = np.linalg.solve(system, slope[row, support])
    return beta
