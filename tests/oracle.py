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


def implicit_step(loss, start, covariance, y, *, iterations=400):
    """a = ℓ'(z) at z = z₀ − T a by majorize-minimize iterations, each of which solves its linear system anew."""
    bound = np.diag(loss.curvature_bound(start, y))
    here = start
    for _ in range(iterations if loss.refines else 1):
        force = np.linalg.solve(np.eye(len(start)) + bound @ covariance, loss.slope(here, y) + bound @ (start - here))
        here = start - covariance @ force
    return force, here


@dataclass
class Newton:
    """The second-order rule with A kept as it is defined: ½ (w − W)ᵀ A (w − W) stands for the past; no R, no P."""

    kernel: object
    loss: object
    regularization: float
    points: np.ndarray
    weights: np.ndarray
    quadratic: np.ndarray  # A
    implicit: object = implicit_step

    @classmethod
    def start(cls, kernel, loss, regularization, *, dimension, outputs, **options):
        nothing = np.zeros((0, dimension)), np.zeros((0, outputs)), np.zeros((0, 0))
        return cls(kernel, loss, regularization, *nothing, **options)

    def __call__(self, points):
        return self.kernel(points, self.points) @ self.weights

    def extended(self, points):
        """Over more points: what the past says of them is what the dictionary knows of them, and the prior says the rest."""
        old, new = len(self.points), len(points)
        cross = self.kernel(points, self.points)
        lifted = np.linalg.solve(self.kernel(self.points, self.points), cross.T).T  # Z
        schur = self.kernel(points, points) - lifted @ cross.T
        spread = np.vstack([np.eye(old), lifted])
        quadratic = spread @ self.quadratic @ spread.T
        quadratic[old:, old:] += self.regularization * schur
        return self._with(
            np.vstack([self.points, points]), np.vstack([self.weights, np.zeros((new, self.outputs))]), quadratic
        )

    @property
    def outputs(self):
        return self.weights.shape[1]

    def _with(self, points, weights, quadratic):
        return Newton(self.kernel, self.loss, self.regularization, points, weights, quadratic, self.implicit)

    def covariance_at(self, points):
        cross = self.kernel(points, self.points)
        return cross @ np.linalg.solve(self.quadratic, cross.T)

    def force(self, points, targets):
        """a and z of the implicit step."""
        return self.implicit(self.loss, self(points), self.covariance_at(points), targets)

    def learned(self, points, targets):
        cross = self.kernel(points, self.points)
        force, there = self.force(points, targets)
        weights = self.weights - np.linalg.solve(self.quadratic, cross.T @ force)
        curvature = self.loss.curvature(there, targets)
        return self._with(self.points, weights, self.quadratic + cross.T @ (curvature[:, None] * cross))

    def restricted(self, kept):
        """The minimum of the quadratic model over some of the points, and how much higher it is."""
        part = self.quadratic[np.ix_(kept, kept)]
        weights = np.linalg.solve(part, self.quadratic[kept] @ self.weights)
        away = -self.weights.copy()
        away[kept] += weights
        return self._with(self.points[kept], weights, part), 0.5 * float(np.sum(away * (self.quadratic @ away)))

    def pruned(self, budget, max_order):
        """Remove the point after whose removal the quadratic model is least, by trying all; which stay, and the rise."""
        kept, rise = list(range(len(self.points))), 0.0
        while kept:
            trials = [(self.restricted([i for i in kept if i != j])[1], j) for j in kept]
            least, j = min(trials)
            if least > budget and len(kept) <= max_order:
                break
            kept.remove(j)
            rise = least
        return kept, rise

    def step(self, points, targets, *, budget, novelty, max_order=None, review=False):
        """A mini-batch with compression; returns the next one and the rise of the loss that it admits to.

        Points are removed when some are to be added, and at a review.
        """
        kernel, weight = self.kernel, self.regularization
        force, _ = self.force(points, targets)
        rows, spent = overlooked(force, kernel(points, points), weight, 0.5 * budget)
        new = self._novel(points, rows, novelty)
        wider = self.extended(points[new])
        added = wider.covariance_at(points) - self.covariance_at(points)
        gain = 0.5 * float(np.sum(force * (added @ force)))
        if spent + gain <= budget:
            wider, spent = self, spent + gain
            if not review:
                return self.learned(points, targets), spent
        kept, rise = wider.learned(points, targets).pruned(budget - spent, max_order or len(wider.points))
        return wider.restricted(kept)[0].learned(points, targets), spent + rise

    def _novel(self, points, rows, novelty):
        """One after the other the sample that is furthest from the span of all points so far, relative to κ(x, x)."""
        new = []
        while True:
            basis = np.vstack([self.points, points[new]])
            cross = self.kernel(points, basis)
            own = self.kernel.diag(points)
            far = 1.0 - np.sum(cross * np.linalg.solve(self.kernel(basis, basis), cross.T).T, axis=1) / own
            left = [b for b in rows if b not in new]
            best = max(left, key=lambda b: far[b], default=None)
            if best is None or far[best] <= novelty:
                return new
            new.append(best)


def overlooked(force, gram, regularization, limit):
    """Which samples are considered as points, and ½ ‖Σ a_b κ(x_b, ·)‖² / λ over the others."""
    turn = np.argsort([gram[b, b] * force[b] @ force[b] for b in range(len(force))])
    spent = 0.0
    for few in range(1, len(turn) + 1):
        out = turn[:few]
        cost = 0.5 * float(np.sum(force[out] * (gram[np.ix_(out, out)] @ force[out]))) / regularization
        if cost > limit:
            return sorted(turn[few - 1 :]), spent
        spent = cost
    return [], spent
