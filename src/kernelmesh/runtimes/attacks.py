"""Byzantine attacks for simulations: what a bad agent sends instead of its true messages."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, integer, number, positive
from kernelmesh.messages import Message, SentFunction, Values

__all__ = ["ATTACKS", "Attack", "FarPoints", "NotFinite", "RandomFunction", "Replay", "Scaled"]


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


class _OfWeights(Attack, Protocol):
    """Attacks that change the weights of a function, or the values of an answer."""

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        table = "values" if isinstance(message, Values) else "weights"
        return cast(Message, replace(cast(Any, message), **{table: self.changed(getattr(message, table), rng)}))

    def changed(self, weights: Floats, rng: np.random.Generator) -> Floats:
        """The replacement of the weights or values."""


@dataclass(frozen=True, kw_only=True)
class Scaled(_OfWeights):
    """The learned function times a factor: −1 for the opposite of what was learned, 0 for nothing, 1000 for far too much."""

    factor: float = 1000.0

    def __post_init__(self) -> None:
        number("Scaled", "factor", self.factor)

    def changed(self, weights: Floats, rng: np.random.Generator) -> Floats:
        return self.factor * weights


@dataclass(frozen=True, kw_only=True)
class RandomFunction(_OfWeights):
    """Random weights of the usual size, redrawn in every round."""

    def changed(self, weights: Floats, rng: np.random.Generator) -> Floats:
        size = np.sqrt(np.mean(weights**2)) if weights.size else 0.0
        return (float(size) or 1.0) * rng.standard_normal(weights.shape)


@dataclass(frozen=True, kw_only=True)
class NotFinite(_OfWeights):
    """Values that are not finite."""

    def changed(self, weights: Floats, rng: np.random.Generator) -> Floats:
        return np.full_like(weights, np.nan)


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


ATTACKS: tuple[Attack, ...] = (Scaled(), RandomFunction(), NotFinite(), Replay(), FarPoints())
"""One attack of each built-in kind."""
