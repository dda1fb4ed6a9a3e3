"""Logistic regression that is linear in fixed features: the inputs themselves, random cosines, or landmarks."""

from collections.abc import Callable

import numpy as np

from kernelmesh import Gaussian, Graph, Logistic
from kernelmesh.checks import Floats
from kernelmesh.experiments.rivals.base import Data, Record, Score
from kernelmesh.messages import Values, wire_size

__all__ = ["dgd", "fourier", "nystrom"]

Features = Callable[[Floats], Floats]


def _learn(
    record: Record, graph: Graph, features: Features, step: float, *, diffuse: bool, stored: int = 0, folded: bool = False
) -> Score:
    """One run; `stored` numbers describe the features, and with `folded` make the weights superfluous.

    Decentralized gradient descent mixes and then steps, W ← A W − η ∇(W); diffusion steps and then mixes, W ← A (W − η ∇(W)).
    """
    data, loss, mixing = record.data, Logistic(), graph.metropolis()
    weights = np.zeros((len(graph), features(data.points[:1]).shape[1], data.classes))
    seen, sent = 0, 0

    def judge() -> list[float]:
        held = features(data.held_points)
        return [data.score(held @ own) for own in weights]

    for batches in zip(*data.streams(len(graph)), strict=True):
        slopes = np.empty_like(weights)
        for agent, batch in enumerate(batches):
            z = features(batch.points)
            slopes[agent] = z.T @ loss.slope(z @ weights[agent], batch.targets) / len(z)
            seen += len(z)
        stepped = weights - step * slopes if diffuse else weights
        weights = np.tensordot(mixing, stepped, axes=1)
        if not diffuse:
            weights -= step * slopes
        sent += 2 * len(graph.edges) * wire_size(Values(weights[0])).bytes
        record.take(seen // len(graph), judge, weights.shape[1])
    kept = stored if folded else stored + weights[0].size
    return record.finish(seen // len(graph), judge, points=weights.shape[1], stored=kept, traffic=sent / seen)


def dgd(data: Data, *, step: float = 0.5) -> Score:
    """Decentralized linear logistic regression by gradient descent."""

    def features(x: Floats) -> Floats:
        return np.column_stack([x, np.ones(len(x))])

    return _learn(Record(data), data.graph, features, step, diffuse=False)


def fourier(data: Data, *, width: int, step: float) -> Score:
    """Decentralized random Fourier features of the Gaussian kernel, by diffusion; all agents draw the same features."""
    record, rng = Record(data), data.rng(2)
    frequencies = rng.standard_normal((data.points.shape[1], width)) / data.bandwidth
    shifts = rng.uniform(0, 2 * np.pi, width)

    def features(x: Floats) -> Floats:
        return np.asarray(np.sqrt(2.0 / width) * np.cos(x @ frequencies + shifts))

    return _learn(record, data.graph, features, step, diffuse=True, stored=frequencies.size + shifts.size)


def nystrom(data: Data, *, width: int, step: float) -> Score:
    """One learner with all the data: SGD on Nyström features of random landmarks."""
    record, kernel = Record(data), Gaussian(bandwidth=data.bandwidth)
    chosen = data.rng(3).choice(len(data.points), size=min(width, len(data.points)), replace=False)
    landmarks = np.ascontiguousarray(data.points[chosen])
    values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
    kept = values > 1e-8 * values[-1]
    whiten = vectors[:, kept] / np.sqrt(values[kept])

    def features(x: Floats) -> Floats:
        return np.asarray(kernel(np.ascontiguousarray(x), landmarks) @ whiten)

    stored = landmarks.size + landmarks.shape[0] * data.classes  # whitening folds into the weights
    return _learn(record, Graph.line(1), features, step, diffuse=True, stored=stored, folded=True)
