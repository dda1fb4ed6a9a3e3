"""Samples from a file, which may be larger than memory and may still grow."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.streams.base import Batch
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.file_readers import ParquetReader, RowBlock, TextReader
from kernelmesh.streams.line_parser import LineParser
from kernelmesh.streams.rows import RowCounter, RowQueue

__all__ = ["FORMATS", "FileSource"]

FORMATS: Mapping[str, str] = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
"""The format of a file by its name extension."""
_MAX_READS = 8  # without a valid row, after which `take` returns for now, because it must not block


class _Position(NamedTuple):
    """The position of the next row, in bytes (or, in a Parquet file, rows) and in lines, and the counts before it."""

    offset: int = 0
    line: int = 1
    refused: int = 0
    row: int = 0


class FileSource:
    r"""The rows of a CSV, NDJSON or Parquet file in mini-batches, without loading the whole file.

    The mini-batches are those of an ArrayStream with the same rows. A record of CSV (after a header line) or NDJSON is one
    line of UTF-8 text: a quoted field cannot contain a newline. Invalid rows are dropped, counted, and logged to
    "kernelmesh.streams".

    Parameters
    ----------
    path : str or path-like
        The file.
    columns : Columns
        The columns of a sample.
    format : {"csv", "ndjson", "parquet"}, optional
        By default, determined by the file name extension.
    batch_size : int
        Rows per mini-batch.
    follow : bool
        Whether the file may still grow, or not exist yet: only complete lines are read, mini-batches are always full, and
        the source never ends. A Parquet file grows by being rewritten with more rows at the end.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "samples.csv"
    >>> _ = path.write_text("x,y\n1,0\n2,?\n3,1\n")
    >>> source = FileSource(path, Columns(points=("x",), targets=("y",), labels=True))
    >>> source.take().points.tolist(), source.refused, source.ended
    ([[1.0], [3.0]], 1, True)
    """

    pending: Batch | None = None  # all rows can be read again

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
        kind = FORMATS.get(self.path.suffix.lower()) if format is None else format
        if kind is None or kind not in FORMATS.values():
            remedy = f"or give the file a name that ends in {', '.join(FORMATS)}"
            raise InvalidArgument("FileSource", "format", "be 'csv', 'ndjson' or 'parquet'", format, remedy=remedy)
        self.format = kind
        self.batch_size = integer("FileSource", "batch_size", batch_size, minimum=1)
        self.follow = follow
        self._counter = RowCounter()
        self._queue = RowQueue(self.batch_size, endless=follow)
        self._closed = False
        self._at = self._before = _Position()
        if not follow and not self.path.exists():
            remedy = "with follow=True it may appear later"
            raise InvalidArgument("FileSource", "path", "be a file", str(self.path), remedy=remedy)
        self._reader: TextReader | ParquetReader
        if kind == "parquet":
            self._reader = ParquetReader(self.path, columns, self._counter, follow=follow)
        else:
            self._reader = TextReader(self.path, LineParser(columns, kind), self._counter, follow=follow)
        self._reader.check()

    @property
    def ended(self) -> bool:
        return self._closed or (self._reader.ended and not self._queue.rows)

    @property
    def refused(self) -> int:
        return self._counter.count

    @property
    def position(self) -> Mapping[str, Any]:
        return {**self._at._asdict(), "head": self._reader.head(self._at.offset)}

    def take(self) -> Batch | None:
        if self._closed:
            return None
        while (arrays := self._queue.take(more=not self._reader.ended)) is None:
            if self._reader.ended or not self._fill():
                return None
        block = RowBlock(*arrays)
        self._before = self._at
        offset, line, refused = (int(array[-1]) for array in (block.offsets, block.lines, block.refused))
        self._at = _Position(offset, line, refused, self._at.row + len(block.points))
        return Batch(block.points, block.targets)

    def give_back(self) -> None:
        if self._queue.give_back():
            self._at = self._before

    def _fill(self) -> bool:
        """Read until there are more rows or the end is reached; False if neither happens for now."""
        for _ in range(_MAX_READS):
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
            rule = "be None, since the rows of a file are read again"
            raise InvalidArgument("FileSource", "pending", rule, Verbatim("a mini-batch"))
        at = _Position(
            *(
                integer("FileSource", f"position[{key!r}]", position.get(key), minimum=minimum)
                for key, minimum in _Position()._asdict().items()
            )
        )
        self._reader.seek(at.offset, at.line, position.get("head"))
        self._queue = RowQueue(self.batch_size, endless=self.follow)
        self._at = at
        # rows after the position are read and counted again
        self._counter.count = at.refused

    def close(self) -> None:
        self._closed = True
        self._reader.close()
