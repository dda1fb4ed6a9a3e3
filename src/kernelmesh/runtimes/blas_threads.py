"""Limits BLAS to one thread while matrices are small."""

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

__all__ = ["BlasThreads"]

# With fewer points, a second thread saves little or no time, but keeps its core busy, which slows down everything else there.
_LARGE = 200


class BlasThreads:
    """The threads of every BLAS in this process.

    Rounding can depend on their number, so all runtimes must limit them alike.

    >>> threads = BlasThreads()
    >>> with threads.limited(order=50):
    ...     max(pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info())
    1
    """

    def __init__(self) -> None:
        # SciPy's BLAS counts only once it is loaded, and steps load it when they need it
        import scipy.linalg.blas  # noqa: F401 (only to load it)

        self._controller = ThreadpoolController().select(user_api="blas")
        # agents on hosts, and workers, have one thread from the start
        self._is_limited = all(pool["num_threads"] == 1 for pool in self._controller.info())

    @contextmanager
    def limited(self, order: int) -> Iterator[None]:
        """One thread for models of this order, unless they are large; as many as before afterwards."""
        if order >= _LARGE or self._is_limited:
            yield
            return
        with self._controller.limit(limits=1):
            yield
