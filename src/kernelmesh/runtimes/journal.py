"""A journal of the input of every step, from which a killed agent replays its steps.

A journal begins with four bytes that identify its format, followed by records: a length, a checksum, and MessagePack. An
incomplete record was being written when the process was killed.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from kernelmesh.errors import KernelMeshError, UnreadableFile
from kernelmesh.messages import Message, decode, encode
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.node import Entry, Traffic
from kernelmesh.streams import Batch

__all__ = ["Count", "Record", "append", "create", "read"]

_MAGIC = b"kmj1"
_PREFIX = struct.Struct("<II")
Count = Annotated[int, Meta(ge=0)]


class Record(NamedTuple):
    """An entry, and the fingerprint of the settings that it was made with."""

    entry: Entry
    settings: int


class _Neighbor(Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    weight: float
    reply: bytes | None


class _Array(Struct, array_like=True, forbid_unknown_fields=True):
    is_integer: bool
    """Whether these are integers, such as class numbers, rather than floating-point numbers; of 8 bytes each."""
    shape: Annotated[list[Count], Meta(min_length=1, max_length=2)]
    data: bytes


class _Step(Struct, array_like=True, forbid_unknown_fields=True):
    settings: Count
    step: Annotated[int, Meta(ge=1)]
    points: _Array
    targets: _Array
    position: dict[str, Any] | None
    traffic: tuple[Count, Count]
    heard: list[_Neighbor]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Step)


def create(path: Path) -> BinaryIO:
    """Create a journal that only its owner can read, since it contains labels."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    file.write(_MAGIC)
    file.flush()
    return file


def append(file: BinaryIO, record: Record) -> None:
    """Append a record and pass it to the operating system."""
    entry = record.entry
    points, targets = map(_array, entry.batch)
    position = None if entry.position is None else dict(entry.position)
    heard = [_neighbor(said) for said in entry.heard]
    step = _Step(record.settings, entry.step, points, targets, position, entry.traffic, heard)
    data = _encoder.encode(step)
    file.write(_PREFIX.pack(len(data), zlib.crc32(data)) + data)
    file.flush()


def _neighbor(said: Heard) -> _Neighbor:
    return _Neighbor(str(said.neighbor), said.weight, None if said.reply is None else encode(said.reply))


def _array(table: NDArray[Any]) -> _Array:
    is_integer = table.dtype.kind == "i"
    return _Array(is_integer, list(table.shape), table.astype("<i8" if is_integer else "<f8").tobytes())


def _table(array: _Array) -> NDArray[Any]:
    return np.frombuffer(array.data, "<i8" if array.is_integer else "<f8").reshape(array.shape)


def read(path: Path) -> Iterator[Record]:
    """The records up to the first incomplete one."""
    with open(path, "rb") as file:
        magic = file.read(len(_MAGIC))
        if magic != _MAGIC and not _MAGIC.startswith(magic):
            raise UnreadableFile(f"{path}: must be a journal; remove the file, and its samples will be read again")
        while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
            length, checksum = _PREFIX.unpack(prefix)
            left = os.fstat(file.fileno()).st_size - file.tell()
            data = file.read(length) if length <= left else b""
            if len(data) < length or zlib.crc32(data) != checksum:
                return
            yield _record(path, data)


def _record(path: Path, data: bytes) -> Record:
    try:
        step = _decoder.decode(data)
        batch = Batch(_table(step.points), _table(step.targets))
        if step.points.is_integer or batch.points.ndim != 2 or len(batch.points) != len(batch.targets):
            raise UnreadableFile("a mini-batch must have a target for each point")
        heard = [Heard(_message(said.reply), said.weight, said.name) for said in step.heard]
    except (KernelMeshError, msgspec.DecodeError, ValueError, MemoryError, RecursionError) as error:
        raise UnreadableFile(f"{path}: must be a journal ({error})") from None
    entry = Entry(step=step.step, batch=batch, position=step.position, heard=heard, traffic=Traffic(*step.traffic))
    return Record(entry, step.settings)


def _message(data: bytes | None) -> Message | None:
    message: Message | None = None if data is None else decode(data, max_bytes=len(data))
    return message
