"""`kernelmesh list` and `kernelmesh show`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmesh import MissingExtra
from kernelmesh.cli.base import app, console, fail, reported, say

if TYPE_CHECKING:  # experiments pull in plotting and solvers, which only these commands need
    from kernelmesh_experiments.base import Experiment

__all__ = ["describe", "find", "known_experiments", "list_experiments", "print_rows", "show"]


def known_experiments() -> dict[str, Experiment]:
    """All experiments by name; exits if packages are missing."""
    from kernelmesh_experiments.catalog import experiments

    try:
        return experiments()
    except MissingExtra as error:
        fail(error, code=1)


def find(command: str, name: str) -> Experiment:
    """The experiment of that name, or an error that lists all of them."""
    from kernelmesh_experiments.settings import one_of

    known = known_experiments()
    one_of(*known)(command, "NAME", name)
    return known[name]


def print_rows(rows: Iterable[Sequence[str]], *titles: str, header: bool = True) -> None:
    """Print a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles, show_header=header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # as Text, so that brackets are not read as markup
    console.print(table)


@app.command("list")
def list_experiments(
    protocols: Annotated[bool, typer.Option("--protocols", help="List the consensus protocols instead.")] = False,
    learners: Annotated[bool, typer.Option("--learners", help="List the learners instead.")] = False,
) -> None:
    """List the available experiments, and about how long each takes on two cores."""
    known = known_experiments()
    from kernelmesh_experiments.kinds import describe_learners, describe_protocols

    if protocols:
        print_rows(describe_protocols().items(), "protocol", "what agents do")
    if learners:
        print_rows(describe_learners().items(), "learner", "how an agent learns")
    if not protocols and not learners:
        rows = ((each.name, each.about, each.takes) for each in known.values())
        print_rows(rows, "experiment", "what it shows", "takes about")


@app.command()
def show(name: Annotated[str, typer.Argument(help="The experiment; see `kernelmesh list`.")]) -> None:
    """Describe an experiment and list its settings with their defaults."""
    with reported("show"):
        experiment = find("show", name)
    describe(experiment)


def describe(experiment: Experiment) -> None:
    """Print what an experiment does, and its settings."""
    from kernelmesh_experiments.settings import describe_settings

    say(f"{experiment.name}: {experiment.about} (about {experiment.takes})\n")
    settings = describe_settings(experiment.config).values()
    print_rows(((each.name, _shown(each.default), each.doc) for each in settings), "setting", "default", "meaning")
    table = " `--all` computes all of it." if experiment.table else ""
    say(f"\n`kernelmesh run {experiment.name} --set NAME=VALUE` changes a setting.{table}")


def _shown(default: Any) -> str:
    if default is None:
        return "unset"
    return f"{default:g}" if isinstance(default, float) else str(default) or '""'
