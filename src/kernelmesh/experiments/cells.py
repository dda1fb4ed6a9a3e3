"""Running many small jobs on all cores, each kept as soon as it is done."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from kernelmesh.experiments.base import Progress, Watch

__all__ = ["run_cells"]

Cell = Callable[[Any], Mapping[str, Any]]


def run_cells(
    jobs: Mapping[str, tuple[Cell, Any]], *, watch: Watch, folder: Path, resume: bool
) -> dict[str, dict[str, Any]]:
    """Run `function(settings)` for every job and return what each gave, by name; after Ctrl-C those that are done.

    A job is a function of a module (other processes must find it) and its settings; what it returns must be what JSON can
    hold. It is written to `folder/cells/NAME.json`, and with `resume` a job that is there already is not run again.
    """
    place = folder / "cells"
    if not resume:
        shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    done = {name: kept for name, (_, settings) in jobs.items() if (kept := _read(place, name, settings)) is not None}
    watch(Progress(len(done), len(jobs), "cells"))
    if len(done) == len(jobs):
        return done
    workers = min(os.cpu_count() or 1, len(jobs) - len(done))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_settle) as pool:
        with _deaf():  # workers inherit it, so that Ctrl-C cannot hit one that is still starting
            running: dict[Future[Mapping[str, Any]], str] = {
                pool.submit(function, settings): name for name, (function, settings) in jobs.items() if name not in done
            }
        try:
            while running:
                for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    name = running.pop(future)
                    done[name] = dict(future.result())
                    _write(place, name, jobs[name][1], done[name])
                watch(Progress(len(done), len(jobs), "cells", told=next(reversed(done), "")))
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
        except BrokenProcessPool:
            raise RuntimeError(
                f"a worker process was killed (out of memory?); {len(done)} of {len(jobs)} cells are kept, --resume goes on"
            ) from None
    return {name: done[name] for name in jobs if name in done}


def _write(place: Path, name: str, settings: Any, result: Mapping[str, Any]) -> None:
    draft = place / f".{name}.json"
    draft.write_text(json.dumps({"settings": repr(settings), "result": result}))
    draft.replace(place / f"{name}.json")


def _read(place: Path, name: str, settings: Any) -> dict[str, Any] | None:
    """What a cell gave, or None if it must be run (again); settings that differ are refused."""
    try:
        kept = json.loads((place / f"{name}.json").read_text())
        made_with, result = kept["settings"], dict(kept["result"])
    except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged
        return None
    if made_with != repr(settings):
        raise ValueError(f"run: --resume needs the settings of the interrupted run, but those of cell {name} differ")
    return result


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C for a moment; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _settle() -> None:
    """A worker leaves Ctrl-C to the process that started it, and the other cores to the other workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
