"""The kinds of streams in an agent's file; each is a dataclass of its own settings."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar

from kernelmesh.errors import MISSING, InvalidArgument, Verbatim
from kernelmesh.registry import register
from kernelmesh.schema import flag, one_of, path, setting, text
from kernelmesh.streams.base import Source, StreamKind
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.file_source import FORMATS, FileSource
from kernelmesh.streams.line_source import READ_BYTES, LineSource

__all__ = ["FileStream", "StdinStream", "ZenohStream", "read_stdin"]

_NAMES = tuple(dict.fromkeys(FORMATS.values()))


@register("stream", name="file")
@dataclass(frozen=True, kw_only=True)
class FileStream(StreamKind):
    """The rows of a file."""

    rereadable: ClassVar[bool] = True

    path: Path = setting(check=path, example='"data/north.csv"', doc="the data file, one row per sample")
    format: str | None = setting(
        None,
        check=one_of(*_NAMES),
        example='"csv"',
        unset="determined by the file name",
        doc=f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}",
    )
    follow: bool = setting(False, check=flag, doc="true waits for more rows at the end of the file")

    def __post_init__(self) -> None:
        if self.format is None and self.path.suffix.lower() not in FORMATS:
            remedy = f"the file name does not determine it; use one of {', '.join(_NAMES)}"
            raise InvalidArgument("file", "format", "be given", MISSING, remedy=remedy)
        if os.path.isdir(self.path):
            raise InvalidArgument("file", "path", "be a file", Verbatim(f"the folder {str(self.path)!r}"))
        if not self.follow and not os.path.exists(self.path):  # unlike Path.exists, never raises
            remedy = "write follow = true to wait for it"
            raise InvalidArgument("file", "path", "be a file that exists", str(self.path), remedy=remedy)

    def open(self, columns: Columns, *, batch_size: int) -> Source:
        return FileSource(self.path, columns, format=self.format, batch_size=batch_size, follow=self.follow)


@register("stream", name="stdin")
@dataclass(frozen=True, kw_only=True)
class StdinStream(StreamKind):
    """Lines from standard input, read no faster than the agent learns."""

    format: str = setting("csv", check=one_of("csv", "ndjson"), doc="csv with a header line, or ndjson")

    def open(self, columns: Columns, *, batch_size: int) -> Source:
        source = LineSource(columns, format=self.format, batch_size=batch_size, max_pending=max(65536, 4 * batch_size))
        read_stdin(source)
        return source


def read_stdin(source: LineSource, stream: BinaryIO | None = None) -> threading.Thread:
    """Feed a source from standard input (or another binary stream) in its own thread, no faster than it is consumed.

    >>> import io
    >>> source = LineSource(Columns(points=("x",), targets=("y",), labels=False), format="ndjson")
    >>> read_stdin(source, io.BytesIO(b'{"x": 1, "y": 2}')).join()
    >>> source.take().points.tolist()
    [[1.0]]
    """
    if stream is None and sys.stdin is None:
        raise InvalidArgument("read_stdin", "standard input", "be open", Verbatim("a closed one"))
    stream = sys.stdin.buffer if stream is None else stream
    read: Callable[[int], bytes] = stream.read
    with contextlib.suppress(OSError):  # of a stream that is not a file
        # bypass Python's buffer: its lock, held by a thread waiting for input, would crash the interpreter at exit
        read = partial(os.read, stream.fileno())

    def feed() -> None:
        error: Exception | None = None
        try:
            while not source.closed and (data := read(READ_BYTES)):
                source.feed(data, block=True)
        except (OSError, ValueError) as raised:
            error = raised
        source.finish(error)

    thread = threading.Thread(target=feed, name="kernelmesh-stdin", daemon=True)
    thread.start()
    return thread


def _key(owner: str, argument: str, value: object) -> str:
    for part in text(owner, argument, value).split("/"):
        if not part or not part.isprintable() or set(part) & set("#?$") or ("*" in part and part not in ("*", "**")):
            rule = "be names separated by single slashes (* for any name, ** for any number of names)"
            raise InvalidArgument(owner, argument, rule, value)
    return str(value)


@register("stream", name="zenoh")
@dataclass(frozen=True, kw_only=True)
class ZenohStream(StreamKind):
    """Publications on a zenoh key, each with one or more lines. If rows arrive too fast, the oldest are dropped."""

    key: str = setting(
        check=_key,
        example='"sensors/north"',
        doc="the key that sensors publish to; * stands for any name, ** for any number of names",
    )
    # a publication has no header, so each line must name its columns
    format: str = setting("ndjson", check=one_of("ndjson"), doc="ndjson: one JSON object per line")

    @property
    def subscription(self) -> str:
        return self.key

    def open(self, columns: Columns, *, batch_size: int) -> Source:
        room = max(65536, 4 * batch_size)
        return LineSource(columns, format=self.format, batch_size=batch_size, max_pending=room, endless=True)
