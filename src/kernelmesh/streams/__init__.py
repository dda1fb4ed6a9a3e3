"""Where samples come from. A stream is anything that yields mini-batches; a source is taken from as samples come."""

from kernelmesh.errors import InvalidRow
from kernelmesh.streams.arrays import ArrayStream, StreamSlice, deal
from kernelmesh.streams.base import Batch, Source, Stream
from kernelmesh.streams.columns import Columns
from kernelmesh.streams.file_source import FileSource
from kernelmesh.streams.line_source import LineSource, read_stdin
from kernelmesh.streams.mixture import Mixture
from kernelmesh.streams.paced import Paced

__all__ = [
    "ArrayStream",
    "Batch",
    "Columns",
    "FileSource",
    "InvalidRow",
    "LineSource",
    "Mixture",
    "Paced",
    "Source",
    "Stream",
    "StreamSlice",
    "deal",
    "read_stdin",
]
