"""What members of a relay tell each other: a hello, and with it sums, points or proposals when there are new ones.

Sums travel in 64, 32 or 16 bits. With 16, Θ_ij is sent as Θ_ij / √(Θ_ii Θ_jj), which lies between −1 and 1, so that
coordinates with few samples keep their precision, and Θ stays positive definite up to 1e-4 of its diagonal.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kernelmesh.checks import Floats, finite
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages.tables import Message
from kernelmesh.numerics.sums import Sums

__all__ = ["BITS", "NOBODY", "Hello", "ListPart", "News", "PackedSums", "Rows", "packed", "unpacked"]

NOBODY = -1
"""The parent of a root."""
_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Number = Annotated[int, Meta(ge=0, lt=1 << 16)]
"""A member's number, different for each in a network."""


class Hello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a member says to every neighbor at every tick."""

    name: Number
    """The sender's number."""
    clock: _Count
    """The sender's ticks; it never runs backward."""
    root: Number
    """The root that it follows."""
    count: _Count
    """The highest count of that root that the sender knows."""
    hops: Annotated[int, Meta(ge=0, lt=1 << 32)]
    parent: Annotated[int, Meta(ge=NOBODY, lt=1 << 16)]
    heard: _Count = 0
    """The clock of the newest sums that it has from the receiver."""
    known: _Count = 0
    """The highest count that it has heard of the receiver as a root."""


BITS = (16, 32, 64)
"""The sizes of a number on the wire."""
_Length = Annotated[int, Meta(ge=0, lt=1 << 13)]
_Digest = Annotated[int, Meta(ge=0, lt=1 << 32)]
_TOP = 32767.0


class Rows(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A matrix: little-endian numbers of 8 bytes, row by row."""

    columns: Annotated[int, Meta(ge=0, lt=1 << 31)]
    data: bytes

    @classmethod
    def of(cls, table: Floats) -> Rows:
        """The matrix to be sent."""
        return cls(table.shape[1], table.astype("<f8").tobytes())

    def table(self, what: str) -> Floats:
        """The matrix that was sent."""
        if self.columns == 0 or len(self.data) % (8 * self.columns):
            raise RefusedMessage(f"news: {what} must have rows of {self.columns} numbers", f"{len(self.data)} bytes")
        found = np.frombuffer(self.data, "<f8").reshape(-1, self.columns).astype(np.float64)
        if not finite(found):
            raise RefusedMessage(f"news: every number of {what} must be finite")
        return found


class PackedTrial(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Θ and β as they travel."""

    order: _Length
    outputs: Annotated[int, Meta(ge=1, lt=1 << 16)]
    bits: int
    samples: Annotated[float, Meta(ge=0.0)]
    data: bytes


class PackedSums(PackedTrial, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sums as they travel."""

    roll: Annotated[bytes, Meta(max_length=1 << 13)]
    """One bit for each member, the lowest first."""
    features: Rows | None = None
    estate: bool = False
    """Whether these are the sums of a member that leaves, to be kept for it."""
    trials: Annotated[list[PackedTrial], Meta(max_length=16)] = []
    """Sums with kernels that are compared before learning."""


class ListPart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a list of points, from an entry on; the digest is that of the entries before."""

    start: _Length
    digest: _Digest
    stage: Annotated[int, Meta(ge=0, lt=8)]
    """How much the network has agreed on before it learns."""
    strength: Annotated[float, Meta(gt=0.0, le=1e9)]
    """The factor on λ that it has agreed on."""
    scaler: Number
    scales: bytes
    roots: bytes
    points: Rows


class News(Message, Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a member says to one neighbor at one tick."""

    hello: Hello
    length: _Length
    """How many points the sender's list has."""
    digest: _Digest
    """The digest of that list."""
    sums: PackedSums | None = None
    part: ListPart | None = None
    proposals: Rows | None = None
    """Points that the sender would like to be in the list."""
    standing: dict[Number, Annotated[int, Meta(ge=1, lt=1 << 31)]] | None = None
    """How often each member was forgotten and admitted again: odd numbers say that it is forgotten."""

    def without_data(self) -> tuple[News, list[bytes]]:
        """The message with nothing in its large fields, and what was in them."""
        sums, part, proposals, data = self.sums, self.part, self.proposals, list[bytes]()
        if sums is not None:
            trials = [replace(trial, data=b"") for trial in sums.trials]
            features = None if sums.features is None else replace(sums.features, data=b"")
            data += [sums.data, *[trial.data for trial in sums.trials], *([sums.features.data] if sums.features else [])]
            sums = replace(sums, data=b"", features=features, trials=trials)
        if part is not None:
            data += [part.roots, part.points.data]
            part = replace(part, roots=b"", points=replace(part.points, data=b""))
        if proposals is not None:
            data.append(proposals.data)
            proposals = replace(proposals, data=b"")
        return replace(self, sums=sums, part=part, proposals=proposals), data

    @property
    def floats(self) -> int:
        """How many numbers of sums and points it holds."""
        tables = (self.proposals, self.part.points if self.part else None, self.sums.features if self.sums else None)
        count = sum(len(rows.data) // 8 for rows in tables if rows is not None)
        for sums in () if self.sums is None else (self.sums, *self.sums.trials):
            count += sums.order * (sums.order + 1) // 2 + sums.order * sums.outputs
        return count


def packed(sums: Sums, *, bits: int, estate: bool = False) -> PackedSums:
    """Sums as they travel."""
    roll = sums.roll.to_bytes((sums.roll.bit_length() + 7) // 8, "little")
    features = Rows.of(sums.features) if sums.features.size else None
    trials = [PackedTrial(*_packed(trial, bits)) for trial in sums.trials]
    return PackedSums(*_packed(sums, bits), roll, features, estate, trials)


def _packed(sums: Sums, bits: int) -> tuple[int, int, int, float, bytes]:
    """The fields of a trial."""
    data = _narrow(sums) if bits == 16 else _floats(sums.moments, bits).tobytes() + _floats(sums.weights, bits).tobytes()
    return sums.order, sums.weights.shape[1], bits, sums.samples, data


def unpacked(wire: PackedSums) -> Sums:
    """The sums that were sent, or `RefusedMessage`."""
    if any((trial.order, trial.outputs) != (wire.trials[0].order, wire.outputs) for trial in wire.trials):
        raise RefusedMessage("news: trials must have equally many points, and the outputs of the sums")
    trials = tuple(Sums(*_numbers(trial), trial.samples) for trial in wire.trials)
    features = np.empty((0, 0)) if wire.features is None else wire.features.table("features")
    return Sums(*_numbers(wire), wire.samples, int.from_bytes(wire.roll, "little"), features, trials)


def _numbers(wire: PackedTrial) -> tuple[Floats, Floats]:
    """The lower triangle of Θ, and β."""
    order, outputs = wire.order, wire.outputs
    triangle, many = order * (order + 1) // 2, order * outputs
    if wire.bits not in BITS:
        raise RefusedMessage("news: sums must have 16, 32 or 64 bits", wire.bits)
    size = 2 * (triangle - order + many) + 4 * (order + outputs) if wire.bits == 16 else wire.bits // 8 * (triangle + many)
    if len(wire.data) != size:
        raise RefusedMessage(f"news: sums over {order} points must have {size} bytes", len(wire.data))
    if wire.bits == 16:
        moments, weights = _wide(wire.data, order, outputs)
    else:
        numbers = np.frombuffer(wire.data, f"<f{wire.bits // 8}").astype(np.float64)
        moments, weights = numbers[:triangle], numbers[triangle:].reshape(order, outputs)
    if not (finite(moments) and finite(weights) and np.isfinite(wire.samples)):
        raise RefusedMessage("news: every number of sums must be finite")
    return moments, weights


def _floats(table: Floats, bits: int) -> NDArray[np.floating]:
    """As so many bits; numbers that are too large for them become the largest."""
    kind = np.dtype(f"<f{bits // 8}")
    largest = float(np.finfo(kind).max)
    return np.maximum(np.minimum(table, largest), -largest).astype(kind)


def _narrow(sums: Sums) -> bytes:
    """Θ_ij / (d_i d_j) below the diagonal and β_ic / (d_i s_c) as 16 bits; d = √diag Θ and s as 32."""
    order = sums.order
    rows, columns = np.tril_indices(order, -1)
    triangle = np.tril_indices(order)
    square = np.zeros((order, order))
    square[triangle] = sums.moments
    roots = _floats(np.sqrt(np.maximum(np.diagonal(square), 0.0)), 32)
    wide = np.where(roots > 0.0, roots, 1.0).astype(np.float64)
    ratios = square[rows, columns] / (wide[rows] * wide[columns])
    sizes = sums.weights / wide[:, None]
    largest = _floats(np.abs(sizes).max(axis=0, initial=0.0), 32)
    steps = sizes / np.where(largest > 0.0, largest, 1.0)
    numbers = np.concatenate([ratios, steps.ravel()])
    return b"".join(
        (roots.tobytes(), largest.tobytes(), np.clip(np.rint(_TOP * numbers), -_TOP, _TOP).astype("<i2").tobytes())
    )


def _wide(data: bytes, order: int, outputs: int) -> tuple[Floats, Floats]:
    heads = np.frombuffer(data, "<f4", order + outputs).astype(np.float64)
    if not finite(heads):
        raise RefusedMessage("news: every number of sums must be finite")
    roots, largest = heads[:order], heads[order:]
    numbers = np.frombuffer(data, "<i2", offset=4 * len(heads)) / _TOP
    below = order * (order - 1) // 2
    rows, columns = np.tril_indices(order, -1)
    square = np.zeros((order, order))
    square[rows, columns] = numbers[:below] * roots[rows] * roots[columns]
    square[np.diag_indices(order)] = roots**2
    weights = numbers[below:].reshape(order, outputs) * roots[:, None] * largest
    return square[np.tril_indices(order)], weights
