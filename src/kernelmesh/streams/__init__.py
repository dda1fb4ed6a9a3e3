"""Where samples come from. A stream is anything that yields mini-batches; a source is taken from as samples come."""

from kernelmesh.streams.arrays import ArrayStream, Part, deal
from kernelmesh.streams.columns import BadRow, Columns
from kernelmesh.streams.files import FileSource
from kernelmesh.streams.lines import LineSource, read_stdin
from kernelmesh.streams.mixture import Mixture
from kernelmesh.streams.paced import Paced
from kernelmesh.streams.role import Batch, Source, Stream

__all__ = [
    "ArrayStream",
    "BadRow",
    "Batch",
    "Columns",
    "FileSource",
    "LineSource",
    "Mixture",
    "Paced",
    "Part",
    "Source",
    "Stream",
    "deal",
    "read_stdin",
]
