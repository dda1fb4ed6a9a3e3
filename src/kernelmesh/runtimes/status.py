"""How an agent on a network is doing, as it tells whoever asks."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kernelmesh.errors import RefusedMessage

__all__ = ["NeighborStatus", "Status"]


class NeighborStatus(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent knows of one neighbor."""

    alive: bool
    """Whether it has given a sign of life within the last seconds."""
    ended: bool
    """Whether its stream has ended."""
    ignored: bool
    """Whether it is not listened to at the moment, because too much of what it sent was refused."""
    refused: int
    """Messages from it that were refused."""
    left_out: int = 0
    """Messages from it that were not used because all neighbors together sent too many points for one step."""
    disbelieved: int = 0
    """Messages from it that screening left out of a step of this process, because they made no sense on its own samples."""
    clipped: int = 0
    """Messages from it that screening cut down before they were used."""
    doubt: str = ""
    """What screening found in it last: why, and by how much."""
    quarantined: bool = False
    """Whether the operator has had it excluded."""


class Status(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an agent is doing.

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
    """Learned from so far, over all restarts."""
    steps: int
    """Taken so far, over all restarts."""
    steps_here: int
    """Taken by this process."""
    seconds: float
    """Since this process started."""
    order: int
    """Points in the dictionary."""
    bytes_sent: int
    floats_sent: int
    loss: float | None = None
    """On its own mini-batches before each step, averaged over about the last twenty."""
    disagreement: float | None = None
    """With what its neighbors said in its newest step."""
    neighbors: dict[str, NeighborStatus] = {}
    waiting_for: tuple[str, ...] = ()
    """The neighbors without whom a round in lock step cannot go on."""
    out_of_step: tuple[str, ...] = ()
    """The neighbors with whom lock step is impossible because one was set back."""
    refused: int = 0
    """Messages refused so far, whoever sent them."""
    bad_rows: int = 0
    """Rows of the stream that could not be used."""
    ended: bool = False
    """Whether its stream has ended."""
    replayed: int = 0
    """Samples learned from once more while the stream had ended or paused, over all restarts."""
    replaying: bool = False
    """Whether it does so at the moment."""
    checkpoint: int | None = None
    """The step of its newest checkpoint."""
    recoveries: int = 0
    """How often this process went back to an earlier function because its own was absurd."""
    expires: float | None = None
    """Days until its certificate, or that of the authority, expires; None without TLS."""
    trouble: str = ""
    """Why it cannot write checkpoints; empty while it can."""

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
