"""No cooperation: every agent learns from its own stream alone. With one agent, this is POLK."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelmesh.consensus.base import Consensus, Heard, StepInputs
from kernelmesh.numerics.compression import Update
from kernelmesh.registry import register

__all__ = ["Local"]


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class Local(Consensus):
    """f̃ = (1 − ηλ) f − (η/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·).

    Examples
    --------
    >>> Local().penalty(0)
    0.0
    """

    def move(self, inputs: StepInputs, heard: Sequence[Heard]) -> Update:
        push = inputs.slope * (-inputs.step_size / len(inputs.points))
        return Update(inputs.points, push, inputs.shrink, inputs.cross)
