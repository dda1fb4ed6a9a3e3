"""`kernelmesh list`, `kernelmesh show` and `kernelmesh run`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kernelmesh.cli.base import app, console, fail, reported, say, stderr
from kernelmesh.cli.engines import chosen_engine
from kernelmesh.errors import InvalidArgument, KernelMeshError, MissingExtra, Verbatim

if TYPE_CHECKING:  # experiments pull in plotting and solvers, which only these commands need
    from kernelmesh.experiments import Event, Experiment, Finished, Observer
    from kernelmesh.runtimes.engines import Engine

__all__ = ["list_experiments", "run", "show"]


def _experiments() -> dict[str, Experiment]:
    from kernelmesh.registry import kinds

    try:
        return kinds("experiment")
    except MissingExtra as error:
        fail(str(error), code=1)


def _experiment(command: str, name: str) -> Experiment:
    """The experiment of that name, or an error that lists all of them."""
    known = _experiments()
    if name not in known:
        from kernelmesh.schema import did_you_mean

        raise InvalidArgument(command, "NAME", f"be one of {', '.join(known)}", name, remedy=did_you_mean(name, known))
    return known[name]


def _print_table(rows: Mapping[str, str], *titles: str) -> None:
    _print_rows(rows.items(), *(titles or ("", "")), header=bool(titles))


def _print_rows(rows: Iterable[Sequence[str]], *titles: str, header: bool = True) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles, show_header=header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # as Text, so that brackets are not read as markup
    console.print(table)


@app.command("list")
def list_experiments(
    protocols: Annotated[bool, typer.Option("--protocols", help="List the consensus protocols instead.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List the learning rules instead.")] = False,
) -> None:
    """List the available experiments."""
    known = _experiments()
    if protocols:
        from kernelmesh.experiments.protocols import describe_protocols

        _print_table(describe_protocols(), "protocol", "what agents do")
    if rules:
        from kernelmesh.experiments.learning import describe_rules

        _print_table(describe_rules(), "learner", "how an agent learns")
    if not protocols and not rules:
        _print_table({name: experiment.about for name, experiment in known.items()}, "experiment", "what it shows")


@app.command()
def show(name: Annotated[str, typer.Argument(help="The experiment; see `kernelmesh list`.")]) -> None:
    """Describe an experiment and list its settings with their defaults."""
    with reported("show"):
        experiment = _experiment("show", name)
    _describe(experiment)


def _describe(experiment: Experiment) -> None:
    from kernelmesh.experiments import describe_settings

    say(f"{experiment.name}: {experiment.about}\n")
    fixed = () if experiment.table else experiment.swept
    settings = [each for each in describe_settings(experiment.config).values() if each.name not in fixed]
    _print_rows(((each.name, _shown(each.default), each.doc) for each in settings), "setting", "default", "meaning")
    table = " `--all` computes the full table." if experiment.table else ""
    who = "`--all`" if experiment.table else "The experiment"
    varied = f" {who} varies {', '.join(experiment.swept)}." if experiment.swept else ""
    say(f"\n`kernelmesh run {experiment.name} --set NAME=VALUE` changes a setting.{table}{varied}")


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default) or '""'


class _RunCommand(TyperCommand):
    """`run NAME --help` also lists the settings of that experiment, although `--help` is parsed before NAME."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["arguments"] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        words = [text for text in ctx.meta["arguments"] if not text.startswith("-")]
        known = _experiments() if words else {}  # which takes a while to import
        for name in [word for word in words if word in known][:1]:
            _describe(known[name])


@app.command(cls=_RunCommand)
def run(
    name: Annotated[str, typer.Argument(help="The experiment; see `kernelmesh list`.")],
    seed: Annotated[int | None, typer.Option(help="The random seed; the same seed reproduces the run.")] = None,
    agents: Annotated[int | None, typer.Option(help="The number of agents.")] = None,
    protocol: Annotated[str | None, typer.Option(help="The consensus protocol; see `kernelmesh list --protocols`.")] = None,
    rule: Annotated[str | None, typer.Option(help="The learning rule; see `kernelmesh list --rules`.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="What each agent sees: identical, two-class or one-class (mixture experiments).")
    ] = None,
    reading: Annotated[
        str | None, typer.Option(help="How to read the mixture's 0.2: deviation, or printed (a variance, as in the paper).")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="How to draw test patches: random or disjoint (texture experiments).")
    ] = None,
    images: Annotated[str | None, typer.Option(help="A folder with the texture images; downloaded if not given.")] = None,
    samples: Annotated[int | None, typer.Option(help="The number of training samples.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any setting; can be repeated. See `kernelmesh show NAME`."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Read the settings from the config.json of an earlier run.", dir_okay=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Compute the full table of the experiment on all cores, not just one cell.")
    ] = False,
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
    options = {
        "seed": seed,
        "agents": agents,
        "protocol": protocol,
        "learner": rule,
        "partition": partition,
        "reading": reading,
        "split": split,
        "images": images,
        "samples": samples,
    }
    given = {key: value for key, value in options.items() if value is not None}
    folder = out or Path("runs") / name
    experiment, chosen = _prepared(name, folder, config, given, change or [], everything=everything)
    where = chosen_engine("run", engine, workers, address)
    how: dict[str, Any] = {"table": everything, "resume": resume, "engine": where}
    from kernelmesh.runtimes.threads import use_one_thread

    use_one_thread()
    with reported("run"):
        finished = _watched(experiment, chosen, folder, port if watch else None, **how)
    _leave(finished)


def _leave(finished: Finished) -> None:
    """Exit with the code of the outcome if it is not 0."""
    if finished.outcome.exit_code:
        fail(str(finished.outcome), code=finished.outcome.exit_code)


def _watched(experiment: Experiment, config: Any, folder: Path, port: int | None, **how: Any) -> Finished:
    """Run with a recorder and, if a port is given, a live page; print the summary."""
    from kernelmesh.dashboard.recorder import Recorder

    recorder = Recorder(folder)
    if port is None:
        finished = _run(experiment, config, folder, recorder, **how)
        _report(finished, folder)
        return finished
    from kernelmesh.cli.dashboards import announce
    from kernelmesh.dashboard.live_source import LiveSource
    from kernelmesh.dashboard.serving import Dashboard

    with Dashboard([LiveSource(recorder, experiment.name, folder)], port=port) as page:
        announce(page)
        finished = _run(experiment, config, folder, recorder, **how)
        with contextlib.suppress(KeyboardInterrupt):
            _report(finished, folder)
            say(f"The run has ended. The dashboard stays at {page.url} (press Ctrl-C to stop).")
            threading.Event().wait()
    return finished


def _prepared(
    name: str, folder: Path, config: Path | None, given: Mapping[str, Any], changes: Sequence[str], *, everything: bool
) -> tuple[Experiment, Any]:
    """The experiment and its validated settings, with its folder created; exits if something is wrong."""
    try:
        experiment = _experiment("run", name)
        settings = _settings(name, experiment.config, config, given, changes)
        if everything or experiment.table is None:
            _check_swept(experiment, given, changes, "with --all" if everything else f"with {name}")
        chosen = experiment.config(**settings)
        _check_writable(folder)
    except (TypeError, ValueError) as error:
        fail(str(error), code=2)
    return experiment, chosen


def _check_swept(experiment: Experiment, given: Mapping[str, Any], changes: Sequence[str], where: str) -> None:
    """Reject options for settings that the experiment itself varies."""
    values = {f"--{name}": value for name, value in given.items()}
    values |= {f"--set {name}": value for name, _, value in (change.partition("=") for change in changes)}
    for swept in experiment.swept:
        for option in (f"--{swept}", f"--set {swept}"):
            if option in values:
                rule = f"be omitted {where}, which chooses it"
                raise InvalidArgument("run", option, rule, values[option])


def _check_writable(folder: Path) -> None:
    """Create the folder and check that it is writable before the work starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        found = Verbatim(f"{str(folder)!r} ({error.strerror})")
        raise InvalidArgument("run", "--out", "be a writable folder", found) from None


def _run(
    experiment: Experiment,
    config: Any,
    folder: Path,
    recorder: Observer,
    *,
    table: bool = False,
    resume: bool = False,
    engine: contextlib.AbstractContextManager[Engine | None] | None = None,
) -> Finished:
    """Run with a progress bar and an engine, which is closed afterwards; errors are reported in one line."""
    from kernelmesh.experiments import run

    try:
        with engine or contextlib.nullcontext() as opened, _Bar(experiment.name) as bar, warnings.catch_warnings():
            warnings.showwarning = _warn
            observers = (_FreshStart(folder), bar.show, recorder) if resume else (bar.show, recorder)
            options: dict[str, Any] = {"table": table, "resume": resume, "engine": opened}
            return run(experiment, config, folder, **options, observers=observers, stop=bar.stop_requested)
    except ValueError as error:
        fail(str(error), code=2)
    except (KernelMeshError, MemoryError, OSError) as error:
        fail(f"run: {error or type(error).__name__}", code=1)
    except KeyboardInterrupt:
        fail("Interrupted before the results were written; use --resume to continue.", code=130)


def _report(finished: Finished, folder: Path) -> None:
    """Print the summary and the location of all files."""
    summary = {key: value for key, value in finished.report.summary.items() if key != "remark"}
    _print_table({key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in summary.items()})
    names = ", ".join(file.name for file in finished.files)
    console.print(f"\nWritten to {folder}: {names}", highlight=False, soft_wrap=True)
    say(f"View it with `kernelmesh dashboard {folder}`, or write one HTML file with `kernelmesh report {folder}`.")


def _settings(
    experiment: str, kind: type[Any], file: Path | None, options: Mapping[str, Any], changes: Sequence[str]
) -> dict[str, Any]:
    """The settings of a run: from a file, overridden by options, overridden by NAME=VALUE pairs."""
    from kernelmesh.schema import did_you_mean

    known: dict[str, Any] = {entry.name: type(entry.default) for entry in dataclasses.fields(kind)}
    listed = f"`kernelmesh show {experiment}` lists its settings"
    out = _from_file(experiment, file, known) if file is not None else {}
    for name, value in options.items():
        if name not in known:
            raise InvalidArgument("run", f"--{name}", f"be a setting of {experiment}", value, remedy=listed)
        out[name] = value
    for change in changes:
        name, equals, text = change.partition("=")
        if name not in known:
            remedy = "; ".join(filter(None, (did_you_mean(name, known), listed)))
            raise InvalidArgument("run", "--set", f"name a setting of {experiment}", change, remedy=remedy)
        if not equals:
            raise InvalidArgument("run", "--set", "be NAME=VALUE", change)
        try:
            out[name] = _read(known[name], text)
        except ValueError:
            raise InvalidArgument("run", f"--set {name}", f"be of type {known[name].__name__}", text) from None
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
        found = Verbatim(f"{str(file)!r} ({error})")
        raise InvalidArgument("run", "--config", "be a readable config.json", found) from None
    if of != name:
        raise InvalidArgument("run", "--config", f"come from the experiment {name}", Verbatim(f"one from {of}"))
    if not set(settings) <= set(known):
        raise InvalidArgument("run", "--config", f"contain only the settings {', '.join(known)}", settings)
    # JSON has no infinity: it is written as text
    return {name: float(v) if known[name] is float and isinstance(v, str) else v for name, v in settings.items()}


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    stderr.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


_STARTING = "starting (the first run compiles)"


class _FreshStart:
    """Prints a note if `--resume` found nothing, that is, if no round or cell is done when the first part starts."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._checked = folder, False

    def __call__(self, event: Event) -> None:
        from kernelmesh.experiments import events

        if self._checked or not isinstance(event, events.Progress) or event.total is None:
            return
        self._checked = True
        if not event.done:
            note = f"nothing to resume in {self._folder}; starting from the beginning"
            stderr.print(note, markup=False, highlight=False, soft_wrap=True)


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
        from kernelmesh.experiments import events

        match event:
            case events.Progress(total=None, part=part):
                self._bar.update(self._task, completed=0, total=None, text=part)
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
            case _:
                pass
