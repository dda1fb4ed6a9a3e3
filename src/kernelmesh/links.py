"""Sending only what has changed: one end of an edge remembers what the other is known to hold.

Every function that goes out is numbered, and says which function of the other end has arrived last. So each end knows a
function that the other certainly has, and sends the next one as a difference to that: rows whose center is another one, and
all weights. Nothing is guessed: a lost message costs nothing but itself, and an end that has forgotten everything says
that it has nothing and is sent whole functions again. What arrives is bit for bit what was sent.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import Difference, Function, Message, Offer, OfferDifference, Stamp, wire_size

__all__ = ["Link"]

# How many functions that nobody has acknowledged an end keeps. An acknowledgement normally takes two rounds.
_KEPT = 8


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
        if not isinstance(message, Function | Offer):
            return message
        self._number += 1
        base = self._sent.get(self._known)
        self._sent[self._number] = _Version(message.centers)
        _forget(self._sent, but=self._known)
        stamp = Stamp(self._number, self._known if base else 0, self._have, base.digest if base else 0)
        whole = _stamped(message, stamp)
        if base is None:
            return whole
        shorter = _difference(message, base.centers, stamp)
        return shorter if wire_size(shorter)[1] < wire_size(whole)[1] else whole

    @property
    def lost(self) -> bool:
        """Whether nothing has arrived that a difference could build on."""
        return self._have == 0

    def forget(self) -> None:
        """The other end says that it has nothing of ours: the next function goes out whole."""
        self._known = 0

    def unpack(self, message: Message) -> Message:
        """The message as it was before it was packed; `RefusedMessage` if it builds on a function that never arrived.

        After that the other end is told that nothing has arrived, and sends whole functions.
        """
        stamp: Stamp | None = getattr(message, "stamp", None)
        if stamp is None:
            return message
        # also from a message that cannot be read otherwise: two ends that refuse each other must hear of it
        self._known = stamp.have if stamp.have in self._sent else 0
        out: Any = message
        if isinstance(message, Difference | OfferDifference):
            base = self._got.get(stamp.base)
            if base is None or base.digest != stamp.digest or base.centers.shape[1] != message.centers.shape[1]:
                self._have = 0
                raise RefusedMessage(
                    f"message: must build on a function that has arrived, got one that builds on {stamp.base}"
                )
            out = _whole(message, base.centers)
        self._got.pop(stamp.number, None)
        self._got[stamp.number] = _Version(out.centers)
        _forget(self._got, but=stamp.base)
        self._have = stamp.number
        return _stamped(out, None)


class _Version:
    """The centers of a function that went over the link, and their digest once it is asked for."""

    def __init__(self, centers: Floats) -> None:
        self.centers = centers.copy() if centers.flags.writeable else centers

    @cached_property
    def digest(self) -> int:
        data = hashlib.blake2b(np.ascontiguousarray(self.centers).tobytes(), digest_size=8).digest()
        return int.from_bytes(data, "big", signed=True)


def _forget(versions: dict[int, _Version], *, but: int) -> None:
    """Keep the newest few, in the order in which they came, and one more."""
    for number in list(versions)[:-_KEPT]:
        if number != but:
            del versions[number]


def _difference(message: Function | Offer, base: Floats, stamp: Stamp) -> Difference | OfferDifference:
    centers, shared = message.centers, min(len(base), len(message.centers))
    if centers is base:
        rows = np.empty(0, dtype=np.int64)
    else:
        rows = np.concatenate(
            [
                np.flatnonzero((_bits(centers[:shared]) != _bits(base[:shared])).any(axis=1)),
                np.arange(shared, len(centers)),
            ]
        )
    table = rows.astype(np.int32)[:, None]
    if isinstance(message, Offer):
        return OfferDifference(table, centers[rows], message.weights, *_terms(message), stamp)
    return Difference(table, centers[rows], message.weights, stamp)


def _whole(message: Difference | OfferDifference, base: Floats) -> Function | Offer:
    rows, order = message.rows[:, 0], len(message.weights)
    if len(rows) == 0 and order == len(base):
        centers = base
    else:
        fresh = order - min(order, len(base))
        if len(rows) < fresh or (rows[len(rows) - fresh :] != np.arange(order - fresh, order)).any():
            raise RefusedMessage(f"message: must bring a center for each of {fresh} new rows, got rows {rows[:5]}")
        centers = np.empty((order, base.shape[1]))
        centers[: order - fresh] = base[: order - fresh]
        centers[rows] = message.centers
    if isinstance(message, OfferDifference):
        return Offer(centers, message.weights, *_terms(message))
    return Function(centers, message.weights)


def _stamped(message: Function | Offer, stamp: Stamp | None) -> Function | Offer:
    if isinstance(message, Offer):
        return Offer(message.centers, message.weights, *_terms(message), stamp)
    return Function(message.centers, message.weights, stamp)


def _terms(message: Offer | OfferDifference) -> tuple[int, int, int, int, float]:
    return message.epoch, message.exchange, message.done, message.digest, message.share


def _bits(table: Floats) -> NDArray[np.uint64]:
    """Numbers as they are stored: 0.0 and −0.0 differ."""
    return np.ascontiguousarray(table).view(np.uint64)
