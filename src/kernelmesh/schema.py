"""Settings from files: dataclass fields with a check, a default, an example and documentation.

The file reader, the template writer and the tables of settings are all driven by these fields, so a new setting is one new
field.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument

__all__ = ["Check", "Setting", "at_least", "check_settings", "did_you_mean", "flag", "one_of", "path", "setting"]
__all__ += ["settings_of", "text", "texts"]

Check = Callable[[str, str, Any], Any]
"""Takes owner, argument and value, and returns the validated value or raises `InvalidArgument`."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The description of one setting."""

    name: str
    default: Any
    """`dataclasses.MISSING` if there is none."""
    check: Check | None = None
    role: str | None = None
    """The role, if the value is of a registered kind."""
    example: str = ""
    """An example in TOML syntax."""
    doc: str = ""
    unset: str = ""
    """What a default of None means, in words; for a required setting, when to omit it."""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING


def setting(
    default: Any = MISSING,
    *,
    check: Check | None = None,
    role: str | None = None,
    example: str = "",
    doc: str,
    unset: str = "",
) -> Any:
    """Declare a dataclass field whose value may come from a file.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Checkpoints:
    ...     every: int = setting(100, check=at_least(1), doc="Rounds between two checkpoints.")
    >>> settings_of(Checkpoints)["every"].default
    100
    """
    known = {"check": check, "role": role, "example": example, "doc": doc, "unset": unset}
    return dataclasses.field(default=default, metadata={"kernelmesh": known})


def settings_of(kind: Any) -> dict[str, Setting]:
    """The settings of a dataclass by name; fields not declared with `setting` are skipped."""
    return {
        field.name: Setting(name=field.name, default=field.default, **field.metadata["kernelmesh"])
        for field in dataclasses.fields(kind)
        if "kernelmesh" in field.metadata
    }


def check_settings(made: Any) -> None:
    """Check the settings of a new instance."""
    for known in settings_of(made).values():
        if known.check is not None:
            known.check(type(made).__name__, known.name, getattr(made, known.name))


def did_you_mean(value: object, allowed: Iterable[str]) -> str:
    """A suggestion of the closest allowed name; empty if none is close.

    >>> did_you_mean("gausian", ["Gaussian", "Linear"])
    'did you mean Gaussian?'
    """
    if not isinstance(value, str):
        return ""
    folded = {name.casefold(): name for name in allowed}
    close = difflib.get_close_matches(value.casefold(), folded, n=1)
    return f"did you mean {folded[close[0]]}?" if close else ""


def one_of(*allowed: str) -> Check:
    """A check for one of these strings."""

    def check(owner: str, argument: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            rule = f"be one of {', '.join(allowed)}"
            raise InvalidArgument(owner, argument, rule, value, remedy=did_you_mean(value, allowed))
        return value

    return check


def at_least(minimum: int) -> Check:
    """An integer ≥ `minimum`."""
    return lambda owner, argument, value: integer(owner, argument, value, minimum=minimum)


def text(owner: str, argument: str, value: Any) -> str:
    """A nonempty string."""
    if not isinstance(value, str) or not value:
        raise InvalidArgument(owner, argument, "be a nonempty string", value)
    return value


def texts(owner: str, argument: str, value: Any) -> tuple[str, ...]:
    """A list of distinct strings."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) and item for item in value):
        raise InvalidArgument(owner, argument, "be a list of strings", value)
    if repeated := [item for item in value if value.count(item) > 1]:
        remedy = f"{repeated[0]!r} appears twice"
        raise InvalidArgument(owner, argument, "list each name only once", value, remedy=remedy)
    return tuple(value)


def flag(owner: str, argument: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidArgument(owner, argument, "be true or false", value)
    return value


def path(owner: str, argument: str, value: Any) -> Path:
    """A path; the file reader interprets it relative to the file."""
    if isinstance(value, Path):
        return value
    if not text(owner, argument, value).isprintable():
        raise InvalidArgument(owner, argument, "be a path", value)
    return Path(value)
