"""The penalty on the Hilbert norm itself (the paper's Remark 1): neighbors send their whole functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import FUNCTIONS, Coupled, EdgeMemories, Heard, StepInputs
from kernelmesh.messages import Function
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.registry import register

__all__ = ["Hilbert"]


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class Hilbert(Coupled):
    """f̃ = (1 − ηλ) f − η [(1/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + c Σ_j (f − f_j)], as printed.

    The step is explicit: with μ the largest eigenvalue of the network's Laplacian, disagreement grows without bound once
    η c μ > 2.

    Parameters
    ----------
    coupling : float or Schedule
        c.

    Examples
    --------
    >>> Hilbert(coupling=0.1).penalty(0)
    0.1
    """

    exchange = FUNCTIONS

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        there = [said.reply for said in heard if isinstance(said.reply, Function)]
        strength = inputs.step_size * self.penalty(inputs.samples)
        push = -inputs.step_size / len(inputs.points) * inputs.slope
        return Update(
            np.concatenate([inputs.points, *(g.centers for g in there)]),
            np.concatenate([push, *(strength * g.weights for g in there)]),
            inputs.shrink - strength * len(there),
            shared=True,
        )

    def max_stable_penalty(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        return 2.0 / (step_size * stiffness) if step_size * stiffness > 0 else math.inf
