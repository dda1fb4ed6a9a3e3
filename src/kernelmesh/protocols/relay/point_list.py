"""The list of points that a network agrees on: only the root adds to it, and lists of different roots merge."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats, Ints, finite
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import ListPart, Rows

__all__ = ["EMPTY", "PointList", "merged", "part_of"]


@dataclass(frozen=True, eq=False)
class PointList:
    """Points, each with the root that added it, and the scales of the features in which they are compared.

    Lists form a semilattice: a list is older than every list that begins with it; of two lists that differ, the one whose
    entry at the first difference has the smaller (root, point) is newer. Every member keeps the newest list that it has
    heard of, so that all members come to have the same one, whatever is lost, repeated or late.

    Parameters
    ----------
    roots : ndarray of shape (M,)
        The root that added each point.
    points : ndarray of shape (M, p)
        The points.
    scales : ndarray of shape (p,) or (0,)
        The scales of the features, which count as the first entry; empty if features are used as they are.
    scaler : int
        The root that chose the scales.
    digest : int
        32 bits that identify the list.
    stage : int
        How much has been agreed on: a list of a later stage is newer.
    strength : float
        The factor on λ that was agreed on.
    """

    roots: Ints
    points: Floats
    scales: Floats
    scaler: int
    digest: int
    stage: int = 0
    strength: float = 1.0

    @classmethod
    def of(
        cls, roots: Ints, points: Floats, scales: Floats, scaler: int = 0, *, stage: int = 0, strength: float = 1.0
    ) -> PointList:
        """A list with its digest."""
        digest = _digest(roots, points, scales, scaler, stage, strength)
        return cls(roots, points, scales, scaler, digest, stage, strength)

    @classmethod
    def empty(cls, dimension: int) -> PointList:
        """The list with nothing in it, which is older than all others."""
        return cls.of(np.empty(0, dtype=np.int64), np.empty((0, dimension)), np.empty(0))

    @classmethod
    def given(cls, points: Floats) -> PointList:
        """A list that all members have from the start."""
        return cls.of(np.zeros(len(points), dtype=np.int64), points, np.empty(0))

    def __len__(self) -> int:
        return len(self.points)

    def extended(self, points: Floats, root: int) -> PointList:
        """The list after a root has added points."""
        roots = np.concatenate([self.roots, np.full(len(points), root)])
        return self.with_entries(roots, np.concatenate([self.points, points]))

    def with_entries(self, roots: Ints, points: Floats) -> PointList:
        """Other points under the same agreement."""
        return PointList.of(roots, points, self.scales, self.scaler, stage=self.stage, strength=self.strength)

    def begins_with(self, length: int, digest: int) -> bool:
        """Whether the first points are those of a list with this length and digest."""
        if length == len(self.points) and digest == self.digest:
            return True
        if length == 0 and digest == EMPTY:
            return True
        return length < len(self) and digest == self.with_entries(self.roots[:length], self.points[:length]).digest

    def common(self, other: PointList) -> int:
        """How many points both lists begin with; −1 if even their scales differ."""
        if self._agreed != other._agreed:
            return -1
        both = min(len(self), len(other))
        same = (self.roots[:both] == other.roots[:both]) & (self.points[:both] == other.points[:both]).all(axis=1)
        return both if same.all() else int(np.argmin(same))

    @property
    def _agreed(self) -> tuple[int, int, bytes, float]:
        """The order of agreements: the smaller is newer."""
        return -self.stage, self.scaler, self.scales.tobytes(), self.strength

    def is_newer(self, other: PointList) -> bool:
        """Whether this list takes the place of another one."""
        at = self.common(other)
        if at < 0:
            return self._agreed < other._agreed
        if at in (len(self), len(other)):
            return len(self) > len(other)
        ours, theirs = ((int(each.roots[at]), each.points[at].tobytes()) for each in (self, other))
        return ours < theirs


def _digest(roots: Ints, points: Floats, scales: Floats, scaler: int, stage: int, strength: float) -> int:
    digest = hashlib.blake2b(roots.astype("<i8").tobytes(), digest_size=4)
    for table in (points, scales):
        digest.update(table.astype("<f8").tobytes())
    digest.update(struct.pack("<IId", scaler, stage, strength))
    return int.from_bytes(digest.digest(), "little")


EMPTY = _digest(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), 0, 0, 1.0)
"""The digest of the list with nothing in it."""


def part_of(points: PointList, start: int, digest: int) -> ListPart:
    """The end of a list for a neighbor that has the beginning."""
    scales, roots = points.scales.astype("<f8").tobytes(), points.roots[start:].astype("<i8").tobytes()
    agreed = points.stage, points.strength, points.scaler, scales
    return ListPart(start, digest, *agreed, roots, Rows.of(points.points[start:]))


def merged(points: PointList, part: ListPart, *, trusted: bool = False) -> PointList | None:
    """The list that a neighbor has, from what it sent and the beginning that is known; None if that is another one."""
    if not trusted and not points.begins_with(part.start, part.digest):
        return None
    tail = part.points.table("points") if part.points.data else np.empty((0, points.points.shape[1]))
    if len(part.roots) % 8 or len(part.scales) % 8 or tail.shape[1] != points.points.shape[1]:
        raise RefusedMessage("news: points must have the right dimension, and roots and scales 8 bytes each", tail.shape)
    roots, scales = np.frombuffer(part.roots, "<i8").astype(np.int64), np.frombuffer(part.scales, "<f8").astype(np.float64)
    if len(roots) != len(tail) or (len(roots) and not 0 <= int(roots.min()) <= int(roots.max()) < 1 << 16):
        raise RefusedMessage("news: every point must have a root", f"{len(roots)} for {len(tail)} points")
    if len(scales) and not (finite(scales) and (scales > 0.0).all()):
        raise RefusedMessage("news: scales must be positive")
    known = slice(0, part.start)
    roots, tail = np.concatenate([points.roots[known], roots]), np.concatenate([points.points[known], tail])
    return PointList.of(roots, tail, scales, part.scaler, stage=part.stage, strength=part.strength)
