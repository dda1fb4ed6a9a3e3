"""Carrying questions and answers over zenoh, peer to peer: every neighbor by its address, no broker, no discovery.

    kernelmesh/MESH/AGENT/from/ASKER     a neighbor's question to AGENT
    kernelmesh/MESH/ASKER/answer/AGENT   what AGENT answers, with its own next question behind it in lock step
    kernelmesh/MESH/AGENT/predict        a prediction, for whoever may ask
    kernelmesh/MESH/AGENT/status         how the agent is doing

The sender's name is part of the key, so that access rules by certificate keep anybody from using another's name.

Neighbors publish to each other instead of using zenoh's queries: a query is three messages with bookkeeping at both ends, a
publication is one, and what a query would add (that nobody is there, that time is up) is little to do here. Clients, who come
seldom, do use queries.
"""

from __future__ import annotations

import contextlib
import math
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelmesh.errors import RefusedMessage
from kernelmesh.runtimes.carrier import NOTE_BYTES, TOKEN_AT, Ahead, Answer, Event, Note, Offence, Question, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.zenoh.session import open_peer

if TYPE_CHECKING:
    import zenoh

__all__ = ["ZenohCarrier"]

_Sender = tuple[str, bytes]

# How much may wait to be looked at: in all, and of one sender. Honest neighbors have two messages under way at a time.
_MOST_WAITING, _MOST_OF_ONE = 512, 4
_CLIENTS, _MOST_OF_CLIENTS = ("", b""), 16

# Beside a message go its ticket and its note; beside an answer with a question behind it also the question's ticket, where
# it begins, and whether it wants a whole function.
_TICKET = struct.Struct(">Q")
_BEHIND = struct.Struct(">QQ?")
_NOTE = slice(_TICKET.size, _TICKET.size + NOTE_BYTES)
_TOKEN = slice(_TICKET.size + TOKEN_AT.start, _TICKET.size + TOKEN_AT.stop)


@dataclass(eq=False, slots=True)
class _Other:
    """One neighbor and the way to it."""

    name: str
    questions: zenoh.Publisher
    answers: zenoh.Publisher
    there: bool = False
    """Whether it listens to our questions."""
    out: dict[int, float] = field(default_factory=dict)
    """The tickets of questions that are out, and when they are given up. Zenoh's thread takes out what is answered."""


class ZenohCarrier:
    """One zenoh session for one agent. Callbacks only put what arrives into a queue; they run in zenoh's threads."""

    def __init__(self, place: Membership, *, feeds: dict[str, Any] | None = None) -> None:
        import zenoh

        self._place = place
        self._arrived: queue.SimpleQueue[Callable[[], Event | None]] = queue.SimpleQueue()
        self._answers: deque[Callable[[], Event | None]] = deque()
        self._needed = 1
        self._due = math.inf  # no question is given up before
        self._waiting: dict[_Sender, int] = {}
        self._total = 0
        self._lock = threading.Lock()
        self._others: dict[str, _Other] = {}
        self.session: zenoh.Session = open_peer(place, feeds=tuple(feeds or ()))
        try:
            self._declare(feeds or {})
        except zenoh.ZError as error:
            self.session.close()
            raise ValueError(f"zenoh: cannot declare the agent's keys: {error}") from None

    def _declare(self, feeds: dict[str, Any]) -> None:
        from zenoh import CongestionControl
        from zenoh.handlers import Callback

        session, mesh, own = self.session, f"kernelmesh/{self._place.mesh}", self._place.name
        # in lock step a lost message would stop everybody until it is missed; otherwise nobody may stop us
        congestion = CongestionControl.BLOCK if self._place.lock_step else CongestionControl.DROP
        kept: list[Any] = []
        for name in self._place.neighbors:
            questions, answers = (
                session.declare_publisher(f"{mesh}/{name}/{kind}/{own}", congestion_control=congestion)
                for kind in ("from", "answer")
            )
            other = self._others[name] = _Other(name, questions, answers)
            for kind, heard in (("from", self._asked), ("answer", self._answered)):
                called = Callback(partial(heard, other), indirect=False)
                kept.append(session.declare_subscriber(f"{mesh}/{own}/{kind}/{name}", called))
            kept.append(questions.declare_matching_listener(Callback(partial(self._matched, other), indirect=False)))
        for kind in ("predict", "status"):
            called = Callback(partial(self._requested, kind), indirect=False)
            kept.append(session.declare_queryable(f"{mesh}/{own}/{kind}", called))
        for key, feed in feeds.items():
            kept.append(session.declare_subscriber(key, Callback(partial(self._fed, feed), indirect=False)))
        self._kept = kept

    def ask(self, neighbor: str, ticket: int, note: Note, payload: bytes, *, timeout: float) -> None:
        """Send a question; what comes back, or that nothing does, is put into the queue."""
        other = self._others[neighbor]
        if other.there:
            self._sent(other, ticket, timeout)
            other.questions.put(payload, attachment=_TICKET.pack(ticket) + note.encode())
        else:
            self._arrived.put(partial(Answer, neighbor, ticket))

    def wait(self, seconds: float, *, answers: int = 1) -> Event | None:
        now = time.monotonic()
        if now > self._due and (overdue := self._overdue(now)) is not None:
            return overdue
        self._needed = answers  # before looking: whoever puts one there now will ring
        event = None
        while event is None:
            if len(self._answers) >= (answers if seconds > 0 else 1):
                return self._answers.popleft()()  # nothing, if nobody had asked for it
            if seconds <= 0 and self._arrived.empty():
                return None
            try:
                event = self._arrived.get(timeout=max(now + seconds - time.monotonic(), 0.0))()
            except queue.Empty:
                return self._answers.popleft()() if self._answers else None
        return event

    def close(self) -> None:
        import zenoh

        # on a host that is busy or under attack it may not get done in its time; the process ends anyway
        with contextlib.suppress(zenoh.ZError):
            self.session.close()

    def _sent(self, other: _Other, ticket: int, timeout: float) -> None:
        """Remember that a question is out."""
        other.out[ticket] = deadline = time.monotonic() + timeout
        self._due = min(self._due, deadline)

    def _overdue(self, now: float) -> Event | None:
        out = [(end, other, ticket) for other in self._others.values() for ticket, end in list(other.out.items())]
        for end, other, ticket in out:
            if now > end:
                return self._given_up(other, ticket)
        self._due = min((end for end, *_ in out), default=math.inf)
        return None

    def _given_up(self, other: _Other, ticket: int) -> Event | None:
        """There will be no answer, unless it is here already."""
        return None if other.out.pop(ticket, None) is None else Answer(other.name, ticket)

    # ---- in zenoh's threads: as little as possible, for they keep the agent from computing

    def _matched(self, other: _Other, status: Any) -> None:
        other.there = status.matching
        if not status.matching:
            self._arrived.put(partial(self._gone, other))

    def _asked(self, other: _Other, sample: zenoh.Sample) -> None:
        beside = b"" if sample.attachment is None else bytes(sample.attachment)
        who = (other.name, beside[_TOKEN])
        if self._admit(who, _MOST_OF_ONE):
            self._arrived.put(partial(self._question, other, who, beside, sample.payload))

    def _answered(self, other: _Other, sample: zenoh.Sample) -> None:
        beside = b"" if sample.attachment is None else bytes(sample.attachment)
        ticket = int.from_bytes(beside[: _TICKET.size], "big")
        who = None  # what is expected needs no room among the others
        if other.out.pop(ticket, None) is None:
            who = (other.name, beside[_TOKEN])
            if not self._admit(who, _MOST_OF_ONE):
                return
        self._answers.append(partial(self._answer, other, who, ticket, beside, sample.payload))
        if len(self._answers) >= self._needed:
            self._arrived.put(_ring)

    def _requested(self, kind: str, query: zenoh.Query) -> None:
        if self._admit(_CLIENTS, _MOST_OF_CLIENTS):
            self._arrived.put(partial(self._request, kind, query))

    def _fed(self, feed: Any, sample: zenoh.Sample) -> None:
        if len(sample.payload) <= self._place.max_bytes:
            feed(bytes(sample.payload))

    def _admit(self, who: _Sender, most: int) -> bool:
        """Whether one more of this sender may wait: a flood must neither fill the memory nor drown honest neighbors."""
        with self._lock:
            waiting = self._waiting.get(who, 0)
            if waiting >= most or self._total >= _MOST_WAITING:
                return False
            self._waiting[who] = waiting + 1
            self._total += 1
            return True

    # ---- in the agent's thread

    def _served(self, who: _Sender) -> None:
        with self._lock:
            left = self._waiting.pop(who) - 1
            self._total -= 1
            if left:
                self._waiting[who] = left

    def _gone(self, other: _Other) -> Event | None:
        for ticket in list(other.out):
            self._arrived.put(partial(self._given_up, other, ticket))
        return None

    def _question(self, other: _Other, who: _Sender, beside: bytes, payload: zenoh.ZBytes) -> Event:
        self._served(who)
        try:
            body = self._body("question", payload)
            note = Note.decode(beside[_TICKET.size :])
        except RefusedMessage as error:
            return Offence(other.name, int.from_bytes(who[1], "big"), str(error))
        return Question(other.name, note, body, partial(self._reply, other, beside[: _TICKET.size]))

    def _reply(self, other: _Other, ticket: bytes, note: Note, payload: bytes, ahead: Ahead | None) -> None:
        beside = ticket + note.encode()
        if ahead is not None and len(payload) + len(ahead.payload) > self._place.max_bytes:
            self.ask(other.name, ahead.ticket, note.ahead(whole=ahead.whole), ahead.payload, timeout=ahead.timeout)
        elif ahead is not None:
            self._sent(other, ahead.ticket, ahead.timeout)
            beside += _BEHIND.pack(ahead.ticket, len(payload), ahead.whole)
            payload += ahead.payload
        other.answers.put(payload, attachment=beside)

    def _answer(
        self, other: _Other, who: _Sender | None, ticket: int, beside: bytes, payload: zenoh.ZBytes
    ) -> Event | None:
        """`who` is None if we had asked; other answers come too late, or were never asked for."""
        if who is not None:
            self._served(who)
        behind = None
        try:
            body = self._body("answer", payload)
            note = Note.decode(beside[_NOTE])
            if len(beside) > _NOTE.stop:
                body, behind = self._parted(other, note, body, beside[_NOTE.stop :])
        except RefusedMessage as error:
            if who is None:
                self._arrived.put(partial(Answer, other.name, ticket))
            return Offence(other.name, int.from_bytes(beside[_TOKEN], "big"), str(error))
        return Answer(other.name, ticket, note, body, behind) if who is None else behind

    def _parted(self, other: _Other, note: Note, body: bytes, beside: bytes) -> tuple[bytes, Question]:
        """An answer, and the question behind it."""
        if len(beside) != _BEHIND.size:
            raise RefusedMessage(
                f"answer: the question behind it must be told of in {_BEHIND.size} bytes, got {len(beside)}"
            )
        _, length, whole = _BEHIND.unpack(beside)
        reply = partial(self._reply, other, beside[: _TICKET.size])
        return body[:length], Question(other.name, note.ahead(whole=whole), body[length:], reply)

    def _body(self, what: str, payload: zenoh.ZBytes) -> bytes:
        if len(payload) > self._place.max_bytes:
            raise RefusedMessage(f"{what}: must be at most {self._place.max_bytes} bytes, got {len(payload)}")
        return bytes(payload)

    def _request(self, kind: str, query: zenoh.Query) -> Event | None:
        self._served(_CLIENTS)
        try:
            body = b"" if query.payload is None else self._body("request", query.payload)
        except RefusedMessage as error:
            query.reply_err(str(error))
            query.drop()
            return None

        def answer(payload: bytes) -> None:
            query.reply(query.key_expr, payload)
            query.drop()

        def refuse(reason: str) -> None:
            query.reply_err(reason)
            query.drop()

        return Request(kind, body, answer, refuse)


def _ring() -> None:
    """Stands in the queue for answers, which have a queue of their own."""
