"""Line numbers of the keys in a TOML file, which tomllib does not provide."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["KeyPath", "Lines", "locate"]

KeyPath = tuple[str | int, ...]
"""("model", "kernel") for model.kernel; tables of an array are numbered: ("sensor", 0, "key")."""


@dataclass(frozen=True)
class Lines:
    """The lines of all keys and tables, counted from 1; an inline value has the line of its key."""

    found: Mapping[KeyPath, int]

    def of(self, path: KeyPath) -> int:
        """The line of a key; if it is missing, that of the innermost enclosing table present, otherwise the first."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.found:
                return self.found[path[:end]]
        return 1


def locate(text: str) -> Lines:
    r"""The lines of all keys of a valid TOML text.

    A statement is the smallest number of lines that tomllib can parse on their own; the parsed result gives the key.

    >>> locate('name = "a"\n[model]\ndimension = 2\n').of(("model", "dimension"))
    3
    """
    found: dict[KeyPath, int] = {}
    newest: dict[KeyPath, int] = {}  # table of each array
    table: KeyPath = ()
    begin, lines = 0, text.split("\n")
    for end in range(1, len(lines) + 1):
        statement = "\n".join(lines[begin:end])
        try:
            value: Any = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # the statement continues on the next line
            continue
        line, begin = begin + 1, end
        opens_table = statement.lstrip().startswith("[")
        path = () if opens_table else table
        while isinstance(value, dict) and value:
            key, value = next(iter(value.items()))
            path += (key,)
            found.setdefault(path, line)
            if opens_table and isinstance(value, list):
                newest[path] = newest.get(path, -1) + 1
            if opens_table and path in newest:
                path += (newest[path],)
        if opens_table:
            table, found[path] = path, line
    return Lines(found)
