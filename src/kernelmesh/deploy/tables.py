"""Reading a TOML file table by table: mistakes are noted with their line, and reading goes on."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kernelmesh.deploy.toml_positions import KeyPath, Lines, locate
from kernelmesh.errors import InvalidArgument, InvalidConfig, Problem, Verbatim

__all__ = ["Problems", "Table", "argument_of", "build", "root_of"]

_T = TypeVar("_T")

_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)


def root_of(path: Path, homes: Mapping[str, Sequence[str]]) -> Table:
    """The outermost table of a file; `homes` has the keys of each table ("": the outermost), to say where one belongs."""
    document, lines = _parse(path)
    notes = Problems(path, lines, homes)
    for key, bits in _giants(document):
        notes.add(key, "hold whole numbers of at most 64 bits", Verbatim(f"one of {bits} bits"))
    notes.check()
    return Table(notes, (), document)


def argument_of(error: Exception) -> str:
    """What a refusal is about; nothing for other errors."""
    return error.argument if isinstance(error, InvalidArgument) else ""


def _requirement(error: Exception) -> str:
    """What follows on "must", without examples in Python."""
    if not isinstance(error, InvalidArgument):
        return f"hold values that work, got {error}"
    if error.remedy.startswith("for example "):
        error = InvalidArgument(error.owner, error.argument, error.rule, error.value)
    return error.requirement


def _parse(path: Path) -> tuple[dict[str, Any], Lines]:
    """What the file holds and where; mistakes that tomllib finds come with its own line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidConfig([Problem(str(path), 0, "", f"be one that can be read, got {error.strerror}")]) from None
    try:
        text = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidConfig(
            [Problem(str(path), line, "", f"be UTF-8, got the byte 0x{data[error.start]:02x}")]
        ) from None
    try:
        return tomllib.loads(text), locate(text)
    except RecursionError:
        raise InvalidConfig([Problem(str(path), 1, "", "be TOML, got brackets too deep within each other")]) from None
    except ValueError as error:
        found = _SYNTAX.fullmatch(str(error))
        what = found["what"] if found else str(error)
        if found and found["line"]:
            line, where = int(found["line"]), f"column {found['column']}"
        else:
            line, where = len(text.splitlines()) or 1, "at its end"
        raise InvalidConfig([Problem(str(path), line, "", f"be TOML, got {what} ({where})")]) from None


def _giants(value: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    """Whole numbers that TOML does not promise to hold: they cannot even be printed."""
    if isinstance(value, int) and value.bit_length() > 63:
        yield at, value.bit_length()
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _giants(inner, (*at, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _giants(inner, (*at, number))


class Problems:
    """The mistakes found so far."""

    def __init__(self, path: Path, lines: Lines, homes: Mapping[str, Sequence[str]]) -> None:
        self.path, self.lines, self.homes = path, lines, homes
        self.found: list[Problem] = []

    def add(self, key: KeyPath, rule: str, value: object, remedy: str = "") -> None:
        """A mistake of our own finding."""
        self._append(key, InvalidArgument("", "", rule, value, remedy=remedy).requirement)

    def quote(self, key: KeyPath, error: Exception) -> None:
        """A mistake in the words of whoever refused the value."""
        self._append(key, _requirement(error))

    def _append(self, key: KeyPath, requirement: str) -> None:
        parts = (str(p) if re.fullmatch(r"[A-Za-z0-9_-]+", str(p)) else json.dumps(p, ensure_ascii=False) for p in key)
        self.found.append(Problem(str(self.path), self.lines.of(key), ".".join(parts), requirement))

    def check(self) -> None:
        """Refuse to go on if there are any."""
        if self.found:
            raise InvalidConfig(sorted(self.found, key=lambda problem: problem.line))


class Table:
    """A table of the file: gives its values out, notes what is wrong with them, and knows what nobody has asked for.

    What is wrong has something harmless in its place, so that the rest can be looked at; `fine` tells.
    """

    def __init__(self, notes: Problems, path: KeyPath, values: Mapping[str, Any]) -> None:
        self.notes, self.path, self.values = notes, path, values
        self.known: list[str] = []
        self.bad: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fine(self, *keys: str) -> bool:
        """Whether nothing was wrong with these."""
        return self.bad.isdisjoint(keys)

    def wrong(self, key: str, rule: str, value: object, remedy: str = "") -> None:
        """Note what is wrong with a key."""
        self.bad.add(key)
        self.notes.add((*self.path, key), rule, value, remedy)

    def blame(self, key: str, error: Exception) -> None:
        """Take a mistake from whoever refused the value of a key."""
        self.bad.add(key)
        self.notes.quote((*self.path, key), error)

    def take(self, key: str, default: Any = ..., *, rule: str = "be given", example: str = "") -> Any:
        """A value as it is; one without a default must be there."""
        self.known.append(key)
        if key not in self.values and default is ...:
            self.wrong(key, rule, Verbatim("nothing"), f"for example {key} = {example}" if example else "")
            return None
        return self.values.get(key, default)

    def text(self, key: str, default: Any = ..., *, allowed: Sequence[str] = (), example: str = "") -> str:
        """A text that is not empty, one of those allowed if there are such."""
        rule = f"be one of {', '.join(allowed)}" if allowed else "be a text in quotes"
        value = self.take(key, default, rule=rule if allowed else "be given", example=example)
        if not self.fine(key):
            return ""
        if not isinstance(value, str) or not value or (allowed and value not in allowed):
            self.wrong(key, rule, value, _meant(value, allowed))
            return ""
        return value

    def texts(self, key: str, default: Any = ..., *, example: str = "") -> tuple[str, ...]:
        """A list of different texts."""
        value = self.take(key, default, example=example)
        if not self.fine(key) or (value == () and key not in self):
            return ()
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            self.wrong(key, "be a list of texts in quotes", value)
            return ()
        if twice := [item for item in value if value.count(item) > 1]:
            self.wrong(key, "name each one once", value, f"{twice[0]!r} is there twice")
            return ()
        return tuple(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            self.wrong(key, "be true or false", value)
        return value is True

    def checked(self, key: str, check: Callable[[str, str, Any], _T], default: _T, **needed: str) -> _T:
        """A value that one of the usual checks has passed, and the default for one that it has not, or that is not there."""
        value = self.take(key, ... if needed else default, **needed)
        try:
            return check("", key, value) if self.fine(key) else default
        except ValueError as error:
            self.blame(key, error)
            return default

    def path_to(self, key: str, base: Path, *, example: str) -> Path:
        """A path, seen from `base` if it is relative."""
        text = self.text(key, example=example)
        if not text.isprintable():
            self.wrong(key, "be a path", text)
            text = ""
        return base / text

    def table(self, key: str, *, needed: bool = True) -> Table | None:
        """A table within this one, or None if there is none."""
        rule = f"be a table, [{key}]"
        value = self.take(key, ... if needed else None, rule=rule)
        if isinstance(value, dict):
            return Table(self.notes, (*self.path, key), value)
        if value is not None:
            self.wrong(key, rule, value)
        return None

    def finish(self) -> None:
        """An option nobody reads is a mistake."""
        for key, value in self.values.items():
            if key not in self.known:
                what = Verbatim("an unknown table" if isinstance(value, dict) else "an unknown key")
                remedy = self._home(key) or _meant(key, self.known)
                self.wrong(key, f"be one of {', '.join(dict.fromkeys(self.known))}", what, remedy)

    def _home(self, key: str) -> str:
        """Where a key of another table belongs, if this is one."""
        for table, keys in self.notes.homes.items():
            if key in keys and table not in (self.path or ("",)):
                where = f"in [{table}]" if table else "at the top of the file, before the first [table]"
                return f"{key} belongs {where}"
        return ""


def _meant(value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str):
        return ""
    folded = {name.casefold(): name for name in allowed}
    near = difflib.get_close_matches(value.casefold(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else ""


def build(table: Table, kind: Callable[..., _T], values: Mapping[str, Any], harmless: Mapping[str, Any]) -> _T | None:
    """Call a constructor; each value that it refuses is noted and replaced by a harmless one, until it has no more to say."""
    values = dict(values)
    while True:
        try:
            return kind(**values)
        except ValueError as error:
            key = argument_of(error)
            if key not in values or key in table.bad:
                table.bad.add("kind")
                table.notes.quote(table.path, error)
                return None
            table.blame(key, error)
            if key in harmless:
                values[key] = harmless[key]
            else:
                del values[key]  # it has a default
