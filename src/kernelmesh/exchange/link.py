"""Sends functions as differences: each end of an edge remembers what the other is known to have.

Every function sent is numbered, and acknowledges the last function received from the other end. So each end knows a
function that the other certainly has, and sends the next one as a difference from it: the rows whose centers changed, and
all weights. Nothing is guessed: a lost message affects no other, and an end that has lost its memory says
so and receives full functions again. What arrives equals what was sent, bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import Difference, Function, Message, Offer, Revision

__all__ = ["Link", "MissingBase"]

# How many unacknowledged functions an end keeps. An acknowledgement normally takes two rounds.
_KEPT = 8


class MissingBase(RefusedMessage):
    """A difference from an unknown function. This is not the sender's fault: it will be told and send a full function."""


class Link:
    """One end of an edge: what was sent and received.

    >>> here, there = Link(), Link()
    >>> centers, weights = np.zeros((9, 8)), np.ones((9, 1))
    >>> for _ in range(3):  # both ends send something in every round
    ...     out, back = here.pack(Function(centers, weights)), there.pack(Function(centers, weights))
    ...     arrived, _ = there.unpack(out), here.unpack(back)
    >>> type(out).__name__, bool((arrived.centers == centers).all())
    ('Difference', True)
    """

    def __init__(self) -> None:
        self._sent: dict[int, _Version] = {}
        self._number = 0
        self._known = 0  # the latest of ours that the other end has acknowledged
        self._got: dict[int, _Version] = {}
        self._have = 0

    def pack(self, message: Message) -> Message:
        """The message to send; anything that is not a function is unchanged."""
        if not isinstance(message, (Function, Offer)):
            return message
        self._number += 1
        base = self._sent.get(self._known)
        self._sent[self._number] = base if base is not None and base.centers is message.centers else _newest(message.centers)
        if len(self._sent) > _KEPT:
            _forget(self._sent, but=self._known)
        if base is None:
            return _with_revision(message, Revision(self._number, 0, self._have))
        revision = Revision(self._number, self._known, self._have, base.digest)
        rows = _changed_rows(message.centers, base.centers)
        order, dimension = message.centers.shape
        terms, dual = (message.terms, message.dual) if isinstance(message, Offer) else (None, None)
        # a difference must save more bytes than its row numbers take
        if dual is not None or (8 * dimension + 4) * len(rows) + 8 >= 8 * dimension * order:
            return _with_revision(message, revision)
        in_doubt = isinstance(message, Offer) and message.in_doubt
        return Difference(rows, message.centers[rows], message.weights, revision, terms, message.moments, in_doubt)

    def copy(self) -> Link:
        """An independent copy."""
        twin = Link()
        twin._sent, twin._number, twin._known = dict(self._sent), self._number, self._known
        twin._got, twin._have = dict(self._got), self._have
        return twin

    @property
    def lost(self) -> bool:
        """Whether nothing has arrived that a difference could be based on."""
        return self._have == 0

    def forget(self) -> None:
        """Note that the other end has nothing of ours, so that the next function is sent in full."""
        self._known = 0

    def unpack(self, message: Message, whole: Message | None = None) -> Message:
        """The message before packing; raises `MissingBase` if it is based on a function that never arrived.

        The other end is then told that nothing has arrived, and sends full functions. `whole` is what was packed,
        if it is available because both ends are in one process.
        """
        revision: Revision | None = getattr(message, "revision", None)
        if revision is None:
            return message
        # even from an otherwise invalid message: two ends that reject each other must learn of it
        self._known = revision.have if revision.have in self._sent else 0
        full: Any = message
        base = self._got.get(revision.base)
        if isinstance(message, Difference):
            if base is None or base.digest != revision.digest or base.centers.shape[1] != message.centers.shape[1]:
                self._have = 0
                raise MissingBase("message: must be based on a function that has arrived", revision.base)
            full = _full(message, base.centers) if whole is None else whole
        elif whole is not None:
            full = whole
        self._got.pop(revision.number, None)
        self._got[revision.number] = base if base is not None and base.centers is full.centers else _Version(full.centers)
        if len(self._got) > _KEPT:
            _forget(self._got, but=revision.base)
        self._have = revision.number
        return _with_revision(message, None) if isinstance(full, (Function, Offer)) and full is message else full


class _Version:
    """The centers of a function that crossed the link, and their digest on demand."""

    __slots__ = ("_digest", "centers")

    def __init__(self, centers: Floats) -> None:
        self.centers = centers.copy() if centers.flags.writeable else centers
        self._digest: int | None = None

    @property
    def digest(self) -> int:
        if self._digest is None:
            data = hashlib.blake2b(np.ascontiguousarray(self.centers).tobytes(), digest_size=8).digest()
            self._digest = int.from_bytes(data, "big") >> 1
        return self._digest


class _Newest:
    """The version of some centers. An agent sends all its neighbors the same function, so the latest one is cached."""

    def __init__(self) -> None:
        self._version = _Version(np.empty((0, 0)))

    def __call__(self, centers: Floats) -> _Version:
        if self._version.centers is not centers:
            self._version = _Version(centers)
        return self._version


_newest = _Newest()


def _forget(versions: dict[int, _Version], *, but: int) -> None:
    """Keep the latest few, in order of arrival, and one more."""
    for number in list(versions)[:-_KEPT]:
        if number != but:
            del versions[number]


def _with_revision(message: Function | Offer, revision: Revision | None) -> Function | Offer:
    if isinstance(message, Offer):  # `dataclasses.replace` takes twice as long, and this happens for most messages
        parts = message.terms, message.dual, revision, message.moments, message.in_doubt
        return Offer(message.centers, message.weights, *parts)
    return Function(message.centers, message.weights, revision, message.moments)


class _Changes:
    """The rows that differ from a base, including all rows beyond its end.

    An agent sends all its neighbors the same function, mostly as a difference from the same base, so the latest is cached.
    """

    def __init__(self) -> None:
        nothing = np.empty((0, 0))
        self._newest: tuple[Floats, Floats, NDArray[np.int32]] = nothing, nothing, np.empty(0, dtype=np.int32)

    def __call__(self, centers: Floats, base: Floats) -> NDArray[np.int32]:
        was, before, rows = self._newest
        if was is centers and before is base:
            return rows
        shared = 0 if centers is base else min(len(base), len(centers))
        start = len(centers) if centers is base else shared
        changed = np.flatnonzero((_bits(centers[:shared]) != _bits(base[:shared])).any(axis=1))
        rows = np.concatenate([changed, np.arange(start, len(centers))]).astype(np.int32)
        if not (centers.flags.writeable or base.flags.writeable):
            self._newest = centers, base, rows
        return rows


_changed_rows = _Changes()


def _full(message: Difference, base: Floats) -> Function | Offer:
    rows, order = message.rows, len(message.weights)
    if len(rows) == 0 and order == len(base):
        centers = base
    else:
        fresh = order - min(order, len(base))
        if len(rows) < fresh or (rows[len(rows) - fresh :] != np.arange(order - fresh, order)).any():
            raise RefusedMessage("message: must contain a center for each new row", f"rows {rows[:5]} for {fresh}")
        centers = np.empty((order, base.shape[1]))
        centers[: order - fresh] = base[: order - fresh]
        centers[rows] = message.centers
        centers.flags.writeable = False
    if message.terms is not None:
        return Offer(centers, message.weights, message.terms, moments=message.moments, in_doubt=message.in_doubt)
    return Function(centers, message.weights, moments=message.moments)


def _bits(table: Floats) -> NDArray[np.uint64]:
    """Numbers as stored: 0.0 and −0.0 differ."""
    return np.ascontiguousarray(table).view(np.uint64)
