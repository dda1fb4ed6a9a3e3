"""A journal of the input of every step, from which a killed agent replays its steps.

A journal begins with four bytes that identify its format, followed by records: a length, a checksum, and MessagePack. An
incomplete record was being written when the process was killed.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from kernelmesh.checks import integer
from kernelmesh.errors import KernelMeshError, UnreadableFile
from kernelmesh.messages import Message, decode, encode
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.node import Entry, Traffic
from kernelmesh.streams import Batch

__all__ = ["Record", "append", "create", "read"]

_MAGIC = b"kmj1"
_PREFIX = struct.Struct("<II")
_MAX_MESSAGE = 1 << 31
_Count = Annotated[int, Meta(ge=0)]


class Record(NamedTuple):
    """An entry, and the fingerprint of the settings that it was made with."""

    entry: Entry
    settings: int


class _Neighbor(Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    weight: float
    reply: bytes | None


class _Step(Struct, array_like=True, forbid_unknown_fields=True):
    settings: _Count
    step: _Count
    rows: _Count
    columns: _Count
    points: bytes
    labels: bool
    """Whether the targets are class numbers."""
    outputs: _Count
    """Columns of the targets; 0 for a vector."""
    targets: bytes
    position: bytes
    """As JSON."""
    floats_sent: _Count
    bytes_sent: _Count
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
    points, targets = entry.batch
    step = _Step(
        record.settings,
        entry.step,
        len(points),
        points.shape[1],
        points.tobytes(),
        targets.dtype.kind == "i",
        targets.shape[1] if targets.ndim == 2 else 0,
        targets.tobytes(),
        msgspec.json.encode(None if entry.position is None else dict(entry.position)),
        entry.traffic.floats,
        entry.traffic.bytes,
        [
            _Neighbor(str(said.neighbor), said.weight, None if said.reply is None else encode(said.reply))
            for said in entry.heard
        ],
    )
    data = _encoder.encode(step)
    file.write(_PREFIX.pack(len(data), zlib.crc32(data)) + data)
    file.flush()


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
        integer("journal", "step", step.step, minimum=1)
        position = json.loads(step.position)
        if position is not None and not isinstance(position, dict):
            raise UnreadableFile("position must be an object")
        points = np.frombuffer(step.points, "<f8").reshape(step.rows, step.columns)
        targets: NDArray[np.float64 | np.int64] = np.frombuffer(step.targets, "<i8" if step.labels else "<f8")
        targets = targets.reshape(step.rows, step.outputs) if step.outputs else targets.reshape(step.rows)
        heard = [Heard(_message(said.reply), said.weight, said.name) for said in step.heard]
    except (KernelMeshError, msgspec.DecodeError, ValueError, MemoryError, RecursionError) as error:
        raise UnreadableFile(f"{path}: must be a journal ({error})") from None
    entry = Entry(
        step=step.step,
        batch=Batch(points, targets),
        position=position,
        heard=heard,
        traffic=Traffic(step.floats_sent, step.bytes_sent),
    )
    return Record(entry, step.settings)


def _message(data: bytes | None) -> Message | None:
    message: Message | None = None if data is None else decode(data, max_bytes=_MAX_MESSAGE)
    return message
