"""The role that every stream plays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kernelmesh.checks import Floats

__all__ = ["Batch", "Stream"]


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
