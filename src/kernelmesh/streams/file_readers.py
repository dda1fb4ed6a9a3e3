"""Reads the rows of files that may still grow, and detects files that were replaced."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer
from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.streams.columns import Columns, plain
from kernelmesh.streams.line_parser import MAX_LINE_BYTES, LineParser
from kernelmesh.streams.rows import ParsedRows, RowCounter, parse_rows

__all__ = ["ParquetReader", "RowBlock", "TextReader"]

_CHUNK = MAX_LINE_BYTES + 1  # the longest line, with its newline
_HEAD = 4096  # bytes that identify a text file
_HEAD_ROWS = 64  # rows that identify a Parquet file
_RECORDS = 16384  # rows of a Parquet file read at once
_DIGEST_BYTES = 16


class RowBlock(NamedTuple):
    """Valid rows, each with the position of the next row."""

    points: Floats
    targets: NDArray[Any]
    offsets: Ints
    lines: Ints
    refused: Ints
    """The number of invalid rows before that."""


class _TrackedFile:
    """A file that may grow; detects whether it has changed, and whether it still begins as it did when it was read."""

    def __init__(self, path: Path, counter: RowCounter) -> None:
        self.path, self._counter = path, counter
        self._start = b""
        self._expected: tuple[int, str] | None = None

    def identity(self) -> tuple[int, int, int]:
        """An identity that changes when the file does."""
        now = self.path.stat()
        if not stat.S_ISREG(now.st_mode):
            remedy = "use a LineSource to read from a pipe"
            raise InvalidArgument("FileSource", "path", "be a regular file", str(self.path), remedy=remedy)
        return now.st_ino, now.st_size, now.st_mtime_ns

    def expect(self, head: Any) -> None:
        """Require that the file begins as described by `describe`."""
        if not isinstance(head, Mapping) or not isinstance(head.get("blake2b"), str):
            rule = "describe the beginning of the file, as a position does"
            raise InvalidArgument("FileSource", "position['head']", rule, head)
        length = integer("FileSource", "position['head']['bytes']", head.get("bytes"), minimum=0)
        self._expected = length, head["blake2b"]

    def describe(self, length: int) -> dict[str, Any]:
        """What a position records about the first bytes of a file that was read up to `length`."""
        start = self._start[:length]
        size, digest = self._expected or (len(start), _digest(start).hex())
        return {"bytes": size, "blake2b": digest}

    def check(self, start: bytes, *, size: int, read: int, unit: str) -> None:
        """Reject a file that is shorter than what was read from it, or begins differently."""
        if size < read:
            rule, found = (
                f"contain at least the {read} {unit} that were already read",
                Verbatim(f"{size} {unit} in {self.path}"),
            )
            remedy = "it was replaced or truncated: restore it, or move the agent's checkpoint folder away to start over"
            raise InvalidArgument("FileSource", "path", rule, found, remedy=remedy)
        length, expected = self._expected or (len(self._start), _digest(self._start).hex())
        if len(start) < length or _digest(start[:length]).hex() != expected:
            remedy = "restore the original file, or move the agent's checkpoint folder away to start over"
            raise InvalidArgument("FileSource", "path", "begin as it did when it was read", str(self.path), remedy=remedy)
        self.learn(start[:length])

    def learn(self, start: bytes) -> None:
        """Record the beginning of the part that was read."""
        self._start, self._expected = start, None

    def drop(self, row: str, reason: str) -> None:
        """Count an invalid row."""
        self._counter.add(f"{self.path}, {row}: dropped", reason)

    def block(self, rows: ParsedRows, ends: Ints, *, line: int, unit: str) -> RowBlock:
        """The valid rows among those from number `line` that end at `ends`; the others are counted."""
        before = self._counter.count
        for row, reason in rows.invalid:
            self.drop(f"{unit} {line + row}", reason)
        invalid = np.array([row for row, _ in rows.invalid], dtype=np.int64)
        return RowBlock(*rows.batch, ends[rows.valid], line + rows.valid + 1, before + np.searchsorted(invalid, rows.valid))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


class TextReader:
    """Reads the complete lines of a file from an offset."""

    def __init__(self, path: Path, parser: LineParser, counter: RowCounter, *, follow: bool) -> None:
        self.ended = False
        self._file, self._parser, self._follow = _TrackedFile(path, counter), parser, follow
        self._offset, self._line = 0, 1
        self._skipping = False
        self._start = b""
        self._idle: tuple[int, int, int] | None = None

    def head(self, offset: int) -> dict[str, Any]:
        """The beginning of the file, up to an offset."""
        return self._file.describe(min(offset, _HEAD))

    def seek(self, offset: int, line: int, head: Any) -> None:
        """Continue with the line that begins at an offset."""
        self._file.expect(head)
        self._offset, self._line = offset, line
        self.ended = self._skipping = False
        self.check()

    def check(self) -> None:
        """Check the file, if it exists, without reading further."""
        self._idle = None
        self._read(0)

    def more(self) -> RowBlock | None:
        """The valid rows of the next lines; None if there are currently no more."""
        data = self._read(_CHUNK)
        if data is None:
            return None
        last = len(data) < _CHUNK and not self._follow
        end = len(data) if last else data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK:
            if not self._skipping:
                self._file.drop(f"line {self._line}", f"it must have at most {MAX_LINE_BYTES} bytes")
            self._skipping = True
            self._offset += len(data)
            return self._parse(b"")
        data = data[:end]
        if self._skipping and data:
            rest = data.find(b"\n") + 1 or len(data)
            self._offset += rest
            self._line += 1
            self._skipping = False
            data = data[rest:]
        self.ended = last
        return self._parse(data) if end else None

    def _read(self, size: int) -> bytes | None:
        """The next bytes, at most `size`; None if there is nothing new."""
        try:
            if (identity := self._file.identity()) == self._idle:
                return None
            file = open(self._file.path, "rb")  # noqa: SIM115 (closed below; only a missing file is caught)
        except FileNotFoundError:
            if self._follow:
                return None
            raise
        with file:
            start = file.read(_HEAD)
            self._file.check(start, size=os.fstat(file.fileno()).st_size, read=self._offset, unit="bytes")
            if not self._header(file):
                self._idle = identity if self._follow else None
                return None
            self._start = start
            self._file.learn(start[: self._offset])
            file.seek(self._offset)
            data = file.read(size)
            # the identity from before, so that anything written since counts as a change
            if self._follow and b"\n" not in data and len(data) < size:
                self._idle = identity
            return data

    def _header(self, file: BinaryIO) -> bool:
        """Read or skip the header if that has not been done; False if it is not complete yet."""
        if self._parser.format != "csv" or (self._offset and not self._parser.needs_header):
            return True
        file.seek(0)
        line = file.readline(_CHUNK)
        if not line.endswith(b"\n"):
            if len(line) == _CHUNK:
                header = f"the header of {self._file.path}"
                rule = f"have at most {MAX_LINE_BYTES} bytes"
                raise InvalidArgument("FileSource", header, rule, Verbatim("a longer line"))
            if self._follow:
                return False
        self._parser.read_header(line, owner="FileSource", table=str(self._file.path))
        if not self._offset:
            self._offset, self._line = len(line), 2
        return True

    def _parse(self, data: bytes) -> RowBlock:
        lines = data.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        ends = self._offset + np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)) + 1)
        ends = np.minimum(ends, self._offset + len(data))  # the last line may have no newline
        block = self._file.block(self._parser.parse(lines), ends, line=self._line, unit="line")
        self._offset += len(data)
        self._line += len(lines)
        self._file.learn(self._start[: self._offset])
        return block

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


class ParquetReader:
    """Reads the rows of a Parquet file, which grows by being rewritten with more rows at the end."""

    def __init__(self, path: Path, columns: Columns, counter: RowCounter, *, follow: bool) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtra("Parquet files", "parquet") from None
        self._pyarrow: Any = pyarrow
        self.ended = False
        self._file, self._columns, self._follow = _TrackedFile(path, counter), columns, follow
        self._offset = 0
        self._table: Any = None
        self._batches: Iterator[Any] = iter(())
        self._seen: tuple[int, int, int] | None = None

    def head(self, offset: int) -> dict[str, Any]:
        """The beginning of the file, up to a row."""
        return self._file.describe(_DIGEST_BYTES * min(offset, _HEAD_ROWS))

    def seek(self, offset: int, line: int, head: Any) -> None:
        """Continue with the row of this number, counted from 0, the `line` from 1."""
        self._file.expect(head)
        self._offset = offset
        self.ended = False
        self.check()

    def check(self) -> None:
        """Check the file, if it exists, without reading further."""
        self.close()
        self._open()

    def more(self) -> RowBlock | None:
        """The valid rows among the next ones; None if there are currently no more."""
        if self._follow:
            self._open()
        batch = next(self._batches, None)
        if batch is None:
            self.ended = not self._follow
            return None
        return self._parse(batch)

    def _open(self) -> None:
        """Open the file if it exists and has changed."""
        try:
            if (identity := self._file.identity()) == self._seen:
                return
            self.close()
            self._table = self._pyarrow.parquet.ParquetFile(self._file.path)
        except FileNotFoundError:
            if not self._follow:
                raise
            return
        except (self._pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error with a number is about reading the file, without one about its contents
            if not self._follow:
                raise InvalidArgument("FileSource", "path", f"be a Parquet file ({error})", str(self._file.path)) from None
            self._seen = identity
            return  # it is being written: the footer comes last
        self._seen = identity
        self._columns.check_header(self._table.schema_arrow.names, owner="FileSource", table=str(self._file.path))
        start = self._start()
        self._file.check(start, size=self._table.metadata.num_rows, read=self._offset, unit="rows")
        self._file.learn(start)
        self._batches = self._from(self._offset)

    def _start(self) -> bytes:
        """A digest of each of the first rows: rewriting the file may change its bytes, but not these."""
        batches = self._table.iter_batches(batch_size=_HEAD_ROWS, columns=list(self._columns.names))
        if (batch := next(batches, None)) is None:
            return b""
        rows = zip(*map(plain, self._columns_of(batch).values()), strict=True)
        return b"".join(_digest(repr(row).encode()) for row in rows)

    def _from(self, row: int) -> Iterator[Any]:
        """The rows from this number, without reading earlier row groups."""
        group = 0
        while group < self._table.num_row_groups and row >= self._table.metadata.row_group(group).num_rows:
            row -= self._table.metadata.row_group(group).num_rows
            group += 1
        groups = list(range(group, self._table.num_row_groups))
        if not groups:
            return
        names = list(self._columns.names)
        for batch in self._table.iter_batches(batch_size=_RECORDS, row_groups=groups, columns=names):
            if row < batch.num_rows:
                yield batch.slice(row)
            row = max(row - batch.num_rows, 0)

    def _parse(self, batch: Any) -> RowBlock:
        table = self._columns_of(batch)
        rows = parse_rows(
            batch.num_rows,
            lambda start, stop: self._columns.read_all({name: column[start:stop] for name, column in table.items()}),
        )
        line = self._offset + 1
        self._offset += batch.num_rows
        return self._file.block(rows, np.arange(line, self._offset + 1), line=line, unit="row")

    def _columns_of(self, batch: Any) -> dict[str, Any]:
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
        self._batches, self._seen = iter(()), None
        if self._table is not None:
            self._table.close()
            self._table = None
