"""The role of whatever moves bytes between agents. It knows nothing of what they mean."""

from collections.abc import Collection
from typing import Protocol

from kernelmesh.runtimes.mailbox import Mailbox

__all__ = ["Carrier"]


class Carrier(Protocol):
    """Moves bytes between one agent and its neighbors.

    What arrives goes into the mailbox that `open` was given, from any thread: an `Arrival` under the sender's name, a
    `Presence` when a neighbor begins or ceases to listen, a `Request` of a client. Bytes arrive as they were sent or not at
    all; they may be lost, doubled and overtake each other.
    """

    def open(self, mailbox: Mailbox) -> None:
        """Begin to carry."""

    def send(self, neighbor: str, data: bytes) -> None:
        """Send bytes to a neighbor, without waiting for it."""

    def exclude(self, names: Collection[str]) -> None:
        """Close the connections of these names, of neighbors or clients, and carry nothing for them; all others again."""

    def close(self) -> None:
        """Cease to carry."""
