"""What all commands share: the application, where they print, how they fail."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer
from rich.console import Console

__all__ = ["app", "console", "fail", "stderr"]

app = typer.Typer(
    help="Networks of agents that learn one kernel model together, online, without a server.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
console = Console()
stderr = Console(stderr=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kernelmesh import __version__

        console.print(f"kernelmesh {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def fail(message: str, *, code: int) -> NoReturn:
    """Say what is wrong and leave: code 2 where the user can mend it in the command, 1 where it broke, 130 on Ctrl-C."""
    stderr.print(message, style="bold red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
