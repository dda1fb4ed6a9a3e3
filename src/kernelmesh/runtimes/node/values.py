"""The inputs and outputs of a node."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from kernelmesh.agent import Info, State
from kernelmesh.protocols import Heard
from kernelmesh.streams import Batch

__all__ = ["Action", "Entry", "Recover", "Send", "Stepped", "Traffic", "Turn"]


class Traffic(NamedTuple):
    """What was sent since the beginning, including restarts."""

    floats: int = 0
    bytes: int = 0


class Turn(Struct, frozen=True, eq=False, kw_only=True):
    """The result of one step of one agent.

    Attributes
    ----------
    number : int
        Steps so far, from 1.
    state : State
        The state after the step.
    info : Info
        What the step reported.
    traffic : Traffic
        What was sent since the beginning, including restarts.
    """

    number: int
    state: State
    info: Info
    traffic: Traffic


class Entry(Struct, frozen=True, eq=False, kw_only=True):
    """The input of one step; together with the state before it, it determines the state after it, bit for bit."""

    step: int
    """The number of the step, from 1."""
    batch: Batch
    """Empty for a step without samples."""
    position: Mapping[str, Any] | None
    """The position in the stream after this mini-batch; None for a step without samples."""
    heard: Sequence[Heard]
    traffic: Traffic


class Send(Struct, frozen=True):
    """Bytes for a neighbor; `ticket` is that of a question, to which a reply is expected, and 0 for anything else."""

    neighbor: str
    data: bytes
    ticket: int = 0


class Stepped(Struct, frozen=True):
    """The agent has taken a step. The entry must be on record before anything that follows is sent.

    `turn` is None for a step without samples.
    """

    turn: Turn | None
    entry: Entry


class Recover(Struct, frozen=True):
    """The agent's own function is absurd: it should continue from an earlier one."""

    reason: str
    good: int
    """The newest step whose state can have been good."""
    error: Exception | None = None
    """Why no step can be taken; None: steps can be taken and lead nowhere."""


Action = Send | Stepped | Recover
