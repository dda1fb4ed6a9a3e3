"""Reads a TOML file into dataclasses of settings, and collects all mistakes with their lines."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kernelmesh.deploy.sections import SECTIONS, ModelSection
from kernelmesh.deploy.toml_positions import KeyPath, Lines, locate
from kernelmesh.errors import MISSING, InvalidArgument, InvalidConfig, Problem, Verbatim
from kernelmesh.numerics.schedules import check_schedule
from kernelmesh.registry import find, kinds, role_of
from kernelmesh.schema import Setting, did_you_mean, one_of, settings_of

__all__ = ["Problems", "Table", "declared", "read_root"]

_T = TypeVar("_T")

_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)


def read_root(path: Path) -> Table:
    """The outermost table of a file."""
    document, lines = _parse(path)
    problems = Problems(path, lines)
    for key, bits in _giants(document):
        problems.add(key, InvalidArgument("", "", "contain integers of at most 64 bits", Verbatim(f"one of {bits} bits")))
    problems.check()
    return Table(problems, document)


def declared(kind: Any) -> dict[str, Setting]:
    """The settings of any dataclass: fields made with `setting`, and plain fields, which its constructor checks."""
    found = settings_of(kind)
    for field in dataclasses.fields(kind):
        if field.init and field.name not in found:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            found[field.name] = Setting(name=field.name, default=default, role=role_of(field))
    return found


def _parse(path: Path) -> tuple[dict[str, Any], Lines]:
    """The contents of a file with line numbers; syntax errors carry the line reported by tomllib."""

    def invalid(line: int, predicate: str) -> InvalidConfig:
        return InvalidConfig([Problem(str(path), line, "", predicate)])

    try:
        data = path.read_bytes()
        text = data.decode().replace("\r\n", "\n")
        return tomllib.loads(text), locate(text)
    except OSError as error:
        raise invalid(0, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise invalid(line, f"must be UTF-8 text, got the byte 0x{data[error.start]:02x}") from None
    except RecursionError:
        raise invalid(1, "is not valid TOML: brackets nested too deeply") from None
    except ValueError as error:  # tomllib reports the position only in its message
        found = _SYNTAX.fullmatch(str(error))
        line, where = len(text.splitlines()) or 1, "at the end of the file"
        if found and found["line"]:
            line, where = int(found["line"]), f"column {found['column']}"
        raise invalid(line, f"is not valid TOML: {found['what'] if found else error} ({where})") from None


def _giants(value: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    """Integers beyond TOML's range, which cannot even be printed, with their sizes in bits."""
    if isinstance(value, int) and value.bit_length() > 63:
        yield at, value.bit_length()
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _giants(inner, (*at, key))


class Problems:
    """The problems found so far."""

    def __init__(self, path: Path, lines: Lines) -> None:
        self.path, self.lines, self.base = path, lines, path.absolute().parent
        self.found: list[Problem] = []

    def add(self, key: KeyPath, error: Exception) -> None:
        """A problem, worded by the check that rejected the value."""
        predicate = error.predicate if isinstance(error, InvalidArgument) else f"cannot be used: {error}"
        parts = (str(p) if re.fullmatch(r"[A-Za-z0-9_-]+", str(p)) else json.dumps(p, ensure_ascii=False) for p in key)
        self.found.append(Problem(str(self.path), self.lines.of(key), ".".join(parts), predicate))

    def check(self) -> None:
        """Raise `InvalidConfig` with all problems, if any."""
        if self.found:
            raise InvalidConfig(sorted(self.found, key=lambda problem: problem.line))


class Table:
    """A table of the file: checks its values against settings and records which are wrong.

    A wrong value is replaced by the setting's default or example, so that the rest can be checked; see `ok`.
    """

    def __init__(
        self, problems: Problems, values: Mapping[str, Any], *, path: KeyPath = (), parent: Table | None = None
    ) -> None:
        self.problems, self.path, self.values, self._parent = problems, path, values, parent
        self._bad: set[str] = set()

    def ok(self, *keys: str) -> bool:
        """Whether these keys are valid, or all keys if none is given."""
        return self._bad.isdisjoint(keys) if keys else not self._bad

    def add(self, key: str, error: Exception) -> None:
        """Record the error of the check that rejected the value of a key."""
        self._mark(key)
        self.problems.add((*self.path, key), error)

    def _mark(self, key: str) -> None:
        """Record that a key is wrong, and with it the table that contains this one."""
        self._bad.add(key)
        if self._parent is not None:
            self._parent._mark(str(self.path[-1]))

    def wrong(self, key: str, rule: str, value: object, remedy: str = "") -> None:
        """Record a problem with a key."""
        self.add(key, InvalidArgument("", key, rule, value, remedy=remedy))

    def table(self, key: str, *, required: bool = True) -> Table | None:
        """A subtable, or None if there is none."""
        value = self.values.get(key)
        if isinstance(value, dict):
            return Table(self.problems, value, path=(*self.path, key), parent=self)
        if key in self.values:
            self.wrong(key, f"be a table, [{key}]", value)
        elif required:
            self.wrong(key, "be a table", MISSING, f"add a table [{key}]")
        return None

    def read(self, kind: Any, *, others: Collection[str] = ()) -> dict[str, Any]:
        """The checked values of a dataclass's settings that are present or required; other keys, save these, are unknown."""
        settings = declared(kind)
        self.finish(settings, others=others)
        return self.read_values(settings)

    def read_values(self, settings: Mapping[str, Setting]) -> dict[str, Any]:
        """The checked values of those settings that are present or required."""
        return {name: self.value(one) for name, one in settings.items() if one.required or name in self.values}

    def value(self, setting: Setting) -> Any:
        """The value of one setting."""
        key = setting.name
        if key not in self.values:
            if setting.required:
                self.wrong(key, "be given", MISSING, setting.example and f"for example {key} = {setting.example}")
            return _stand_in(setting)
        value = self.values[key]
        try:
            if setting.role is not None:
                return self._part(setting, setting.role, value)
            value = value if setting.check is None else setting.check("", key, value)
        except ValueError as error:
            self.add(key, error)
            return _stand_in(setting)
        return self.problems.base / value if isinstance(value, Path) else value

    def _part(self, setting: Setting, role: str, value: Any) -> Any:
        """A value of a registered kind: a table with its kind and options; a schedule may also be a number."""
        table = self.table(setting.name) if isinstance(value, dict) else None
        if table is None:
            if role == "schedule":
                return _schedule(setting.name, value)
            raise InvalidArgument("", setting.name, f"be a table such as {setting.example or _EXAMPLES[role]}", value)
        kind = table.kind(role)
        made = None if kind is None else table.build(kind, table.read(kind, others=("kind",)))
        return made if table.ok() else _stand_in(setting)

    def kind(self, role: str) -> Any:
        """The registered kind named by the table; None if there is none."""
        if "kind" not in self.values:
            self.wrong("kind", "be given", MISSING, f"it is one of {', '.join(kinds(role))}")
            return None
        name = self.values["kind"]
        found = find(role, name) if isinstance(name, str) else None
        if found is None:
            try:
                one_of(*kinds(role))("", "kind", name)
            except InvalidArgument as error:
                self.add("kind", error)
        return found

    def build(
        self, kind: Callable[..., _T], values: Mapping[str, Any], *, settings: Mapping[str, Setting] | None = None
    ) -> _T | None:
        """Call a constructor, replacing rejected values until it succeeds."""
        values, settings = dict(values), settings or declared(kind)
        while True:
            try:
                return kind(**values)
            except (ArithmeticError, TypeError, ValueError) as error:
                key = error.argument if isinstance(error, InvalidArgument) else ""
                if key not in settings:
                    self._mark(key)
                    self.problems.add(self.path, error)
                    return None
                if not self.ok(key):  # already reported; its replacement conflicts with the others
                    return None
                self.add(key, error)
                values[key] = _stand_in(settings[key])

    def finish(
        self,
        settings: Mapping[str, Setting],
        *,
        others: Collection[str] = (),
        hint: Callable[[str], InvalidArgument | None] = lambda key: None,
    ) -> None:
        """Report keys that are neither settings nor others; `hint` may explain them."""
        nested, known = [*_tables(settings)], [*others, *settings]
        if not self.path:  # at the top, the others are tables
            nested, known = [*others], [*settings]
        for key, value in self.values.items():
            if key in settings or key in others:
                continue
            near = nested if (is_table := _is_table(value)) else known
            what = Verbatim("an unknown table" if is_table else "an unknown key")
            remedy = self._home(key, value) or did_you_mean(key, near)
            rule = f"be one of {', '.join(near or known)}"
            self.add(key, hint(key) or InvalidArgument("", key, rule, what, remedy=remedy))

    def _home(self, key: str, value: Any) -> str:
        """The table that a misplaced key belongs to, if any."""
        for table, section in SECTIONS.items():
            settings = settings_of(section)
            if key in (_tables(settings) if _is_table(value) else settings) and table not in (self.path or ("",)):
                where = f"in [{table}]" if table else "at the top of the file, before the first [table]"
                return f"{key} belongs {where}"
        return ""


def _is_table(value: Any) -> bool:
    """Whether a value is a table, or an array of tables."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value))


def _tables(settings: Mapping[str, Setting]) -> list[str]:
    """The keys whose values may be tables, that is, a kind with its options; the kind of a stream is just a name."""
    return [name for name, setting in settings.items() if setting.role not in (None, "stream")]


_EXAMPLES = {setting.role: setting.example for setting in settings_of(ModelSection).values() if setting.role}


def _schedule(key: str, value: Any) -> Any:
    try:
        return check_schedule("", key, value)
    except InvalidArgument as error:  # without its example, which is Python
        raise InvalidArgument("", key, error.rule, error.value) from None


def _stand_in(setting: Setting) -> Any:
    """A substitute for a wrong value while the rest is checked: the default, the example, or any of its role."""
    if not setting.required:
        return setting.default
    example = _EXAMPLES.get(setting.role or "") or setting.example or "1"
    value = tomllib.loads(f"value = {example}")["value"]
    if setting.role is not None:
        return Table(Problems(Path(), Lines({})), {setting.name: value}).value(setting)
    return value if setting.check is None else setting.check("", setting.name, value)
