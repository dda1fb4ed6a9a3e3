"""What a step of each learner costs, compared with the paper's gradient step over the same dictionary."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from cases import BATCH, Line, at_most
from kernelmesh import Agent, Averaged, Function, Gaussian, Gradient, Komp, Learner, Logistic, SecondOrder

_FRESH = 4  # of 32 samples, those that are new to the dictionary where it changes in every step
_WRONG = 3  # samples with a label that nobody would expect, as real streams have them
# The size of the weights, settled and changing: with the latter, new samples are worth more than some old points.
_SCALES = {"gradient": (1.0, 0.05), "averaged": (1.0, 0.05), "second order": (3.0, 3.0)}


class Steps:
    """An agent with M points that is stepped on a stream as long as one likes.

    The points are random, labels are those of a random function of them. Settled: all samples lie close to points of the
    dictionary and most are labeled as expected, so that nothing is exchanged. Changing: some samples are far from everything
    and have labels of their own, and take the places of others, because a cap keeps M where it is.
    """

    def __init__(self, learner: str, order: int, dimension: int, outputs: int, scale: float) -> None:
        self.rng = np.random.default_rng(0)
        kernel = Gaussian(bandwidth=float(np.sqrt(dimension / 2)))
        self.points = self.rng.standard_normal((order, dimension))
        weights = scale * self.rng.standard_normal((order, outputs))
        learners: dict[str, Learner] = {
            "gradient": Gradient(step_size=3.0, compression=Komp(budget=0.2, max_order=order)),
            "averaged": Averaged(step_size=30.0, compression=Komp(budget=0.3, max_order=order)),
            "second order": SecondOrder(max_order=order),
        }
        self.agent = Agent(dimension=dimension, outputs=outputs, kernel=kernel, loss=Logistic(), learner=learners[learner])
        self.state = self.agent.start(function=Function.of(kernel, self.points, weights))
        self.order, self.swapped = order, 0

    def batch(self, fresh: int) -> None:
        centers = self.state.function.points
        near = centers[self.rng.integers(len(centers), size=BATCH - fresh)]
        near = near + 0.05 * self.rng.standard_normal(near.shape)
        self.points = np.concatenate([near, 1.5 * self.rng.standard_normal((fresh, near.shape[1]))])
        z = self.state.function(self.points)
        self.labels = z.argmax(axis=1)
        self.labels[BATCH - fresh :] = z[BATCH - fresh :].argmin(axis=1)
        self.labels[:_WRONG] = z[:_WRONG].argmin(axis=1)

    @property
    def floats(self) -> int:
        """Numbers in the matrices that the agent keeps."""
        model = self.state.model
        kept = [model.inverse, getattr(model, "covariance", None)]
        return sum(each.matrix.size for each in kept if each is not None) + model.function.points.size

    def step(self) -> None:
        before = self.state.function.points
        self.state, _ = self.agent.step(self.state, self.points, self.labels)
        after = self.state.function.points
        if after is not before:
            shared = min(len(after), len(before))
            self.swapped += max(len(after), len(before)) - int((after[:shared] == before[:shared]).all(axis=1).sum())


class Compared(NamedTuple):
    """What was measured of one learner: the median time of a step, points exchanged per step, the model order, and memory."""

    seconds: float
    swapped: float
    order: int
    floats: int


def compared(order: int, dimension: int, outputs: int, *, fresh: int, rounds: int) -> dict[str, Compared]:
    """A step of each learner, in turn; CPU time of one thread, which other programs on the machine disturb least."""
    runs = {name: Steps(name, order, dimension, outputs, _SCALES[name][fresh > 0]) for name in _SCALES}
    times: dict[str, list[float]] = {name: [] for name in runs}
    with threadpool_limits(1):
        for turn in range(5 + rounds):
            for name, run in runs.items():
                run.batch(fresh)
                began = time.process_time()
                run.step()
                taken = time.process_time() - began
                if turn < 5:
                    run.swapped = 0
                else:
                    times[name].append(taken)
    return {
        name: Compared(float(np.median(times[name])), run.swapped / rounds, run.state.function.order, run.floats)
        for name, run in runs.items()
    }


def rules() -> list[Line]:
    """A step of each learner against the paper's gradient step, with a settled dictionary and with one that changes.

    Settled: all samples lie close to points of the dictionary, and 3 of 32 have a wrong label. Changing: 4 of them are far
    from all points, and points are exchanged in every step; below M = 100 the learners keep dictionaries of their own sizes.
    """
    lines = []
    for order, dimension, outputs, rounds in ((18, 2, 5, 1000), (1000, 64, 13, 40), (4300, 256, 13, 12)):
        for what, fresh, limits in (("settled", 0, (1.3, 2.0)), ("changing", _FRESH, (1.3, 3.5))):
            found = compared(order, dimension, outputs, fresh=fresh, rounds=rounds)
            base = found.pop("gradient")
            lines.append(Line(f"M = {order}, {what}: gradient", _described(base)))
            for (name, measured), limit in zip(found.items(), limits, strict=True):
                line = at_most(f"M = {order}, {what}: {name} / gradient", measured.seconds / base.seconds, limit)
                lines.append(line._replace(shown=f"{line.shown}; {_described(measured)}"))
    return lines


def _described(measured: Compared) -> str:
    return (
        f"{1e3 * measured.seconds:.3g} ms, {measured.swapped:.1f} points exchanged per step, M = {measured.order}, "
        f"{8e-6 * measured.floats:.3g} MB"
    )
