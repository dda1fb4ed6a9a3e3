"""Diffusion: average the neighbors' functions, then learn. No penalty, nothing to tune."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import Heard, StepInputs
from kernelmesh.messages import Function, Message
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion

__all__ = ["Diffusion"]


@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """g = a_ii f + Σ_j a_ij f_j with Metropolis weights, then f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·).

    Functions go out, nothing comes back; what an absent neighbor would wire_size goes to the agent itself.

    >>> Diffusion().penalty(0)
    0.0
    """

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return Function(function.centers, function.weights)

    def answer(self, function: Expansion, question: Message) -> Message | None:
        return None

    def relay(self, function: Expansion, heard: Sequence[Heard]) -> Update:
        there = [(said.asked, said.weight) for said in heard if isinstance(said.asked, Function)]
        return Update(
            np.concatenate([np.empty((0, function.dimension)), *(g.centers for g, _ in there)]),
            np.concatenate([np.empty((0, function.outputs)), *(weight * g.weights for g, weight in there)]),
            1.0 - sum(weight for _, weight in there),
            shared=True,
        )

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        shrink = 1.0 - moment.step_size * moment.regularization
        there = [(said.asked, said.weight) for said in heard if isinstance(said.asked, Function)]
        own = 1.0 - sum(weight for _, weight in there)
        centers = np.concatenate([moment.points, *(g.centers for g, _ in there)])
        weights = np.concatenate([np.zeros_like(moment.here), *(weight * g.weights for g, weight in there)])
        here = own * moment.here + moment.function.kernel(moment.points, centers) @ weights
        coefficients = shrink * weights
        coefficients[: len(moment.points)] = (
            -moment.step_size / len(moment.points) * moment.loss.slope(here, moment.targets)
        )
        return Update(centers, coefficients, shrink * own, shared=True)

    def penalty(self, samples: int) -> float:
        return 0.0
