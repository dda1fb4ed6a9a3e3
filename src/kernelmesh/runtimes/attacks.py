"""Byzantine attacks for simulations: what a bad agent sends instead of its true messages."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, integer, number, positive
from kernelmesh.messages import Message, SentFunction, Values

__all__ = ["ATTACKS", "Attack", "Drift", "FarPoints", "Flood", "Huge", "NotFinite", "RandomFunction", "Replay"]
__all__ += ["Scaled", "SignFlip", "Zero"]


@runtime_checkable
class Attack(Protocol):
    """How a bad agent distorts its messages.

    The interface of attacks, for `Faults.byzantine`. An attack defines `distort`. A bad agent learns like
    all others: only its messages are changed.

    Examples
    --------
    >>> isinstance(SignFlip(), Attack)
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
        return cast(Message, replace(cast(Any, message), **{table: self.changed(getattr(message, table), age, rng)}))

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        """The replacement of the weights or values."""


@dataclass(frozen=True, kw_only=True)
class Huge(_OfWeights):
    """Every weight is the same huge number, as from a stuck sensor or a wrong unit."""

    value: float = 1e30

    def __post_init__(self) -> None:
        number("Huge", "value", self.value)

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return np.full_like(weights, self.value)


@dataclass(frozen=True, kw_only=True)
class SignFlip(_OfWeights):
    """The opposite of what was learned."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return -weights


@dataclass(frozen=True, kw_only=True)
class Scaled(_OfWeights):
    """The learned function, scaled up."""

    factor: float = 1000.0

    def __post_init__(self) -> None:
        number("Scaled", "factor", self.factor)

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return self.factor * weights


@dataclass(frozen=True, kw_only=True)
class Zero(_OfWeights):
    """Always zero."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return np.zeros_like(weights)


@dataclass(frozen=True, kw_only=True)
class RandomFunction(_OfWeights):
    """Random weights of the usual size, redrawn in every round."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        size = np.sqrt(np.mean(weights**2)) if weights.size else 0.0
        return (float(size) or 1.0) * rng.standard_normal(weights.shape)


@dataclass(frozen=True, kw_only=True)
class Drift(_OfWeights):
    """A slowly growing bias toward the first output."""

    rate: float = 0.02

    def __post_init__(self) -> None:
        positive("Drift", "rate", self.rate)

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        out = weights.copy()
        out[:, 0] += self.rate * (age + 1)
        return out


@dataclass(frozen=True, kw_only=True)
class NotFinite(_OfWeights):
    """Values that are not finite."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return np.full_like(weights, np.nan)


@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """The message from when the attack began, repeated."""

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        if not isinstance(message, SentFunction) or not isinstance(first, SentFunction):
            return message  # an answer must match the points of its question
        return first


@dataclass(frozen=True, kw_only=True)
class FarPoints(Attack):
    """The true function, plus points far from all data, new ones in every round."""

    points: int = 10
    distance: float = 100.0

    def __post_init__(self) -> None:
        integer("FarPoints", "points", self.points, minimum=1)
        positive("FarPoints", "distance", self.distance)

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        return _with_points(message, self.distance * rng.standard_normal((self.points, _dimension(message))), rng)


@dataclass(frozen=True, kw_only=True)
class Flood(Attack):
    """The true function, plus thousands of points among the samples, new ones in every round."""

    points: int = 3000

    def __post_init__(self) -> None:
        integer("Flood", "points", self.points, minimum=1)

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        return _with_points(message, rng.standard_normal((self.points, _dimension(message))), rng)


ATTACKS: tuple[Attack, ...] = (
    Huge(),
    SignFlip(),
    FarPoints(),
    Flood(),
    Scaled(),
    RandomFunction(),
    Replay(),
    Zero(),
    Drift(),
    NotFinite(),
)
"""One attack of each built-in kind."""


def _dimension(message: Message) -> int:
    return message.points.shape[1] if isinstance(message, SentFunction) else 0


def _with_points(message: Message, points: Floats, rng: np.random.Generator) -> Message:
    """A function with additional points, whose weights are as large as its own; any other message unchanged."""
    if not isinstance(message, SentFunction):
        return message
    size = float(np.sqrt(np.mean(message.weights**2))) if message.weights.size else 1.0
    weights = size * rng.standard_normal((len(points), message.weights.shape[1]))
    return SentFunction(np.concatenate([message.points, points]), np.concatenate([message.weights, weights]))
