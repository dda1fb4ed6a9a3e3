"""`kernelmesh sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmesh import InvalidArgument
from kernelmesh.cli.base import app, reported
from kernelmesh_experiments.cli.engines import chosen_pool
from kernelmesh_experiments.cli.listing import find
from kernelmesh_experiments.cli.options import check_writable, read_settings
from kernelmesh_experiments.cli.run import leave, print_report, run_experiment

if TYPE_CHECKING:
    from kernelmesh_experiments.base import Experiment
    from kernelmesh_experiments.sweep import Grid

__all__ = ["sweep"]


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="The experiment; see `kernelmesh list`.")],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="NAME=VALUE,VALUE,…", help="A setting and the values to try; can be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds per combination.")] = 1,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fix a setting for all runs; can be repeated.")
    ] = None,
    show: Annotated[str, typer.Option(help="The column to plot (default: the score).")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted sweep with the same settings.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the results (default: runs/sweep-NAME); earlier results are replaced.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Where to run: processes (on this machine) or ray.")] = "processes",
    address: Annotated[str | None, typer.Option(help="The address of a running Ray cluster: HOST:PORT, or auto.")] = None,
) -> None:
    """Run an experiment for every combination of settings on all cores; write one table and one figure.

    If a run fails, it is reported and the others continue. Ctrl-C saves the results so far; --resume continues.
    """
    from kernelmesh.dashboard.recorder import Recorder
    from kernelmesh_experiments.sweep import sweep as experiment

    folder = out or Path("runs") / f"sweep-{name}"
    with reported("sweep"):
        chosen = _grid(find("sweep", name), grid or [], seeds, change or [], show)
        pool = chosen_pool("sweep", engine, address)
        check_writable(folder)
    finished = run_experiment(experiment(pool), chosen, folder, Recorder(folder), resume=resume)
    print_report(finished, folder)
    leave(finished)


def _grid(experiment: Experiment, axes: Sequence[str], seeds: int, changes: Sequence[str], show: str) -> Grid:
    """The grid with its values parsed; all mistakes are found before the first run."""
    from kernelmesh_experiments.sweep import Grid

    if not axes:
        raise InvalidArgument(
            "sweep", "--grid", "be given at least once", "none", remedy="for example --grid step_size=1,3,8"
        )
    fixed = read_settings("sweep", experiment, changes)
    values: dict[str, tuple[Any, ...]] = {}
    for axis in axes:
        name, equals, texts = axis.partition("=")
        if not equals or not name:
            raise InvalidArgument("sweep", "--grid", "be NAME=VALUE,VALUE,…", axis)
        if name in values:
            raise InvalidArgument("sweep", f"--grid {name}", "be given once", axis)
        each = [read_settings("sweep", experiment, [f"{name}={text}"], "--grid") for text in texts.split(",")]
        values[name] = tuple(found[name] for found in each)
    grid = Grid(experiment=experiment.name, axes=values, seeds=seeds, fixed=fixed, show=show)
    grid.configs()
    return grid
