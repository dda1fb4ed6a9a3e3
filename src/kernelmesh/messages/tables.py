"""Messages that consist of matrices: points, values at points, and functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from kernelmesh.checks import Floats, finite
from kernelmesh.errors import RefusedMessage

__all__ = ["VERSION", "Matrix", "Message", "Points", "SentFunction", "Values", "WireSize"]
__all__ += ["added_bytes", "matrices", "restored", "wire_size"]

VERSION = 1
"""Of the wire format."""

_Length = Annotated[int, Meta(ge=0, lt=1 << 31)]
_FLOATS = np.dtype("<f8")


class Message:
    """A message. It never contains labels."""

    __slots__ = ()
    kind: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ()
    """The matrices whose rows are points."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """The matrices whose rows are values or weights, as many as those of the inputs."""
    tables: ClassVar[tuple[str, ...]] = ()
    """All matrices: the inputs, then the outputs."""
    shapes: ClassVar[Callable[[Any], Any]]
    """The shapes of the matrices; a single shape is not in a tuple."""

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()
        cls.inputs = tuple(name for name in cls.__annotations__ if name in ("points",))
        cls.outputs = tuple(name for name in cls.__annotations__ if name in ("values", "weights"))
        cls.tables = (*cls.inputs, *cls.outputs)
        if cls.tables:
            cls.shapes = attrgetter(*(f"{name}.shape" for name in cls.tables))


@dataclass(frozen=True, eq=False, slots=True)
class Points(Message):
    """A query for values at points: B × p."""

    points: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Values(Message):
    """The reply: f at each of the points, B × C."""

    values: Floats


@dataclass(frozen=True, eq=False, slots=True)
class SentFunction(Message):
    """A whole function: its points, M × p, and weights, M × C."""

    points: Floats
    weights: Floats


class Matrix(Struct, array_like=True, forbid_unknown_fields=True):
    """A matrix on the wire, row by row."""

    rows: _Length
    columns: _Length
    data: bytes


def matrices(message: Message) -> list[Matrix]:
    """The content of a message on the wire."""
    tables = [np.asarray(getattr(message, name), _FLOATS) for name in message.tables]
    return [Matrix(len(table), table.shape[1], table.tobytes()) for table in tables]


class WireSize(Struct, frozen=True):
    """The size of a message on the wire."""

    floats: int
    """The numbers in its matrices."""
    bytes: int
    """len(encode(message))."""


def wire_size(message: Message) -> WireSize:
    """The numbers and bytes of a message on the wire, computed without encoding its matrices."""
    return _size(type(message).shapes(message))


@lru_cache(maxsize=1024)
def _size(shapes: Any) -> WireSize:
    """The size of a message with matrices of these shapes."""
    pairs = shapes if isinstance(shapes[0], tuple) else (shapes,)
    empty = msgspec.msgpack.encode((VERSION, 0, [Matrix(rows, columns, b"") for rows, columns in pairs]))
    sizes = [8 * rows * columns for rows, columns in pairs]
    return WireSize(sum(sizes) // 8, len(empty) + sum(map(added_bytes, sizes)))


def added_bytes(size: int) -> int:
    """By how much this many bytes are longer than none, encoded: their length takes 1, 2 or 4 bytes."""
    return size + (size > 0xFF) + 2 * (size > 0xFFFF)


def restored(kind: type[Message], found: list[Matrix]) -> Message:
    """The message with this content, or `RefusedMessage`."""
    if len(found) != len(kind.tables):
        raise RefusedMessage(f"message: {kind.kind} must have {len(kind.tables)} matrices", len(found))
    arrays = list(map(_array, found))
    if len({len(array) for array in arrays}) > 1:
        shapes = tuple(array.shape for array in arrays)
        raise RefusedMessage(f"message: {kind.kind} must have matrices with equally many rows", f"shapes {shapes}")
    return kind(*arrays)


def _array(matrix: Matrix) -> Floats:
    if len(matrix.data) != 8 * matrix.rows * matrix.columns:
        shape, size = (matrix.rows, matrix.columns), len(matrix.data)
        raise RefusedMessage("message: a matrix must have 8 bytes for each number", f"{size} for shape {shape}")
    array = np.frombuffer(matrix.data, _FLOATS).reshape(matrix.rows, matrix.columns)
    if not finite(array):
        raise RefusedMessage("message: every number must be finite")
    return array
