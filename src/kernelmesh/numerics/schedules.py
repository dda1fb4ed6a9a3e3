"""Schedules: values that may change with the number of samples an agent has seen.

Step sizes η, penalties c and compression budgets ε are schedules; `schedule(samples)` returns the value
after `samples` samples.
"""

import math
import numbers
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kernelmesh.checks import integer, non_negative, positive
from kernelmesh.errors import InvalidArgument
from kernelmesh.registry import register

__all__ = ["Constant", "Doubling", "InverseRoot", "InverseTime", "Schedule", "check_schedule", "value_at"]


@runtime_checkable
class Schedule(Protocol):
    """A value ≥ 0 for every number of samples.

    The interface of step sizes, penalties and budgets: anything that can be called with a number of samples.

    Examples
    --------
    >>> isinstance(InverseRoot(scale=1.0), Schedule)
    True
    """

    def __call__(self, samples: int, /) -> float:
        """The value after `samples` samples."""


@register("schedule")
@dataclass(frozen=True)
class Constant:
    """A constant value a.

    Parameters
    ----------
    value : float
        a ≥ 0.

    Examples
    --------
    >>> Constant(3.0)(1000)
    3.0
    """

    value: float

    def __post_init__(self) -> None:
        non_negative("Constant", "value", self.value, infinite=True)

    def __call__(self, samples: int) -> float:
        return float(self.value)


@dataclass(frozen=True, kw_only=True)
class _Decaying:
    """A schedule with a scale a and an offset b."""

    scale: float
    offset: float = 1.0

    def __post_init__(self) -> None:
        positive(type(self).__name__, "scale", self.scale)
        positive(type(self).__name__, "offset", self.offset)


@register("schedule")
@dataclass(frozen=True, kw_only=True)
class InverseTime(_Decaying):
    """a / (b + t) after t samples: sums to infinity while its squares do not (Corollary 1).

    Parameters
    ----------
    scale : float
        a > 0.
    offset : float
        b > 0.

    Examples
    --------
    >>> InverseTime(scale=8.0, offset=4.0)(12)
    0.5
    """

    def __call__(self, samples: int) -> float:
        return self.scale / (self.offset + samples)


@register("schedule")
@dataclass(frozen=True, kw_only=True)
class InverseRoot(_Decaying):
    """a / √(b + t) after t samples.

    Parameters
    ----------
    scale : float
        a > 0.
    offset : float
        b > 0.

    Examples
    --------
    >>> InverseRoot(scale=8.0, offset=4.0)(12)
    2.0
    """

    def __call__(self, samples: int) -> float:
        return self.scale / math.sqrt(self.offset + samples)


@register("schedule")
@dataclass(frozen=True, kw_only=True)
class Doubling:
    """a · 2^⌊t / n⌋ after t samples: doubles every n samples, up to a ceiling.

    Parameters
    ----------
    start : float
        a > 0.
    every : int
        n ≥ 1.
    ceiling : float
        The maximum value; infinite by default.

    Examples
    --------
    >>> [Doubling(start=0.01, every=200)(t) for t in (0, 199, 200, 400)]
    [0.01, 0.01, 0.02, 0.04]
    """

    start: float
    every: int
    ceiling: float = math.inf

    def __post_init__(self) -> None:
        positive("Doubling", "start", self.start)
        integer("Doubling", "every", self.every, minimum=1)
        positive("Doubling", "ceiling", self.ceiling, infinite=True)

    def __call__(self, samples: int) -> float:
        # ldexp would overflow to an error after 2^1024; by then the ceiling, or infinity, is the answer
        doublings = min(samples // self.every, 2000)
        try:
            value = math.ldexp(self.start, doublings)
        except OverflowError:
            value = math.inf
        return min(value, self.ceiling)


def value_at(value: Schedule | float, samples: int) -> float:
    """The value of a schedule, or the number itself, after `samples` samples."""
    return float(value(samples) if callable(value) else value)


def check_schedule(owner: str, argument: str, value: object) -> Schedule | float:
    """Reject anything that is neither a number ≥ 0 nor a schedule."""
    if isinstance(value, bool):
        pass
    elif isinstance(value, numbers.Real):
        if float(value) >= 0:
            return float(value)
    elif isinstance(value, Schedule) and not isinstance(value, type):
        try:
            if float(value(0)) >= 0:
                return value
        except (TypeError, ValueError, AttributeError):  # some other callable
            pass
    raise InvalidArgument(owner, argument, "be a number >= 0 or a schedule", value, remedy="for example 3.0")
