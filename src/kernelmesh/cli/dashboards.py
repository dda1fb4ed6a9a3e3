"""`kernelmesh dashboard` and `kernelmesh report`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmesh.cli.base import app, fail, reported, say, stderr
from kernelmesh.errors import InvalidArgument, Verbatim

if TYPE_CHECKING:
    from kernelmesh.dashboard.serving import Dashboard
    from kernelmesh.dashboard.sources import Source

__all__ = ["announce", "dashboard", "report"]


@app.command()
def dashboard(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR] [DIR2]", help="The folder of a run, and optionally a second one to compare."),
    ] = None,
    mesh: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of a mesh whose running agents to monitor (read-only).")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; clients on other machines need the token that is printed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 picks a free one.")] = 8765,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a live page that shows a run, compares two runs, or monitors a mesh.

    The page is at http://127.0.0.1:8765/ until Ctrl-C. To follow a run in progress, use `kernelmesh run NAME --watch`.
    """
    with reported("dashboard"), contextlib.ExitStack() as stack:
        sources = _sources(folders or [], mesh, stack)
        from kernelmesh.dashboard.serving import Dashboard

        page = Dashboard(sources, host=host, port=port)
        announce(page)
        for source in sources:
            if (news := source.news()).status == "unreadable":
                stderr.print(news.message, style="yellow", markup=False, highlight=False, soft_wrap=True)
        if browser:
            import webbrowser

            webbrowser.open(page.url)
        with contextlib.suppress(KeyboardInterrupt):
            page.serve()
    say("Stopped.")


def announce(page: Dashboard) -> None:
    """Print the address of the page."""
    say(f"Dashboard at {page.url} (press Ctrl-C to stop).")
    if page.policy.token:
        say(f"From other machines: {page.policy.remote_url}")
        say("Anyone who has this address can read the page. The connection is not encrypted.")


def _sources(folders: Sequence[Path], mesh: Path | None, stack: contextlib.ExitStack) -> list[Source]:
    """The sources given on the command line: one run, two, or a mesh."""
    if (mesh is None) == (not folders) or len(folders) > 2:
        given = [*map(str, folders), *([f"--mesh {mesh}"] if mesh else [])]
        rule = "be the folder of a run, two folders to compare, or --mesh with the folder of a mesh"
        raise InvalidArgument("dashboard", "DIR", rule, Verbatim(", ".join(given) or "nothing"))
    if mesh is not None:
        from kernelmesh.dashboard.mesh_source import MeshSource

        return [stack.enter_context(MeshSource(mesh))]
    from kernelmesh.dashboard.sources import FolderSource

    return [FolderSource(folder) for folder in folders]


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR [DIR2]", help="The folder of a run, and optionally a second one to compare.")
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write (default: DIR/report.html).", dir_okay=False)] = None,
) -> None:
    """Write a run, or a comparison of two runs, as one self-contained HTML file."""
    file = out or folders[0] / "report.html"
    with reported("report"):
        if len(folders) > 2:
            raise InvalidArgument("report", "DIR", "be one run, or two to compare", Verbatim(f"{len(folders)} folders"))
        from kernelmesh.dashboard.documents import check_run
        from kernelmesh.dashboard.export import write_report
        from kernelmesh.errors import UnreadableFile

        for folder in folders:
            check_run("report", folder)
        if not file.parent.is_dir():  # before the work
            found = Verbatim(f"{str(file)!r}, whose folder does not exist")
            raise InvalidArgument("report", "--out", "be a file in an existing folder", found)
        try:
            write_report(folders, file)
        except UnreadableFile as error:
            fail(f"report: {error}", code=1)
    say(f"Written to {file}.")
