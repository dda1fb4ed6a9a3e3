"""What a bad agent says instead of what it should: a table of attacks for simulations, to which anyone can add."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, integer, number, positive
from kernelmesh.messages import Function, Message, Offer, Probe, Values
from kernelmesh.registry import register

__all__ = ["ATTACKS", "Attack", "Drift", "FarPoints", "Flood", "Huge", "NotFinite", "RandomFunction", "Replay"]
__all__ += ["Scaled", "SignFlip", "Zero"]


@runtime_checkable
class Attack(Protocol):
    """How one bad agent distorts what it says.

    The role that every attack plays. An attack derives from it, or from nothing, and defines `distort`; `register("attack")`
    makes it known to the experiment `byzantine`. A bad agent learns as everybody does: only its words are changed.

    Examples
    --------
    >>> isinstance(SignFlip(), Attack)
    True
    """

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        """What is said instead of `message`.

        `first` is what the agent said over this edge when its attack began, `age` the rounds since then, from 0.
        """


class _OfWeights(Attack, Protocol):
    """Attacks that change the weights of a function, the sums of statistics, or the values of an answer."""

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        table = "values" if isinstance(message, Values | Probe) else "weights"
        if not hasattr(message, table):  # a question without values
            return message
        return cast(Message, replace(cast(Any, message), **{table: self.changed(getattr(message, table), age, rng)}))

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        """What takes the place of the weights or values."""


@register("attack")
@dataclass(frozen=True, kw_only=True)
class Huge(_OfWeights):
    """Every weight is the same huge number: a sensor that is stuck, a wrong unit."""

    value: float = 1e30

    def __post_init__(self) -> None:
        number("Huge", "value", self.value)

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return np.full_like(weights, self.value)


@register("attack")
@dataclass(frozen=True, kw_only=True)
class SignFlip(_OfWeights):
    """The opposite of what was learned."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return -weights


@register("attack")
@dataclass(frozen=True, kw_only=True)
class Scaled(_OfWeights):
    """What was learned, many times as large."""

    factor: float = 1000.0

    def __post_init__(self) -> None:
        number("Scaled", "factor", self.factor)

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return self.factor * weights


@register("attack")
@dataclass(frozen=True, kw_only=True)
class Zero(_OfWeights):
    """Always nothing."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return np.zeros_like(weights)


@register("attack")
@dataclass(frozen=True, kw_only=True)
class RandomFunction(_OfWeights):
    """Random weights of the usual size, drawn anew in every round."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        size = np.sqrt(np.mean(weights**2)) if weights.size else 0.0
        return (float(size) or 1.0) * rng.standard_normal(weights.shape)


@register("attack")
@dataclass(frozen=True, kw_only=True)
class Drift(_OfWeights):
    """A bias toward the first output that grows little by little."""

    rate: float = 0.02

    def __post_init__(self) -> None:
        positive("Drift", "rate", self.rate)

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        out = weights.copy()
        out[:, 0] += self.rate * (age + 1)
        return out


@register("attack")
@dataclass(frozen=True, kw_only=True)
class NotFinite(_OfWeights):
    """Numbers that are none."""

    def changed(self, weights: Floats, age: int, rng: np.random.Generator) -> Floats:
        return np.full_like(weights, np.nan)


@register("attack")
@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """What was said when the attack began, again and again."""

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        if not isinstance(message, Function | Offer) or not isinstance(first, Function | Offer):
            return message  # answers belong to the points that were asked about
        return replace(message, centers=first.centers, weights=first.weights, moments=first.moments)


@register("attack")
@dataclass(frozen=True, kw_only=True)
class FarPoints(Attack):
    """The function as it is, and points that nobody has ever seen, others in every round."""

    points: int = 10
    distance: float = 100.0

    def __post_init__(self) -> None:
        integer("FarPoints", "points", self.points, minimum=1)
        positive("FarPoints", "distance", self.distance)

    def distort(self, message: Message, first: Message, age: int, rng: np.random.Generator) -> Message:
        return _with_points(message, self.distance * rng.standard_normal((self.points, _dimension(message))), rng)


@register("attack")
@dataclass(frozen=True, kw_only=True)
class Flood(Attack):
    """The function as it is, and thousands of points among everybody's samples, others in every round."""

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
"""One of each kind that comes with kernelmesh."""


def _dimension(message: Message) -> int:
    return message.centers.shape[1] if isinstance(message, Function | Offer) else 0


def _with_points(message: Message, points: Floats, rng: np.random.Generator) -> Message:
    """A function with more points, whose weights are as large as its own; anything else stays as it is."""
    if not isinstance(message, Function | Offer):
        return message
    size = float(np.sqrt(np.mean(message.weights**2))) if message.weights.size else 1.0
    weights = size * rng.standard_normal((len(points), message.weights.shape[1]))
    moments = message.moments
    if moments is not None:
        mean, last = float(np.mean(np.diag(moments))) if len(moments) else 0.0, np.arange(-len(points), 0)
        moments = np.pad(moments, (0, len(points)))
        moments[last, last] = mean or 1.0
    return replace(
        message,
        centers=np.concatenate([message.centers, points]),
        weights=np.concatenate([message.weights, weights]),
        moments=moments,
    )
