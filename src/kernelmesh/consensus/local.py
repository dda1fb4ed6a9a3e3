"""No cooperation: every agent learns from its own stream alone. With one agent this is POLK."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import Heard, StepInputs
from kernelmesh.messages import Message
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion

__all__ = ["Local"]


@dataclass(frozen=True, kw_only=True)
class Local:
    """f̃ = (1 − ηλ) f − (η/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·).

    >>> Local().penalty(0)
    0.0
    """

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return None

    def answer(self, function: Expansion, question: Message) -> Message | None:
        return None

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        push = moment.slope * (-moment.step_size / len(moment.points))
        return Update(moment.points, push, 1.0 - moment.step_size * moment.regularization, moment.cross)

    def penalty(self, samples: int) -> float:
        return 0.0
