"""The paper's protocol (Algorithm 1): disagreement with the neighbors at the agent's own points is penalized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import Heard, StepInputs
from kernelmesh.consensus.coupled import Coupled, PointsForValues
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.kernels import Kernel

__all__ = ["Penalty", "disagreement"]


def disagreement(moment: StepInputs, heard: Sequence[Heard]) -> tuple[Floats, int]:
    """Σ_j (f(x_b) − f_j(x_b)) over the neighbors that answered, and how many did."""
    answers: list[Any] = [said.answered for said in heard if said.answered is not None]
    gap = len(answers) * moment.here
    for there in answers:
        gap -= there.values
    return gap, len(answers)


@dataclass(frozen=True, kw_only=True)
class Penalty(PointsForValues, Coupled):
    """f̃ = (1 − ηλ) f − (η/B) Σ_b [ℓ'(f(x_b), y_b) + c Σ_j (f(x_b) − f_j(x_b))] κ(x_b, ·).

    Points go out, the neighbors' values at them come back. `coupling` is c, a number or a schedule. The step is explicit:
    with μ the largest eigenvalue of the network's Laplacian and τ the largest of K_XX / B over the agents, disagreement is
    certain to shrink only while η c μ τ < 2.

    >>> from kernelmesh import Doubling
    >>> Penalty(coupling=Doubling(start=0.01, every=200)).penalty(400)
    0.04
    """

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        push, neighbors = disagreement(moment, heard)
        if neighbors:
            push *= self.penalty(moment.samples)
        push += moment.slope
        push *= -moment.step_size / len(moment.points)
        return Update(moment.points, push, 1.0 - moment.step_size * moment.regularization, moment.cross)

    def most(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        top = max(float(np.linalg.eigvalsh(kernel(some, some))[-1]) / len(some) for some in batches)
        return 2.0 / (step_size * stiffness * top) if step_size * stiffness * top > 0 else math.inf
