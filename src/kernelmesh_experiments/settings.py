"""The settings of an experiment: a frozen dataclass whose field types determine the valid values."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from kernelmesh import InvalidArgument

__all__ = ["Count", "Described", "Floats", "Index", "Ints", "NonNegative", "Positive", "PositiveOrInf", "Settings", "Unset"]
__all__ += ["UnsetIndex", "describe_settings", "did_you_mean", "one_of", "setting", "settings_of", "type_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Check = Callable[[str, str, Any], None]
"""Takes owner, argument and value, and raises `InvalidArgument` for a value that is not valid."""


def setting(default: Any, *, doc: str) -> Any:
    """A field that says what it means."""
    return dataclasses.field(default=default, metadata={"doc": doc})


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """A suggestion of the closest allowed name; empty if none is close.

    >>> did_you_mean("bandwith", ["bandwidth", "seed"])
    'did you mean bandwidth?'
    """
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {close[0]}?" if close else ""


def one_of(*allowed: str) -> Check:
    """A check for one of these names."""

    def check(owner: str, argument: str, value: Any) -> None:
        if value not in allowed:
            remedy = did_you_mean(str(value), allowed)
            raise InvalidArgument(owner, argument, f"be one of {', '.join(allowed)}", value, remedy=remedy)

    return check


def _check(rule: str, holds: Callable[[Any], bool], *kinds: type) -> Check:
    def check(owner: str, argument: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, kinds) or not holds(value):
            raise InvalidArgument(owner, argument, rule, value)

    return check


_positive = _check("be a finite number > 0", lambda value: 0 < value < math.inf, int, float)
Index = Annotated[int, _check("be an integer >= 0", lambda value: value >= 0, int)]
Count = Annotated[int, _check("be an integer >= 1", lambda value: value >= 1, int)]
Positive = Annotated[float, _positive]
PositiveOrInf = Annotated[float, _check("be a number > 0", lambda value: value > 0, int, float)]
NonNegative = Annotated[float, _check("be a finite number >= 0", lambda value: 0 <= value < math.inf, int, float)]
_unset = _check("be a finite number >= 0", lambda value: value is None or 0 <= value < math.inf, int, float, NoneType)
Unset = Annotated[float | None, _unset]
"""A number that something else chooses unless it is given."""
UnsetIndex = Annotated[int | None, _check("be an integer >= 0", lambda value: value is None or value >= 0, int, NoneType)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every experiment here has; a subclass names the experiment, for its errors.

    A subclass that only changes the default of a field need not say again what it means.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Coins(Settings, owner="coins"):
    ...     throws: Count = setting(100, doc="throws of each coin")
    >>> Coins(throws=0)
    Traceback (most recent call last):
    kernelmesh.errors.InvalidArgument: coins: throws must be an integer >= 1, got 0
    """

    owner: ClassVar[str]

    seed: Index = setting(0, doc="random seed; the same seed reproduces the run")

    def __init_subclass__(cls, *, owner: str) -> None:
        cls.owner = owner

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            for check in getattr(kind, "__metadata__", ()):
                check(self.owner, name, getattr(self, name))


def settings_of(config: Any) -> dict[str, Any]:
    """The settings as JSON can hold them, which has no infinity."""
    return {name: str(value) if value == math.inf else value for name, value in dataclasses.asdict(config).items()}


class Described(NamedTuple):
    """One setting of an experiment."""

    name: str
    default: Any
    doc: str


def describe_settings(kind: type[Any]) -> dict[str, Described]:
    """The settings of an experiment by name, each with its default and what it means.

    >>> describe_settings(Settings)["seed"].doc
    'random seed; the same seed reproduces the run'
    """
    bases = [base for base in reversed(kind.__mro__) if dataclasses.is_dataclass(base)]
    docs = {field.name: field.metadata["doc"] for base in bases for field in dataclasses.fields(base) if field.metadata}
    return {field.name: Described(field.name, field.default, docs.get(field.name, "")) for field in dataclasses.fields(kind)}


def type_of(kind: type[Any], name: str) -> type[Any]:
    """What a setting is, if it is set.

    >>> type_of(Settings, "seed")
    <class 'int'>
    """
    hint: type[Any] = get_type_hints(kind)[name]
    return next((part for part in get_args(hint) if part is not NoneType), hint)
