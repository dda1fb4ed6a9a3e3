"""What agents say to each other: values with a size, bytes out, bytes in.

The bytes are a safetensors file whose metadata names the kind of message and the version of the format. Nothing is
unpickled, and everything is checked against the announced length before an array is made.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from kernelmesh.checks import Floats, finite
from kernelmesh.errors import RefusedMessage

__all__ = [
    "Difference",
    "Function",
    "Message",
    "Offer",
    "OfferDifference",
    "Points",
    "Probe",
    "Repair",
    "Stamp",
    "Values",
    "decode",
    "encode",
    "wire_size",
]

VERSION = "3"
_MOST_HEADER = 4096
_MOST_COUNT = 1 << 62


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """Some matrices, and perhaps a few single numbers. Labels are never part of any message."""

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    """The matrices."""
    level: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of matrices that have as many rows as each other; all of them in one group unless said otherwise."""
    scalars: ClassVar[dict[str, type]] = {}
    shapes: ClassVar[Callable[[Message], Any]]

    def __init_subclass__(cls) -> None:
        cls.level = cls.level or (cls.names,)
        cls.shapes = attrgetter(*(f"{name}.shape" for name in cls.names))

    @property
    def tables(self) -> dict[str, NDArray[Any]]:
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
class Stamp:
    """Where a function stands among all that this end of the link has sent, so that the next can be a difference."""

    number: int
    """Functions sent over this end of the link so far, this one included."""
    base: int = 0
    """The newest earlier one that the other end is known to have, which differences build on; 0: none."""
    have: int = 0
    """The newest one that has arrived from the other end; 0: none, or none that could be read."""
    digest: int = 0
    """Of the centers of the base, so that an end that restarted cannot mistake another function for it."""


@dataclass(frozen=True, eq=False, slots=True)
class Function(Message):
    """A whole function: its centers, M × p, and weights, M × C."""

    kind: ClassVar[str] = "function"
    names: ClassVar[tuple[str, ...]] = ("centers", "weights")
    centers: Floats
    weights: Floats
    stamp: Stamp | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Offer(Message):
    """A function for one numbered exchange with one neighbor: both ends use exactly these two functions, once."""

    kind: ClassVar[str] = "offer"
    names: ClassVar[tuple[str, ...]] = ("centers", "weights")
    scalars: ClassVar[dict[str, type]] = {"epoch": int, "exchange": int, "done": int, "digest": int, "share": float}
    centers: Floats
    weights: Floats
    epoch: int
    """How often one end has had to repair what the other remembers."""
    exchange: int
    """The exchange that this is meant for, from 1."""
    done: int
    """How many exchanges over this edge the sender has completed in this epoch."""
    digest: int
    """Of what the sender keeps for this edge after those; 0 before the first."""
    share: float
    """The most weight that the sender can give this edge; the lesser of both ends' is used."""
    stamp: Stamp | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Repair(Message):
    """An `Offer` for the first exchange of an epoch, with the dual from which the sender begins it."""

    kind: ClassVar[str] = "repair"
    names: ClassVar[tuple[str, ...]] = ("centers", "weights", "dual_centers", "dual_weights")
    level: ClassVar[tuple[tuple[str, ...], ...]] = (("centers", "weights"), ("dual_centers", "dual_weights"))
    scalars: ClassVar[dict[str, type]] = Offer.scalars
    centers: Floats
    weights: Floats
    dual_centers: Floats
    dual_weights: Floats
    epoch: int
    exchange: int
    done: int
    digest: int
    share: float


@dataclass(frozen=True, eq=False, slots=True)
class Difference(Message):
    """A `Function` as a difference to an earlier one: the rows whose centers changed, those centers, and all weights."""

    kind: ClassVar[str] = "difference"
    names: ClassVar[tuple[str, ...]] = ("rows", "centers", "weights")
    level: ClassVar[tuple[tuple[str, ...], ...]] = (("rows", "centers"),)
    rows: NDArray[np.int32]
    centers: Floats
    weights: Floats
    stamp: Stamp


@dataclass(frozen=True, eq=False, slots=True)
class OfferDifference(Message):
    """An `Offer` as a difference to an earlier one."""

    kind: ClassVar[str] = "offer-difference"
    names: ClassVar[tuple[str, ...]] = ("rows", "centers", "weights")
    level: ClassVar[tuple[tuple[str, ...], ...]] = (("rows", "centers"),)
    scalars: ClassVar[dict[str, type]] = Offer.scalars
    rows: NDArray[np.int32]
    centers: Floats
    weights: Floats
    epoch: int
    exchange: int
    done: int
    digest: int
    share: float
    stamp: Stamp


_KINDS: dict[str, type[Message]] = {
    kind.kind: kind for kind in (Difference, Function, Offer, OfferDifference, Points, Probe, Repair, Values)
}
_STAMPED = (Difference, Function, Offer, OfferDifference)


def encode(message: Message) -> bytes:
    """The bytes that a transport carries.

    >>> decode(encode(Values(np.array([[1.0, 2.0]])))).values
    array([[1., 2.]])
    """
    stamp: Stamp | None = getattr(message, "stamp", None)
    frame = _frame(message.kind, _shapes(message), stamp is not None)
    parts = [frame.pieces[0]]
    for slot, piece in zip(frame.slots, frame.pieces[1:], strict=True):
        if slot == "stamp":
            assert stamp is not None
            numbers = _STAMP.pack(stamp.number, stamp.base, stamp.have, stamp.digest)
        else:
            numbers = struct.pack(_layout(type(message)), *(getattr(message, name) for name in message.scalars))
        # in hexadecimal all numbers are as long as each other, so that the size of a message depends on its shapes alone
        parts += (numbers.hex().encode(), piece)
    for name in frame.order:
        parts.append(np.ascontiguousarray(getattr(message, name), dtype=_dtype(name)).tobytes())
    return b"".join(parts)


class _Frame(NamedTuple):
    """The header of all messages of one kind and shape, cut where single numbers go, and the order of the matrices."""

    pieces: tuple[bytes, ...]
    slots: tuple[str, ...]
    order: tuple[str, ...]


@lru_cache(maxsize=4096)
def _frame(name: str, shapes: tuple[tuple[int, ...], ...], stamped: bool) -> _Frame:
    """What safetensors makes of such a message, without what differs between two of them."""
    kind = _KINDS[name]
    digits = {"scalars": 2 * struct.calcsize(_layout(kind))} if kind.scalars else {}
    if stamped:
        digits["stamp"] = 2 * _STAMP.size
    marks = {slot: _MARKS[slot] * length for slot, length in digits.items()}
    tables = {name: np.zeros(shape, dtype=_dtype(name)) for name, shape in zip(kind.names, shapes, strict=True)}
    data = bytes(save(tables, {"kernelmesh": VERSION, "kind": kind.kind, **marks}))
    length = 8 + int.from_bytes(data[:8], "little")
    offsets = {name: spec["data_offsets"] for name, spec in json.loads(data[8:length]).items() if name in kind.names}
    slots = tuple(sorted(marks, key=lambda slot: data.index(marks[slot].encode())))
    pieces, rest = [], data[:length]
    for slot in slots:
        piece, _, rest = rest.partition(marks[slot].encode())
        pieces.append(piece)
    return _Frame((*pieces, rest), slots, tuple(sorted(kind.names, key=lambda name: offsets[name])))


_STAMP = struct.Struct(">4q")
_MARKS = {"scalars": "x", "stamp": "z"}  # stand for hexadecimal digits, and are none


def _dtype(name: str) -> str:
    return "<i4" if name == "rows" else "<f8"


def _shapes(message: Message) -> Any:
    """The shapes of all matrices, as a tuple also where there is only one."""
    shapes = type(message).shapes(message)
    return shapes if len(message.names) > 1 else (shapes,)


def _layout(kind: type[Message]) -> str:
    return ">" + "".join("q" if scalar is int else "d" for scalar in kind.scalars.values())


def wire_size(message: Message) -> tuple[int, int]:
    """How many numbers (row numbers aside) a message carries and how many bytes, len(encode(message)), it takes.

    Both depend on kind and shapes alone and are remembered for them.
    """
    return _weight(message.kind, _shapes(message), getattr(message, "stamp", None) is not None)


@lru_cache(maxsize=4096)
def _weight(name: str, shapes: tuple[tuple[int, ...], ...], stamped: bool) -> tuple[int, int]:
    kind, frame = _KINDS[name], _frame(name, shapes, stamped)
    sizes = {name: math.prod(shape) for name, shape in zip(kind.names, shapes, strict=True)}
    rows = sizes.pop("rows", 0)
    digits = {"scalars": 2 * struct.calcsize(_layout(kind)), "stamp": 2 * _STAMP.size}
    header = sum(map(len, frame.pieces)) + sum(digits[slot] for slot in frame.slots)
    return sum(sizes.values()), header + 4 * rows + 8 * sum(sizes.values())


def decode(data: bytes, *, max_bytes: int = 1 << 26) -> Any:
    """Read a message, or raise `RefusedMessage` saying why; nothing is allocated before everything has been checked."""
    if len(data) > max_bytes:
        raise RefusedMessage(f"message: must be at most {max_bytes} bytes, got {len(data)}")
    if len(data) < 8:
        raise RefusedMessage(f"message: must be at least 8 bytes, got {len(data)}")
    length = int.from_bytes(data[:8], "little")
    begin = 8 + length
    if length > _MOST_HEADER or begin > len(data):
        raise RefusedMessage(f"message: header must be at most {min(_MOST_HEADER, len(data) - 8)} bytes, got {length}")
    kind, places, numbers = _plan(bytes(data[8:begin]), len(data) - begin)
    tables = []
    for name, dtype, shape, size, start in places:
        table = np.frombuffer(data, dtype, size, begin + start)
        if name != "rows" and not finite(table):
            raise RefusedMessage("message: every number must be finite")
        tables.append(table.reshape(shape))
    if "rows" in kind.names:
        _check_rows(dict(zip(kind.names, tables, strict=True)))
    return kind(*tables, **numbers)


class _Plan(NamedTuple):
    """What a header says, found in order: where each matrix lies, and the single numbers."""

    kind: type[Message]
    tables: tuple[tuple[str, np.dtype[Any], tuple[int, int], int, int], ...]
    numbers: dict[str, Any]


@lru_cache(maxsize=1024)
def _plan(text: bytes, size: int) -> _Plan:
    """Read a header that `size` bytes of data follow. Many messages have the same one."""
    header = _header(text)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or "kernelmesh" not in metadata:
        raise RefusedMessage("message: must be a kernelmesh message, got another safetensors file")
    if metadata["kernelmesh"] != VERSION:
        raise RefusedMessage(f"message: version must be {VERSION}, got {metadata['kernelmesh']!r}")
    kind = _KINDS.get(str(metadata.get("kind")))
    if kind is None:
        raise RefusedMessage(f"message: kind must be one of {sorted(_KINDS)}, got {metadata.get('kind')!r}")
    names = kind.names
    if sorted(header) != sorted(names) or not all(isinstance(spec, dict) for spec in header.values()):
        raise RefusedMessage(f"message: {kind.kind} must hold the tensors {names}, got {sorted(header)[:5]}")
    shapes = {name: _shape(name, header[name]) for name in names}
    for group in kind.level:
        if len({shapes[name][0] for name in group}) > 1:
            raise RefusedMessage(
                f"message: {' and '.join(group)} must have as many rows as each other, got shapes {shapes}"
            )
    numbers = _numbers(kind, metadata)
    starts = _starts(header, shapes, size)
    tables = ((name, np.dtype(_dtype(name)), shapes[name], math.prod(shapes[name]), starts[name]) for name in names)
    return _Plan(kind, tuple(tables), numbers)


def _numbers(kind: type[Message], metadata: dict[str, Any]) -> dict[str, Any]:
    """The single numbers and the stamp of a message, from its metadata."""
    out: dict[str, Any] = {}
    if kind.scalars:
        out = dict(zip(kind.scalars, _unpack(_layout(kind), metadata.get("scalars")), strict=True))
        for name, value in out.items():
            if not (math.isfinite(value) and value >= 0):
                raise RefusedMessage(f"message: {name} must be finite and >= 0, got {value}")
            if name != "digest" and value >= _MOST_COUNT:  # counting on must not leave 64 bits
                raise RefusedMessage(f"message: {name} must be less than 2^62, got {value}")
    if kind in _STAMPED and ("stamp" in metadata or "rows" in kind.names):
        number, base, have, digest = _unpack(">4q", metadata.get("stamp"))
        if not (0 <= base < number and have >= 0 and (base > 0 or "rows" not in kind.names)):
            raise RefusedMessage(
                f"message: stamp must have 0 <= base < number and have >= 0, got {number}, {base}, {have}"
            )
        out["stamp"] = Stamp(number, base, have, digest)
    return out


def _unpack(layout: str, text: Any) -> tuple[Any, ...]:
    try:
        return struct.unpack(layout, bytes.fromhex(text))
    except (TypeError, ValueError, struct.error):
        rule = f"{struct.calcsize(layout)} bytes in hexadecimal"
        raise RefusedMessage(f"message: scalars and stamp must be {rule}, got {str(text)[:80]!r}") from None


def _check_rows(tables: dict[str, NDArray[Any]]) -> None:
    rows, most = tables["rows"][:, 0], len(tables["weights"])
    if len(rows) and not (rows[0] >= 0 and rows[-1] < most and (np.diff(rows) > 0).all()):
        raise RefusedMessage(f"message: rows must rise from 0 or more to less than {most}")


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise RefusedMessage("message: header must be JSON") from None
    if not isinstance(header, dict):
        raise RefusedMessage("message: header must be a JSON object")
    return header


def _shape(name: str, spec: dict[str, Any]) -> tuple[int, int]:
    shape = spec.get("shape")
    wanted = "I32" if name == "rows" else "F64"
    if spec.get("dtype") != wanted:
        raise RefusedMessage(f"message: dtype of {name} must be {wanted}, got {spec.get('dtype')!r}")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**31 for n in shape)):
        raise RefusedMessage(f"message: shape must be two whole numbers from 0 to 2^31, got {shape!r}")
    return shape[0], shape[1]


def _starts(header: dict[str, Any], shapes: dict[str, tuple[int, int]], size: int) -> dict[str, int]:
    """Where the matrices begin, which must fill the data one after the other without gap or overlap."""
    spans = {name: header[name].get("data_offsets") for name in shapes}
    if not all(isinstance(s, list) and len(s) == 2 and all(type(n) is int for n in s) for s in spans.values()):
        raise RefusedMessage(f"message: data_offsets must be pairs of whole numbers, got {spans}")
    end = 0
    for name in sorted(shapes, key=lambda name: spans[name]):
        if spans[name] != [end, end + (4 if name == "rows" else 8) * math.prod(shapes[name])]:
            raise RefusedMessage(f"message: offsets {spans[name]} do not fit shape {shapes[name]} at byte {end}")
        end = spans[name][1]
    if end != size:
        raise RefusedMessage(f"message: shapes {shapes} must fill {size} bytes of data, but take {end}")
    return {name: span[0] for name, span in spans.items()}
