"""Computes the cells of a table on all cores, and saves each as soon as it is done."""

import contextlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from kernelmesh.errors import InvalidArgument, KernelMeshError, Verbatim
from kernelmesh.experiments.events import CellFailed, CellFinished, Observer, Progress
from kernelmesh.experiments.trial import Stop

__all__ = ["Cell", "Pool", "Results", "WorkerKilled", "means", "run_cells"]

Results = Mapping[str, Mapping[str, Any]]
"""What cells gave, by name."""


class Cell(NamedTuple):
    """One job: `function(settings)`. The function belongs to a module, where other processes find it."""

    function: Callable[[Any], Mapping[str, Any]]
    """What it returns must be what JSON can hold."""
    settings: Any


def means(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """The mean of each of some numbers over the rows of a table; NaN over none.

    >>> means([{"a": 1.0, "b": 2}, {"a": 2.0, "b": 2}], ["a"])
    {'a': 1.5}
    """
    lines = list(rows)
    return {name: float(np.mean([row[name] for row in lines])) if lines else math.nan for name in names}


Pool = Callable[[int], AbstractContextManager[Executor]]
"""Starts so many workers, which end with the context."""


class WorkerKilled(KernelMeshError, RuntimeError):
    """The system ended a worker process."""


def run_cells(
    cells: Mapping[str, Cell],
    *,
    folder: Path,
    resume: bool = False,
    publish: Observer = lambda _: None,
    stop: Stop = lambda: False,
    failures: dict[str, str] | None = None,
    pool: Pool | None = None,
) -> dict[str, dict[str, Any]]:
    """Compute every cell and return what each gave, by name; those that are done, if the run is stopped.

    Results are written to `folder/cells/NAME.json`; with `resume` a cell that is there already is not computed again. A stop
    waits for the cells that are being computed; KeyboardInterrupt gives them up. A cell that fails ends the run, unless there
    are `failures` to put its error into: then the others continue, and `resume` retries it.
    """
    saved = folder / "cells"
    if not resume:
        shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir(parents=True, exist_ok=True)
    done = {name: found for name, cell in cells.items() if (found := _read(saved, name, cell.settings)) is not None}
    publish(Progress(done=len(done), total=len(cells), unit="cells"))
    missing = {name: cell for name, cell in cells.items() if name not in done}
    failed: dict[str, str] = {} if failures is None else failures

    def finish(name: str, result: Mapping[str, Any]) -> None:
        _write(saved, name, cells[name].settings, result)
        done[name] = dict(result)
        publish(CellFinished(name, result))
        publish(Progress(done=len(done) + len(failed), total=len(cells), unit="cells", part=name))

    def fail(name: str, error: BaseException) -> None:
        if failures is None:
            raise error
        failed[name] = str(error) or type(error).__name__
        publish(CellFailed(name, failed[name]))
        publish(Progress(done=len(done) + len(failed), total=len(cells), unit="cells", part=name))

    try:
        _compute(missing, finish, fail, stop, pool or _pool, alone=failures is not None)
    except BrokenProcessPool:
        saved_cells = f"{len(done)} of {len(cells)} cells are saved; use --resume to continue"
        raise WorkerKilled(f"a worker process was killed (out of memory?); {saved_cells}") from None
    except KeyboardInterrupt:
        pass  # what is done is saved
    return {name: done[name] for name in cells if name in done}


def _compute(
    missing: dict[str, Cell],
    finish: Callable[[str, Mapping[str, Any]], None],
    fail: Callable[[str, BaseException], None],
    stop: Stop,
    pool: Pool,
    *,
    alone: bool,
) -> None:
    """Compute what is missing. With `alone`, cells that were under way when a worker was killed are tried one by one."""
    workers = min(os.cpu_count() or 1, max(len(missing), 1))
    suspects: dict[str, Cell] = {}
    while missing or suspects:
        one_by_one = bool(suspects)
        source = suspects if one_by_one else missing
        running: dict[Future[Mapping[str, Any]], str] = {}
        under_way: dict[str, Cell] = {}
        try:
            with pool(1 if one_by_one else workers) as executor:
                most = 1 if one_by_one else getattr(executor, "capacity", workers)
                while True:
                    if not stop():
                        running |= _submit(executor, source, under_way, most - len(running))
                    if not running:
                        break
                    for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                        name, error = running[future], future.exception()
                        if isinstance(error, BrokenProcessPool):
                            raise error
                        running.pop(future)
                        under_way.pop(name)
                        if error is None:
                            finish(name, future.result())
                        else:
                            fail(name, error)
        except BrokenProcessPool:
            if not alone:
                raise
            if one_by_one:
                for name in under_way:
                    fail(name, WorkerKilled("the worker process was killed (out of memory?)"))
            else:
                suspects |= under_way
        if stop():
            return


def _submit(
    pool: Executor, missing: dict[str, Cell], under_way: dict[str, Cell], count: int
) -> dict[Future[Mapping[str, Any]], str]:
    """Hand so many of the missing cells to the workers, and no more: what waits in a pool is in the way when it must end."""
    out = {}
    with _ignored_interrupts():  # workers inherit it, so that Ctrl-C cannot hit one that is still starting
        for name in list(missing)[:count]:
            cell = under_way[name] = missing.pop(name)
            out[pool.submit(cell.function, cell.settings)] = name
    return out


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which do not outlive an error."""
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_set_up_worker) as pool:
        try:
            yield pool
        except BaseException:
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
            raise


def _write(saved: Path, name: str, settings: Any, result: Mapping[str, Any]) -> None:
    draft = saved / f".{name}.json"
    draft.write_text(json.dumps({"settings": repr(settings), "result": result}))
    draft.replace(saved / f"{name}.json")


def _read(saved: Path, name: str, settings: Any) -> dict[str, Any] | None:
    """What a cell gave, or None if it must be computed (again); other settings are refused."""
    try:
        found = json.loads((saved / f"{name}.json").read_text())
        made_with, result = found["settings"], dict(found["result"])
    except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged
        return None
    if made_with != repr(settings):
        rule = "continue a run with the settings of that run"
        raise InvalidArgument("run", "--resume", rule, Verbatim(f"others for cell {name}"))
    return result


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _set_up_worker() -> None:
    """Leave Ctrl-C to the process that started the worker, and the other cores to the other workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
