"""The options `--engine`, `--workers` and `--address`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernelmesh import InvalidArgument
from kernelmesh.cli.base import reported

if TYPE_CHECKING:
    from kernelmesh.runtimes.engines import Engine
    from kernelmesh_experiments.cells import Pool

__all__ = ["chosen_engine", "chosen_pool"]

# Each engine with the options that it has.
_ENGINES = {"simulation": (), "processes": ("--workers",), "ray": ("--workers", "--address")}


def _check(command: str, engine: str, **options: Any) -> None:
    from kernelmesh_experiments.settings import one_of

    one_of(*list(_ENGINES)[command == "sweep" :])(command, "--engine", engine)  # a sweep has workers of its own
    for name, value in options.items():
        if value is not None and f"--{name}" not in _ENGINES[engine]:
            raise InvalidArgument(command, f"--{name}", f"be omitted with --engine {engine}", value)


@contextlib.contextmanager
def chosen_engine(command: str, engine: str, workers: int | None, address: str | None) -> Iterator[Engine | None]:
    """The engine of a run; None for simulation in this process."""
    with reported(command):
        _check(command, engine, workers=workers, address=address)
        found: contextlib.AbstractContextManager[Engine | None] = contextlib.nullcontext()
        if engine == "processes":
            from kernelmesh.runtimes.engines import Processes

            found = Processes(workers)
        elif engine == "ray":
            from kernelmesh.runtimes.ray import RayEngine

            found = RayEngine(workers, address=address)
    with found as opened:
        yield opened


def chosen_pool(command: str, engine: str, address: str | None) -> Pool | None:
    """The worker pool of a sweep; None for processes on this machine."""
    _check(command, engine, address=address)
    if engine != "ray":
        return None
    from kernelmesh.runtimes.ray.pool import ray_pool

    return ray_pool(address)
