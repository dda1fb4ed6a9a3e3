"""`kernelmesh run`."""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmesh import KernelMeshError
from kernelmesh.cli.base import app, console, fail, reported, say, stderr
from kernelmesh_experiments.cli.engines import chosen_engine
from kernelmesh_experiments.cli.listing import find, print_rows
from kernelmesh_experiments.cli.options import check_writable, read_file, read_settings

if TYPE_CHECKING:  # experiments pull in plotting and solvers, which only these commands need
    from kernelmesh.dashboard.recorder import Recorder
    from kernelmesh.runtimes.engines import Engine
    from kernelmesh_experiments.base import Experiment
    from kernelmesh_experiments.events import Event, Finished

__all__ = ["leave", "print_report", "run", "run_experiment"]


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="The experiment; see `kernelmesh list`.")],
    seed: Annotated[int | None, typer.Option(help="The random seed; the same seed reproduces the run.")] = None,
    agents: Annotated[int | None, typer.Option(help="The number of agents.")] = None,
    protocol: Annotated[str | None, typer.Option(help="The consensus protocol; see `kernelmesh list --protocols`.")] = None,
    learner: Annotated[str | None, typer.Option(help="The learner; see `kernelmesh list --learners`.")] = None,
    images: Annotated[str | None, typer.Option(help="A folder with the texture images; downloaded if not given.")] = None,
    samples: Annotated[int | None, typer.Option(help="The number of training samples.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any setting; can be repeated. See `kernelmesh show NAME`."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Read the settings from the config.json of an earlier run.", dir_okay=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Compute the whole experiment; see `kernelmesh list`.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run with the same settings and the same folder.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the results (default: runs/NAME); earlier results are replaced.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the run on a live page, which stays up after the run until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port of the --watch page; 0 picks a free one.")] = 8765,
    engine: Annotated[
        str, typer.Option(help="Where agents run: simulation (in this process), processes or ray.")
    ] = "simulation",
    workers: Annotated[int | None, typer.Option(help="The number of processes or actors (default: one per core).")] = None,
    address: Annotated[str | None, typer.Option(help="The address of a running Ray cluster: HOST:PORT, or auto.")] = None,
) -> None:
    """Run an experiment and write its summary, settings, tables, figures and a recording to a folder.

    Settings default to those of the paper or of the experiment; `kernelmesh show NAME` lists them.
    Ctrl-C stops after the current step and saves the results so far; a second Ctrl-C stops immediately. --resume continues.
    To view the results, use `kernelmesh dashboard DIR`; to write them as one HTML file, use `kernelmesh report DIR`.
    """
    options = {"seed": seed, "agents": agents, "protocol": protocol, "learner": learner, "images": images, "samples": samples}
    folder = out or Path("runs") / name
    experiment, chosen = _prepared(name, folder, config, options, change or [])
    where = chosen_engine("run", engine, workers, address)
    how: dict[str, Any] = {"table": everything, "resume": resume, "engine": where}
    if resume and not folder.is_dir():
        say(f"Nothing to resume in {folder}: starting from the beginning.")
    with reported("run"):
        finished = _watched(experiment, chosen, folder, port if watch else None, **how)
    leave(finished)


def leave(finished: Finished) -> None:
    """Exit with the code of the outcome if it is not 0."""
    if finished.outcome.exit_code:
        fail(str(finished.outcome), code=finished.outcome.exit_code)


def _watched(experiment: Experiment, config: Any, folder: Path, port: int | None, **how: Any) -> Finished:
    """Run with a recorder and, if a port is given, a live page; print the summary."""
    from kernelmesh.dashboard.recorder import Recorder

    recorder = Recorder(folder)
    if port is None:
        finished = run_experiment(experiment, config, folder, recorder, **how)
        print_report(finished, folder)
        return finished
    from kernelmesh.cli.dashboards import announce
    from kernelmesh.dashboard.live_source import LiveSource
    from kernelmesh.dashboard.serving import Dashboard

    with Dashboard([LiveSource(recorder, experiment.name, folder)], port=port) as page:
        announce(page)
        finished = run_experiment(experiment, config, folder, recorder, **how)
        with contextlib.suppress(KeyboardInterrupt):
            print_report(finished, folder)
            say(f"The run has ended. The dashboard stays at {page.url} (press Ctrl-C to stop).")
            threading.Event().wait()
    return finished


def _prepared(
    name: str, folder: Path, config: Path | None, options: Mapping[str, Any], changes: Sequence[str]
) -> tuple[Experiment, Any]:
    """The experiment and its validated settings, with its folder created; exits if something is wrong."""
    try:
        experiment = find("run", name)
        given = read_settings("run", experiment, read_file(experiment, config) if config is not None else [])
        for option, value in options.items():
            if value is not None:
                given |= read_settings("run", experiment, [f"{option}={value}"], f"--{option}")
        settings = experiment.config(**given | read_settings("run", experiment, changes))
        check_writable(folder)
    except (TypeError, ValueError) as error:
        fail(error, code=2)
    return experiment, settings


def _observe(recorder: Recorder, event: Event) -> None:
    """Record the networks of a run."""
    from kernelmesh_experiments import events
    from kernelmesh_experiments.settings import settings_of

    match event:
        case events.Started(config=config):
            recorder.settings = settings_of(config)
        case events.NetworkStarted(network=network, rounds_before=rounds):
            recorder.begin(network, part=network.part, rounds=rounds)
        case events.Measured(round=now, measures=measures, agents=agents):
            recorder.add(now, measures, agents)
        case events.Finished(outcome=outcome):
            recorder.end(outcome.name, str(outcome))


def run_experiment(
    experiment: Experiment,
    config: Any,
    folder: Path,
    recorder: Recorder,
    *,
    table: bool = False,
    resume: bool = False,
    engine: contextlib.AbstractContextManager[Engine | None] | None = None,
) -> Finished:
    """Run with a progress bar and an engine, which is closed afterwards; errors are reported in one line."""
    from kernelmesh_experiments.base import run

    try:
        with engine or contextlib.nullcontext() as opened, _Bar(experiment.name) as bar, warnings.catch_warnings():
            warnings.showwarning = _warn
            observers = (bar.show, partial(_observe, recorder))
            options: dict[str, Any] = {"table": table, "resume": resume, "engine": opened}
            return run(experiment, config, folder, **options, observers=observers, stop=bar.stop_requested)
    except ValueError as error:
        fail(str(error), code=2)
    except (KernelMeshError, MemoryError, OSError) as error:
        fail(f"run: {error or type(error).__name__}", code=1)
    except KeyboardInterrupt:
        fail("Interrupted before the results were written; use --resume to continue.", code=130)


def print_report(finished: Finished, folder: Path) -> None:
    """Print the summary and the location of all files."""
    summary = {key: value for key, value in finished.summary.items() if key != "remark"}
    texts = ((key, f"{value:.4g}" if isinstance(value, float) else str(value)) for key, value in summary.items())
    print_rows(texts, "", "", header=False)
    names = ", ".join(file.name for file in finished.files)
    console.print(f"\nWritten to {folder}: {names}", highlight=False, soft_wrap=True)
    say(f"View it with `kernelmesh dashboard {folder}`, or write one HTML file with `kernelmesh report {folder}`.")


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    stderr.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


_STARTING = "starting (the first run compiles)"


class _Bar:
    """A progress bar that also turns Ctrl-C into a clean stop after the current step."""

    def __init__(self, name: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.fields[text]},")
        self._bar = Progress(BarColumn(bar_width=6), text, TimeRemainingColumn(), TextColumn("left"), console=console)
        self._task = self._bar.add_task(name, total=None, text=_STARTING)
        self._newest = ""
        self._begun = self._stop = False

    def __enter__(self) -> _Bar:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._task, visible=self._begun)  # hidden if nothing ever started
        self._bar.stop()
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, *_: object) -> None:
        if self._stop:  # a second Ctrl-C stops immediately
            raise KeyboardInterrupt
        self._stop = True

    def stop_requested(self) -> bool:
        return self._stop

    def show(self, event: Event) -> None:
        from kernelmesh_experiments import events

        match event:
            case events.Progress(done=done, total=total, unit=unit, part=part):
                self._begun = True
                steps = f"{part}: {done}/{total} {unit}" if part and unit == "rounds" else f"{done}/{total} {unit}"
                # without news from this run, the progress is that of an earlier one
                newest = self._newest or ("already complete" if done == total else "resumed" if done else _STARTING)
                self._bar.update(self._task, completed=done, total=total, text=f"{steps}: {newest}")
            case events.Measured(measures=found):
                self._newest = f"{found.samples} samples, objective {found.objective:.3g}, order {found.order_mean:.1f}"
            case events.CellFinished(name=name):
                self._newest = name
            case events.CellFailed(name=name, reason=reason):
                self._newest = f"{name} failed"
                stderr.print(f"{name} failed: {reason}", style="yellow", markup=False, highlight=False, soft_wrap=True)
