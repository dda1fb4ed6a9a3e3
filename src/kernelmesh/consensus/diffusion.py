"""Diffusion: average the neighbours' functions, then learn. No penalty, nothing to tune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.role import Heard, Moment
from kernelmesh.maths.compression import Change
from kernelmesh.maths.expansion import Expansion
from kernelmesh.messages import Function, Message

__all__ = ["Diffusion"]


@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """g = a_ii f + Σ_j a_ij f_j with Metropolis weights, then f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·).

    Functions go out, nothing comes back; what an absent neighbour would weigh goes to the agent itself.

    >>> Diffusion().penalty(0)
    0.0
    """

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return Function(function.centres, function.weights)

    def answer(self, function: Expansion, question: Message) -> Message | None:
        return None

    def relay(self, function: Expansion, heard: Sequence[Heard]) -> Change:
        there = [(said.asked, said.weight) for said in heard if isinstance(said.asked, Function)]
        return Change(
            np.concatenate([np.empty((0, function.dimension)), *(g.centres for g, _ in there)]),
            np.concatenate([np.empty((0, function.outputs)), *(weight * g.weights for g, weight in there)]),
            1.0 - sum(weight for _, weight in there),
            shared=True,
        )

    def move(self, moment: Moment, heard: Sequence[Heard]) -> Change:
        shrink = 1.0 - moment.step_size * moment.regularization
        there = [(said.asked, said.weight) for said in heard if isinstance(said.asked, Function)]
        own = 1.0 - sum(weight for _, weight in there)
        centres = np.concatenate([moment.points, *(g.centres for g, _ in there)])
        weights = np.concatenate([np.zeros_like(moment.here), *(weight * g.weights for g, weight in there)])
        here = own * moment.here + moment.function.kernel(moment.points, centres) @ weights
        coefficients = shrink * weights
        coefficients[: len(moment.points)] = (
            -moment.step_size / len(moment.points) * moment.loss.slope(here, moment.targets)
        )
        return Change(centres, coefficients, shrink * own, shared=True)

    def penalty(self, samples: int) -> float:
        return 0.0
