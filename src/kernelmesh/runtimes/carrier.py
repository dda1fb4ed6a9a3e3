"""The role of whatever carries messages between processes: questions go out, answers come back, both as bytes.

A carrier runs in threads of its own and puts what arrives into one queue; whoever owns the queue does the rest in one thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kernelmesh.errors import RefusedMessage

__all__ = ["NOTE_BYTES", "TOKEN_AT", "Ahead", "Answer", "Carrier", "Event", "Note", "Offence", "Question", "Request"]

_LAYOUT = struct.Struct(">4sBQQQdQQd")
NOTE_BYTES = _LAYOUT.size
TOKEN_AT = slice(13, 21)
"""Where the token stands in a note, for those who must not read all of it yet."""
_MAGIC = b"kmn2"
_MOST = 1 << 62  # so that counting on never leaves 64 bits


class Note(NamedTuple):
    """What travels beside a message and is not counted as part of it."""

    step: int
    """The step that the sender is about to take."""
    token: int
    """Drawn anew by every process: tells a restarted agent, or an impostor, from the one before."""
    share: float = 0.0
    """1 / (1 + the sender's degree)."""
    epoch: int = 0
    """Of what the sender remembers of this edge; see `consensus.Edge`."""
    done: int = 0
    age: float = 0.0
    """Seconds since anybody in the network is known to have learned something."""
    ended: bool = False
    """Whether the sender's stream has ended."""
    whole: bool = False
    """Whether the sender can only read whole functions, because it has nothing that a difference could build on."""
    ping: bool = False
    """Whether only the note of the other end is wanted."""
    model: int = 0
    """A digest of what both ends must have in common, such as the kernel; 0: not told."""

    def ahead(self, *, whole: bool) -> Note:
        """The note of a question about the next step that goes behind an answer with this one."""
        return Note(
            self.step + 1, self.token, self.share, self.epoch, self.done, self.age, self.ended, whole, False, self.model
        )

    def encode(self) -> bytes:
        """As bytes, always equally many."""
        flags = self.ended | self.whole << 1 | self.ping << 2
        return _LAYOUT.pack(
            _MAGIC, flags, self.step, self.token, self.model, self.share, self.epoch, self.done, self.age
        )

    @classmethod
    def decode(cls, data: bytes) -> Note:
        """Read a note, or raise `RefusedMessage`.

        >>> Note.decode(Note(step=3, token=7, share=0.5, ended=True).encode()).ended
        True
        """
        if len(data) != _LAYOUT.size or data[:4] != _MAGIC:
            raise RefusedMessage(f"note: must be {_LAYOUT.size} bytes of this version, got {len(data)}")
        _, flags, step, token, model, share, epoch, done, age = _LAYOUT.unpack(data)
        if flags > 7 or max(step, epoch, done) >= _MOST or not 0.0 <= share <= 1.0 or not age >= 0.0:
            rule = "counts below 2^62, a share from 0 to 1 and an age >= 0"
            raise RefusedMessage(f"note: must hold {rule}, got {step}, {share}, {age}")
        return cls(step, token, share, epoch, done, age, bool(flags & 1), bool(flags & 2), bool(flags & 4), model)


class Ahead(NamedTuple):
    """A question of ours about the step after the one that an answer is about, to go behind it.

    What its note would say is in the note of the answer, except for `whole`.
    """

    ticket: int
    payload: bytes
    whole: bool
    timeout: float


class Question(NamedTuple):
    """A neighbor, or somebody who uses its name, wants to know something."""

    sender: str
    note: Note
    payload: bytes
    answer: Callable[[Note, bytes, Ahead | None], None]
    """Sends the answer; may be called later, or never."""


class Answer(NamedTuple):
    """What came back to a question of ours; nothing if nobody answered in time."""

    neighbor: str
    ticket: int
    note: Note | None = None
    payload: bytes | None = None
    behind: Question | None = None
    """The neighbor's question about the next step, if it was sent along."""


class Request(NamedTuple):
    """Somebody asks for a prediction or how the agent is doing."""

    kind: str
    payload: bytes
    answer: Callable[[bytes], None]
    refuse: Callable[[str], None]


class Offence(NamedTuple):
    """Something arrived that was refused before it could become a question or an answer."""

    sender: str
    token: int
    reason: str


Event = Question | Answer | Request | Offence


class Carrier(Protocol):
    """Moves bytes between this agent and its neighbors."""

    def ask(self, neighbor: str, ticket: int, note: Note, payload: bytes, *, timeout: float) -> None:
        """Send a question; an `Answer` with this ticket will be in the queue in the end."""
        ...

    def wait(self, seconds: float, *, answers: int = 1) -> Event | None:
        """The next event, or None when there is none for so long.

        Whoever needs several answers to go on says so: being woken for each of them costs more than most of what is done.
        """
        ...

    def close(self) -> None:
        """Stop carrying."""
        ...
