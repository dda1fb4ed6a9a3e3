"""What goes into a node and comes out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernelmesh.agent import Info, State
from kernelmesh.consensus import Heard
from kernelmesh.messages import Message
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.streams import Batch

__all__ = ["Action", "Entry", "GiveUp", "Previous", "Send", "Stepped", "Traffic", "Turn"]


class Traffic(NamedTuple):
    """What was sent since the beginning, restarts included."""

    floats: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Turn:
    """What is there to see after a step of one agent.

    Attributes
    ----------
    number : int
        Steps so far, from 1.
    state : State
        The state after the step.
    info : Info
        What the step reported.
    traffic : Traffic
        What was sent since the beginning, restarts included.
    """

    number: int
    state: State
    info: Info
    traffic: Traffic


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """The input of one step: whoever has the state before it and this has the state after it, bit for bit."""

    step: int
    """The number of the step, from 1."""
    batch: Batch
    """Empty for a step without samples."""
    position: Mapping[str, Any] | None
    """Where the stream stands after this mini-batch; None for a step without samples."""
    heard: Sequence[Heard]
    traffic: Traffic


@dataclass(frozen=True, eq=False, kw_only=True)
class Previous:
    """What neighbors that are one exchange behind may still ask for, in lock step."""

    function: Expansion
    question: Message | None = None
    told: Mapping[str, Message] = field(default_factory=dict)


class Send(NamedTuple):
    """Bytes for a neighbor; `ticket` is that of a question, to which a reply is expected, and 0 for a reply."""

    neighbor: str
    data: bytes
    ticket: int


class GiveUp(NamedTuple):
    """A question to which no reply is expected any more."""

    ticket: int


class Stepped(NamedTuple):
    """The agent has taken a step. The entry must be on record before anything that follows is sent.

    `turn` is None for a step without samples.
    """

    turn: Turn | None
    entry: Entry


Action = Send | GiveUp | Stepped
