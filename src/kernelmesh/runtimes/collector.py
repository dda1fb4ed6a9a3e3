"""Pauses Python's cyclic garbage collector, which finds nothing in a round and takes a tenth of the time of large ones."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused"]


@contextmanager
def paused() -> Iterator[None]:
    """Pause the collector; objects without cycles are freed as usual, and the collector's state is restored afterwards.

    It is triggered by allocations, scans all live objects, and finds none to free: states and messages refer to
    each other in one direction only.

    >>> with paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
