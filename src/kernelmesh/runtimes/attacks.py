"""Byzantine attacks for simulations: what a bad agent sends instead of its true messages."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import integer, positive
from kernelmesh.messages import Message, SentFunction, Values

__all__ = ["ATTACKS", "Attack", "FarPoints", "Replay", "Scaled"]


@runtime_checkable
class Attack(Protocol):
    """How a bad agent distorts its messages.

    The interface of attacks, for `Faults.byzantine`. An attack defines `distort`. A bad agent learns like
    all others: only its messages are changed.

    Examples
    --------
    >>> isinstance(Scaled(factor=-1.0), Attack)
    True
    """

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        """The message to send instead of `message`.

        `first` is what the agent sent over this edge when its attack began, `age` the number of rounds since then.
        """


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """The learned function, or the answer, times a factor: −1 for the opposite, 0 for nothing, NaN for what is no number."""

    factor: float = 1000.0

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        table = "values" if isinstance(message, Values) else "weights"
        return cast(Message, replace(cast(Any, message), **{table: self.factor * getattr(message, table)}))


@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """The function from when the attack began, repeated; answers stay true, as they must match their questions."""

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        return first if isinstance(message, SentFunction) else message


@dataclass(frozen=True, kw_only=True)
class FarPoints(Attack):
    """The true function, plus points far from all data, new ones in every round; answers stay true.

    With `distance=1.0` and thousands of points, a flood.
    """

    points: int = 10
    distance: float = 100.0

    def __post_init__(self) -> None:
        integer("FarPoints", "points", self.points, minimum=1)
        positive("FarPoints", "distance", self.distance)

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        if not isinstance(message, SentFunction):
            return message
        points = self.distance * rng.standard_normal((self.points, message.points.shape[1]))
        size = float(np.sqrt(np.mean(message.weights**2))) if message.weights.size else 1.0
        weights = size * rng.standard_normal((self.points, message.weights.shape[1]))
        return SentFunction(np.concatenate([message.points, points]), np.concatenate([message.weights, weights]))


ATTACKS: tuple[Attack, ...] = (Scaled(), Replay(), FarPoints())
"""One attack of each built-in kind."""
