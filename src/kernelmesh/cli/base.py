"""Shared parts of all commands: the application, output, and errors."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from kernelmesh.errors import Diverged, InvalidArgument, InvalidConfig

__all__ = ["app", "console", "fail", "reported", "say", "stderr"]

app = typer.Typer(
    help="Train one kernel model across a network of agents, online and without a server.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
console = Console(emoji=False)
stderr = Console(stderr=True, emoji=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kernelmesh import __version__

        say(f"kernelmesh {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def fail(message: object, *, code: int) -> NoReturn:
    """Print an error and exit: code 2 if the command or a file must be corrected, 1 if something failed, 130 on Ctrl-C."""
    stderr.print(str(message), style="bold red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def say(message: str) -> None:
    """Print a message without interpreting markup."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def reported(command: str, *, code: int | None = None, hint: str = "") -> Iterator[None]:
    """Turn errors into exit codes: `code`, or by default 2 if the command or a file must be corrected, otherwise 1."""
    try:
        yield
    except InvalidArgument as error:
        fail(f"{command}: {error}{hint}" if code else error.owned_by(command), code=code or 2)
    except InvalidConfig as error:
        fail(f"{command}: {error}{hint}" if code else error, code=code or 2)
    except MemoryError:
        fail(f"{command}: out of memory: the model does not fit into the memory of this machine", code=1)
    except Diverged as error:
        fail(f"{command}: {error}", code=1)
    except (ImportError, OSError) as error:
        fail(f"{command}: {error}{hint}", code=code or 1)
    except ValueError as error:
        fail(f"{command}: {error}{hint}", code=code or 2)
