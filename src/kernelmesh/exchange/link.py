"""Sending only what has changed: one end of an edge remembers what the other is known to hold.

Every function that goes out is numbered, and says which function of the other end has arrived last. So each end knows a
function that the other certainly has, and sends the next one as a difference to that: rows whose center is another one, and
all weights. Nothing is guessed: a lost message costs nothing but itself, and an end that has forgotten everything says
that it has nothing and is sent whole functions again. What arrives is bit for bit what was sent.
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

# How many functions that nobody has acknowledged an end keeps. An acknowledgement normally takes two rounds.
_KEPT = 8


class MissingBase(RefusedMessage):
    """A difference to a function that is not here. The sender is not to blame: it will hear of it and send a whole one."""


class Link:
    """One end of an edge: what went out, what came in.

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
        self._known = 0  # the newest of ours that the other end has said it has
        self._got: dict[int, _Version] = {}
        self._have = 0

    def pack(self, message: Message) -> Message:
        """The message as it should travel; whatever is not a function stays as it is."""
        if not isinstance(message, (Function, Offer)):
            return message
        self._number += 1
        base = self._sent.get(self._known)
        self._sent[self._number] = _newest(message.centers)
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
        return Difference(rows, message.centers[rows], message.weights, revision, terms, message.moments)

    def copy(self) -> Link:
        """An end that knows the same; the two go on independently."""
        twin = Link()
        twin._sent, twin._number, twin._known = dict(self._sent), self._number, self._known
        twin._got, twin._have = dict(self._got), self._have
        return twin

    @property
    def lost(self) -> bool:
        """Whether nothing has arrived that a difference could build on."""
        return self._have == 0

    def forget(self) -> None:
        """The other end says that it has nothing of ours: the next function goes out whole."""
        self._known = 0

    def unpack(self, message: Message, whole: Message | None = None) -> Message:
        """The message as it was before it was packed; `MissingBase` if it builds on a function that never arrived.

        After that the other end is told that nothing has arrived, and sends whole functions. `whole` is what was packed,
        where it is at hand because both ends are in one process.
        """
        revision: Revision | None = getattr(message, "revision", None)
        if revision is None:
            return message
        # also from a message that cannot be read otherwise: two ends that refuse each other must hear of it
        self._known = revision.have if revision.have in self._sent else 0
        full: Any = message
        if isinstance(message, Difference):
            base = self._got.get(revision.base)
            if base is None or base.digest != revision.digest or base.centers.shape[1] != message.centers.shape[1]:
                self._have = 0
                raise MissingBase("message: must build on a function that has arrived", revision.base)
            full = _full(message, base.centers) if whole is None else whole
        elif whole is not None:
            full = whole
        self._got.pop(revision.number, None)
        self._got[revision.number] = _Version(full.centers)
        if len(self._got) > _KEPT:
            _forget(self._got, but=revision.base)
        self._have = revision.number
        return _with_revision(message, None) if isinstance(full, (Function, Offer)) and full is message else full


class _Version:
    """The centers of a function that went over the link, and their digest once it is asked for."""

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
    """The version of some centers. An agent tells all its neighbors the same function: the newest one is kept."""

    def __init__(self) -> None:
        self._version = _Version(np.empty((0, 0)))

    def __call__(self, centers: Floats) -> _Version:
        if self._version.centers is not centers:
            self._version = _Version(centers)
        return self._version


_newest = _Newest()


def _forget(versions: dict[int, _Version], *, but: int) -> None:
    """Keep the newest few, in the order in which they came, and one more."""
    for number in list(versions)[:-_KEPT]:
        if number != but:
            del versions[number]


def _with_revision(message: Function | Offer, revision: Revision | None) -> Function | Offer:
    if isinstance(message, Offer):
        return Offer(message.centers, message.weights, message.terms, message.dual, revision, message.moments)
    return Function(message.centers, message.weights, revision, message.moments)


class _Changes:
    """The rows that are not as in a base, all those behind its end included.

    An agent tells all its neighbors the same function, mostly as a difference to the same base: the newest answer is kept.
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
            raise RefusedMessage("message: must bring a center for each new row", f"rows {rows[:5]} for {fresh}")
        centers = np.empty((order, base.shape[1]))
        centers[: order - fresh] = base[: order - fresh]
        centers[rows] = message.centers
        centers.flags.writeable = False
    if message.terms is not None:
        return Offer(centers, message.weights, message.terms, moments=message.moments)
    return Function(centers, message.weights, moments=message.moments)


def _bits(table: Floats) -> NDArray[np.uint64]:
    """Numbers as they are stored: 0.0 and −0.0 differ."""
    return np.ascontiguousarray(table).view(np.uint64)
