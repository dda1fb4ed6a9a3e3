"""What a step of each learning rule costs, compared with the paper's gradient step over the same dictionary."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from cases import BATCH, Line, alternate, at_most
from kernelmesh import Agent, Averaged, Expansion, Gaussian, Gradient, Komp, Logistic, SecondOrder

_FRESH = 4  # of 32 samples, those that are new to the dictionary where it changes in every step

# The size of the weights, settled and changing: with the latter, new samples are worth more than some old points.
_SCALES = {"gradient": (1.0, 0.05), "averaged": (1.0, 0.5), "second order": (3.0, 3.0)}


class Steps:
    """An agent with M points that is stepped on a stream as long as one likes.

    The points are random, labels are those of a random function of them. Settled: all samples lie close to points of the
    dictionary and are labeled as expected, so that nothing is exchanged. Changing: some samples are far from everything and
    have labels of their own, and take the places of others, because a cap keeps M where it is.
    """

    def __init__(self, rule: str, order: int, dimension: int, outputs: int, scale: float) -> None:
        self.rng = np.random.default_rng(0)
        kernel = Gaussian(bandwidth=float(np.sqrt(dimension / 2)))
        self.centers = self.rng.standard_normal((order, dimension))
        weights = scale * self.rng.standard_normal((order, outputs))
        settings: dict[str, Any] = {
            "gradient": {"rule": Gradient(), "step_size": 3.0, "compression": Komp(budget=0.2, max_order=order)},
            "averaged": {"rule": Averaged(), "step_size": 30.0, "compression": Komp(budget=0.3, max_order=order)},
            "second order": {"rule": SecondOrder(max_order=order)},
        }[rule]
        self.agent = Agent(dimension=dimension, outputs=outputs, kernel=kernel, loss=Logistic(), **settings)
        self.state = self.agent.start(function=Expansion(kernel, self.centers, weights))
        self.order, self.swapped = order, 0

    def batch(self, fresh: int) -> None:
        centers = self.state.function.centers
        near = centers[self.rng.integers(len(centers), size=BATCH - fresh)]
        near = near + 0.05 * self.rng.standard_normal(near.shape)
        self.points = np.concatenate([near, 1.5 * self.rng.standard_normal((fresh, near.shape[1]))])
        z = self.state.function(self.points)
        self.labels = z.argmax(axis=1)
        self.labels[BATCH - fresh :] = z[BATCH - fresh :].argmin(axis=1)

    def step(self) -> None:
        before = self.state.function.centers
        self.state, _ = self.agent.step(self.state, self.points, self.labels)
        after = self.state.function.centers
        if after is not before:
            shared = min(len(after), len(before))
            self.swapped += max(len(after), len(before)) - int((after[:shared] == before[:shared]).all(axis=1).sum())


def _compared(order: int, dimension: int, outputs: int, fresh: int, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median times of a step of each rule, and how many points each exchanged per step."""
    runs = {name: Steps(name, order, dimension, outputs, _SCALES[name][fresh > 0]) for name in _SCALES}
    for _ in range(5):
        for run in runs.values():
            run.batch(fresh)
            run.step()
    for run in runs.values():
        run.swapped = 0
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run.batch(fresh)
            began = time.process_time()
            run.step()
            times[name].append(time.process_time() - began)
    medians = {name: float(np.median(taken)) for name, taken in times.items()}
    return medians, {name: run.swapped / rounds for name, run in runs.items()}, {name: run.state.function.order for name, run in runs.items()}
