"""The settings of an experiment: a frozen dataclass whose field types determine the valid values."""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, get_type_hints

from kernelmesh.checks import non_negative, positive
from kernelmesh.schema import Setting, at_least, setting
from kernelmesh.schema import settings_of as documented

__all__ = ["Count", "Index", "NonNegative", "Positive", "PositiveOrInf", "Settings", "describe_settings", "settings_of"]

Index = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]
Positive = Annotated[float, positive]
PositiveOrInf = Annotated[float, partial(positive, infinite=True)]
NonNegative = Annotated[float, non_negative]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every experiment here has; a subclass names the experiment, for its errors.

    A field that is made with `setting` says what it means; a subclass that only changes the default need not say it again.

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


def describe_settings(kind: type[Any]) -> dict[str, Setting]:
    """The settings of an experiment by name, each with its default and what it means.

    >>> describe_settings(Settings)["seed"].doc
    'random seed; the same seed reproduces the run'
    """
    bases = [base for base in reversed(kind.__mro__) if dataclasses.is_dataclass(base)]
    docs = {name: known.doc for base in bases for name, known in documented(base).items()}
    fields = dataclasses.fields(kind)
    return {field.name: Setting(name=field.name, default=field.default, doc=docs.get(field.name, "")) for field in fields}
