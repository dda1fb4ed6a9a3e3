"""Moving bytes over zenoh, peer to peer: every neighbor by its address, no broker, no discovery.

    kernelmesh/MESH/AGENT/from/SENDER   what a neighbor says to AGENT
    kernelmesh/MESH/AGENT/predict       a prediction, for permitted clients
    kernelmesh/MESH/AGENT/status        how the agent is doing

The sender's name is part of the key, so that access rules by certificate keep anybody from using another's name.

Neighbors publish to each other instead of using zenoh's queries: a query is three messages with bookkeeping at both ends, a
publication is one. Clients, who come seldom, do use queries.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.zenoh.session import open_peer

if TYPE_CHECKING:
    import zenoh

__all__ = ["ZenohCarrier"]


class ZenohCarrier:
    """One zenoh session for one agent. Callbacks only put what arrives into the mailbox; they run in zenoh's threads.

    `feeds` has the keys that sensors publish to, and what is to be called with each publication.
    """

    def __init__(self, membership: Membership, *, feeds: Mapping[str, Callable[[bytes], None]] | None = None) -> None:
        self._membership, self._feeds = membership, dict(feeds or {})
        self._publishers: dict[str, zenoh.Publisher] = {}
        self._declared: list[Any] = []
        self._mailbox: Mailbox | None = None
        self.session: zenoh.Session = open_peer(membership, feeds=tuple(self._feeds))

    def open(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._open(self._membership.neighbors, mailbox)

    def exclude(self, names: Collection[str]) -> None:
        """Close all connections and listen again, with rules that have no place for these names.

        Zenoh can neither close a single connection nor change its rules while it runs. The others reconnect by themselves
        within about a second. Without TLS there are no rules: then these names are only not subscribed to.
        """
        membership = self._membership
        neighbors = {name: address for name, address in membership.neighbors.items() if name not in names}
        tls = membership.tls
        if tls is not None:
            tls = replace(tls, clients=tuple(name for name in tls.clients if name not in names))
        self.close()
        self._publishers, self._declared = {}, []
        self.session = self._reopened(replace(membership, neighbors=neighbors, tls=tls))
        if self._mailbox is not None:
            for name in membership.neighbors:
                self._mailbox.put(Presence(name, False))
            self._open(neighbors, self._mailbox)

    def _reopened(self, membership: Membership) -> zenoh.Session:
        """A new session at the address of the one before, which may take a moment to become free."""
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                return open_peer(membership, feeds=tuple(self._feeds))
            time.sleep(0.1)
        return open_peer(membership, feeds=tuple(self._feeds))

    def _open(self, neighbors: Collection[str], mailbox: Mailbox) -> None:
        import zenoh

        try:
            self._declare(neighbors, mailbox)
        except zenoh.ZError as error:
            self.session.close()
            raise ValueError(f"zenoh: cannot declare the agent's keys: {error}") from None

    def _declare(self, neighbors: Collection[str], mailbox: Mailbox) -> None:
        from zenoh import CongestionControl
        from zenoh.handlers import Callback

        session, mesh, own = self.session, f"kernelmesh/{self._membership.mesh}", self._membership.name
        # in lock step, a lost message would stop all agents until it is noticed; otherwise, no agent may block us
        congestion = CongestionControl.BLOCK if self._membership.lock_step else CongestionControl.DROP
        for name in neighbors:
            publisher = session.declare_publisher(f"{mesh}/{name}/from/{own}", congestion_control=congestion)
            self._publishers[name] = publisher
            arrived = Callback(partial(self._arrived, mailbox, name), indirect=False)
            self._declared.append(session.declare_subscriber(f"{mesh}/{own}/from/{name}", arrived))
            matched = Callback(partial(self._matched, mailbox, name), indirect=False)
            self._declared.append(publisher.declare_matching_listener(matched))
        for kind in ("predict", "status"):
            asked = Callback(partial(self._requested, mailbox, kind), indirect=False)
            self._declared.append(session.declare_queryable(f"{mesh}/{own}/{kind}", asked))
        for key, feed in self._feeds.items():
            fed = Callback(partial(self._fed, feed), indirect=False)
            self._declared.append(session.declare_subscriber(key, fed))

    def send(self, neighbor: str, data: bytes) -> None:
        if (publisher := self._publishers.get(neighbor)) is not None:  # none for one that is excluded
            publisher.put(data)

    def close(self) -> None:
        import zenoh

        # on a host that is busy or under attack it may not get done in its time; the process ends anyway
        with contextlib.suppress(zenoh.ZError):
            self.session.close()

    # in zenoh's threads: as little as possible, for they keep the agent from computing

    @staticmethod
    def _matched(mailbox: Mailbox, name: str, status: Any) -> None:
        mailbox.put(Presence(name, bool(status.matching)))

    @staticmethod
    def _arrived(mailbox: Mailbox, name: str, sample: zenoh.Sample) -> None:
        mailbox.put(Arrival(name, bytes(sample.payload)))

    @staticmethod
    def _requested(mailbox: Mailbox, kind: str, query: zenoh.Query) -> None:
        def answer(payload: bytes) -> None:
            query.reply(query.key_expr, payload)
            query.drop()

        def refuse(reason: str) -> None:
            query.reply_err(reason)
            query.drop()

        mailbox.put(Request(kind, b"" if query.payload is None else bytes(query.payload), answer, refuse))

    def _fed(self, feed: Callable[[bytes], None], sample: zenoh.Sample) -> None:
        if len(sample.payload) <= self._membership.max_bytes:
            feed(bytes(sample.payload))
