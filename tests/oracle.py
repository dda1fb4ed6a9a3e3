"""Slow, literal versions of the paper's equations, which fast code is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def rkhs_norm(kernel, centers, weights):
    """‖Σ κ(d_m, ·) w_m‖ from the definition."""
    return np.sqrt(max(float(np.sum(weights * (kernel(centers, centers) @ weights))), 0.0))


def rkhs_distance(kernel, centers, weights, other_centers, other_weights):
    return rkhs_norm(kernel, np.vstack([centers, other_centers]), np.vstack([weights, -other_weights]))


@dataclass
class Pursuit:
    kept: list[int]
    weights: np.ndarray
    error: float
    margin: float
    """How clear the choices were: the least relative gap between a decision and the one that was nearly taken."""


def komp(kernel, centers, weights, budget) -> Pursuit:
    """Algorithm 2 word for word: refit by least squares for every candidate of every removal."""
    gram = kernel(centers, centers)
    total = rkhs_norm(kernel, centers, weights)
    kept, fitted, error, margin = list(range(len(centers))), weights.copy(), 0.0, np.inf
    scale = max(total, 1e-300)
    while kept:
        trials = []
        for j in kept:
            rest = [i for i in kept if i != j]
            fit = np.linalg.lstsq(gram[np.ix_(rest, rest)], gram[rest] @ weights, rcond=1e-14)[0] if rest else weights[:0]
            difference = weights.copy()
            difference[rest] -= fit
            gamma = np.sqrt(max(float(np.sum(difference * (gram @ difference))), 0.0))
            trials.append((gamma, j, rest, fit))
        trials.sort(key=lambda trial: trial[0])
        gamma, _, rest, fit = trials[0]
        if gamma > budget + 1e-9 * scale:  # least squares rounds, and a budget of 0 means 0
            margin = min(margin, (gamma - budget) / scale)
            break
        if gamma > 1e-7 * scale:
            margin = min(margin, (budget - gamma) / scale)
        # equal points, and points without weight, can go in either order; any other near tie is a different function
        for other, k, _, _ in trials[1:]:
            same = (centers[k] == centers[trials[0][1]]).all()
            idle = max(np.abs(fitted[kept.index(i)]).max() for i in (k, trials[0][1])) <= 1e-12 * np.abs(weights).max()
            if not same and not idle:
                margin = min(margin, (other - gamma) / scale)
        kept, fitted, error = rest, fit, gamma
    return Pursuit(kept, fitted, error, margin)


def slope(loss, z, y):
    """The derivative of a loss by central differences."""
    step = 1e-6
    out = np.zeros_like(z)
    for c in range(z.shape[1]):
        up, down = z.copy(), z.copy()
        up[:, c] += step
        down[:, c] -= step
        out[:, c] = (loss.value(up, y) - loss.value(down, y)) / (2 * step)
    return out


def logistic_slope(z, y):
    """∂/∂z_d of −log(exp(z_y) / Σ exp(z_d')) = P(d) − [d = y], one sample at a time."""
    out = np.zeros_like(z)
    for i in range(len(z)):
        odds = np.exp(z[i])
        out[i] = odds / odds.sum()
        out[i, y[i]] -= 1.0
    return out


def penalty_step(kernel, functions, neighbors, i, points, labels, *, eta, lam, c):
    """Equations (sgd_hilbert_local) and (param_tilde) for agent i, averaged over a mini-batch: the unprojected step."""
    centers, weights = functions[i]

    def at(function, x):
        d, w = function
        return sum((kernel(x[None], d[m][None])[0, 0] * w[m] for m in range(len(d))), np.zeros(weights.shape[1]))

    new = []
    for x, y in zip(points, labels, strict=True):
        here = at(functions[i], x)
        push = logistic_slope(here[None], np.array([y]))[0]
        for j in neighbors[i]:
            push = push + c * (here - at(functions[j], x))
        new.append(-eta * push / len(points))
    return np.vstack([centers, points]), np.vstack([(1 - eta * lam) * weights, np.array(new)])
