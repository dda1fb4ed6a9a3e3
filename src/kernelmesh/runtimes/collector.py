"""Python's collector of cyclic garbage, which has nothing to do in a round and takes a tenth of its time in large ones."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused"]


@contextmanager
def paused() -> Iterator[None]:
    """Keep the collector from running; what has no cycles is freed as ever, and it is as it was afterwards.

    It goes by how many objects were made, looks at all that are alive, and finds none to free: states and messages refer to
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
