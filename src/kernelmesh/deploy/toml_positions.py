"""Which line of a TOML file a key stands on, which tomllib does not tell."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KeyPath", "Lines", "locate"]

KeyPath = tuple[str | int, ...]
"""("model", "kernel") for model.kernel; tables of an array are numbered: ("sensor", 0, "key")."""

_STRING = (
    r'"""(?:\\.|(?!""")[^\\])*"""(?:"{0,2})'
    r"|'''(?:(?!''').)*'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
)
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_PART = re.compile(r"[ \t]*([A-Za-z0-9_-]+|" + _STRING + r")[ \t]*", re.DOTALL)
_PIECE = re.compile(_STRING + r"|#[^\n]*|[\[\]{}\n]|[^\[\]{}\n#\"']+", re.DOTALL)


@dataclass(frozen=True)
class Lines:
    """The lines of all keys and tables, counted from 1; what stands in an inline value is on the line of its key."""

    found: Mapping[KeyPath, int]

    def of(self, path: KeyPath) -> int:
        """The line of a key; of the innermost table around it that is there, where it is not; else the first."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.found:
                return self.found[path[:end]]
        return 1


def locate(text: str) -> Lines:
    r"""The lines of all keys of a text that tomllib has read without complaint.

    >>> locate('name = "a"\n[model]\ndimension = 2\n').of(("model", "dimension"))
    3
    """
    ends = [end.start() for end in re.finditer("\n", text)]
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    at = 0
    while (at := _end(_BLANK, text, at)) < len(text):
        line = bisect_left(ends, at) + 1
        opening = 2 if text.startswith("[[", at) else int(text[at] == "[")
        parts, at = _key(text, at + opening)
        if not parts:  # not TOML
            break
        if opening:
            table = _resolve((), parts[:-1], counts, found, line)
            table += (parts[-1],)
            if opening == 2:
                found.setdefault(table, line)
                counts[table] = counts.get(table, 0) + 1
            if table in counts:
                table += (counts[table] - 1,)
            found[table] = line
            at += opening
        else:
            found[(*_resolve(table, parts[:-1], {}, found, line), parts[-1])] = line
        at = _after_line(text, at)
    return Lines(found)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _key(text: str, at: int) -> tuple[list[str], int]:
    """The parts of a dotted key, and where it ends."""
    parts = []
    while match := _PART.match(text, at):
        part, at = match[1], match.end()
        parts.append(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
        if not text.startswith(".", at):
            break
        at += 1
    return parts, at


def _resolve(
    table: KeyPath, parts: list[str], counts: Mapping[KeyPath, int], found: dict[KeyPath, int], line: int
) -> KeyPath:
    """The path that leads through these tables, the newest of each array; ones never written are on this line."""
    for part in parts:
        table += (part,)
        found.setdefault(table, line)
        if table in counts:
            table += (counts[table] - 1,)
    return table


def _after_line(text: str, at: int) -> int:
    """Where the statement ends: at the first line break that is in no string, array or inline table."""
    depth = 0
    while match := _PIECE.match(text, at):
        piece, at = match[0], match.end()
        if piece in ("[", "{"):
            depth += 1
        elif piece in ("]", "}"):
            depth -= 1
        elif piece == "\n" and depth <= 0:
            return at
    return len(text)
