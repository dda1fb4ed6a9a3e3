"""Agents that are connected within one process: no network, no threads, and a clock that somebody else keeps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence

from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence

__all__ = ["MemoryCarrier", "MemoryNetwork"]


class MemoryNetwork:
    """Everything that is under way between agents in memory.

    `fate(sender, receiver, data)` says what becomes of each message, as a list of (seconds until it arrives, bytes): [] loses
    it, two entries double it. By default everything arrives at once.

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
        """When the next message arrives; None while nothing is under way."""
        return self._under_way[0][0] if self._under_way else None

    def deliver(self, now: float) -> None:
        """Let time pass, and what is due arrive."""
        self._now = now
        while self._under_way and self._under_way[0][0] <= now:
            _, _, receiver, arrival = heapq.heappop(self._under_way)
            carrier, mailbox = self._open.get(receiver, (None, None))
            if carrier is not None and mailbox is not None and arrival.sender not in carrier.excluded:
                mailbox.put(arrival)

    def attach(self, carrier: MemoryCarrier, mailbox: Mailbox) -> None:
        """A carrier begins to listen; neighbors learn of each other."""
        self._open[carrier.name] = (carrier, mailbox)
        for name in carrier.neighbors:
            if name in self._open and carrier.name in self._open[name][0].neighbors:
                mailbox.put(Presence(name, True))
                self._open[name][1].put(Presence(carrier.name, True))

    def detach(self, carrier: MemoryCarrier) -> None:
        """A carrier ceases to listen."""
        if self._open.get(carrier.name, (None, None))[0] is not carrier:
            return
        del self._open[carrier.name]
        for name in carrier.neighbors:
            if name in self._open:
                self._open[name][1].put(Presence(carrier.name, False))

    def send(self, sender: str, receiver: str, data: bytes) -> None:
        """Put bytes under way."""
        for delay, copy in self._fate(sender, receiver, data):
            entry = (self._now + delay, next(self._number), receiver, Arrival(sender, copy))
            heapq.heappush(self._under_way, entry)


class MemoryCarrier:
    """One agent's access to a network in memory."""

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
