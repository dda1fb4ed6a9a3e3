"""The paper's protocol (Algorithm 1): a penalty on disagreement with the neighbors at the agent's own points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import POINTS_FOR_VALUES, Coupled, EdgeMemories, Heard, StepInputs
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.registry import register

__all__ = ["Penalty", "disagreement"]


def disagreement(inputs: StepInputs, heard: Sequence[Heard]) -> tuple[Floats, int]:
    """Σ_j (f(x_b) − f_j(x_b)) over the neighbors that replied, and their number."""
    answers: list[Any] = [said.reply for said in heard if said.reply is not None]
    gap = len(answers) * inputs.here
    for there in answers:
        gap -= there.values
    return gap, len(answers)


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class Penalty(Coupled):
    """f̃ = (1 − ηλ) f − (η/B) Σ_b [ℓ'(f(x_b), y_b) + c Σ_j (f(x_b) − f_j(x_b))] κ(x_b, ·).

    The step is explicit: with μ the largest eigenvalue of the network's Laplacian and τ the largest of K_XX / B over the
    agents, disagreement is certain to shrink only while η c μ τ < 2.

    Parameters
    ----------
    coupling : float or Schedule
        The penalty c.

    Examples
    --------
    >>> from kernelmesh import Doubling
    >>> Penalty(coupling=Doubling(start=0.01, every=200)).penalty(400)
    0.04
    """

    exchange = POINTS_FOR_VALUES

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        push, neighbors = disagreement(inputs, heard)
        if neighbors:
            push *= self.penalty(inputs.samples)
        push += inputs.slope
        push *= -inputs.step_size / len(inputs.points)
        return Update(inputs.points, push, inputs.shrink, inputs.cross)

    def max_stable_penalty(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        top = max(float(np.linalg.eigvalsh(kernel(some, some))[-1]) / len(some) for some in batches)
        return 2.0 / (step_size * stiffness * top) if step_size * stiffness * top > 0 else math.inf
