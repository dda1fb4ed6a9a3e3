"""Samples from a file, which may be larger than the memory and may still be growing."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.streams.base import Batch
from kernelmesh.streams.columns import Columns, Tally, sift
from kernelmesh.streams.line_source import LONGEST, LineParser, Queue, copied, size_of_next

__all__ = ["FileSource"]

_FORMATS: dict[str, str] = {
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}
_CHUNK = LONGEST + 1  # the longest line, with its newline
_HEAD = 4096  # bytes by which a file is recognized
_HEAD_ROWS = 64  # rows by which a Parquet file is recognized
_DIGEST = 16  # bytes
_RECORDS = 16384  # rows of a Parquet file that are read at once
_FRUITLESS = (
    8  # reads without a usable row after which `take` gives up for now, because it must not keep anyone waiting
)


class _Block(NamedTuple):
    """Usable rows, and for each where the row after it begins."""

    points: Floats
    targets: NDArray[Any]
    offsets: Ints
    lines: Ints
    refused: Ints
    """How many rows were refused before that."""


class _Place(NamedTuple):
    """Where the next row begins, in bytes (or, in a Parquet file, in rows) and in lines, and what came before it."""

    offset: int = 0
    line: int = 1
    refused: int = 0
    row: int = 0


class FileSource:
    r"""The rows of a CSV, NDJSON or Parquet file in mini-batches, without ever holding the whole file.

    The mini-batches are those of an ArrayStream with the same rows. With `follow` the file may still grow, or not be there
    yet: only complete lines are read, mini-batches are always full, and the source never ends. A Parquet file grows by being
    written anew with more rows behind the old ones.

    A record of CSV (after a header line) or NDJSON is one line of UTF-8 text: a field in quotes cannot hold a newline. Rows
    that cannot be used are left out, counted, and reported to the logger "kernelmesh.streams".

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "samples.csv"
    >>> _ = path.write_text("x,y\n1,0\n2,?\n3,1\n")
    >>> source = FileSource(path, Columns(points=("x",), targets=("y",), labels=True))
    >>> source.take().points.tolist(), source.refused, source.ended
    ([[1.0], [3.0]], 1, True)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Columns,
        *,
        format: str | None = None,  # noqa: A002 (what it is called)
        batch_size: int = 32,
        follow: bool = False,
    ) -> None:
        self.path = Path(path)
        self.columns = columns
        kind = _FORMATS.get(self.path.suffix.lower()) if format is None else format
        if kind is None or kind not in _FORMATS.values():
            remedy = f"or let the name end in {', '.join(_FORMATS)}"
            raise InvalidArgument("FileSource", "format", "be 'csv', 'ndjson' or 'parquet'", format, remedy=remedy)
        self.format = kind
        self.batch_size = integer("FileSource", "batch_size", batch_size, minimum=1)
        self.follow = follow
        self._tally = Tally()
        self._queue = Queue()
        self._closed = False
        self._place = _Place()
        self._taken: deque[tuple[_Place, _Block]] = deque(maxlen=2)  # what can be given back
        if not follow and not self.path.exists():
            remedy = "with follow=True it may come later"
            raise InvalidArgument("FileSource", "path", "be a file", str(self.path), remedy=remedy)
        self._reader: _TextReader | _ParquetReader
        if kind == "parquet":
            self._reader = _ParquetReader(self.path, columns, self._tally, follow=follow)
        else:
            self._reader = _TextReader(self.path, LineParser(columns, kind), self._tally, follow=follow)
        self._reader.look()

    @property
    def ended(self) -> bool:
        return self._closed or (self._reader.ended and not self._queue.rows)

    @property
    def refused(self) -> int:
        return self._tally.count

    @property
    def position(self) -> Mapping[str, Any]:
        return {
            **self._place._asdict(),
            "head": self._reader.head.told(self._reader.length(self._place.offset)),
        }

    @property
    def pending(self) -> Batch | None:
        return None

    def take(self) -> Batch | None:
        if self._closed:
            return None
        while not (size := self._size()):
            if self._reader.ended or not self._fill():
                return None
        block = _Block(*self._queue.take(size))
        self._taken.append((self._place, block))
        offset, line, refused = (int(array[-1]) for array in (block.offsets, block.lines, block.refused))
        self._place = _Place(offset, line, refused, self._place.row + size)
        return copied(block.points, block.targets)

    def give_back(self) -> None:
        if self._taken:
            self._place, block = self._taken.pop()
            self._queue.put_back(*block)

    def _size(self) -> int:
        """How many rows the next mini-batch has, 0 if more must be read to know."""
        if self.follow:
            return self.batch_size if self._queue.rows >= self.batch_size else 0
        return size_of_next(self._queue.rows, self.batch_size, more=not self._reader.ended)

    def _fill(self) -> bool:
        """Read until there are more rows or the end is known; False if neither is there for now."""
        for _ in range(_FRUITLESS):
            block = self._reader.more()
            if block is not None:
                self._queue.put(*block)
            if self._reader.ended or (block is not None and len(block.points)):
                return True
            if block is None:
                return False
        return False

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        if pending is not None:
            raise InvalidArgument(
                "FileSource", "pending", "be None: the rows of a file are read again", Verbatim("a mini-batch")
            )
        least = _Place()._asdict()
        place = _Place(
            **{key: integer("FileSource", f"position[{key!r}]", position.get(key), minimum=least[key]) for key in least}
        )
        self._reader.seek(place.offset, place.line, position.get("head"))
        self._queue = Queue()
        self._place = place
        self._taken.clear()
        # those behind the position are read and counted again
        self._tally.count = place.refused

    def close(self) -> None:
        self._closed = True
        self._reader.close()


class _Head:
    """How a file began when it was read, to tell whether it is still the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = b""
        self._told: dict[str, Any] = {}
        self._expected: tuple[int, str] | None = None

    def expect(self, told: Any) -> None:
        """From now on, the file must begin as the one of which `told` was said."""
        rule = "say how the file begins, as a position does"
        if not isinstance(told, Mapping) or not isinstance(told.get("blake2b"), str):
            raise InvalidArgument("FileSource", "position['head']", rule, told)
        self._expected = (
            integer("FileSource", "position['head']['bytes']", told.get("bytes"), minimum=0),
            told["blake2b"],
        )

    def told(self, length: int) -> dict[str, Any]:
        """What a position says about the first bytes of a file that was read up to `length`."""
        if self._expected is not None:
            return {"bytes": self._expected[0], "blake2b": self._expected[1]}
        if min(length, len(self._known)) != self._told.get("bytes"):
            start = self._known[:length]
            self._told = {"bytes": len(start), "blake2b": _digest(start).hex()}
        return dict(self._told)

    def check(self, start: bytes) -> None:
        """Refuse a file that begins with `start` if that is not how it began."""
        if self._expected is not None:
            length, digest = self._expected
            same = len(start) >= length and _digest(start[:length]).hex() == digest
        else:
            same = start.startswith(self._known)
        if not same:
            remedy = "give it the file it had before, or move the agent's checkpoint folder away to begin anew"
            raise InvalidArgument(
                "FileSource", "path", "begin as it did when it was read", str(self._path), remedy=remedy
            )
        if self._expected is not None:
            self._known, self._told, self._expected = start[: self._expected[0]], {}, None

    def learn(self, start: bytes) -> None:
        """Remember how the part that was read begins."""
        self._known, self._told = start, {}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _stamp(path: Path, *, follow: bool) -> tuple[int, int, int] | None:
    """What changes when the file does; None if it is not there yet."""
    try:
        now = path.stat()
    except FileNotFoundError:
        if follow:
            return None
        raise
    if not stat.S_ISREG(now.st_mode):
        remedy = "feed what comes through a pipe to a LineSource"
        raise InvalidArgument("FileSource", "path", "be a regular file", str(path), remedy=remedy)
    return now.st_ino, now.st_size, now.st_mtime_ns


def _too_short(path: Path, had: str, has: str) -> ValueError:
    remedy = "it was replaced or cut off: give it back, or move the agent's checkpoint folder away to begin anew"
    return InvalidArgument(
        "FileSource",
        "path",
        f"hold at least the {had} that were read of it",
        Verbatim(f"{has} in {path}"),
        remedy=remedy,
    )


class _TextReader:
    """Reads the complete lines of a file, from an offset on."""

    def __init__(self, path: Path, parser: LineParser, tally: Tally, *, follow: bool) -> None:
        self.head = _Head(path)
        self.ended = False
        self._path, self._parser, self._tally, self._follow = path, parser, tally, follow
        self._offset, self._line = 0, 1
        self._skipping = False
        self._start = b""
        self._idle: tuple[int, int, int] | None = None

    @staticmethod
    def length(offset: int) -> int:
        """How many bytes of the head were read up to an offset."""
        return min(offset, _HEAD)

    def seek(self, offset: int, line: int, head: Any) -> None:
        """Go on with the line that begins at an offset."""
        self.head.expect(head)
        self._offset, self._line = offset, line
        self.ended = self._skipping = False
        self.look()

    def look(self) -> None:
        """Check the file, if it is there, without reading on."""
        self._idle = None
        self._read(0)

    def more(self) -> _Block | None:
        """The usable rows of the next lines; None if there are no more for now."""
        data = self._read(_CHUNK)
        if data is None:
            return None
        last = len(data) < _CHUNK and not self._follow
        end = len(data) if last else data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK:
            if not self._skipping:
                self._refuse(0, f"it must have at most {LONGEST} bytes")
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

    def _read(self, most: int) -> bytes | None:
        """The next bytes, at most so many; None if there is nothing new to see."""
        stamp = _stamp(self._path, follow=self._follow)
        if stamp is None or stamp == self._idle:
            return None
        try:
            file = open(self._path, "rb")  # noqa: SIM115 (closed below; only a missing file is caught)
        except FileNotFoundError:
            if self._follow:
                return None
            raise
        with file:
            start = file.read(_HEAD)
            size = os.fstat(file.fileno()).st_size
            if size < self._offset:
                raise _too_short(self._path, f"{self._offset} bytes", f"{size} bytes")
            self.head.check(start)
            if not self._header(file):
                self._idle = stamp if self._follow else None
                return None
            self._start = start
            self.head.learn(start[: self._offset])
            file.seek(self._offset)
            data = file.read(most)
            # with the stamp from before, what was written since then is a change
            if self._follow and b"\n" not in data and len(data) < most:
                self._idle = stamp
            return data

    def _header(self, file: BinaryIO) -> bool:
        """Read the header, or get past it, where that is still to be done; False if it is not complete yet."""
        if self._parser.format != "csv" or (self._offset and not self._parser.waits):
            return True
        file.seek(0)
        line = file.readline(_CHUNK)
        if not line.endswith(b"\n"):
            if len(line) == _CHUNK:
                raise InvalidArgument(
                    "FileSource", "header", f"have at most {LONGEST} bytes", Verbatim(f"a longer line in {self._path}")
                )
            if self._follow:
                return False
        self._parser.begin(line, f"FileSource: {self._path}")
        if not self._offset:
            self._offset, self._line = len(line), 2
        return True

    def _refuse(self, row: int, reason: str) -> None:
        self._tally.add(f"{self._path}, line {self._line + row}: left out", reason)

    def _parse(self, data: bytes) -> _Block:
        lines = data.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        before = self._tally.count
        batch, kept, refused = self._parser.parse(lines)
        for row, reason in refused:
            self._refuse(row, reason)
        ends = self._offset + np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)) + 1)
        ends = np.minimum(ends, self._offset + len(data))  # the last line may have no newline
        bad = np.array([row for row, _ in refused], dtype=np.int64)
        block = _Block(
            batch.points, batch.targets, ends[kept], self._line + kept + 1, before + np.searchsorted(bad, kept)
        )
        self._offset += len(data)
        self._line += len(lines)
        self.head.learn(self._start[: self._offset])
        return block

    def close(self) -> None:
        """Nothing is open between reads."""


class _ParquetReader:
    """Reads the rows of a Parquet file, from a row number on."""

    def __init__(self, path: Path, columns: Columns, tally: Tally, *, follow: bool) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ImportError("FileSource: Parquet files need pyarrow; pip install 'kernelmesh[parquet]'") from None
        self._pyarrow: Any = pyarrow
        self.head = _Head(path)
        self.ended = False
        self._path, self._columns, self._tally, self._follow = path, columns, tally, follow
        self._offset = 0
        self._file: Any = None
        self._batches: Iterator[Any] = iter(())
        self._seen: tuple[int, int, int] | None = None

    @staticmethod
    def length(offset: int) -> int:
        """How many bytes of the head were read up to a row."""
        return _DIGEST * min(offset, _HEAD_ROWS)

    def seek(self, offset: int, line: int, head: Any) -> None:
        """Go on with the row of this number, counted from 0, the `line` from 1."""
        self.head.expect(head)
        self._offset = offset
        self.ended = False
        self.look()

    def look(self) -> None:
        """Check the file, if it is there, without reading on."""
        self._seen = None
        self._open()

    def more(self) -> _Block | None:
        """The usable ones of the next rows; None if there are no more for now."""
        if self._follow:
            self._open()
        batch = next(self._batches, None)
        if batch is None:
            self.ended = not self._follow
            return None
        return self._parse(batch)

    def _open(self) -> None:
        """Open the file, if it is there and has changed since."""
        stamp = _stamp(self._path, follow=self._follow)
        if stamp is None or stamp == self._seen:
            return
        self.close()
        self._seen = stamp
        try:
            self._file = self._pyarrow.parquet.ParquetFile(self._path)
        except FileNotFoundError:
            if not self._follow:
                raise
            self._seen = None
            return
        except (self._pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file cannot be read; without a number it is what the library makes of what it has read
            if not self._follow:
                raise InvalidArgument("FileSource", "path", f"be a Parquet file ({error})", str(self._path)) from None
            return  # it is being written: the end of the file, which says what is in it, comes last
        rows = self._file.metadata.num_rows
        if rows < self._offset:
            raise _too_short(self._path, f"{self._offset} rows", f"{rows} rows")
        self._check_names()
        start = self._start()
        self.head.check(start)
        self.head.learn(start)
        self._batches = self._from(self._offset)

    def _check_names(self) -> None:
        names = self._file.schema_arrow.names
        for name in self._columns.names:
            if names.count(name) != 1:
                rule = f"have the column {name!r}" if name not in names else f"have the column {name!r} only once"
                told = Verbatim(f"the columns {', '.join(map(repr, names)) or '(none)'}")
                raise InvalidArgument("FileSource", str(self._path), rule, told)

    def _start(self) -> bytes:
        """A digest of each of the first rows: writing the file anew may change its bytes, but not these."""
        batches = self._file.iter_batches(batch_size=_HEAD_ROWS, columns=list(self._columns.names))
        batch = next(batches, None)
        if batch is None:
            return b""
        columns = [self._values(batch.column(name)) for name in self._columns.names]
        rows = zip(*(column.tolist() if isinstance(column, np.ndarray) else column for column in columns), strict=True)
        return b"".join(_digest(repr(row).encode()) for row in rows)

    def _from(self, row: int) -> Iterator[Any]:
        """The rows from a number on, without reading the row groups before it."""
        group = 0
        while group < self._file.num_row_groups and row >= self._file.metadata.row_group(group).num_rows:
            row -= self._file.metadata.row_group(group).num_rows
            group += 1
        groups = list(range(group, self._file.num_row_groups))
        if not groups:
            return
        names = list(self._columns.names)
        for batch in self._file.iter_batches(batch_size=_RECORDS, row_groups=groups, columns=names):
            if row < batch.num_rows:
                yield batch.slice(row)
            row = max(row - batch.num_rows, 0)

    def _parse(self, rows: Any) -> _Block:
        table = {name: self._values(rows.column(name)) for name in self._columns.names}
        before = self._tally.count
        batch, kept, refused = sift(
            self._columns,
            rows.num_rows,
            many=lambda start, stop: self._columns.read_all({name: table[name][start:stop] for name in table}),
            one=lambda row: self._columns.read({name: _plain(table[name][row]) for name in table}),
        )
        for row, reason in refused:
            self._tally.add(f"{self._path}, row {self._offset + row + 1}: left out", reason)
        bad = np.array([row for row, _ in refused], dtype=np.int64)
        after = self._offset + kept + 1
        self._offset += rows.num_rows
        return _Block(batch.points, batch.targets, after, after + 1, before + np.searchsorted(bad, kept))

    def _values(self, column: Any) -> Any:
        kinds = self._pyarrow.types
        if not column.null_count and (kinds.is_integer(column.type) or kinds.is_floating(column.type)):
            return column.to_numpy(zero_copy_only=False)
        if kinds.is_temporal(column.type):
            return ["a time"] * len(column)  # no number; and not every one fits into a time of Python's
        return column.to_pylist()

    def close(self) -> None:
        """Let go of the file."""
        self._batches = iter(())
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
