"""The penalty on the Hilbert norm itself (the paper's Remark 1): neighbors send their whole functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from kernelmesh.checks import Floats, integer
from kernelmesh.messages import SentFunction
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.protocols.base import Coupled, Heard, StepInputs, Tuning
from kernelmesh.registry import register

__all__ = ["Hilbert"]


@register("protocol")
@dataclass(frozen=True, kw_only=True)
class Hilbert(Coupled):
    """f̃ = (1 − ηλ) f − η [(1/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + c Σ_j (f − f_j)], as in the paper.

    With `every` = k > 1, the penalty is k c in every k-th round and 0 in the others, so that it has the same total over k
    rounds. The step is explicit: with μ the largest eigenvalue of the network's Laplacian, disagreement grows
    without bound once η k c μ > 2.

    Parameters
    ----------
    coupling : float or Schedule
        The penalty c.
    every : int
        k, the same for all agents.

    Examples
    --------
    >>> Hilbert(coupling=0.1).penalty(0)
    0.1
    """

    reply = SentFunction

    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("Hilbert", "every", self.every, minimum=1)

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        # what is stable falls with k, and so does the ceiling
        every = tuning.every or cls.every
        return replace(super().tuned(replace(tuning, limit=tuning.limit / every)), every=every)

    def move(self, inputs: StepInputs, heard: Sequence[Heard]) -> Update:
        there = [said.reply for said in heard if isinstance(said.reply, SentFunction)]
        strength = inputs.step_size * self.every * self.penalty(inputs.samples)
        push = -inputs.step_size / len(inputs.points) * inputs.slope
        if not there:
            return Update(inputs.points, push, inputs.shrink, inputs.cross)
        points = np.concatenate([inputs.points, *(g.points for g in there)])
        coefficients = np.concatenate([push, *(strength * g.weights for g in there)])
        return Update(points, coefficients, inputs.shrink - strength * len(there), shared=True)

    def max_stable_penalty(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        pull = step_size * self.every * stiffness
        return 2.0 / pull if pull > 0 else math.inf
