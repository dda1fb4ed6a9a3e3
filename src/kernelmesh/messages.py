"""What agents say to each other: values with a size, bytes out, bytes in.

The bytes are a safetensors file whose metadata names the kind of message and the version of the format. Nothing is
unpickled, and everything is checked against the announced length before an array is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import save

from kernelmesh.checks import Floats

__all__ = ["Function", "Message", "Points", "Probe", "Refused", "Values", "decode", "encode", "weigh"]

VERSION = "1"
_MOST_HEADER = 4096


class Refused(ValueError):
    """Bytes that are not a message this program understands."""


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """One or more matrices with as many rows as each other. Labels are never part of any message."""

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    shapes: ClassVar[Callable[[Message], Any]]

    def __init_subclass__(cls) -> None:
        cls.shapes = attrgetter(*(f"{name}.shape" for name in cls.names))

    @property
    def tables(self) -> dict[str, Floats]:
        """The matrices by name."""
        return {name: getattr(self, name) for name in self.names}


@dataclass(frozen=True, eq=False, slots=True)
class Points(Message):
    """«What do you make of these points?»: B × p."""

    kind: ClassVar[str] = "points"
    names: ClassVar[tuple[str, ...]] = ("points",)
    points: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Values(Message):
    """The answer: f at each of the points, B × C."""

    kind: ClassVar[str] = "values"
    names: ClassVar[tuple[str, ...]] = ("values",)
    values: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Probe(Message):
    """«I make this of these points; what do you?»: B × p and B × C."""

    kind: ClassVar[str] = "probe"
    names: ClassVar[tuple[str, ...]] = ("points", "values")
    points: Floats
    values: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Function(Message):
    """A whole function: its centres, M × p, and weights, M × C."""

    kind: ClassVar[str] = "function"
    names: ClassVar[tuple[str, ...]] = ("centres", "weights")
    centres: Floats
    weights: Floats


_KINDS: dict[str, type[Message]] = {kind.kind: kind for kind in (Function, Points, Probe, Values)}


def encode(message: Message) -> bytes:
    """The bytes that a transport carries.

    >>> decode(encode(Values(np.array([[1.0, 2.0]])))).values
    array([[1., 2.]])
    """
    metadata = {"format": "kernelmesh", "version": VERSION, "kind": message.kind}
    return bytes(save({name: np.ascontiguousarray(table) for name, table in message.tables.items()}, metadata))


_weights: dict[tuple[Any, ...], tuple[int, int]] = {}


def weigh(message: Message) -> tuple[int, int]:
    """How many numbers a message carries and how many bytes, len(encode(message)), it takes.

    Both depend on kind and shapes alone and are remembered for them.
    """
    key = (message.kind, type(message).shapes(message))
    known = _weights.get(key)
    if known is None:
        floats = sum(table.size for table in message.tables.values())
        known = _weights[key] = floats, len(encode(message))
    return known


def decode(data: bytes, *, most_bytes: int = 1 << 26) -> Any:
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
    names = kind.names
    if sorted(header) != sorted(names) or not all(isinstance(spec, dict) for spec in header.values()):
        raise Refused(f"message: {kind.kind} must hold the tensors {names}, got {sorted(header)[:5]}")
    shapes = {name: _shape(header[name]) for name in names}
    if len({shape[0] for shape in shapes.values()}) > 1:
        raise Refused(f"message: tensors must have as many rows as each other, got shapes {shapes}")
    return kind(**_tables(header, shapes, memoryview(data)[start:]))


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


def _shape(spec: dict[str, Any]) -> tuple[int, int]:
    shape = spec.get("shape")
    if spec.get("dtype") != "F64":
        raise Refused(f"message: dtype must be F64, got {spec.get('dtype')!r}")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**31 for n in shape)):
        raise Refused(f"message: shape must be two whole numbers from 0 to 2^31, got {shape!r}")
    return shape[0], shape[1]


def _tables(header: dict[str, Any], shapes: dict[str, tuple[int, int]], body: memoryview) -> dict[str, Floats]:
    """The matrices, which must fill the body one after the other without gap or overlap."""
    spans = {name: header[name].get("data_offsets") for name in shapes}
    if not all(isinstance(s, list) and len(s) == 2 and all(type(n) is int for n in s) for s in spans.values()):
        raise Refused(f"message: data_offsets must be pairs of whole numbers, got {spans}")
    end = 0
    for name in sorted(shapes, key=lambda name: spans[name]):
        if spans[name] != [end, end + 8 * math.prod(shapes[name])]:
            raise Refused(f"message: offsets {spans[name]} do not fit shape {shapes[name]} at byte {end}")
        end = spans[name][1]
    if end != len(body):
        raise Refused(f"message: shapes {shapes} must fill {len(body)} bytes of data, but take {end}")
    out = {}
    for name, shape in shapes.items():
        table = np.frombuffer(body[spans[name][0] : spans[name][1]], dtype="<f8").reshape(shape)
        if not np.isfinite(table).all():
            raise Refused("message: every number must be finite")
        out[name] = table
    return out
