"""The threads of numerical libraries."""

from importlib import import_module

from threadpoolctl import threadpool_limits

__all__ = ["use_one_thread"]


def use_one_thread() -> None:
    """One thread for every BLAS of this process, from now on: agents are many, and their matrices small.

    To be called once where a process starts. Rounding can depend on the number of threads: runs that must be equal bit for
    bit must have equally many. Elsewhere, set OPENBLAS_NUM_THREADS=1 before NumPy is imported.
    """
    import_module("scipy.linalg.blas")  # a limit applies only to libraries that are loaded
    threadpool_limits(1)
