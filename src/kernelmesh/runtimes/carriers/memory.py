"""A carrier within one process: no network, no threads, and an external clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence

from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence

__all__ = ["MemoryCarrier", "MemoryNetwork"]


class MemoryNetwork:
    """An in-memory network between agents.

    `fate(sender, receiver, data)` decides what happens to each message, as a list of (seconds until it arrives, bytes): []
    loses it, two entries duplicate it. By default, everything arrives immediately.

    >>> network = MemoryNetwork()
    >>> north, south, mail = network.carrier("north", ["south"]), network.carrier("south", ["north"]), Mailbox()
    >>> south.open(mail)
    >>> north.open(Mailbox())
    >>> north.send("south", b"hello")
    >>> network.deliver(0.0)
    >>> mail.take(0.0)
    [Presence(neighbor='north', there=True), Arrival(sender='north', data=b'hello')]
    """

    def __init__(self, fate: Callable[[str, str, bytes], Sequence[tuple[float, bytes]]] | None = None) -> None:
        self._fate = fate or (lambda sender, receiver, data: [(0.0, data)])
        self._open: dict[str, tuple[MemoryCarrier, Mailbox]] = {}
        self._under_way: list[tuple[float, int, str, Arrival]] = []
        self._number = itertools.count()
        self._now = 0.0

    def carrier(self, name: str, neighbors: Sequence[str]) -> MemoryCarrier:
        """One agent's access to the network."""
        return MemoryCarrier(self, name, tuple(neighbors))

    @property
    def next_delivery(self) -> float | None:
        """When the next message arrives; None if none is pending."""
        return self._under_way[0][0] if self._under_way else None

    def deliver(self, now: float) -> None:
        """Advance the time and deliver what is due."""
        self._now = now
        while self._under_way and self._under_way[0][0] <= now:
            _, _, receiver, arrival = heapq.heappop(self._under_way)
            carrier, mailbox = self._open.get(receiver, (None, None))
            if carrier is not None and mailbox is not None and arrival.sender not in carrier.excluded:
                mailbox.put(arrival)

    def attach(self, carrier: MemoryCarrier, mailbox: Mailbox) -> None:
        """A carrier starts listening; neighbors are notified of each other."""
        self._open[carrier.name] = (carrier, mailbox)
        for name in carrier.neighbors:
            if name in self._open and carrier.name in self._open[name][0].neighbors:
                mailbox.put(Presence(name, True))
                self._open[name][1].put(Presence(carrier.name, True))

    def detach(self, carrier: MemoryCarrier) -> None:
        """A carrier stops listening."""
        if self._open.get(carrier.name, (None, None))[0] is not carrier:
            return
        del self._open[carrier.name]
        for name in carrier.neighbors:
            if name in self._open:
                self._open[name][1].put(Presence(carrier.name, False))

    def send(self, sender: str, receiver: str, data: bytes) -> None:
        """Send bytes."""
        for delay, copy in self._fate(sender, receiver, data):
            entry = (self._now + delay, next(self._number), receiver, Arrival(sender, copy))
            heapq.heappush(self._under_way, entry)


class MemoryCarrier:
    """One agent's access to an in-memory network."""

    def __init__(self, network: MemoryNetwork, name: str, neighbors: tuple[str, ...]) -> None:
        self._network, self.name, self.neighbors = network, name, neighbors
        self.excluded: frozenset[str] = frozenset()

    def open(self, mailbox: Mailbox) -> None:
        self._network.attach(self, mailbox)

    def send(self, neighbor: str, data: bytes) -> None:
        if neighbor not in self.excluded:
            self._network.send(self.name, neighbor, data)

    def exclude(self, names: Collection[str]) -> None:
        self.excluded = frozenset(names)

    def close(self) -> None:
        self._network.detach(self)
