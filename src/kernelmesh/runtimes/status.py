"""The status record of an agent on a network."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kernelmesh.errors import RefusedMessage

__all__ = ["NeighborStatus", "Status"]


class NeighborStatus(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent knows about one neighbor."""

    alive: bool
    """Whether it has shown a sign of life in the last seconds."""
    ended: bool
    """Whether its stream has ended."""
    ignored: bool
    """Whether it is currently ignored because too many of its messages were refused."""
    refused: int
    """The number of its messages that were refused."""
    left_out: int = 0
    """The number of its messages not used because all neighbors together sent too many points for one step."""
    excluded: str = ""
    """Why the sums that it sent were refused, and it is not listened to any longer; empty if it is."""
    quarantined: bool = False
    """Whether the operator has quarantined it."""


class Status(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The status of an agent.

    >>> status = Status(
    ...     name="north", mode="free", samples=64, steps=2, steps_here=2, seconds=1.5, order=7, bytes_sent=100, floats_sent=10
    ... )
    >>> Status.decode(status.encode()) == status
    True
    """

    name: str
    mode: str
    """free or lock-step."""
    samples: int
    """Samples learned from so far, over all restarts."""
    steps: int
    """Steps taken so far, over all restarts."""
    steps_here: int
    """Steps taken by this process."""
    seconds: float
    """Seconds since this process started."""
    order: int
    """Points in the dictionary."""
    bytes_sent: int
    floats_sent: int
    loss: float | None = None
    """The loss on its own mini-batches before each step, averaged over about the last twenty."""
    disagreement: float | None = None
    """The distance from its neighbors' outputs in its latest step."""
    members: int | None = None
    """The number of agents whose samples are part of the model, itself included; None if agents do not share sums."""
    others: int = 0
    """The number of samples of other agents in the model."""
    neighbors: dict[str, NeighborStatus] = {}
    waiting_for: tuple[str, ...] = ()
    """The neighbors that a round in lock step is waiting for."""
    out_of_step: tuple[str, ...] = ()
    """The neighbors with which lock step is impossible because one was restored from an older state."""
    refused: int = 0
    """Messages refused so far, from all senders."""
    bad_rows: int = 0
    """Invalid rows of the stream."""
    ended: bool = False
    """Whether its stream has ended."""
    checkpoint: int | None = None
    """The step of its latest checkpoint."""
    recoveries: int = 0
    """How often this process returned to an earlier function because its own was absurd."""
    expires: float | None = None
    """Days until its certificate, or that of the authority, expires; None without TLS."""
    trouble: str = ""
    """Why it cannot write checkpoints; empty if it can."""

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Status:
        """Read what `encode` wrote, or raise `RefusedMessage`."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RefusedMessage("status: must be one of this version", error) from None
