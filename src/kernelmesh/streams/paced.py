"""A rate limit for sources, to replay recordings in real time."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from kernelmesh.checks import positive
from kernelmesh.streams.base import Batch, Source

__all__ = ["Paced"]


class Paced:
    r"""Limits another source to `rate` samples per second.

    A mini-batch of n samples is followed by a pause of n / rate seconds. If one is taken late, the next may be taken
    earlier, by at most that pause, so that the rate is kept and no burst follows a silence.

    Parameters
    ----------
    source : Source
        The source of samples.
    rate : float
        Samples per second.
    clock : callable
        Returns the time in seconds.

    Examples
    --------
    >>> from kernelmesh.streams import Columns, LineSource
    >>> lines = LineSource(Columns(points=("x",), targets=("y",), labels=False), format="csv", batch_size=1)
    >>> lines.feed(b"x,y\n1,0\n2,0\n")
    >>> now = 0.0
    >>> source = Paced(lines, 2, clock=lambda: now)
    >>> source.take() is None, source.take() is None
    (False, True)
    >>> now = 0.5
    >>> source.take() is None
    False
    """

    def __init__(self, source: Source, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self.rate = positive("Paced", "rate", rate)
        self._clock = clock
        self._next = clock()
        self._before: float | None = None

    @property
    def ended(self) -> bool:
        return self.source.ended

    @property
    def refused(self) -> int:
        return self.source.refused

    @property
    def position(self) -> Mapping[str, Any]:
        return self.source.position

    @property
    def pending(self) -> Batch | None:
        return self.source.pending

    def take(self) -> Batch | None:
        now = self._clock()
        batch = None if now < self._next else self.source.take()
        if batch is not None:
            pause = len(batch.points) / self.rate
            self._before = self._next
            self._next = max(self._next, now - pause) + pause
        return batch

    def give_back(self) -> None:
        self.source.give_back()
        if self._before is not None:
            self._next, self._before = self._before, None  # a mini-batch given back needs no pause

    def seek(self, position: Mapping[str, Any], pending: Batch | None = None) -> None:
        self.source.seek(position, pending)

    def close(self) -> None:
        self.source.close()
