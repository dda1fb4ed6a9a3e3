"""Samples from lines of text fed in as they arrive: from standard input, a socket, or a message queue."""

import threading
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from kernelmesh.checks import Floats, class_labels, integer, matrix
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.streams.base import Batch
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.line_parser import LineParser, LineSplitter
from kernelmesh.streams.rows import RowCounter, RowQueue

__all__ = ["READ_BYTES", "LineSource"]

READ_BYTES = 1 << 16
"""Bytes parsed at once: few, so that backpressure sets in early."""


class LineSource:
    r"""Samples from lines that one thread feeds in, in pieces of any length, while another takes mini-batches.

    CSV begins with a header line. The mini-batches equal those of a FileSource with the same lines.

    Parameters
    ----------
    columns : Columns
        The columns of a sample.
    format : {"csv", "ndjson"}
        The format of the lines.
    batch_size : int
        Rows per mini-batch.
    max_pending : int
        The maximum number of waiting rows; beyond that, the oldest are dropped, or `feed` blocks.
    endless : bool
        Whether the input never ends; otherwise, half a mini-batch waits until `finish`.

    Examples
    --------
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
        # with less room than one and a half mini-batches, a blocking feeder would wait forever
        self.max_pending = integer("LineSource", "max_pending", max_pending, minimum=2 * self.batch_size)
        self._parser, self._splitter = LineParser(columns, format), LineSplitter()
        self._feeding = threading.Lock()
        self._changed = threading.Condition()
        self._queue = RowQueue(self.batch_size, endless=endless)
        self._refused, self._dropped = RowCounter(), RowCounter()
        self._line, self._row = 1, 0
        self._finished = False
        self.closed = False
        """Whether `close` was called; further input is ignored."""
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        with self._changed:
            return self.closed or (self._finished and not self._queue.rows and self._error is None)

    @property
    def refused(self) -> int:
        return self._refused.count

    @property
    def dropped(self) -> int:
        """The number of valid rows dropped because they were not taken in time."""
        return self._dropped.count

    @property
    def position(self) -> Mapping[str, Any]:
        return {"row": self._row}

    @property
    def pending(self) -> Batch | None:
        with self._changed:
            return Batch(*self._queue.peek(self._queue.rows)) if self._queue.rows else None

    def feed(self, data: bytes, *, block: bool = False) -> None:
        """Feed in the next bytes. With `block`, wait until there is room for their rows; otherwise drop the oldest rows.

        A wrong CSV header raises an error here and again in `take`, which may run in a thread that can handle it.
        """
        with self._feeding:
            if self._finished and not self.closed:
                raise InvalidArgument("LineSource", "feed", "come before finish", Verbatim(f"{len(data)} bytes after it"))
            for start in range(0, len(data), READ_BYTES):
                if self.closed:
                    return
                self._put(self._splitter.feed(data[start : start + READ_BYTES])[0], wait=block)

    def publish(self, data: bytes) -> None:
        """Feed in one or more complete lines, with or without a newline after the last."""
        self.feed(data if data.endswith(b"\n") else data + b"\n")

    def finish(self, error: Exception | None = None) -> None:
        """Mark the end of the input; with an `error`, `take` raises it after the last mini-batch."""
        with self._feeding:
            try:
                self._put(self._splitter.finish()[0], wait=True)
            except ValueError as wrong:
                error = error or wrong
            with self._changed:
                self._finished, self._error = True, self._error or error

    def _put(self, lines: list[bytes], *, wait: bool) -> None:
        if lines and self._parser.needs_header:
            try:
                self._parser.read_header(lines[0], owner="LineSource", table="the input")
            except ValueError as error:
                with self._changed:
                    self._finished, self._error = True, error
                raise
            self._line += 1
            del lines[0]
        batch, _, invalid = self._parser.parse(lines)
        for row, reason in invalid:
            self._refused.add(f"line {self._line + row}: dropped", reason)
        self._line += len(lines)
        with self._changed:
            while len(batch.points) and not self.closed:
                room = self.max_pending - self._queue.rows if wait else len(batch.points)
                if room <= 0:
                    self._changed.wait()
                    continue
                self._queue.put(batch.points[:room], batch.targets[:room])
                batch = Batch(batch.points[room:], batch.targets[room:])
            if (over := self._queue.rows - self.max_pending) > 0:
                self._queue.drop(over)
                reason = "rows arrive faster than the agent learns"
                self._dropped.add("LineSource: dropped the oldest rows", reason, rows=over)

    def take(self) -> Batch | None:
        with self._changed:
            if self.closed:
                return None
            arrays = self._queue.take(more=not self._finished)
            if arrays is None and self._error is not None:
                raise self._error
            if arrays is None:
                return None
            batch = Batch(*arrays)
            self._row += len(batch.points)
            self._changed.notify_all()
            return batch

    def give_back(self) -> None:
        with self._changed:
            self._row -= self._queue.give_back()

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        row = integer("LineSource", "position['row']", position.get("row"), minimum=0)
        back = () if pending is None else self._check_pending(pending)
        with self._changed:
            self._row, self._queue.newest = row, ()
            self._queue.put(*back, first=True)

    def _check_pending(self, pending: Batch) -> tuple[Floats, NDArray[Any]]:
        points = matrix("LineSource", "pending.points", pending.points, columns=len(self.columns.points))
        rows = len(points)
        if self.columns.labels:
            classes = self.columns.outputs or 2**53
            return points, class_labels("LineSource", "pending.targets", pending.targets, classes=classes, rows=rows)
        outputs = len(self.columns.targets)
        return points, matrix("LineSource", "pending.targets", pending.targets, columns=outputs, rows=rows)

    def close(self) -> None:
        with self._changed:
            self.closed = self._finished = True
            self._changed.notify_all()
