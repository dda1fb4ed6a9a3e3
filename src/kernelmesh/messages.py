"""What agents say to each other: values with a size, bytes out, bytes in.

The bytes are a safetensors file whose metadata names the kind of message and the version of the format. Nothing is
unpickled, and everything is checked against the announced length before an array is made.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import save

from kernelmesh.checks import Floats

__all__ = ["Message", "Points", "Refused", "Values", "decode", "encode", "size_in_bytes"]

VERSION = "1"
_MOST_HEADER = 4096


class Refused(ValueError):
    """Bytes that are not a message this program understands."""


@dataclass(frozen=True, eq=False)
class Points:
    """«What do you make of these points?»: B × p. Labels are never part of it."""

    kind: ClassVar[str] = "points"
    table: Floats


@dataclass(frozen=True, eq=False)
class Values:
    """The answer: f at each of the points, B × C."""

    kind: ClassVar[str] = "values"
    table: Floats


Message = Points | Values
_KINDS: dict[str, type[Points] | type[Values]] = {Points.kind: Points, Values.kind: Values}


def encode(message: Message) -> bytes:
    """The bytes that a transport carries.

    >>> decode(encode(Values(np.array([[1.0, 2.0]])))).table
    array([[1., 2.]])
    """
    metadata = {"format": "kernelmesh", "version": VERSION, "kind": message.kind}
    return bytes(save({"table": np.ascontiguousarray(message.table)}, metadata))


_sizes: dict[tuple[type[Message], tuple[int, ...]], int] = {}


def size_in_bytes(message: Message) -> int:
    """len(encode(message)), which depends on kind and shape alone and is remembered for them."""
    key = (type(message), message.table.shape)
    size = _sizes.get(key)
    if size is None:
        size = _sizes[key] = len(encode(message))
    return size


def decode(data: bytes, *, most_bytes: int = 1 << 26) -> Message:
    """Read a message, or raise `Refused` saying why; nothing is allocated before everything has been checked."""
    if len(data) > most_bytes:
        raise Refused(f"message: must be at most {most_bytes} bytes, got {len(data)}")
    header, start = _header(data)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != "kernelmesh":
        raise Refused("message: must be a kernelmesh message, got another safetensors file")
    if metadata.get("version") != VERSION:
        raise Refused(f"message: version must be {VERSION}, got {metadata.get('version')!r}")
    kind = _KINDS.get(str(metadata.get("kind")))
    if kind is None:
        raise Refused(f"message: kind must be one of {sorted(_KINDS)}, got {metadata.get('kind')!r}")
    if set(header) != {"table"} or not isinstance(header["table"], dict):
        raise Refused(f"message: must hold one tensor, table, got {sorted(header)[:5]}")
    return kind(_table(header["table"], memoryview(data)[start:]))


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise Refused(f"message: must be at least 8 bytes, got {len(data)}")
    length = int.from_bytes(data[:8], "little")
    if length > min(_MOST_HEADER, len(data) - 8):
        raise Refused(f"message: header must be at most {min(_MOST_HEADER, len(data) - 8)} bytes, got {length}")
    try:
        header = json.loads(data[8 : 8 + length])
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise Refused("message: header must be JSON") from None
    if not isinstance(header, dict):
        raise Refused("message: header must be a JSON object")
    return header, 8 + length


def _table(spec: dict[str, Any], body: memoryview) -> Floats:
    shape, span = spec.get("shape"), spec.get("data_offsets")
    if spec.get("dtype") != "F64":
        raise Refused(f"message: dtype must be F64, got {spec.get('dtype')!r}")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**31 for n in shape)):
        raise Refused(f"message: shape must be two whole numbers from 0 to 2^31, got {shape!r}")
    if span != [0, 8 * math.prod(shape)] or span[1] != len(body):
        raise Refused(f"message: {len(body)} bytes of data do not fit shape {shape} and offsets {span!r}")
    table = np.frombuffer(body, dtype="<f8").reshape(shape)
    if not np.isfinite(table).all():
        raise Refused("message: every number must be finite")
    return table
