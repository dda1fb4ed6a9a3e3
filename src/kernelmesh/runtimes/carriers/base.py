"""The interface of carriers, which move bytes between agents."""

from collections.abc import Collection
from typing import Protocol

from kernelmesh.runtimes.mailbox import Mailbox

__all__ = ["Carrier"]


class Carrier(Protocol):
    """Moves bytes between one agent and its neighbors.

    Events go into the mailbox passed to `open`, from any thread: an `Arrival` under the sender's name, a
    `Presence` when a neighbor starts or stops listening, a `Request` from a client. Bytes arrive unchanged or not at
    all; they may be lost, duplicated or reordered.
    """

    def open(self, mailbox: Mailbox) -> None:
        """Connect and start carrying messages."""

    def send(self, neighbor: str, data: bytes) -> None:
        """Send bytes to a neighbor, without waiting for it."""

    def exclude(self, names: Collection[str]) -> None:
        """Close the connections of these neighbors or clients and block them; unblock all others."""

    def close(self) -> None:
        """Disconnect."""
