"""The options `--engine`, `--workers` and `--address`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernelmesh.cli.base import reported
from kernelmesh.errors import InvalidArgument

if TYPE_CHECKING:
    from kernelmesh.experiments.cells import Pool
    from kernelmesh.runtimes.engines import Engine

__all__ = ["chosen_engine", "chosen_pool"]

_ENGINES = ("simulation", "processes", "ray")


def _check(command: str, engine: str, workers: int | None, address: str | None, allowed: tuple[str, ...]) -> None:
    from kernelmesh.schema import did_you_mean

    if engine not in allowed:
        remedy = did_you_mean(engine, allowed)
        raise InvalidArgument(command, "--engine", f"be one of {', '.join(allowed)}", engine, remedy=remedy)
    if address is not None and engine != "ray":
        raise InvalidArgument(command, "--address", "be omitted without --engine ray", address)
    if workers is not None and (engine == "simulation" or workers < 1):
        rule = "be omitted with --engine simulation, which is one process" if engine == "simulation" else "be at least 1"
        raise InvalidArgument(command, "--workers", rule, workers)


@contextlib.contextmanager
def chosen_engine(command: str, engine: str, workers: int | None, address: str | None) -> Iterator[Engine | None]:
    """The engine of a run; None for simulation in this process."""
    with reported(command):
        _check(command, engine, workers, address, _ENGINES)
        found = _opened(engine, workers, address)
    with found as opened:
        yield opened


def _opened(engine: str, workers: int | None, address: str | None) -> contextlib.AbstractContextManager[Engine | None]:
    if engine == "simulation":
        return contextlib.nullcontext()
    if engine == "processes":
        from kernelmesh.runtimes.engines import Processes

        return Processes(workers)
    from kernelmesh.runtimes.ray import RayEngine

    return RayEngine(workers, address=address)


def chosen_pool(command: str, engine: str, address: str | None) -> Pool | None:
    """The worker pool of a sweep; None for processes on this machine."""
    _check(command, engine, None, address, _ENGINES[1:])
    if engine == "processes":
        return None
    from kernelmesh.runtimes.ray.pool import ray_pool

    return ray_pool(address)
