"""Parses lines of text into samples."""

import csv
import json

import numpy as np

from kernelmesh.checks import Ints
from kernelmesh.errors import InvalidArgument, InvalidRow, Verbatim, format_value
from kernelmesh.streams.base import Batch
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.rows import ParsedRows, parse_rows

__all__ = ["MAX_LINE_BYTES", "LineParser", "LineSplitter"]

MAX_LINE_BYTES = 1 << 20
"""The maximum length of a line, so that invalid input cannot exhaust memory."""
_DECODE = json.JSONDecoder().decode


class LineSplitter:
    r"""Splits text that arrives in pieces into lines. Of a line that is too long, just enough is kept to be rejected.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"1,2\n3"), splitter.feed(b",4\n")
    (([b'1,2'], array([4])), ([b'3,4'], array([8])))
    """

    def __init__(self, offset: int = 0) -> None:
        self._offset, self._partial = offset, b""

    def feed(self, data: bytes) -> tuple[list[bytes], Ints]:
        """The lines that these bytes complete, without newlines, and where the next line after each begins."""
        first, *others = data.split(b"\n")
        lines = [self._partial + first[: MAX_LINE_BYTES + 1], *others]
        self._partial = lines.pop()[: MAX_LINE_BYTES + 1]
        ends = self._offset + 1 + np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
        self._offset += len(data)
        return lines, ends

    def finish(self) -> tuple[list[bytes], Ints]:
        """The last line, if it has no newline."""
        last, self._partial = self._partial, b""
        return ([last] if last else []), np.full(int(bool(last)), self._offset)


class LineParser:
    """Parses lines of CSV (after a header) or JSON objects into samples.

    A record is one line: a quoted field cannot contain a newline, because the rest might not have arrived yet.

    >>> parser = LineParser(Columns(points=("x",), targets=("y",), labels=False), "csv")
    >>> parser.read_header(b"x,note,y", owner="FileSource", table="samples.csv")
    >>> parser.parse([b"1,a,2", b"3,b"]).invalid
    [(1, 'the line must have 3 fields, like the header, got 2')]
    """

    def __init__(self, columns: Columns, format: str) -> None:  # noqa: A002 (what it is called)
        self.columns = columns
        self.format = format
        self._width = 0
        self._indices: dict[str, int] = {}

    @property
    def needs_header(self) -> bool:
        """Whether the next line is the header."""
        return self.format == "csv" and not self._indices

    def read_header(self, line: bytes, *, owner: str, table: str) -> None:
        """Read the header of a table, called `table` in errors."""
        if len(line) > MAX_LINE_BYTES:
            rule = f"have at most {MAX_LINE_BYTES} bytes"
            raise InvalidArgument(owner, f"the header of {table}", rule, Verbatim("a longer line"))
        try:
            names = self._fields([line.decode("utf-8-sig").rstrip("\r\n")])[0]
        except (InvalidRow, UnicodeDecodeError) as error:
            raise InvalidArgument(owner, f"the header of {table}", f"be a line of CSV ({error})", line) from None
        self.columns.check_header(names, owner=owner, table=table)
        self._width = len(names)
        self._indices = {name: names.index(name) for name in self.columns.names}

    def parse(self, lines: list[bytes]) -> ParsedRows:
        """The samples in these lines, given without newlines."""
        return parse_rows(len(lines), lambda start, stop: self._read(lines[start:stop]))

    def _read(self, lines: list[bytes]) -> Batch:
        """Parse all lines at once; raises InvalidRow if one is invalid, or blank while others are not."""
        if any(len(line) > MAX_LINE_BYTES for line in lines):
            raise InvalidRow(f"it must have at most {MAX_LINE_BYTES} bytes")
        if not any(map(bytes.strip, lines)):
            return self.columns.read_all(self.columns.table([]))
        try:
            texts = b"\n".join(lines).decode().replace("\r\n", "\n").removesuffix("\r").split("\n")
        except UnicodeDecodeError:
            raise _invalid("be UTF-8 text", lines[0]) from None
        if self.format == "csv":
            rows = self._fields(texts)
            if (widths := set(map(len, rows))) != {self._width}:
                raise _invalid(f"have {self._width} fields, like the header", Verbatim(widths.pop()))
            by_column = list(zip(*rows, strict=True))
            return self.columns.read_all({name: by_column[index] for name, index in self._indices.items()})
        try:
            records = [_DECODE(text.removeprefix("\ufeff")) for text in texts]
        except (RecursionError, ValueError):
            records = [None]
        if set(map(type, records)) != {dict}:
            raise _invalid("be a JSON object", texts[0])
        return self.columns.read_all(self.columns.table(records))

    @staticmethod
    def _fields(lines: list[str]) -> list[list[str]]:
        """The fields of each line of CSV. There must be as many rows as lines, so that no record spans two lines."""
        try:
            rows = list(csv.reader(lines, strict=True))
        except csv.Error as error:
            raise _invalid(f"be CSV ({error})", lines[0]) from None
        if len(rows) != len(lines) or any('"' in text and text.count('"') % 2 for text in lines):
            raise _invalid("close every quote it opens: a record is one line", lines[0])
        return rows


def _invalid(rule: str, value: object) -> InvalidRow:
    return InvalidRow(f"the line must {rule}, got {format_value(value)}")
