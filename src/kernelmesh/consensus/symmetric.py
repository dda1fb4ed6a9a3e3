"""Symmetric penalty: both ends of an edge move, which preserves the network's mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import PROBES_FOR_VALUES, Coupled, EdgeMemories, Heard, StepInputs
from kernelmesh.messages import Message, Probe, Values
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.products import product
from kernelmesh.numerics.received import Received
from kernelmesh.numerics.schedules import Schedule
from kernelmesh.registry import register

__all__ = ["Symmetric"]

# A resolvent needs (αI + K_XX) to be invertible in double precision, relative to κ(x, x).
_LEAST = 1e-8


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class Symmetric(Coupled):
    """f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·), where g is f after every edge has averaged at both ends' points.

    For an edge (i, j) and the points X of either end, with the gap d = f_i(X) − f_j(X), agent i adds −w (αI + K_XX)⁻¹ d at X
    and agent j adds the same with the other sign: their sum stays as it is. α = B / (2ηc) is what minimizing
    ½‖g_i − f_i‖² + ½‖g_j − f_j‖² + (ηc/2B) ‖g_i(X) − g_j(X)‖² gives. w is half the edge's Metropolis weight, since an edge
    averages at two sets of points, so that the network's disagreement never grows, however large c is.

    Parameters
    ----------
    coupling : float or Schedule
        The penalty c; infinite by default, which makes α = 0.

    Examples
    --------
    >>> Symmetric(coupling=1.0).penalty(0)
    1.0
    """

    exchange = PROBES_FOR_VALUES

    coupling: Schedule | float = math.inf

    def ask(self, function: Expansion, points: Floats) -> Message:
        return Probe(points, function.evaluate(points))

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        f, kernel, shrink = inputs.function, inputs.function.kernel, inputs.shrink
        gap, theirs = np.zeros_like(inputs.here), []
        for said in heard:
            if isinstance(said.reply, Values):
                gap += said.weight * (inputs.here - said.reply.values)
            if isinstance(said.question, Probe):
                points = said.question.points
                there = said.weight * (f.evaluate(points) - said.question.values)
                theirs.append((points, -self._pull(inputs, points, there)))
        pull = -self._pull(inputs, inputs.points, gap)
        here = inputs.here + product(kernel(inputs.points, inputs.points), pull)
        received = None
        if theirs:
            received = Received.of(theirs).put_together()
            here += product(kernel(inputs.points, received.points), received.weights)
            received = received.with_weights(shrink * received.weights)
        slope = inputs.loss.slope(here, inputs.targets)
        coefficients = shrink * pull - inputs.step_size / len(inputs.points) * slope
        return Update(inputs.points, coefficients, shrink, inputs.cross, received=received)

    def _pull(self, inputs: StepInputs, points: Floats, gap: Floats) -> Floats:
        """½ (αI + K_XX)⁻¹ d."""
        from scipy.linalg import lapack  # takes long, and not every agent needs it

        strength = inputs.step_size * self.penalty(inputs.samples)
        alpha = len(points) / (2.0 * strength) if strength > 0 else math.inf
        if alpha == math.inf:
            return np.zeros_like(gap)
        gram = inputs.function.kernel(points, points)
        gram[np.diag_indices(len(points))] += max(alpha, _LEAST * float(gram.diagonal().max()))
        _, solved, failed = lapack.dposv(gram, 0.5 * gap, lower=1)
        if failed:
            raise FloatingPointError("κ(x, x) of the samples is not finite")
        return np.ascontiguousarray(solved)
