"""The roles that streams play."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kernelmesh.checks import Floats

__all__ = ["Batch", "Source", "Stream"]


class Batch(NamedTuple):
    """A mini-batch: one point per row, and one target for each."""

    points: Floats
    targets: Any


@runtime_checkable
class Stream(Protocol):
    """Mini-batches, one after the other, for one agent."""

    def __iter__(self) -> Iterator[Batch]:
        """Start from the beginning."""
        ...


@runtime_checkable
class Source(Protocol):
    """Samples as they come, for an agent that runs for days: taken in mini-batches, with a position to go on from."""

    @property
    def ended(self) -> bool:
        """Whether `take` will never give anything again."""
        ...

    @property
    def refused(self) -> int:
        """How many rows could not be used and were left out."""
        ...

    @property
    def position(self) -> Mapping[str, Any]:
        """Where the next mini-batch begins, as something JSON can hold: what `seek` takes."""
        ...

    @property
    def pending(self) -> Batch | None:
        """Samples that wait for a mini-batch to fill up and could not be read a second time; None where all can be."""
        ...

    def take(self) -> Batch | None:
        """The next mini-batch, at once; None when there is none yet, or none any more."""
        ...

    def give_back(self) -> None:
        """The mini-batch that was handed out last has not been used and is to come again. Once more: the one before, too."""
        ...

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        """Go on from where an earlier run was."""
        ...

    def close(self) -> None:
        """Let go of files and threads."""
        ...
