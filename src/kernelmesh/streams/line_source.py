"""Samples from lines of text that are handed in as they come: standard input, a socket, a message queue."""

from __future__ import annotations

import csv
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, class_labels, integer, matrix
from kernelmesh.errors import InvalidArgument, InvalidRow, Verbatim
from kernelmesh.streams.base import Batch
from kernelmesh.streams.columns import Columns, Sifted, Tally, sift

__all__ = ["LONGEST", "LineParser", "LineSource", "Queue", "copied", "read_stdin", "size_of_next"]

LONGEST = 1 << 20
"""Bytes that a line may have at most; what has more is no sample, and must not fill the memory."""
_BITE = 1 << 16  # bytes that are read at once, so that waiting for room begins early


class LineParser:
    """Turns lines of CSV (after a header) or of JSON objects into samples.

    A record is one line: a field in quotes cannot hold a newline, because one could not tell whether the rest is yet to come.

    >>> parser = LineParser(Columns(points=("x",), targets=("y",), labels=False), "csv")
    >>> parser.begin(b"x,note,y", "samples.csv")
    >>> parser.parse([b"1,a,2", b"3,b"]).refused
    [(1, 'Columns: line must have 3 fields, as the header has, got 2')]
    """

    def __init__(self, columns: Columns, format: str) -> None:  # noqa: A002 (what it is called)
        self.columns = columns
        self.format = format
        self._width = 0
        self._places: dict[str, int] = {}

    @property
    def waits(self) -> bool:
        """Whether the next line is the header."""
        return self.format == "csv" and not self._places

    def begin(self, line: bytes, owner: str) -> None:
        """Read the header."""
        try:
            names = self._fields([line.decode("utf-8-sig").rstrip("\r\n")])[0]
        except (InvalidRow, UnicodeDecodeError) as error:
            raise InvalidArgument(owner, "header", f"be a line of CSV ({error})", line) from None
        for name in self.columns.names:
            if names.count(name) != 1:
                rule = f"name the column {name!r}" if name not in names else f"name the column {name!r} only once"
                raise InvalidArgument(
                    owner, "header", rule, Verbatim(f"the columns {', '.join(map(repr, names)) or '(none)'}")
                )
        self._width = len(names)
        self._places = {name: names.index(name) for name in self.columns.names}

    def parse(self, lines: list[bytes]) -> Sifted:
        """The samples in these lines, which come without their newlines."""
        return sift(
            self.columns,
            len(lines),
            many=lambda start, stop: self._many(lines[start:stop]),
            one=lambda row: self._one(lines[row]),
        )

    def _many(self, lines: list[bytes]) -> Batch | None:
        """All at once; None if one of them cannot be used or is blank."""
        try:
            text = b"\n".join(lines).decode()
            texts = text.replace("\r\n", "\n").removesuffix("\r").split("\n")
            if self.format == "csv":
                rows = self._fields(texts)
                if set(map(len, rows)) != {self._width}:
                    return None
                by_column = list(zip(*rows, strict=True))
                return self.columns.read_all({name: by_column[place] for name, place in self._places.items()})
            records = list(map(_DECODE, texts))
            if set(map(type, records)) != {dict}:
                return None
            return self.columns.read_all({name: [record[name] for record in records] for name in self.columns.names})
        except (InvalidRow, KeyError, RecursionError, ValueError):
            return None

    def _one(self, line: bytes) -> tuple[list[float], Any] | None:
        if not line.strip():
            return None
        try:
            text = line.decode().removesuffix("\r")
        except UnicodeDecodeError:
            raise _bad("be UTF-8 text", line) from None
        if self.format == "csv":
            fields = self._fields([text])[0]
            if len(fields) != self._width:
                raise _bad(f"have {self._width} fields, as the header has", Verbatim(str(len(fields))))
            return self.columns.read({name: fields[place] for name, place in self._places.items()})
        try:
            record = _DECODE(text.removeprefix("\ufeff"))
        except (RecursionError, ValueError):
            record = None
        if not isinstance(record, dict):
            raise _bad("be a JSON object", text)
        return self.columns.read(record)

    @staticmethod
    def _fields(lines: list[str]) -> list[list[str]]:
        """The fields of each line of CSV. As many rows as lines: then none has swallowed the next."""
        try:
            rows = list(csv.reader(lines, strict=True))
        except csv.Error as error:
            raise _bad(f"be CSV ({error})", lines[0]) from None
        if len(rows) != len(lines) or any('"' in text and text.count('"') % 2 for text in lines):
            raise _bad("close every quote it opens: a record is one line", lines[0])
        return rows


_DECODE = json.JSONDecoder().decode


def _bad(rule: str, value: object) -> InvalidRow:
    return InvalidRow(str(InvalidArgument("Columns", "line", rule, value)))


class Queue:
    """Rows that wait for a mini-batch to fill up: arrays of equal length, put in and taken out together.

    >>> queue = Queue()
    >>> queue.put(np.arange(3.0), np.arange(3))
    >>> queue.take(2), queue.rows
    ((array([0., 1.]), array([0, 1])), 1)
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[NDArray[Any], ...]] = []
        self.rows = 0

    def put(self, *arrays: NDArray[Any]) -> None:
        """Add rows behind the others."""
        if len(arrays[0]):
            self._blocks.append(arrays)
            self.rows += len(arrays[0])

    def put_back(self, *arrays: NDArray[Any]) -> None:
        """Add rows before the others."""
        if len(arrays[0]):
            self._blocks.insert(0, arrays)
            self.rows += len(arrays[0])

    def take(self, rows: int) -> tuple[NDArray[Any], ...]:
        """The oldest rows; there must be as many."""
        self._gather(rows)
        first = self._blocks[0]
        taken = tuple(array[:rows] for array in first)
        if rows < len(first[0]):
            self._blocks[0] = tuple(array[rows:] for array in first)
        else:
            del self._blocks[0]
        self.rows -= rows
        return taken

    def drop(self, rows: int) -> None:
        """Forget the oldest rows."""
        self.rows -= rows
        while rows:
            first = self._blocks[0]
            if len(first[0]) > rows:
                self._blocks[0] = tuple(array[rows:] for array in first)
                return
            rows -= len(first[0])
            del self._blocks[0]

    def everything(self) -> tuple[NDArray[Any], ...]:
        """A copy of all rows; there must be some."""
        self._gather(self.rows)
        return tuple(array.copy() for array in self._blocks[0])

    def _gather(self, rows: int) -> None:
        # all blocks at once: one by one, many small ones would be copied over and over
        if len(self._blocks[0][0]) < rows:
            self._blocks = [tuple(map(np.concatenate, zip(*self._blocks, strict=True)))]


def copied(points: Floats, targets: NDArray[Any]) -> Batch:
    """So that a mini-batch that is kept does not keep everything that was read with it."""
    return Batch(points.copy(), targets.copy())


def size_of_next(waiting: int, batch_size: int, *, more: bool) -> int:
    """How many of the waiting rows make the next mini-batch, by the rule of ArrayStream; 0 while that is not known.

    As long as there may be more rows, half a mini-batch must wait behind a full one: fewer would join it at the end.

    >>> size_of_next(5, 4, more=True), size_of_next(6, 4, more=True), size_of_next(5, 4, more=False)
    (0, 4, 5)
    """
    rest = waiting - batch_size
    if more:
        return batch_size if rest >= 0 and (2 * rest >= batch_size or batch_size <= 2) else 0
    return waiting if 2 * rest < batch_size else batch_size


class LineSource:
    r"""Samples from lines that are fed in, in pieces of any length, by one thread while another one takes mini-batches.

    CSV begins with a header line. Beyond `max_pending` waiting rows the oldest are dropped, or `feed` waits for room. The
    mini-batches are those that a FileSource makes of the same lines, so half a mini-batch waits until `finish`; not so if the
    lines are `endless`.

    >>> source = LineSource(Columns(points=("x",), targets=("y",), labels=False), format="csv", batch_size=2)
    >>> source.feed(b"x,y\n1,0\n2,")
    >>> source.take() is None
    True
    >>> source.feed(b"1\n")
    >>> source.take().points.tolist()
    [[1.0], [2.0]]
    """

    def __init__(
        self,
        columns: Columns,
        *,
        format: str,  # noqa: A002 (what it is called)
        batch_size: int = 32,
        max_pending: int = 65536,
        endless: bool = False,
    ) -> None:
        if format not in ("csv", "ndjson"):
            raise InvalidArgument("LineSource", "format", "be 'csv' or 'ndjson'", format)
        self.columns = columns
        self.batch_size = integer("LineSource", "batch_size", batch_size, minimum=1)
        # with less room than a mini-batch and the half behind it, a feeder that waits would wait forever
        self.max_pending = integer("LineSource", "max_pending", max_pending, minimum=2 * self.batch_size)
        self._endless = endless
        self._parser = LineParser(columns, format)
        self._feeding = threading.Lock()
        self._changed = threading.Condition()
        self._queue = Queue()
        self._refused, self._dropped = Tally(), Tally()
        self._partial = bytearray()
        self._skipping = False
        self._line = 1
        self._row = 0
        self._taken: deque[Batch] = deque(maxlen=2)  # what can be given back
        self._finished = self._closed = False
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._closed or (self._finished and not self._queue.rows and self._error is None)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing that is fed in matters any more."""
        return self._closed

    @property
    def refused(self) -> int:
        return self._refused.count

    @property
    def dropped(self) -> int:
        """How many usable rows were lost because nobody took them in time."""
        return self._dropped.count

    @property
    def position(self) -> Mapping[str, Any]:
        with self._changed:
            return {"row": self._row}

    @property
    def pending(self) -> Batch | None:
        with self._changed:
            return Batch(*self._queue.everything()) if self._queue.rows else None

    def feed(self, data: bytes, *, block: bool = False) -> None:
        """Hand in the next bytes. With `block`, wait until there is room for their rows; otherwise drop the oldest rows.

        A wrong CSV header is refused here, and again by `take`, which may be in a thread that can do something about it.
        """
        with self._feeding:
            if self._finished and not self._closed:
                raise InvalidArgument(
                    "LineSource", "feed", "come before finish", Verbatim(f"{len(data)} bytes after it")
                )
            for start in range(0, len(data), _BITE):
                if self._closed:
                    return
                self._put(self._split(data[start : start + _BITE]), wait=block)
                if not block:
                    self._trim()

    def finish(self, error: Exception | None = None) -> None:
        """Say that nothing more will come; with an `error`, `take` raises it after the last mini-batch."""
        with self._feeding:
            if self._partial:
                last = [bytes(self._partial)]
                self._partial.clear()
                try:
                    self._put(last, wait=False)
                except ValueError as wrong:
                    error = error or wrong
            with self._changed:
                self._finished = True
                self._error = self._error or error

    def _split(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete."""
        cut = data.rfind(b"\n")
        if cut < 0:
            if not self._skipping:
                self._partial += data
            if len(self._partial) > LONGEST:
                self._too_long()
                self._skipping = True
                self._partial.clear()
            return []
        lines = (bytes(self._partial) + data[:cut]).split(b"\n")
        self._partial = bytearray(data[cut + 1 :])
        if self._skipping or len(lines[0]) > LONGEST:  # only the first can have begun long ago
            if not self._skipping:
                self._too_long()
            self._skipping = False
            self._line += 1
            del lines[0]
        return lines

    def _too_long(self) -> None:
        if self._parser.waits:
            raise self._fail(
                InvalidArgument("LineSource", "header", f"have at most {LONGEST} bytes", Verbatim("a longer line"))
            )
        self._refused.add(f"line {self._line}: left out", f"it must have at most {LONGEST} bytes")

    def _fail(self, error: ValueError) -> ValueError:
        with self._changed:
            self._finished, self._error = True, error
        return error

    def _put(self, lines: list[bytes], *, wait: bool) -> None:
        if lines and self._parser.waits:
            try:
                self._parser.begin(lines[0], "LineSource")
            except ValueError as error:
                raise self._fail(error) from None
            self._line += 1
            del lines[0]
        batch, _, refused = self._parser.parse(lines)
        for row, reason in refused:
            self._refused.add(f"line {self._line + row}: left out", reason)
        self._line += len(lines)
        start = 0
        with self._changed:
            while start < len(batch.points) and not self._closed:
                room = self.max_pending - self._queue.rows
                if room <= 0 and wait:
                    self._changed.wait()
                    continue
                stop = start + room if wait else len(batch.points)
                self._queue.put(batch.points[start:stop], batch.targets[start:stop])
                start = stop

    def _trim(self) -> None:
        with self._changed:
            over = self._queue.rows - self.max_pending
            if over > 0:
                self._queue.drop(over)
                self._dropped.add(
                    "LineSource: dropped the oldest rows", "they come faster than they are taken", rows=over
                )

    def take(self) -> Batch | None:
        with self._changed:
            if self._closed:
                return None
            if self._endless and not self._finished:
                size = self.batch_size if self._queue.rows >= self.batch_size else 0
            else:
                size = size_of_next(self._queue.rows, self.batch_size, more=not self._finished)
            if not size:
                if self._error is not None:
                    raise self._error
                return None
            batch = copied(*self._queue.take(size))
            self._row += size
            self._taken.append(batch)
            self._changed.notify_all()
            return batch

    def give_back(self) -> None:
        with self._changed:
            if self._taken:
                batch = self._taken.pop()
                self._queue.put_back(*batch)
                self._row -= len(batch.points)

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        row = integer("LineSource", "position['row']", position.get("row"), minimum=0)
        back = None if pending is None else self._checked(pending)
        with self._changed:
            self._row = row
            self._taken.clear()
            if back is not None:
                self._queue.put_back(*back)

    def _checked(self, pending: Batch) -> tuple[Floats, NDArray[Any]]:
        points = matrix("LineSource", "pending.points", pending.points, columns=len(self.columns.points))
        rows = len(points)
        if self.columns.labels:
            most = self.columns.outputs or 2**53
            return points, class_labels("LineSource", "pending.targets", pending.targets, classes=most, rows=rows)
        outputs = len(self.columns.targets)
        return points, matrix("LineSource", "pending.targets", pending.targets, columns=outputs, rows=rows)

    def close(self) -> None:
        with self._changed:
            self._closed = self._finished = True
            self._changed.notify_all()


def read_stdin(source: LineSource, stream: BinaryIO | None = None) -> threading.Thread:
    """Feed a source from standard input (or another binary stream), in a thread of its own, no faster than it is taken from.

    >>> import io
    >>> source = LineSource(Columns(points=("x",), targets=("y",), labels=False), format="ndjson")
    >>> read_stdin(source, io.BytesIO(b'{"x": 1, "y": 2}')).join()
    >>> source.take().points.tolist()
    [[1.0]]
    """
    if stream is None and sys.stdin is None:
        raise InvalidArgument("read_stdin", "standard input", "be open", None)
    # read1 gives what there is, rather than wait for all that was asked for
    read = _reader(sys.stdin.buffer) if stream is None else getattr(stream, "read1", stream.read)
    thread = threading.Thread(target=_read, args=(source, read), name="kernelmesh-stdin", daemon=True)
    thread.start()
    return thread


def _reader(stdin: BinaryIO) -> Callable[[int], bytes]:
    """Read past Python's buffer: its lock, held by a thread that waits for input, crashes the interpreter on its way out."""
    try:
        number = stdin.fileno()
    except OSError:  # a stand-in that is no file
        return stdin.read
    return lambda most: os.read(number, most)


def _read(source: LineSource, read: Callable[[int], bytes]) -> None:
    error: Exception | None = None
    try:
        while not source.closed:
            data = read(_BITE)
            if not data:
                break
            source.feed(data, block=True)
    except (OSError, ValueError) as wrong:
        error = wrong
    source.finish(error)
