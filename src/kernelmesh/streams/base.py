"""The roles that streams play."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from kernelmesh.checks import Floats

if TYPE_CHECKING:
    from kernelmesh.streams.columns import Columns

__all__ = ["Batch", "Source", "Stream", "StreamKind"]


class Batch(NamedTuple):
    """A mini-batch: one point per row, and one target for each."""

    points: Floats
    targets: Any


@runtime_checkable
class Stream(Protocol):
    """Mini-batches, one after the other, for one agent.

    The role that streams of a simulation play: anything that can be iterated over and yields a `Batch`, or a pair of points
    and targets.

    Examples
    --------
    >>> from kernelmesh.streams import ArrayStream
    >>> isinstance(ArrayStream(np.zeros((4, 1)), np.zeros(4)), Stream)
    True
    """

    def __iter__(self) -> Iterator[Batch]:
        """Start from the beginning."""


@runtime_checkable
class Source(Protocol):
    """Samples as they come, for an agent that runs for days: taken in mini-batches, with a position to resume from.

    The role that streams of a running agent play.

    Attributes
    ----------
    ended : bool
        Whether `take` will never return a mini-batch again.
    refused : int
        How many invalid rows were dropped.
    position : mapping of str to Any
        Where the next mini-batch begins, as something JSON can hold: what `seek` takes.
    pending : Batch or None
        Samples that wait for a mini-batch to fill up and could not be read a second time; None where all can be.

    Examples
    --------
    >>> from kernelmesh.streams import Columns, LineSource
    >>> isinstance(LineSource(Columns(points=("x",), targets=("y",), labels=False), format="csv"), Source)
    True
    """

    @property
    def ended(self) -> bool:
        """Whether `take` will never return a mini-batch again."""

    @property
    def refused(self) -> int:
        """How many invalid rows were dropped."""

    @property
    def position(self) -> Mapping[str, Any]:
        """Where the next mini-batch begins, as something JSON can hold: what `seek` takes."""

    @property
    def pending(self) -> Batch | None:
        """Samples that wait for a mini-batch to fill up and could not be read a second time; None where all can be."""

    def take(self) -> Batch | None:
        """The next mini-batch, at once; None if there is none yet, or none any more."""

    def give_back(self) -> None:
        """The newest mini-batch was not used: `take` returns it again. Calls without a `take` in between do nothing."""

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        """Resume from where an earlier run stopped."""

    def close(self) -> None:
        """Release files and threads."""


@runtime_checkable
class StreamKind(Protocol):
    """The settings of one kind of stream: a frozen dataclass whose fields are made with `kernelmesh.schema.setting`.

    A kind derives from this role and is registered with `register("stream", …, name=…)`; `kind = NAME` in the [stream] table
    of an agent's file then selects it, and its fields are further keys of that table.
    """

    rereadable: ClassVar[bool] = False
    """Whether it can be opened to preview its first rows without taking them away from the agent."""

    @property
    def subscription(self) -> str | None:
        """The zenoh key whose publications go to the `publish` method of the source; None if the source reads by itself."""
        return None

    def open(self, columns: Columns, *, batch_size: int) -> Source:
        """Begin to read."""
