"""Projection onto points that agents come to share, so that only weights need to be sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats, Ints, integer, positive
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import CompressionReport, Model, Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.inverse_gram import BROKEN, InverseGram
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.landmarks import agreed, inverse, novel
from kernelmesh.numerics.products import product
from kernelmesh.registry import register

__all__ = ["SharedDictionary", "lost_square", "model_over"]


@register("compression")
@dataclass(frozen=True, kw_only=True)
class SharedDictionary:
    """f = Π_Z f̃: the projection onto the span of a dictionary Z that agents come to share.

    Samples far from the span of Z join it until there are enough. With `SharedDiffusion`, points of the neighbors
    join too, and of the union all agents keep the same points, chosen by a rule that depends only on the union. So
    all agents end up with the same points, whatever was lost and whatever the order of arrival, and only weights are sent.

    To use given points, start agents from a function over them with weights 0, and set `novelty` to infinity. Then no sample
    leaves an agent, only weights do.

    A step with M points and B samples costs O(M² B), and O(M³) when points change.

    Parameters
    ----------
    novelty : float
        ν: a sample becomes a point only if its distance² to the span of the others exceeds ν κ(x, x).
    max_order : int
        The maximum number of points.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> shared = SharedDictionary(novelty=0.1)
    >>> model = shared.start(Expansion.zero(Gaussian(), dimension=1, outputs=1))
    >>> model, report = shared.absorb(model, Update(np.array([[0.0], [0.01]]), np.array([[1.0], [1.0]])), samples=0)
    >>> model.function.order, report.error < 0.1
    (1, True)
    """

    novelty: float = 0.1
    max_order: int = 200

    def __post_init__(self) -> None:
        positive("SharedDictionary", "novelty", self.novelty, infinite=True)
        integer("SharedDictionary", "max_order", self.max_order, minimum=1)

    @property
    def given(self) -> bool:
        """Whether no sample ever becomes a point: points are those that agents were started with."""
        return math.isinf(self.novelty)

    def start(self, function: Expansion) -> Model:
        return model_over(function, inverse(function.kernel, function.centers))

    def absorb(self, model: Model, update: Update, *, samples: int) -> tuple[Model, CompressionReport]:
        if model.workspace is None or model.workspace.generation == BROKEN:
            model = self.start(model.function)
        points, coefficients, own = update.points, update.coefficients, len(update.points)
        before, lost = model.function, 0.0
        if update.received is not None:
            model, lost = self._heard(model, update.received.points, update.received.weights, update.shrink)
        elif update.shrink != 1.0:
            model = _moved(model, update.shrink * before.weights)
        if own:
            f = model.function
            known = update.cross is not None and f.centers is before.centers
            cross = update.cross if known else f.kernel(points, f.centers)
            assert cross is not None
            model, more = self._learned(model, points, coefficients, cross)
            lost += more
        if not math.isfinite(float(np.add.reduce(model.function.weights, axis=None))):
            raise FloatingPointError("the function is no longer finite")
        removed = max(before.order + own - model.function.order, 0)
        return model, CompressionReport(error=math.sqrt(lost), budget=math.inf, removed=removed)

    def _heard(self, model: Model, points: Floats, coefficients: Floats, shrink: float) -> tuple[Model, float]:
        """s f + Σ κ(x, ·) a over points of neighbors, of which those join that belong to the shared ones; and ‖lost‖²."""
        f = model.function
        weights = f.weights if shrink == 1.0 else shrink * f.weights
        if not len(points):
            return _moved(model, weights), 0.0
        bits = np.concatenate([f.centers, points]).view(np.uint64)
        fresh, sums, _ = compiled.folding.fold(bits, f.order, coefficients)
        if len(fresh) < len(points):
            coefficients = sums[f.order :]
            weights = weights + sums[: f.order]
        if not len(fresh):
            return _moved(model, weights), 0.0
        centers = np.concatenate([f.centers, points[fresh]])
        return self._settled(Expansion.trusted(f.kernel, centers, np.concatenate([weights, coefficients])), len(centers))

    def _learned(self, model: Model, points: Floats, coefficients: Floats, cross: Floats) -> tuple[Model, float]:
        """f + Σ κ(x, ·) a over new samples, of which those join that are new; and ‖lost‖²."""
        f = model.function
        matrix = model.claim().matrix
        lifted = product(cross, matrix)
        room = self.max_order - f.order
        chosen, _ = novel(f.kernel, points, cross, lifted, novelty=self.novelty, room=room)
        if not len(chosen):
            change = product(lifted.T, coefficients)
            return _moved(model, f.weights + change), lost_square(f.kernel, points, coefficients, cross, change)
        rest = np.setdiff1d(np.arange(len(points)), chosen)
        centers = np.concatenate([f.centers, points[chosen], points[rest]])
        weights = np.concatenate([f.weights, coefficients[chosen], coefficients[rest]])
        return self._settled(Expansion.trusted(f.kernel, centers, weights), f.order + len(chosen))

    def _settled(self, wanted: Expansion, candidates: int) -> tuple[Model, float]:
        """The projection onto those of the first points that all agents with these would keep, and ‖lost‖²."""
        kernel, centers = wanted.kernel, wanted.centers
        stays = agreed(kernel, centers[:candidates], novelty=self.novelty, max_order=self.max_order)
        here, there, left, weights = _parted(wanted, stays)
        matrix = inverse(kernel, here)
        cross = kernel(there, here)
        change = product(matrix, product(cross.T, left))
        missing = product(kernel(there, there), left) - product(cross, change)
        lost = max(float((left * missing).sum()), 0.0)
        return model_over(Expansion.trusted(kernel, here, weights + change), matrix), lost


def _parted(function: Expansion, stays: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """The points that stay and those that leave, and the weights of those that leave and of those that stay."""
    leaves = np.setdiff1d(np.arange(function.order), stays)
    here, there = (np.ascontiguousarray(function.centers[some]) for some in (stays, leaves))
    return here, there, function.weights[leaves], function.weights[stays]


def lost_square(kernel: Kernel, points: Floats, coefficients: Floats, cross: Floats, change: Floats) -> float:
    """‖Σ κ(x, ·) a − Σ κ(z, ·) b‖² for samples X and the projection b of what they add, given κ(X, Z)."""
    missing = product(kernel(points, points), coefficients) - product(cross, change)
    return max(float((coefficients * missing).sum()), 0.0)


def model_over(function: Expansion, matrix: Floats) -> Model:
    """A model with a P that never changes: where points do, there is a new one."""
    held = InverseGram.restored(matrix, width=len(matrix), changes=0, generation=0, probed=0, bound=0.0)
    return Model(function, square_norm=math.nan, workspace=held)


def _moved(model: Model, weights: Floats) -> Model:
    f = model.function
    if weights is f.weights:
        return model
    return Model(Expansion.trusted(f.kernel, f.centers, weights), square_norm=math.nan, workspace=model.workspace)
