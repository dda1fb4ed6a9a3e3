"""What a node knows about one neighbor."""

import enum
import math
from dataclasses import dataclass

from kernelmesh.messages import Message

__all__ = ["ALIVE", "Peer", "Purpose"]

ALIVE = 3.0
"""Seconds without a sign of life for which a neighbor still counts as there."""
_RETRY = 1.0  # seconds for which a neighbor that was late is not waited for
_FIRST_PAUSE, _LONGEST_PAUSE = 0.04, 1.0  # seconds before a neighbor that did not answer is asked again


class Purpose(enum.Enum):
    """Why a neighbor is asked."""

    STEP = "what it says in this round"
    PING = "a sign of life"


@dataclass(eq=False, slots=True)
class Peer:
    """What is known of one neighbor."""

    name: str
    excluded: bool = False
    """Whether the operator does not want it to be listened to."""
    present: bool = False
    """Whether it listens, as far as the carrier knows."""
    ticket: int = 0
    """Of the question that is out; 0: none."""
    purpose: Purpose = Purpose.STEP
    asked_step: int = 0
    asked: bool = False
    """Whether it has been asked in this round."""
    overdue: float = 0.0
    """When the question that is out is given up."""
    asked_at: float = 0.0
    wait_until: float = 0.0
    """Until when a step waits for the answer, at most."""
    prompt: bool = True
    """Whether it answered in time when last waited for: otherwise it is not, for a while."""
    retry_at: float = 0.0
    """When to wait for it again though it was late."""
    latency: float = math.inf
    """Seconds that its newest answer took; infinite if it did not answer when last asked."""
    failures: int = 0
    ask_again: float = 0.0
    """Not to be asked before."""
    reply: Message | None = None
    """What it said for the step at hand; where functions are exchanged, the newest."""
    reply_data: bytes = b""
    """The same as it arrived."""
    replied_step: int = 0
    share: float = 0.0
    token: int = 0
    ended: bool = False
    """Whether it had no samples any more: in lock step, for the step at hand; otherwise by its newest header."""
    finished: bool = False
    """Whether its stream has ended for good."""
    seen: float = -1e9

    def alive(self, now: float) -> bool:
        """Whether it has given a sign of life lately."""
        return now - self.seen < ALIVE

    def failed(self, now: float) -> None:
        """It did not answer: ask again after a pause that grows."""
        self.ticket = 0
        self.failures += 1
        self.ask_again = now + min(_FIRST_PAUSE * 2.0 ** min(self.failures - 1, 10), _LONGEST_PAUSE)
        if self.purpose is Purpose.STEP:
            self.latency = math.inf
            self.was_late(now)

    def was_late(self, now: float) -> None:
        """It did not answer while it was waited for."""
        self.prompt, self.retry_at = False, now + _RETRY

    def answered(self, now: float) -> None:
        """It answered, and what it said could be used."""
        self.failures, self.ask_again = 0, 0.0
        if self.purpose is Purpose.STEP:
            self.latency = now - self.asked_at
