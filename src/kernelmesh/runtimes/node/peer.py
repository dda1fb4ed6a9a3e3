"""What a node knows of one neighbor, and the states that a neighbor can be in.

               listens            asked            waited
      ABSENT ───────────▸ IDLE ──────────▸ ASKED ──────────▸ LATE
         ▴  ◂────gone────  │▴ ◂──given up──  │  ◂─given up─┐  │
         │            heard││stepped         │heard        └──┤
  stepped│                 ▾│                ▾                │heard
      PARTED ◂──gone────  HEARD ◂───────────────◂─────────────┘
             ───listens─▸

ABSENT becomes PARTED when it is heard, ASKED and LATE become ABSENT when they are gone, and HEARD is ASKED for something
newer if it answered late. Quarantined leads from every state to EXCLUDED, released from there to IDLE.

ASKED and LATE exist only where neighbors are asked. Everything that changes a state is an event in `TRANSITIONS`, and
`Peer.on` is the only place that changes one. What is not in the table cannot happen.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmesh.messages import Message
from kernelmesh.runtimes.status import NeighborStatus

__all__ = ["ALIVE", "TRANSITIONS", "Event", "IllegalTransition", "Peer", "PeerState", "Question"]

ALIVE = 3.0
"""Seconds without a sign of life for which a neighbor still counts as there."""
_LONGEST_PAUSE = 1.0  # seconds before a neighbor is asked or waited for again; the first is shorter


class PeerState(enum.Enum):
    """What is expected of a neighbor, or known from it."""

    ABSENT = "does not listen"
    IDLE = "listens, and nothing is expected of it"
    ASKED = "has been asked, and the step waits for its answer"
    LATE = "has been asked, and the step does not wait for its answer"
    HEARD = "has said something for the step at hand"
    PARTED = "has said something for the step at hand, and does not listen"
    EXCLUDED = "is quarantined by the operator"


class Event(enum.Enum):
    """What can happen to a neighbor."""

    LISTENS = "the carrier sees that it listens"
    GONE = "the carrier sees that it does not listen"
    ASKED = "a question has been sent to it"
    WAITED = "its answer has been waited for long enough"
    HEARD = "it has said something for the step at hand"
    GIVEN_UP = "its question is over, and there is nothing from it for the step at hand"
    STEPPED = "the step that its words were for has been taken"
    QUARANTINED = "the operator has quarantined it"
    RELEASED = "the operator has released it"


# A point: this cannot happen. Who is released is asked at once, and found absent if it does not listen.
_TABLE = """
            LISTENS   GONE      ASKED  WAITED  HEARD   GIVEN_UP  STEPPED  QUARANTINED  RELEASED
  ABSENT    IDLE      ABSENT    .      .       PARTED  .         .        EXCLUDED     .
  IDLE      IDLE      ABSENT    ASKED  .       HEARD   .         .        EXCLUDED     .
  ASKED     ASKED     ABSENT    .      LATE    HEARD   IDLE      .        EXCLUDED     .
  LATE      LATE      ABSENT    .      .       HEARD   IDLE      .        EXCLUDED     .
  HEARD     HEARD     PARTED    ASKED  .       HEARD   .         IDLE     EXCLUDED     .
  PARTED    HEARD     PARTED    .      .       PARTED  .         ABSENT   EXCLUDED     .
  EXCLUDED  EXCLUDED  EXCLUDED  .      .       .       .         .        .            IDLE
"""


def _transitions(table: str) -> Mapping[PeerState, Mapping[Event, PeerState]]:
    events, *rows = (line.split() for line in table.splitlines() if line)
    return {
        PeerState[state]: {Event[event]: PeerState[name] for event, name in zip(events, names, strict=True) if name != "."}
        for state, *names in rows
    }


TRANSITIONS = _transitions(_TABLE)


class IllegalTransition(AssertionError):
    """An event that cannot happen in a state: a mistake in the node."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a neighbor has not answered yet."""

    ticket: int
    step: int
    """The step that it is about."""
    ping: bool
    """Whether only a sign of life is asked for."""
    asked_at: float
    overdue: float
    """When it is given up."""
    wait_until: float
    """How long a step waits for the answer."""


@dataclass(eq=False, slots=True)
class Peer:
    """What is known of one neighbor."""

    name: str
    state: PeerState = PeerState.ABSENT
    token: int = 0
    """The token of its process."""
    share: float = 0.0
    seen: float = -math.inf
    """When it last gave a sign of life."""
    ended: bool = False
    """Whether its stream has ended, and it has nothing more to say."""
    words: list[Message] = field(default_factory=list)
    """What it has said for the step at hand."""
    is_done: bool = False
    """Whether these were its last words."""
    left_out: int = 0
    """How often its words had to wait for another step."""
    told: float = -math.inf
    """When it was last sent anything unasked."""
    # where neighbors are asked
    question: Question | None = None
    was_asked: bool = False
    """Whether it has been asked in this round."""
    failures: int = 0
    """How often in a row it did not answer."""
    ask_again: float = 0.0
    """The earliest time to ask it again."""
    latency: float = math.inf
    """How many seconds its newest answer took; infinite if it did not answer when last asked."""
    retry_at: float = 0.0
    """The earliest time to wait for it again, after it was late."""

    def on(self, event: Event) -> None:
        """Move to the state that follows."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalTransition(f"{self.name}: {event.name} cannot happen in the state {self.state.name}")
        self.state = following

    @property
    def listens(self) -> bool:
        """Whether anything can be sent to it."""
        return self.state not in (PeerState.ABSENT, PeerState.PARTED, PeerState.EXCLUDED)

    @property
    def is_heard(self) -> bool:
        """Whether its words for the step at hand are there."""
        return self.state in (PeerState.HEARD, PeerState.PARTED)

    @property
    def is_quarantined(self) -> bool:
        """Whether the operator has quarantined it."""
        return self.state is PeerState.EXCLUDED

    def alive(self, now: float) -> bool:
        """Whether it has given a sign of life lately."""
        return now - self.seen < ALIVE

    def appeared(self) -> None:
        """It has started listening."""
        self.ask_again = self.retry_at = 0.0
        self.on(Event.LISTENS)

    def vanished(self, now: float) -> None:
        """It has stopped listening."""
        if self.question is not None:
            self.failed(now)
        self.on(Event.GONE)

    def ask(self, question: Question) -> None:
        """A question is sent to it."""
        self.question, self.was_asked = question, self.was_asked or not question.ping
        self.on(Event.ASKED)
        if question.wait_until <= question.asked_at:
            self.on(Event.WAITED)

    def answered(self, words: list[Message] | None, *, is_done: bool, now: float) -> None:
        """It has answered; None: nothing that is of use for the step at hand."""
        if self.question is not None and not self.question.ping:
            self.latency = now - self.question.asked_at
        self.question, self.failures, self.ask_again = None, 0, 0.0
        if words is None:
            self.on(Event.GIVEN_UP)
        else:
            self.words, self.is_done = words, is_done
            self.on(Event.HEARD)

    def failed(self, now: float) -> None:
        """It did not answer, or what it answered could not be used: ask again after a pause, which grows."""
        self.failures += 1
        self.ask_again = now + min(0.04 * 2.0 ** min(self.failures - 1, 10), _LONGEST_PAUSE)
        if self.question is not None and not self.question.ping:
            self.latency, self.retry_at = math.inf, now + _LONGEST_PAUSE
        self.question = None

    def was_late(self, now: float) -> None:
        """It did not answer while it was waited for."""
        self.retry_at = now + _LONGEST_PAUSE
        self.on(Event.WAITED)

    def forget(self) -> None:
        """It is not listened to any longer: drop what it said."""
        self.words, self.question, self.seen, self.ended = [], None, -math.inf, False

    def status(self, now: float, *, ignored: bool, refused: int, excluded: str) -> NeighborStatus:
        """How it is doing, with what the guard and the protocol know of it."""
        return NeighborStatus(
            alive=self.alive(now),
            ended=self.ended,
            ignored=ignored,
            refused=refused,
            left_out=self.left_out,
            excluded=excluded,
            quarantined=self.is_quarantined,
        )
