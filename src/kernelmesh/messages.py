"""Messages between agents: encoding, decoding and validation.

On the wire, a message is MessagePack: its format version, the number of its kind, its matrices (rows, columns, little-endian
numbers) and a few scalars. It contains no text. Types and ranges are checked by msgspec
during decoding, shapes and finiteness here, before an array is created. Nothing is unpickled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from kernelmesh.checks import Floats, finite
from kernelmesh.errors import RefusedMessage
from kernelmesh.numerics import compiled

__all__ = ["Difference", "Function", "Message", "Offer", "Points", "Probe", "Revision", "Terms", "Values", "WireSize"]
__all__ += ["decode", "encode", "wire_size"]

VERSION = 4

_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]  # so that increments never overflow 64 bits
_Length = Annotated[int, Meta(ge=0, lt=1 << 31)]
_EXTRAS = ("rows", "terms", "revision")
_FLOATS, _ROWS = np.dtype("<f8"), np.dtype("<i4")


class Revision(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The position of a function in the sequence that this end of a link has sent, so that the next can be a difference."""

    number: Annotated[int, Meta(ge=1, lt=1 << 62)]
    """The number of functions sent by this end so far, including this one."""
    base: _Count = 0
    """The latest earlier function that the other end is known to have, on which differences are based; 0 means none."""
    have: _Count = 0
    """The latest function received from the other end; 0 if none, or none that could be read."""
    digest: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """The digest of the centers of the base, so that a restarted end cannot mistake another function for it."""


class Terms(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The terms of an offer, which both ends of an edge need to know."""

    epoch: _Count
    """How often one end had to repair the other's memory."""
    exchange: _Count
    """The exchange that the offer is meant for, from 1."""
    done: _Count
    """The number of exchanges over this edge that the sender has completed in this epoch."""
    digest: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """The digest of the sender's memory of this edge after those exchanges; 0 before the first."""
    share: Annotated[float, Meta(ge=0.0, le=1.0)]
    """The maximum weight that the sender can give this edge; the smaller of both ends' is used."""


class Message:
    """A message: matrices and possibly a few scalars. It never contains labels."""

    __slots__ = ()
    kind: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    """The matrices whose rows are points."""
    outputs: ClassVar[tuple[str, ...]]
    """The matrices whose rows are values or weights, as many as those of the inputs."""
    tables: ClassVar[tuple[str, ...]]
    """All matrices: the inputs, then the outputs."""
    extras: ClassVar[tuple[str, ...]]
    """The names of the other fields on the wire."""
    shapes: ClassVar[Callable[[Any], Any]]
    """The shapes of the matrices; a single shape is not in a tuple."""

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()
        cls.inputs = tuple(name for name in cls.__annotations__ if name in ("points", "centers"))
        cls.outputs = tuple(name for name in cls.__annotations__ if name in ("values", "weights"))
        cls.tables = (*cls.inputs, *cls.outputs)
        cls.extras = tuple(name for name in _EXTRAS if name in cls.__annotations__)
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
class Probe(Message):
    """A query for values at points, with the sender's own values there: B × p and B × C."""

    points: Floats
    values: Floats


@dataclass(frozen=True, eq=False, slots=True)
class Function(Message):
    """A whole function: its centers, M × p, and weights, M × C."""

    centers: Floats
    weights: Floats
    revision: Revision | None = None
    moments: Floats | None = None
    """M × M and symmetric, if the message holds statistics rather than a function; only half of it is sent."""


@dataclass(frozen=True, eq=False, slots=True)
class Offer(Message):
    """A function for one numbered exchange with one neighbor; both ends use exactly these two functions, once.

    The first offer of an epoch carries the dual from which the sender starts. If statistics are exchanged instead of
    functions, both have moments.
    """

    centers: Floats
    weights: Floats
    terms: Terms
    dual: Function | None = None
    revision: Revision | None = None
    moments: Floats | None = None
    in_doubt: bool = False
    """Whether the moments may have negative eigenvalues, because the sender may have given away more than it had."""


@dataclass(frozen=True, eq=False, slots=True)
class Difference(Message):
    """A function or an offer as a difference from an earlier one: changed rows with their centers, and all weights."""

    rows: NDArray[np.int32]
    centers: Floats
    weights: Floats
    revision: Revision
    terms: Terms | None = None
    moments: Floats | None = None
    in_doubt: bool = False


class _Matrix(Struct, array_like=True, forbid_unknown_fields=True):
    rows: _Length
    columns: _Length
    data: bytes


class _Plain(Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    kind: int
    matrices: Annotated[list[_Matrix], Meta(max_length=4)]
    rows: bytes | None = None
    terms: Terms | None = None
    revision: Revision | None = None


class _WithMoments(_Plain, array_like=True, forbid_unknown_fields=True):
    moments: Annotated[list[bytes], Meta(max_length=2)] | None = None


class _Wire(_WithMoments, array_like=True, forbid_unknown_fields=True):
    """The layout when decoding; when encoding, trailing fields that say nothing are omitted."""

    in_doubt: bool = False


_KINDS: tuple[type[Message], ...] = (Points, Values, Probe, Function, Offer, Difference)  # numbered in this order on the wire

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)


def encode(message: Message) -> bytes:
    """Encode a message.

    >>> decode(encode(Values(np.array([[1.0, 2.0]])))).values
    array([[1., 2.]])
    """
    number, matrices = _KINDS.index(type(message)), _matrices(message)
    if not message.extras:
        return _encoder.encode(_Plain(VERSION, number, matrices))
    if isinstance(message, Offer) and message.dual is not None:
        matrices += _matrices(message.dual)
    rows = message.rows.astype(_ROWS).tobytes() if isinstance(message, Difference) else None
    terms, revision = getattr(message, "terms", None), getattr(message, "revision", None)
    if (halves := _halves(message)) is None:
        return _encoder.encode(_Plain(VERSION, number, matrices, rows, terms, revision))
    if getattr(message, "in_doubt", False):
        return _encoder.encode(_Wire(VERSION, number, matrices, rows, terms, revision, halves, True))
    return _encoder.encode(_WithMoments(VERSION, number, matrices, rows, terms, revision, halves))


def _halves(message: Any) -> list[bytes] | None:
    """The lower triangles of the moments, if any: those of the message, then those of its dual."""
    tables = [part.moments for part in (message, getattr(message, "dual", None)) if part is not None]
    if tables[0] is None:
        return None
    return [compiled.symmetric.lower_half(np.ascontiguousarray(table)).astype(_FLOATS).tobytes() for table in tables]


def _matrices(message: Message) -> list[_Matrix]:
    matrices = []
    for name in message.tables:
        table = getattr(message, name)
        rows, columns = table.shape
        matrices.append(_Matrix(rows, columns, np.asarray(table, _FLOATS).tobytes()))
    return matrices


class WireSize(NamedTuple):
    """The size of a message on the wire."""

    floats: int
    """The numbers in its matrices."""
    bytes: int
    """len(encode(message))."""


def wire_size(message: Message) -> WireSize:
    """The numbers and bytes of a message on the wire, computed without encoding its matrices.

    >>> message = Points(np.zeros((32, 2)))
    >>> wire_size(message) == (64, len(encode(message)))
    True
    """
    kind = type(message)
    cost = _frame(kind.shapes(message))
    if not kind.extras:
        return cost
    floats, size = cost
    if isinstance(message, Difference):
        size += _binary(message.rows.size * 4) - 1
    elif isinstance(message, Offer) and message.dual is not None:
        floats, size = _frame(kind.shapes(message) + Function.shapes(message.dual))
    parts = getattr(message, "terms", None), getattr(message, "revision", None)
    size += len(_encoder.encode(parts)) - _NO_PARTS
    if (moments := getattr(message, "moments", None)) is not None:
        dual = getattr(message, "dual", None)
        halves = [len(table) * (len(table) + 1) // 2 for table in (moments, *([] if dual is None else [dual.moments]))]
        in_doubt = getattr(message, "in_doubt", False)
        floats, size = floats + sum(halves), size + 1 + in_doubt + sum(_binary(8 * half) for half in halves)
    return WireSize(floats, size)


@lru_cache(maxsize=1024)
def _frame(shapes: Any) -> WireSize:
    """The size of a message with matrices of these shapes and without rows, terms and revision."""
    pairs = shapes if isinstance(shapes[0], tuple) else (shapes,)
    empty = _encoder.encode(_Plain(VERSION, 0, [_Matrix(rows, columns, b"") for rows, columns in pairs]))
    sizes = [8 * rows * columns for rows, columns in pairs]
    return WireSize(sum(sizes) // 8, len(empty) + sum(_binary(size) - _binary(0) for size in sizes))


_NO_PARTS = len(_encoder.encode((None, None)))


def _binary(size: int) -> int:
    """The encoded size of this many bytes: their length takes 1, 2 or 4 more."""
    return size + 2 + (size > 0xFF) + 2 * (size > 0xFFFF)


def decode(data: bytes, *, max_bytes: int = 1 << 26) -> Any:
    """Decode a message, or raise `RefusedMessage` with the reason; no array is created before everything has been checked."""
    if len(data) > max_bytes:
        raise RefusedMessage(f"message: must be at most {max_bytes} bytes", len(data))
    try:
        wire = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedMessage(f"message: must be one of format {VERSION}", error) from None
    if wire.version != VERSION:
        raise RefusedMessage(f"message: format must be {VERSION}", wire.version)
    if not 0 <= wire.kind < len(_KINDS):
        raise RefusedMessage(f"message: kind must be a number from 0 to {len(_KINDS) - 1}", wire.kind)
    kind = _KINDS[wire.kind]
    parts = _parts(wire, kind)
    arrays = _arrays(wire, kind)
    if kind is Difference:
        centers, weights = arrays
        _check_rows(parts["rows"], centers, weights)
        (square,) = _moments(wire, arrays)
        return Difference(centers=centers, weights=weights, moments=square, in_doubt=wire.in_doubt, **parts)
    moments = _moments(wire, arrays)
    if wire.in_doubt:
        parts["in_doubt"] = True
    if len(arrays) > len(kind.tables):
        *arrays, centers, weights = arrays
        parts["dual"] = Function(centers, weights, moments=moments.pop())
    if moments[0] is not None:
        parts["moments"] = moments[0]
    return kind(*arrays, **parts)


def _moments(wire: _Wire, arrays: list[Floats]) -> list[Floats | None]:
    """The moments of every function, or None."""
    orders = [len(weights) for weights in arrays[1::2]] or [0]
    if wire.in_doubt and (wire.moments is None or _KINDS[wire.kind] is Function):
        raise RefusedMessage("message: doubt must be about the moments of an offer")
    if wire.moments is None:
        return [None] * len(orders)
    if not issubclass(_KINDS[wire.kind], Function | Offer | Difference) or len(wire.moments) != len(orders):
        raise RefusedMessage("message: moments must belong to functions, all of them", len(wire.moments))
    out: list[Floats | None] = []
    for data, order in zip(wire.moments, orders, strict=True):
        if len(data) != 8 * (order * (order + 1) // 2):
            raise RefusedMessage("message: moments must have 8 bytes for each number", f"{len(data)} for {order} points")
        half = np.frombuffer(data, _FLOATS)
        if not finite(half):
            raise RefusedMessage("message: every number must be finite")
        out.append(compiled.symmetric.whole(half.astype(np.float64, copy=False), order))
    return out


def _parts(wire: _Wire, kind: type[Message]) -> dict[str, Any]:
    """The fields other than matrices, by name."""
    parts: dict[str, Any] = {}
    for name in _EXTRAS:
        if (part := getattr(wire, name)) is not None:
            if name not in kind.extras:
                raise RefusedMessage(f"message: {kind.kind} must have no {name}")
            parts[name] = part
    revision = wire.revision
    if revision is not None and not revision.base < revision.number:
        raise RefusedMessage("message: revision must have base < number", f"{revision.base} and {revision.number}")
    if kind is Offer and wire.terms is None:
        raise RefusedMessage("message: offer must have terms")
    if kind is Difference:
        if revision is None or revision.base == 0 or wire.rows is None or len(wire.rows) % 4:
            raise RefusedMessage("message: difference must have rows of 4 bytes each and a revision with a base")
        parts["rows"] = np.frombuffer(wire.rows, _ROWS)
    return parts


def _arrays(wire: _Wire, kind: type[Message]) -> list[Floats]:
    """The matrices of the kind, and possibly of a dual; those that belong together must have the same number of rows."""
    count = len(kind.tables)
    counts = (count, count + 2) if kind is Offer else (count,)
    if len(wire.matrices) not in counts:
        rule = " or ".join(map(str, counts))
        raise RefusedMessage(f"message: {kind.kind} must have {rule} matrices", len(wire.matrices))
    arrays = list(map(_array, wire.matrices))
    for first, second in zip(arrays[::2], arrays[1::2], strict=False):
        if len(first) != len(second) and kind is not Difference:
            shapes = first.shape, second.shape
            raise RefusedMessage(f"message: {kind.kind} must have matrices with equally many rows", f"shapes {shapes}")
    return arrays


def _array(matrix: _Matrix) -> Floats:
    if len(matrix.data) != 8 * matrix.rows * matrix.columns:
        shape, size = (matrix.rows, matrix.columns), len(matrix.data)
        raise RefusedMessage("message: a matrix must have 8 bytes for each number", f"{size} for shape {shape}")
    array = np.frombuffer(matrix.data, _FLOATS).reshape(matrix.rows, matrix.columns)
    if not finite(array):
        raise RefusedMessage("message: every number must be finite")
    return array


def _check_rows(rows: NDArray[np.int32], centers: Floats, weights: Floats) -> None:
    if len(rows) != len(centers):
        raise RefusedMessage("message: difference must have a center for each row", f"{len(centers)} for {len(rows)}")
    if len(rows) and not (rows[0] >= 0 and rows[-1] < len(weights) and (np.diff(rows) > 0).all()):
        raise RefusedMessage("message: rows must be increasing, from 0 or more to less than the number of weights", rows[:5])
