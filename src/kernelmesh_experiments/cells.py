"""Computes the cells of a table on all cores, and saves each as soon as it is done."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from kernelmesh import InvalidArgument, KernelMeshError
from kernelmesh_experiments.events import CellFailed, CellFinished, Observer, Progress
from kernelmesh_experiments.trial import Stop

__all__ = ["Cell", "Pool", "Results", "WorkerKilled", "run_cells"]

Results = Mapping[str, Mapping[str, Any]]
"""What cells gave, by name."""


class Cell(NamedTuple):
    """One job: `function(settings)`. The function belongs to a module, where other processes find it."""

    function: Callable[[Any], Mapping[str, Any]]
    """What it returns must be what JSON can hold."""
    settings: Any


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
    table = _Table(cells, saved, publish, failures)
    missing = {name: cell for name, cell in cells.items() if name not in table.done}
    workers = min(os.cpu_count() or 1, max(len(missing), 1))
    with contextlib.suppress(KeyboardInterrupt):  # what is done is saved
        while missing and not stop():
            suspects = _compute(missing, table, stop, pool or _pool, workers)
            for name, cell in suspects.items():  # a worker was killed: what was under way is tried again, one by one
                if _compute({name: cell}, table, stop, pool or _pool, 1):
                    table.fail(name, WorkerKilled("the worker process was killed (out of memory?)"))
    return {name: table.done[name] for name in cells if name in table.done}


class _Table:
    """What is known of the cells, of which each is saved and published."""

    def __init__(self, cells: Mapping[str, Cell], saved: Path, publish: Observer, failures: dict[str, str] | None) -> None:
        self._cells, self._saved, self._publish = cells, saved, publish
        self._failures, self._failed = failures, 0
        found = {name: _read(saved, name, cell.settings) for name, cell in cells.items()}
        self.done = {name: result for name, result in found.items() if result is not None}
        self._tell("")

    def _tell(self, name: str) -> None:
        done = len(self.done) + self._failed
        self._publish(Progress(done=done, total=len(self._cells), unit="cells", part=name))

    def finish(self, name: str, result: Mapping[str, Any]) -> None:
        """Save a result."""
        draft = self._saved / f".{name}.json"
        draft.write_text(json.dumps({"settings": repr(self._cells[name].settings), "result": result}))
        draft.replace(self._saved / f"{name}.json")
        self.done[name] = dict(result)
        self._publish(CellFinished(name, result))
        self._tell(name)

    def fail(self, name: str, error: BaseException) -> None:
        """Note a failure, or raise it where none is expected."""
        if self._failures is None:
            raise error
        self._failures[name] = str(error) or type(error).__name__
        self._failed += 1
        self._publish(CellFailed(name, self._failures[name]))
        self._tell(name)

    def lost(self, error: BrokenProcessPool) -> None:
        """Raise an error where a killed worker ends the run."""
        if self._failures is None:
            saved = f"{len(self.done)} of {len(self._cells)} cells are saved; use --resume to continue"
            raise WorkerKilled(f"a worker process was killed (out of memory?); {saved}") from error


def _compute(missing: dict[str, Cell], table: _Table, stop: Stop, pool: Pool, workers: int) -> dict[str, Cell]:
    """Compute what is missing; if a worker is killed, returns the cells that were under way."""
    under_way: dict[str, Cell] = {}
    try:
        with pool(workers) as executor:
            running: dict[Future[Mapping[str, Any]], str] = {}
            while True:
                if not stop():
                    free = getattr(executor, "capacity", workers) - len(running)
                    running |= _submit(executor, missing, under_way, free)
                if not running:
                    return {}
                for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    _collect(future, running, under_way, table)
    except BrokenProcessPool as error:
        table.lost(error)
        return under_way


def _collect(
    future: Future[Mapping[str, Any]],
    running: dict[Future[Mapping[str, Any]], str],
    under_way: dict[str, Cell],
    table: _Table,
) -> None:
    error, name = future.exception(), running[future]
    if isinstance(error, BrokenProcessPool):
        raise error
    running.pop(future)
    under_way.pop(name)
    if error is None:
        table.finish(name, future.result())
    else:
        table.fail(name, error)


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


def _read(saved: Path, name: str, settings: Any) -> dict[str, Any] | None:
    """What a cell gave, or None if it must be computed (again); other settings are refused."""
    try:
        found = json.loads((saved / f"{name}.json").read_text())
        made_with, result = found["settings"], dict(found["result"])
    except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged
        return None
    if made_with != repr(settings):
        raise InvalidArgument("run", "--resume", "continue a run with the settings of that run", f"others for cell {name}")
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
    """Leave Ctrl-C to the process that started the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
