"""The role that every protocol plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kernelmesh.checks import Floats
from kernelmesh.maths.compression import Change
from kernelmesh.maths.expansion import Expansion
from kernelmesh.maths.losses import Loss
from kernelmesh.messages import Message

__all__ = ["Consensus", "Moment"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Moment:
    """What an agent knows when it is about to move: its function, its new samples, and the rates in force."""

    function: Expansion
    points: Floats
    targets: Any
    loss: Loss
    here: Floats
    """f(X), the outputs at the new points before the step."""
    cross: Floats
    """κ(X, D)."""
    step_size: float
    regularization: float
    samples: int


@runtime_checkable
class Consensus(Protocol):
    """What an agent asks, what it answers, and how it moves given what it heard."""

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        """The question to every neighbour about the new points; None when there is nothing to say."""
        ...

    def answer(self, function: Expansion, question: Message) -> Message | None:
        """The reply to a neighbour's question."""
        ...

    def move(self, moment: Moment, heard: Sequence[Message]) -> Change:
        """The step before compression, from the neighbours' answers."""
        ...

    def penalty(self, samples: int) -> float:
        """How strongly disagreement is weighed, c, after so many samples (0 where there is no such thing)."""
        ...
