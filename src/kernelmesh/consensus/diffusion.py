"""Diffusion: average the neighbors' functions, then learn. No penalty, nothing to tune."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.consensus.base import FUNCTIONS, EdgeMemories, Heard, Spaced, StepInputs
from kernelmesh.consensus.local import Local
from kernelmesh.messages import Function
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.received import Received
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
        k, the same for all agents.

    Examples
    --------
    >>> Diffusion().exchange.replies[0].__name__
    'Function'
    """

    exchange = FUNCTIONS
    relays = True

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        received, own = _average(heard)
        nothing = np.empty((0, function.dimension)), np.empty((0, function.outputs))
        return Update(*nothing, own, received=received)

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        received, own = _average(heard)
        if received is None:
            return Local().move(inputs, (), edges)
        here = own * inputs.here + inputs.function.kernel(inputs.points, received.points) @ received.weights
        slope = inputs.loss.slope(here, inputs.targets)
        push = -inputs.step_size / len(inputs.points) * slope
        received = received.with_weights(inputs.shrink * received.weights)
        return Update(inputs.points, push, inputs.shrink * own, inputs.cross, received=received)


def _average(heard: Sequence[Heard]) -> tuple[Received | None, float]:
    """Σ_j a_ij f_j, and a_ii."""
    there = [(said.reply, said.weight) for said in heard if isinstance(said.reply, Function)]
    if not there:
        return None, 1.0
    terms = [(g.centers, weight * g.weights) for g, weight in there]
    return Received.of(terms).put_together(), 1.0 - sum(weight for _, weight in there)
