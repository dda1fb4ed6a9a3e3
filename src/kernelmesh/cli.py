"""The `kernelmesh` command."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

__all__ = ["app", "main"]

app = typer.Typer(
    help="Networks of agents that learn one kernel model together, online, without a server.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
console = Console()
complaints = Console(stderr=True)


@app.callback()
def _root() -> None:
    pass


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
    protocol: Annotated[str | None, typer.Option(help="How agents come to agree.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples each agent sees.")] = None,
    ceiling: Annotated[
        float | None, typer.Option("--penalty-ceiling", help="Largest penalty; inf for the printed schedule.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results [default: runs/NAME].")] = None,
) -> None:
    """Run an experiment; write its summary, record, settings and figure to a folder."""
    from kernelmesh.experiments import EXPERIMENTS
    from kernelmesh.experiments import Progress as Step

    if name not in EXPERIMENTS:
        _fail(f"run: NAME must be one of {', '.join(EXPERIMENTS)}, got {name!r}", code=2)
    experiment = EXPERIMENTS[name]
    given = {"seed": seed, "agents": agents, "protocol": protocol, "samples": samples, "penalty_ceiling": ceiling}
    chosen = {key: value for key, value in given.items() if value is not None}
    known = {entry.name for entry in dataclasses.fields(experiment.config)}
    for key in chosen:
        if key not in known:
            _fail(f"run: {name} has no option {key}", code=2)
    folder = out or Path("runs") / name
    try:
        config = experiment.config(**chosen)
        folder.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    except (ValueError, OSError) as error:
        _fail(str(error), code=2)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[newest]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=None, newest="")

        def watch(step: Step) -> None:
            newest = step.newest
            told = f"objective {newest.objective:.3g}, order {newest.order_mean:.1f}" if newest else ""
            bar.update(task, completed=step.done, total=step.total, newest=told)

        report = experiment.run(config, watch)
    files = report.write(folder)
    table = Table("", "", show_header=False, box=None, pad_edge=False)
    for key, value in report.summary.items():
        if key != "remark":
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(f"\nwritten to {folder}: {', '.join(file.name for file in files)}", highlight=False)
    if report.remark:
        _fail(report.remark, code=130 if report.remark.startswith("Interrupted") else 1)


def _fail(message: str, *, code: int) -> None:
    complaints.print(message, style="bold red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the `kernelmesh` command."""
    try:
        app()
    except KeyboardInterrupt:
        complaints.print("interrupted before there was anything to keep")
        sys.exit(130)
