"""Streams of samples. A stream yields mini-batches; a source returns them as samples arrive."""

from kernelmesh.errors import InvalidRow
from kernelmesh.streams.arrays import ArrayStream, StreamSlice, deal
from kernelmesh.streams.base import Batch, Source, Stream, StreamKind
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.file_source import FileSource
from kernelmesh.streams.kinds import FileStream, StdinStream, ZenohStream, read_stdin
from kernelmesh.streams.line_source import LineSource
from kernelmesh.streams.mixture import Mixture
from kernelmesh.streams.paced import Paced

__all__ = ["ArrayStream", "Batch", "Columns", "FileSource", "FileStream", "InvalidRow", "LineSource", "Mixture", "Paced"]
__all__ += ["Source", "StdinStream", "Stream", "StreamKind", "StreamSlice", "ZenohStream", "deal", "read_stdin"]
