"""Diffusion: average the neighbors' functions, then learn. No penalty, nothing to tune."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from kernelmesh.checks import Floats, integer
from kernelmesh.messages import SentFunction
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.products import product
from kernelmesh.protocols.base import ConsensusProtocol, Heard, StepInputs, Tuning
from kernelmesh.protocols.local import Local
from kernelmesh.registry import register

__all__ = ["Diffusion"]


@register("protocol")
@dataclass(frozen=True, kw_only=True)
class Diffusion(ConsensusProtocol):
    """g = a_ii f + Σ_j a_ij f_j with Metropolis weights, then f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·).

    The weight of an absent neighbor goes to the agent itself. With `every` = k > 1, agents average in every k-th round, and
    g = f in all the others.

    Parameters
    ----------
    every : int
        k, the same for all agents.

    Examples
    --------
    >>> Diffusion().reply.__name__
    'SentFunction'
    """

    reply = SentFunction
    listens = True

    every: int = 1

    def __post_init__(self) -> None:
        integer("Diffusion", "every", self.every, minimum=1)

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        return cls(every=tuning.every or cls.every)

    def listen(self, function: Function, heard: Sequence[Heard]) -> Update:
        points, weights, own = _average(heard, function)
        return Update(points, weights, own, shared=True)

    def move(self, inputs: StepInputs, heard: Sequence[Heard]) -> Update:
        points, weights, own = _average(heard, inputs.function)
        if not len(points):
            return Local().move(inputs, ())
        here = own * inputs.here + product(inputs.function.kernel(inputs.points, points), weights)
        push = -inputs.step_size / len(inputs.points) * inputs.loss.slope(here, inputs.targets)
        coefficients = np.concatenate([push, inputs.shrink * weights])
        return Update(np.concatenate([inputs.points, points]), coefficients, inputs.shrink * own, shared=True)


def _average(heard: Sequence[Heard], f: Function) -> tuple[Floats, Floats, float]:
    """The points and weights of Σ_j a_ij f_j, and a_ii."""
    there = [(said.reply, said.weight) for said in heard if isinstance(said.reply, SentFunction)]
    points = [np.empty((0, f.dimension)), *(g.points for g, _ in there)]
    weights = [np.empty((0, f.outputs)), *(weight * g.weights for g, weight in there)]
    return np.concatenate(points), np.concatenate(weights), 1.0 - sum(weight for _, weight in there)
