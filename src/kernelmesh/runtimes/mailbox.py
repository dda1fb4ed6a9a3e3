"""A queue of received messages: carriers fill it from their own threads, and one thread empties it.

Room is limited per sender, so that a flood can neither exhaust memory nor crowd out honest neighbors. Expected replies
always find room; unsolicited ones are dropped.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kernelmesh.runtimes.frames import read_prefix

__all__ = ["BUSY", "Arrival", "Event", "Mailbox", "Presence", "Request"]

BUSY = "too many requests are waiting; try again"
"""The answer to a client whose request is not admitted."""


class Arrival(NamedTuple):
    """Bytes from a neighbor, or from an impostor using its name."""

    sender: str
    data: bytes


class Presence(NamedTuple):
    """A neighbor has started listening, or is gone."""

    neighbor: str
    there: bool


class Request(NamedTuple):
    """A client's request for predictions or status."""

    kind: str
    """predict or status."""
    payload: bytes
    answer: Callable[[bytes], None]
    refuse: Callable[[str], None]


Event = Arrival | Presence | Request


@dataclass(frozen=True, kw_only=True)
class Room:
    """How much may wait. Honest neighbors have one question under way at a time, and repeat it seldom."""

    events: int = 512
    """Of all senders."""
    of_process: int = 4
    """Events of one process."""
    of_name: int = 64
    """Events of one name, however many processes use it."""
    requests: int = 16
    """Of all clients."""
    bytes: int = 1 << 27
    """Of all senders."""
    bytes_of_name: int = 1 << 25


class Mailbox:
    """A bounded queue with admission by sender.

    >>> from kernelmesh.runtimes.frames import Frame, Header, Prefix, encode_frame
    >>> mailbox = Mailbox()
    >>> reply = encode_frame(Frame(Prefix(7, True, 42), Header(step=1), b""))
    >>> mailbox.put(Arrival("south", reply))  # nobody asked for it
    >>> mailbox.expect("south", 42)
    >>> mailbox.put(Arrival("south", reply))
    >>> len(mailbox.take(0.0)), mailbox.dropped
    (1, 1)
    """

    def __init__(self, room: Room | None = None) -> None:
        self._room = Room() if room is None else room
        self._events: list[Event] = []
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], int] = {}
        self._names: dict[str, tuple[int, int]] = {}
        self._expected: dict[str, int] = {}
        self._total = self._bytes = 0
        self.dropped = 0
        """The number of events that were not admitted."""

    def expect(self, neighbor: str, ticket: int) -> None:
        """Admit the reply to the query with this ticket, and to no earlier one to this neighbor."""
        with self._lock:
            self._expected[neighbor] = ticket

    def put(self, event: Event) -> None:
        """Admit an event if there is room for it; can be called from any thread."""
        with self._lock:
            if isinstance(event, Arrival):
                self._admit(event)
            elif isinstance(event, Presence):
                self._append(event)
            else:
                self._append_bounded(("", 0), event, self._room.requests)

    def _admit(self, arrival: Arrival) -> None:
        prefix = read_prefix(arrival.data)
        if prefix is None or not prefix.is_reply:  # what is no frame at all is looked at, so that it can be told
            self._append_bounded((arrival.sender, 0 if prefix is None else prefix.token), arrival, self._room.of_process)
        elif self._expected.get(arrival.sender) == prefix.ticket:
            del self._expected[arrival.sender]
            self._append(arrival)
        else:
            self.dropped += 1

    def _append_bounded(self, sender: tuple[str, int], event: Event, limit: int) -> None:
        size = len(event.data) if isinstance(event, Arrival) else 0
        waiting, (of_name, bytes_of_name) = self._waiting.get(sender, 0), self._names.get(sender[0], (0, 0))
        room = self._room
        is_full = waiting >= limit or self._total >= room.events or of_name >= room.of_name
        if is_full or self._bytes + size > room.bytes or bytes_of_name + size > room.bytes_of_name:
            self.dropped += 1
            if isinstance(event, Request):
                event.refuse(BUSY)
            return
        self._waiting[sender] = waiting + 1
        self._names[sender[0]] = of_name + 1, bytes_of_name + size
        self._total += 1
        self._bytes += size
        self._append(event)

    def _append(self, event: Event) -> None:
        self._events.append(event)
        self._bell.put(None)

    def __len__(self) -> int:
        """The number of waiting events."""
        return len(self._events)

    def take(self, seconds: float) -> list[Event]:
        """Everything that has arrived; if nothing has, waits up to this long for the first event."""
        if seconds > 0:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=seconds)
        with self._lock:
            taken, self._events = self._events, []
            self._waiting.clear()
            self._names.clear()
            self._total = self._bytes = 0
            while not self._bell.empty():
                self._bell.get()
        return taken
