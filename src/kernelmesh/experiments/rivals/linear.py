"""Logistic regression that is linear in fixed features: the inputs themselves, random cosines, or landmarks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.experiments.rivals.base import Data, Outcome
from kernelmesh.messages import Values, wire_size
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic

__all__ = ["dgd", "fourier", "nystrom"]

Features = Callable[[Floats], Floats]


def _learn(data: Data, graph: Graph, features: Features, step: float, *, diffuse: bool) -> tuple[Floats, float]:
    """Weights of every agent (V × D × C) after one run, and bytes per sample.

    Decentralized gradient descent mixes and then steps, W ← A W − η ∇(W); diffusion steps and then mixes, W ← A (W − η ∇(W)).
    """
    loss, mixing = Logistic(), graph.metropolis()
    width = features(data.points[:1]).shape[1]
    weights = np.zeros((len(graph), width, data.classes))
    seen, sent = 0, 0
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
        sent += 2 * len(graph.edges) * wire_size(Values(weights[0]))[1]
    return weights, sent / seen


def _outcome(data: Data, features: Features, weights: Floats, stored: float, traffic: float) -> Outcome:
    z = features(data.held_points)
    scores = [data.score(z @ own) for own in weights]
    return Outcome(float(np.mean(scores)), min(scores), stored, traffic)


def dgd(data: Data, *, step: float = 0.5) -> Outcome:
    """Decentralized linear logistic regression by gradient descent."""

    def features(x: Floats) -> Floats:
        return np.column_stack([x, np.ones(len(x))])

    weights, traffic = _learn(data, data.graph, features, step, diffuse=False)
    return _outcome(data, features, weights, weights[0].size, traffic)


def fourier(data: Data, *, width: int, step: float) -> Outcome:
    """Decentralized random Fourier features of the Gaussian kernel, by diffusion; all agents draw the same features."""
    rng = data.rng(2)
    frequencies = rng.standard_normal((data.points.shape[1], width)) / data.bandwidth
    shifts = rng.uniform(0, 2 * np.pi, width)

    def features(x: Floats) -> Floats:
        return np.asarray(np.sqrt(2.0 / width) * np.cos(x @ frequencies + shifts))

    weights, traffic = _learn(data, data.graph, features, step, diffuse=True)
    stored = weights[0].size + frequencies.size + shifts.size
    return _outcome(data, features, weights, stored, traffic)


def nystrom(data: Data, *, width: int, step: float) -> Outcome:
    """One learner with all the data: SGD on Nyström features of random landmarks."""
    kernel = Gaussian(bandwidth=data.bandwidth)
    chosen = data.rng(3).choice(len(data.points), size=min(width, len(data.points)), replace=False)
    landmarks = np.ascontiguousarray(data.points[chosen])
    values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
    kept = values > 1e-8 * values[-1]
    whiten = vectors[:, kept] / np.sqrt(values[kept])

    def features(x: Floats) -> Floats:
        return np.asarray(kernel(np.ascontiguousarray(x), landmarks) @ whiten)

    weights, _ = _learn(data, Graph.line(1), features, step, diffuse=True)
    stored = landmarks.size + landmarks.shape[0] * data.classes  # whitening folds into the weights
    return _outcome(data, features, weights, stored, 0.0)
