"""Small jobs as Ray tasks, behind the interface of `concurrent.futures`."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from kernelmesh.runtimes.ray.engine import _ray, connect

__all__ = ["ray_pool"]


class _Tasks(Executor):
    def __init__(self) -> None:
        ray = _ray()
        self._task = ray.remote(num_cpus=1, max_retries=0)(_call)
        self.capacity = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        """The number of jobs that can run at the same time."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        out: Future[Any] = Future()
        self._task.remote(function, arguments, options).future().add_done_callback(partial(_settle, out))
        return out


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return function(*arguments, **options)


def _settle(out: Future[Any], done: Future[Any]) -> None:
    """The same result, or the error that the job itself raised."""
    error = done.exception()
    if error is None:
        out.set_result(done.result())
    else:
        out.set_exception(getattr(error, "cause", None) or error)


def ray_pool(address: str | None) -> Callable[[int], AbstractContextManager[Executor]]:
    """A factory of executors on the cluster at an address, or on a local one; it takes the number of workers."""
    connect(address, cpus=os.cpu_count() or 1)  # a wrong address is reported at once

    @contextmanager
    def pool(workers: int) -> Iterator[Executor]:
        yield _Tasks()

    return pool
