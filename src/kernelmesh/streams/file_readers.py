"""Reads the rows of files, of which text may still grow, and detects files that were replaced."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from kernelmesh.checks import Ints
from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.streams.columns import Columns, plain
from kernelmesh.streams.line_parser import MAX_LINE_BYTES, LineParser, LineSplitter
from kernelmesh.streams.rows import ParsedRows, RowCounter, parse_rows

__all__ = ["Beginning", "ParquetReader", "RowBlock", "TextReader"]

_CHUNK = MAX_LINE_BYTES + 1  # bytes of a text file read at once: the longest line, with its newline
_HEAD, _HEAD_ROWS = 4096, 64  # bytes that identify a text file, and rows that identify a Parquet file
_RECORDS = 16384  # rows of a Parquet file read at once


class Beginning(Struct, frozen=True, forbid_unknown_fields=True):
    """The first bytes or rows of a file as they were read, by which it is recognized."""

    length: Annotated[int, Meta(ge=0)]
    blake2b: str

    @classmethod
    def of(cls, parts: bytes | list[Any]) -> "Beginning":
        """The beginning that consists of these bytes or rows."""
        data = parts if isinstance(parts, bytes) else repr(parts).encode()
        return cls(len(parts), hashlib.blake2b(data, digest_size=16).hexdigest())


class RowBlock(NamedTuple):
    """Valid rows; and for each the offset and the line of the next row, and the number of invalid rows before that."""

    points: NDArray[np.float64]
    targets: NDArray[Any]
    places: Ints


class _Reader:
    """What both readers share. `offset` and `line` are those of the next row, `head` is the beginning of what was read."""

    def __init__(self, path: Path, counter: RowCounter) -> None:
        self._path, self._counter = path, counter
        self._offset, self._line = 0, 1
        self.head = Beginning.of(b"")
        self.ended = False

    def _check(self, start: bytes | list[Any], *, size: int, read: int, unit: str) -> None:
        """Reject a file that is shorter than what was read from it, or begins differently."""
        remedy = "restore the original file, or move the agent's checkpoint folder away to start over"
        if size < read:
            rule, found = f"contain at least the {read} {unit} that were already read", f"{size} {unit} in {self._path}"
            remedy = f"it was replaced or truncated: {remedy}"
            raise InvalidArgument("FileSource", "path", rule, Verbatim(found), remedy=remedy)
        if self.head.length and Beginning.of(start[: self.head.length]) != self.head:
            raise InvalidArgument("FileSource", "path", "begin as it did when it was read", str(self._path), remedy=remedy)
        self.head = Beginning.of(start[:read])

    def _block(self, rows: ParsedRows, ends: Ints, unit: str) -> RowBlock:
        """The valid rows among those that end at `ends`; the others are counted."""
        before = self._counter.count
        for row, reason in rows.invalid:
            self._counter.add(f"{self._path}, {unit} {self._line + row}: dropped", reason)
        invalid = np.array([row for row, _ in rows.invalid], dtype=np.int64)
        refused = before + np.searchsorted(invalid, rows.valid)
        places = np.column_stack((ends[rows.valid], self._line + rows.valid + 1, refused))
        self._line += len(ends)
        return RowBlock(*rows.batch, places)


class TextReader(_Reader):
    """Reads the complete lines of a file from an offset; with `follow`, more may come."""

    def __init__(self, path: Path, parser: LineParser, counter: RowCounter, *, follow: bool) -> None:
        super().__init__(path, counter)
        self._parser, self._follow = parser, follow
        self.seek(0, 1, self.head)

    def seek(self, offset: int, line: int, head: Beginning) -> None:
        """Continue with the line that begins at an offset, in a file that begins like this; it is checked if it exists."""
        self._offset, self._line, self.head = offset, line, head
        self._splitter = LineSplitter(offset)
        self._seen: tuple[int, int, int] | None = None
        self.ended = False
        self._read(0)

    def more(self) -> RowBlock | None:
        """The valid rows of the next lines; None if there are currently no more."""
        data = self._read(_CHUNK)
        if data is None:
            return None
        lines, ends = self._splitter.feed(data)
        if len(data) < _CHUNK and not self._follow:
            self.ended = True
            last, end = self._splitter.finish()
            lines, ends = lines + last, np.concatenate((ends, end))
        if lines and self._line == 1 and self._parser.format == "csv":
            self._read_header(lines.pop(0))
            ends, self._line = ends[1:], self._line + 1
        return self._block(self._parser.parse(lines), ends, "line") if lines or data else None

    def _read_header(self, line: bytes) -> None:
        self._parser.read_header(line, owner="FileSource", table=str(self._path))

    def _read(self, size: int) -> bytes | None:
        """The next bytes, at most `size`; None if there is no file, or nothing new in it."""
        try:
            now = self._path.stat()
            if not stat.S_ISREG(now.st_mode):
                remedy = "use a LineSource to read from a pipe"
                raise InvalidArgument("FileSource", "path", "be a regular file", str(self._path), remedy=remedy)
            if self._seen == (seen := (now.st_ino, now.st_size, now.st_mtime_ns)):
                return None
            file = open(self._path, "rb")  # noqa: SIM115 (closed below; only a missing file is caught)
        except FileNotFoundError:
            if self._follow:
                return None
            raise
        with file:
            start, length = file.read(_HEAD), os.fstat(file.fileno()).st_size
            self._check(start, size=length, read=self._offset, unit="bytes")
            if self._parser.needs_header and (self._line > 1 or (not size and (b"\n" in start or not self._follow))):
                file.seek(0)
                self._read_header(file.readline(_CHUNK).removesuffix(b"\n"))
            file.seek(self._offset)
            data = file.read(size)
        self._offset += len(data)
        self.head = Beginning.of(start[: self._offset])
        if self._follow and len(data) < size:
            self._seen = seen  # from before, so that anything written since counts as a change
        return data

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


class ParquetReader(_Reader):
    """Reads the rows of a Parquet file."""

    def __init__(self, path: Path, columns: Columns, counter: RowCounter) -> None:
        super().__init__(path, counter)
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtra("Parquet files", "parquet") from None
        self._pyarrow: Any = pyarrow
        self._columns = columns
        self._file: Any = None
        self.seek(0, 1, self.head)

    def seek(self, offset: int, line: int, head: Beginning) -> None:
        """Continue with the row of this number, counted from 0, the `line` from 1, in a file that begins like this."""
        self.close()
        self._offset, self._line, self.head, self.ended = offset, line, head, False
        try:
            self._file = self._pyarrow.parquet.ParquetFile(self._path)
        except (self._pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error with a number is about reading the file, without one about its contents
            raise InvalidArgument("FileSource", "path", f"be a Parquet file ({error})", str(self._path)) from None
        self._columns.check_header(self._file.schema_arrow.names, owner="FileSource", table=str(self._path))
        batches = self._file.iter_batches(batch_size=_HEAD_ROWS, columns=list(self._columns.names))
        start = [row for batch in batches for row in zip(*map(plain, self._table(batch).values()), strict=True)]
        self._check(start[:_HEAD_ROWS], size=self._file.metadata.num_rows, read=offset, unit="rows")
        self._start = start[:_HEAD_ROWS]
        self._batches = self._from(offset)

    def more(self) -> RowBlock | None:
        """The valid rows among the next ones; None if there are no more."""
        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return None
        table, ends = self._table(batch), self._offset + 1 + np.arange(batch.num_rows)
        rows = parse_rows(
            batch.num_rows,
            lambda start, stop: self._columns.read_all({name: column[start:stop] for name, column in table.items()}),
        )
        self._offset += batch.num_rows
        self.head = Beginning.of(self._start[: self._offset])
        return self._block(rows, ends, "row")

    def _from(self, row: int) -> Iterator[Any]:
        """The rows from this number, without reading earlier row groups."""
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        while sizes and row >= sizes[0]:
            row -= sizes.pop(0)
        groups = list(range(self._file.num_row_groups - len(sizes), self._file.num_row_groups))
        names = list(self._columns.names)
        for batch in self._file.iter_batches(batch_size=_RECORDS, row_groups=groups, columns=names) if groups else ():
            if row < batch.num_rows:
                yield batch.slice(row)
            row = max(row - batch.num_rows, 0)

    def _table(self, batch: Any) -> dict[str, Any]:
        return {name: self._values(batch.column(name)) for name in self._columns.names}

    def _values(self, column: Any) -> Any:
        kinds = self._pyarrow.types
        if not column.null_count and (kinds.is_integer(column.type) or kinds.is_floating(column.type)):
            return column.to_numpy(zero_copy_only=False)
        if kinds.is_temporal(column.type):
            return ["a time"] * len(column)  # not a number, and not every value fits into a Python time
        return column.to_pylist()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
