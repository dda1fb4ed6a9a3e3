"""What protocols with a coupling share, and what those that exchange points for values share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from kernelmesh.checks import Floats
from kernelmesh.messages import Message, Points, Values
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.schedules import Schedule, as_schedule

__all__ = ["Coupled", "PointsForValues"]


@dataclass(frozen=True, kw_only=True)
class Coupled:
    """`coupling` is c, a number or a schedule."""

    coupling: Schedule | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "coupling", as_schedule(type(self).__name__, "coupling", self.coupling))

    def penalty(self, samples: int) -> float:
        return cast(Schedule, self.coupling)(samples)


class PointsForValues:
    """Points go out, the neighbors' values at them come back."""

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return Points(points) if len(points) else None

    def answer(self, function: Expansion, question: Message) -> Message | None:
        assert isinstance(question, Points)
        return Values(function.evaluate(question.points))
