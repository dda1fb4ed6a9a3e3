"""Both ends of an edge move: the full gradient of the penalty, in a form that conserves the network's mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import Heard, StepInputs
from kernelmesh.consensus.coupled import Coupled
from kernelmesh.messages import Message, Probe, Values
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.schedules import Schedule

__all__ = ["Symmetric"]

# A resolvent needs (αI + K_XX) to be invertible in double precision, relative to κ(x, x).
_LEAST = 1e-8


@dataclass(frozen=True, kw_only=True)
class Symmetric(Coupled):
    """f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·), where g is f after every edge has averaged at both ends' points.

    For an edge (i, j) and the points X of either end, with the gap d = f_i(X) − f_j(X), agent i adds −w (αI + K_XX)⁻¹ d at X
    and agent j adds the same with the other sign: their sum stays as it is. α = B / (2ηc) is what minimizing
    ½‖g_i − f_i‖² + ½‖g_j − f_j‖² + (ηc/2B) ‖g_i(X) − g_j(X)‖² gives. w is half the edge's Metropolis weight, since an edge
    averages at two sets of points, so that the network's disagreement never grows, however large c is.
    X with f_i(X) goes out, f_j(X) comes back.

    >>> Symmetric(coupling=1.0).penalty(0)
    1.0
    """

    coupling: Schedule | float = math.inf

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return Probe(points, function.evaluate(points)) if len(points) else None

    def answer(self, function: Expansion, question: Message) -> Message | None:
        assert isinstance(question, Probe)
        return Values(function.evaluate(question.points))

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        f, shrink = moment.function, 1.0 - moment.step_size * moment.regularization
        points, pulls = [moment.points], [np.zeros_like(moment.here)]
        for said in heard:
            if isinstance(said.answered, Values):
                pulls[0] -= self._pull(moment, moment.points, moment.here - said.answered.values, said.weight)
            if isinstance(said.asked, Probe):
                theirs = said.asked.points
                points.append(theirs)
                pulls.append(-self._pull(moment, theirs, f.evaluate(theirs) - said.asked.values, said.weight))
        everywhere, pulled = np.concatenate(points), np.concatenate(pulls)
        here = moment.here + f.kernel(moment.points, everywhere) @ pulled
        coefficients = shrink * pulled
        coefficients[: len(moment.points)] -= (
            moment.step_size / len(moment.points) * moment.loss.slope(here, moment.targets)
        )
        return Update(everywhere, coefficients, shrink)

    def _pull(self, moment: StepInputs, points: Floats, gap: Floats, weight: float) -> Floats:
        """w (αI + K_XX)⁻¹ d."""
        gram = moment.function.kernel(points, points)
        strength = moment.step_size * self.penalty(moment.samples)
        alpha = len(points) / (2.0 * strength) if strength > 0 else math.inf
        if alpha == math.inf:
            return np.zeros_like(gap)
        gram[np.diag_indices(len(points))] += max(alpha, _LEAST * float(gram.diagonal().max()))
        return np.asarray(0.5 * weight * cho_solve(cho_factor(gram, lower=True), gap))
