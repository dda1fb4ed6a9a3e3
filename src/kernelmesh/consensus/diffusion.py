"""Diffusion: average the neighbors' functions, then learn. No penalty, nothing to tune."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import FUNCTIONS, EdgeMemories, Heard, Spaced, StepInputs
from kernelmesh.messages import Function
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.registry import register

__all__ = ["Diffusion"]


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class Diffusion(Spaced):
    """g = a_ii f + Σ_j a_ij f_j with Metropolis weights, then f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·).

    The weight of an absent neighbor goes to the agent itself. With `every` = k > 1, agents average in every k-th round, and
    g = f in all the others.

    Parameters
    ----------
    every : int
        k, the same at all agents.

    Examples
    --------
    >>> Diffusion().exchange.replies[0].__name__
    'Function'
    """

    exchange = FUNCTIONS
    relays = True

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        centers, weights, own = _average(np.empty((0, function.dimension)), np.empty((0, function.outputs)), heard)
        return Update(centers, weights, own, shared=True)

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        centers, weights, own = _average(inputs.points, np.zeros_like(inputs.here), heard)
        here = own * inputs.here + inputs.function.kernel(inputs.points, centers) @ weights
        coefficients = inputs.shrink * weights
        coefficients[: len(inputs.points)] = -inputs.step_size / len(inputs.points) * inputs.loss.slope(here, inputs.targets)
        return Update(centers, coefficients, inputs.shrink * own, shared=True)


def _average(points: Floats, weights: Floats, heard: Sequence[Heard]) -> tuple[Floats, Floats, float]:
    """Some points and weights, then those of Σ_j a_ij f_j, and a_ii."""
    there = [(said.reply, said.weight) for said in heard if isinstance(said.reply, Function)]
    own = 1.0 - sum(weight for _, weight in there)
    centers = np.concatenate([points, *(g.centers for g, _ in there)])
    return centers, np.concatenate([weights, *(weight * g.weights for g, weight in there)]), own
