"""Carrying questions and answers over zenoh, peer to peer: every neighbour by its address, no broker, no discovery.

    kernelmesh/MESH/AGENT/from/ASKER   a neighbour's question, answered by AGENT
    kernelmesh/MESH/AGENT/predict      a prediction, for whoever may ask
    kernelmesh/MESH/AGENT/status       how the agent is doing

The asker's name is part of the key, so that access rules by certificate keep anybody from using another's name.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from kernelmesh.messages import Refused
from kernelmesh.runtimes.carrier import Answer, Event, Note, Offence, Question, Request
from kernelmesh.runtimes.place import Place
from kernelmesh.runtimes.zenoh.session import open_peer

if TYPE_CHECKING:
    import zenoh

__all__ = ["ZenohCarrier"]

# How much may wait to be looked at: in all, and of one sender. Honest neighbours have one question out at a time.
_MOST_WAITING, _MOST_OF_ONE = 512, 4


class ZenohCarrier:
    """One zenoh session for one agent. Callbacks only put events into a queue; they run in zenoh's threads."""

    def __init__(self, place: Place, *, feeds: dict[str, Any] | None = None) -> None:
        import zenoh
        from zenoh import CongestionControl
        from zenoh.handlers import Callback

        # in lock step a lost message would stop everybody until it is missed; otherwise nobody may stop us
        self._congestion = CongestionControl.BLOCK if place.lock_step else CongestionControl.DROP
        self._place, self._callback = place, Callback
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waiting: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._queriers: dict[tuple[str, float], zenoh.Querier] = {}
        self.session: zenoh.Session = open_peer(place, feeds=tuple(feeds or ()))
        root = f"kernelmesh/{place.mesh}/{place.name}"
        self._sent_from = f"from/{place.name}"
        self._root = f"kernelmesh/{place.mesh}"
        try:
            self._declare(root, feeds or {})
        except zenoh.ZError as error:
            self.session.close()
            raise ValueError(f"zenoh: cannot declare the agent's keys: {error}") from None

    def _declare(self, root: str, feeds: dict[str, Any]) -> None:
        callback = self._callback
        self._kept = [
            self.session.declare_queryable(f"{root}/from/*", callback(self._asked, indirect=False)),
            *(
                self.session.declare_queryable(f"{root}/{kind}", callback(self._requested(kind), indirect=False))
                for kind in ("predict", "status")
            ),
            *(
                self.session.declare_subscriber(key, callback(self._fed(feed), indirect=False))
                for key, feed in feeds.items()
            ),
        ]

    def ask(self, neighbour: str, ticket: int, note: Note, payload: bytes, *, timeout: float) -> None:
        """Send a question; what comes back, or that nothing does, is put into the queue."""
        found: list[Event] = []

        def answered(reply: zenoh.Reply) -> None:
            sample = reply.ok
            if sample is None or found:
                return
            event: Event
            try:
                if len(sample.payload) > self._place.most_bytes:
                    raise Refused(f"answer: must be at most {self._place.most_bytes} bytes, got {len(sample.payload)}")
                told = Note.decode(b"" if sample.attachment is None else bytes(sample.attachment))
                event = Answer(neighbour, ticket, told, bytes(sample.payload))
            except Refused as error:
                event = Offence(neighbour, 0, str(error))
                self._events.put(event)
                event = Answer(neighbour, ticket)
            found.append(event)
            self._events.put(event)

        def over() -> None:
            if not found:
                self._events.put(Answer(neighbour, ticket))

        querier = self._queriers.get((neighbour, timeout))
        if querier is None:
            querier = self._queriers[neighbour, timeout] = self.session.declare_querier(
                f"{self._root}/{neighbour}/{self._sent_from}", timeout=timeout, congestion_control=self._congestion
            )
        querier.get(self._callback(answered, over, indirect=False), payload=payload, attachment=note.encode())

    def wait(self, seconds: float) -> Event | None:
        try:
            event = self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(event, Question):
            self._served(event.sender, event.note.token)
        elif isinstance(event, Request):
            self._served("", 0)
        elif isinstance(event, Offence):
            self._served("", 1)
        return event

    def close(self) -> None:
        self.session.close()

    def _asked(self, query: zenoh.Query) -> None:
        sender = str(query.key_expr).rpartition("/")[2]
        payload, attachment, token = query.payload, query.attachment, 0
        size = 0 if payload is None else len(payload)
        try:
            note = Note.decode(b"" if attachment is None else bytes(attachment))
            token = note.token
            if sender not in self._place.neighbours:
                raise Refused("question: must come from a neighbour")
            if size > self._place.most_bytes:
                raise Refused(f"question: must be at most {self._place.most_bytes} bytes, got {size}")
        except Refused as error:
            if self._admit("", 1):
                self._events.put(Offence(sender, token, str(error)))
            return
        if not self._admit(sender, token):
            return

        def answer(told: Note, payload: bytes) -> None:
            query.reply(query.key_expr, payload, attachment=told.encode())
            query.drop()

        self._events.put(Question(sender, note, b"" if payload is None else bytes(payload), answer))

    def _requested(self, kind: str) -> Any:
        def requested(query: zenoh.Query) -> None:
            size = 0 if query.payload is None else len(query.payload)
            if size > self._place.most_bytes:
                query.reply_err(f"request: must be at most {self._place.most_bytes} bytes, got {size}")
                return
            if not self._admit("", 0):
                return

            def answer(payload: bytes) -> None:
                query.reply(query.key_expr, payload)
                query.drop()

            def refuse(reason: str) -> None:
                query.reply_err(reason)
                query.drop()

            self._events.put(Request(kind, b"" if query.payload is None else bytes(query.payload), answer, refuse))

        return requested

    def _fed(self, feed: Any) -> Any:
        def fed(sample: zenoh.Sample) -> None:
            if len(sample.payload) <= self._place.most_bytes:
                feed(bytes(sample.payload))

        return fed

    def _admit(self, sender: str, token: int) -> bool:
        """Whether one more of this sender may wait: a flood must neither fill the memory nor drown honest neighbours."""
        with self._lock:
            most = 16 if sender == "" else _MOST_OF_ONE
            if self._waiting[sender, token] >= most or self._waiting.total() >= _MOST_WAITING:
                return False
            self._waiting[sender, token] += 1
            return True

    def _served(self, sender: str, token: int) -> None:
        with self._lock:
            self._waiting[sender, token] -= 1
            if self._waiting[sender, token] <= 0:
                del self._waiting[sender, token]
