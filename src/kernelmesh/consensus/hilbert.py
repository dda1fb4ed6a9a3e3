"""The penalty on the Hilbert norm itself (the paper's Remark 1): neighbors send their whole functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import Heard, StepInputs
from kernelmesh.consensus.coupled import Coupled
from kernelmesh.messages import Function, Message
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel

__all__ = ["Hilbert"]


@dataclass(frozen=True, kw_only=True)
class Hilbert(Coupled):
    """f̃ = (1 − ηλ) f − η [(1/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + c Σ_j (f − f_j)], as printed.

    The step is explicit: with μ the largest eigenvalue of the network's Laplacian, disagreement grows without bound once
    η c μ > 2. Functions go out, nothing comes back.

    >>> Hilbert(coupling=0.1).penalty(0)
    0.1
    """

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return Function(function.centers, function.weights)

    def answer(self, function: Expansion, question: Message) -> Message | None:
        return None

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        there = [said.asked for said in heard if isinstance(said.asked, Function)]
        strength = moment.step_size * self.penalty(moment.samples)
        push = -moment.step_size / len(moment.points) * moment.slope
        return Update(
            np.concatenate([moment.points, *(g.centers for g in there)]),
            np.concatenate([push, *(strength * g.weights for g in there)]),
            1.0 - moment.step_size * moment.regularization - strength * len(there),
            shared=True,
        )

    def most(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        return 2.0 / (step_size * stiffness) if step_size * stiffness > 0 else math.inf
