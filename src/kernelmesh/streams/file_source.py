"""Samples from a file, which may be larger than memory and may still grow."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.streams.base import Batch
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.file_readers import Beginning, ParquetReader, RowBlock, TextReader
from kernelmesh.streams.line_parser import LineParser
from kernelmesh.streams.rows import RowCounter, RowQueue

__all__ = ["FORMATS", "FileSource"]

FORMATS: Mapping[str, str] = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
"""The format of a file by its name extension."""
_MAX_READS = 8  # without a valid row, after which `take` returns for now, because it must not block


class _Position(Struct, frozen=True, forbid_unknown_fields=True):
    """The position of the next row, in bytes (or, in a Parquet file, rows) and in lines, and the counts before it."""

    offset: Annotated[int, Meta(ge=0)]
    line: Annotated[int, Meta(ge=1)]
    refused: Annotated[int, Meta(ge=0)]
    row: Annotated[int, Meta(ge=0)]
    head: Beginning


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
        the source never ends. A Parquet file cannot grow.

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
        if follow and kind == "parquet":
            rule, remedy = "be False with a Parquet file, which is complete", "append to a CSV or NDJSON file instead"
            raise InvalidArgument("FileSource", "follow", rule, follow, remedy=remedy)
        if not follow and not self.path.exists():
            remedy = "with follow=True it may appear later"
            raise InvalidArgument("FileSource", "path", "be a file", str(self.path), remedy=remedy)
        self._counter = RowCounter()
        self._queue = RowQueue(self.batch_size, endless=follow)
        self._closed = False
        self._reader: TextReader | ParquetReader
        if kind == "parquet":
            self._reader = ParquetReader(self.path, columns, self._counter)
        else:
            self._reader = TextReader(self.path, LineParser(columns, kind), self._counter, follow=follow)
        self._at = self._before = _Position(0, 1, 0, 0, self._reader.head)

    @property
    def ended(self) -> bool:
        return self._closed or (self._reader.ended and not self._queue.rows)

    @property
    def refused(self) -> int:
        return self._counter.count

    @property
    def position(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], msgspec.to_builtins(self._at))

    def take(self) -> Batch | None:
        if self._closed:
            return None
        while (arrays := self._queue.take(more=not self._reader.ended)) is None:
            if self._reader.ended or not self._fill():
                return None
        block = RowBlock(*arrays)
        offset, line, refused = block.places[-1].tolist()
        row = self._at.row + len(block.points)
        self._before, self._at = self._at, _Position(offset, line, refused, row, self._reader.head)
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
        try:
            at = msgspec.convert(dict(position), _Position)
        except msgspec.ValidationError as error:
            raise InvalidArgument("FileSource", "position", f"be that of a FileSource ({error})", position) from None
        self._reader.seek(at.offset, at.line, at.head)
        self._queue = RowQueue(self.batch_size, endless=self.follow)
        self._at = at
        self._counter.count = at.refused  # rows after the position are read and counted again

    def close(self) -> None:
        self._closed = True
        self._reader.close()
