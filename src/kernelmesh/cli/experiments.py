"""`kernelmesh list` and `kernelmesh run`."""

from __future__ import annotations

import dataclasses
import json
import signal
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kernelmesh.cli.base import app, console, fail, stderr

if TYPE_CHECKING:
    from kernelmesh.experiments import Progress as Step
    from kernelmesh.experiments import Watch

__all__ = ["list_experiments", "run"]


@app.command("list")
def list_experiments() -> None:
    """List the experiments that `run` knows."""
    from kernelmesh.experiments import EXPERIMENTS

    table = Table("experiment", "what it shows", box=None, pad_edge=False)
    for experiment in EXPERIMENTS.values():
        table.add_row(experiment.name, experiment.about)
    console.print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment; `kernelmesh list` names them.")],
    seed: Annotated[int | None, typer.Option(help="Seeds everything random; the same seed repeats the run.")] = None,
    agents: Annotated[int | None, typer.Option(help="How many agents.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="How agents come to agree: local, penalty, proximal, symmetric, hilbert, diffusion, exact-diffusion."
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="What each agent sees: identical, two-class or one-class (mixture).")
    ] = None,
    reading: Annotated[
        str | None, typer.Option(help="The mixture's 0.2: deviation, or the variance that is printed.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Where test patches come from: random or disjoint (textures).")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="A folder with the images (textures); else they are fetched.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Samples in the training set.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of config.json; may be repeated."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Take the settings from the config.json of an earlier run.", dir_okay=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The whole table of the experiment instead of one cell, on all cores.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from what an interrupted run with the same settings left in the folder."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results (runs/NAME if not given); earlier ones are replaced.")
    ] = None,
) -> None:
    """Run an experiment; write its summary, tables, settings, figures and a page to a folder.

    What is not given is as in the paper, or as the experiment's file says.
    Ctrl-C stops after the current step and keeps what has been computed; --resume goes on.
    """
    from kernelmesh.experiments import EXPERIMENTS

    if name not in EXPERIMENTS:
        fail(f"run: NAME must be one of {', '.join(EXPERIMENTS)}, got {name!r}", code=2)
    experiment = EXPERIMENTS[name]
    given = {
        "seed": seed,
        "agents": agents,
        "protocol": protocol,
        "partition": partition,
        "reading": reading,
        "split": split,
        "images": images,
        "samples": samples,
    }
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    folder = out or Path("runs") / name
    try:
        settings = _settings(name, experiment.config, config, chosen, change or [])
        chosen_config = experiment.config(**settings)
        if everything and experiment.sweep is None:
            raise ValueError(f"run: --all must be given to an experiment with a table of its own, got {name}")
        for swept in experiment.swept if everything else ():
            if swept in chosen:
                raise ValueError(f"run: --{swept} must be left out with --all, which goes through every {swept}")
    except (TypeError, ValueError) as error:
        fail(str(error), code=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before the work, not after it
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fail(f"run: --out must be a folder that can be written, got {str(folder)!r} ({error.strerror})", code=2)

    job = experiment.sweep if everything and experiment.sweep is not None else experiment.run
    try:
        with _Bar(name) as watch, warnings.catch_warnings():
            warnings.showwarning = _warn
            report = job(chosen_config, watch, folder, resume)
        files = report.write(folder)
    except (MemoryError, OSError) as error:
        fail(f"run: {error or type(error).__name__}", code=1)
    except RuntimeError as error:
        fail(f"run: {error}", code=1)
    except ValueError as error:
        fail(str(error), code=2)
    except KeyboardInterrupt:
        fail("interrupted before there was anything to keep", code=130)
    table = Table("", "", show_header=False, box=None, pad_edge=False)
    for key, value in report.summary.items():
        if key != "remark":
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(f"\nwritten to {folder}: {', '.join(file.name for file in files)}", highlight=False, soft_wrap=True)
    if report.remark:
        fail(report.remark, code=130 if report.remark.startswith("Interrupted") else 1)


def _settings(
    experiment: str, kind: type[Any], file: Path | None, options: dict[str, Any], changes: list[str]
) -> dict[str, Any]:
    """The settings of a run: those of a file, then options of the command, then NAME=VALUE pairs."""
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    known: dict[str, Any] = {name: type(entry.default) for name, entry in fields.items()}
    out: dict[str, Any] = {}
    if file is not None:
        out = _from_file(experiment, file, known)
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"run: {experiment} has no --{name}; its settings are {', '.join(known)}")
        out[name] = value
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or name not in known:
            raise ValueError(f"run: --set must be NAME=VALUE with NAME one of {', '.join(known)}, got {change!r}")
        try:
            out[name] = _read(known[name], text)
        except ValueError:
            raise ValueError(f"run: --set {name} must be of type {known[name].__name__}, got {text!r}") from None
    return out


def _read(kind: type[Any], text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return kind(text)


def _from_file(name: str, file: Path, known: dict[str, Any]) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text())
        of = settings.pop("experiment", name)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"run: --config must be a config.json that can be read, got {str(file)!r} ({error})") from None
    if of != name:
        raise ValueError(f"run: --config must be of the experiment {name}, got one of {of}")
    if not set(settings) <= set(known):
        raise ValueError(f"run: --config must hold settings among {', '.join(known)}, got {str(settings)[:80]}")
    # JSON has no infinity: it is written as text
    return {name: float(v) if known[name] is float and isinstance(v, str) else v for name, v in settings.items()}


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    stderr.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


_STARTING = "starting (compiles on first use)"


class _Bar:
    """A progress bar that also turns Ctrl-C into a stop between two rounds, where nothing is half done."""

    def __init__(self, name: str) -> None:
        columns = (
            BarColumn(bar_width=6),
            TextColumn("{task.completed}/{task.total} {task.fields[unit]}: {task.fields[newest]},"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task(name, total=None, newest=_STARTING, unit="rounds")
        self._stop = False

    def __enter__(self) -> Watch:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        self._bar.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, *_: object) -> None:
        if self._stop:  # the second time the user means now
            raise KeyboardInterrupt
        self._stop = True

    def _show(self, step: Step) -> None:
        told = step.told or _STARTING
        self._bar.update(self._task, completed=step.done, total=step.total, newest=told, unit=step.unit)
        if self._stop and step.done:
            raise KeyboardInterrupt
