"""The options `--engine`, `--workers`, `--address` and `--checkpoints`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernelmesh import InvalidArgument
from kernelmesh.cli.base import reported

if TYPE_CHECKING:
    from kernelmesh.runtimes.engines import Engine
    from kernelmesh_experiments.cells import Pool

__all__ = ["chosen_engine", "chosen_pool"]

_ENGINES = ("simulation", "processes", "ray")


def _check(command: str, engine: str, workers: int | None, address: str | None, allowed: tuple[str, ...]) -> None:
    from kernelmesh_experiments.settings import did_you_mean

    if engine not in allowed:
        remedy = did_you_mean(engine, allowed)
        raise InvalidArgument(command, "--engine", f"be one of {', '.join(allowed)}", engine, remedy=remedy)
    if address is not None and engine != "ray":
        raise InvalidArgument(command, "--address", "be omitted without --engine ray", address)
    if workers is not None and (engine == "simulation" or workers < 1):
        rule = "be omitted with --engine simulation, which is one process" if engine == "simulation" else "be at least 1"
        raise InvalidArgument(command, "--workers", rule, workers)


@contextlib.contextmanager
def chosen_engine(
    command: str, engine: str, workers: int | None, address: str | None, checkpoints: str | None, usual: Path
) -> Iterator[Engine | None]:
    """The engine of a run; None for simulation in this process. Checkpoints go to the usual folder by default."""
    with reported(command):
        _check(command, engine, workers, address, _ENGINES)
        if checkpoints is not None and engine == "simulation":
            rule, remedy = "be omitted with --engine simulation", "there are no workers to lose; --resume continues a run"
            raise InvalidArgument(command, "--checkpoints", rule, checkpoints, remedy=remedy)
        found = _opened(engine, workers, address, checkpoints or str(usual))
    with found as opened:
        yield opened


def _opened(
    engine: str, workers: int | None, address: str | None, checkpoints: str
) -> contextlib.AbstractContextManager[Engine | None]:
    if engine == "simulation":
        return contextlib.nullcontext()
    if engine == "processes":
        from kernelmesh.runtimes.engines import Processes

        return Processes(workers, checkpoints=checkpoints)
    from kernelmesh.runtimes.ray import RayEngine

    return RayEngine(workers, address=address, checkpoints=checkpoints)


def chosen_pool(command: str, engine: str, address: str | None) -> Pool | None:
    """The worker pool of a sweep; None for processes on this machine."""
    _check(command, engine, None, address, _ENGINES[1:])
    if engine == "processes":
        return None
    from kernelmesh.runtimes.ray.pool import ray_pool

    return ray_pool(address)
