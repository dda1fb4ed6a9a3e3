"""The interfaces of streams and sources."""

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
    """The samples of one agent, as an iterable of mini-batches.

    The interface for simulation: anything that can be iterated over and yields a `Batch`, or a pair of points
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
    """The samples of a running agent, taken in mini-batches as they arrive, with a position to resume from.

    The interface for agents on hosts.

    Attributes
    ----------
    ended : bool
        Whether `take` will never return a mini-batch again.
    refused : int
        The number of invalid rows that were dropped.
    position : mapping of str to Any
        Where the next mini-batch begins, in JSON form, for `seek`.
    pending : Batch or None
        Samples waiting for a mini-batch to fill up that could not be read again; None if all can be.

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
        """The number of invalid rows that were dropped."""

    @property
    def position(self) -> Mapping[str, Any]:
        """Where the next mini-batch begins, in JSON form, for `seek`."""

    @property
    def pending(self) -> Batch | None:
        """Samples waiting for a mini-batch to fill up that could not be read again; None if all can be."""

    def take(self) -> Batch | None:
        """Return the next mini-batch without waiting; None if there is none yet, or no more."""

    def give_back(self) -> None:
        """Give back the latest mini-batch, so that `take` returns it again. Repeated calls have no effect."""

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        """Resume from where an earlier run stopped."""

    def close(self) -> None:
        """Release files and threads."""


@runtime_checkable
class StreamKind(Protocol):
    """The settings of one kind of stream: a frozen dataclass whose fields are declared with `kernelmesh.schema.setting`.

    A kind derives from this class and is registered with `register("stream", …, name=…)`; `kind = NAME` in the [stream] table
    of an agent's file then selects it, and its fields are further keys of that table.
    """

    rereadable: ClassVar[bool] = False
    """Whether its first rows can be previewed without consuming them."""

    @property
    def subscription(self) -> str | None:
        """The zenoh key whose publications go to the source's `publish` method; None if the source reads its own input."""
        return None

    def open(self, columns: Columns, *, batch_size: int) -> Source:
        """Open the source."""
