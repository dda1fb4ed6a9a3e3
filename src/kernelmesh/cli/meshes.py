"""`kernelmesh mesh`: agents on this machine, created, started and watched."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmesh.cli.base import RegistryCommand, app, console, fail, reported, say, stderr

if TYPE_CHECKING:
    from rich.console import Group

    from kernelmesh.deploy.processes import AgentProcess
    from kernelmesh.deploy.watching import AgentView

__all__ = ["mesh_init", "mesh_quarantine", "mesh_release", "mesh_status", "mesh_up"]

mesh = typer.Typer(help="A network of agents: create one, run it on this machine, watch it.", no_args_is_help=True)
app.add_typer(mesh, name="mesh")

_ALL_ENDED = "All streams have ended; the agents continue to answer until Ctrl-C."
_POLL_EVERY = 0.5  # seconds


@mesh.command("init", cls=RegistryCommand)
def mesh_init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    agents: Annotated[int, typer.Option(help="How many agents.")] = 5,
    topology: Annotated[str, typer.Option(help="Who talks to whom: ring, line, star, complete, random.")] = "ring",
    tls: Annotated[bool, typer.Option("--tls", help="Create an authority and a certificate for each agent.")] = False,
    host: Annotated[str, typer.Option(help="Where the agents listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The first agent's port; the others have the next ones.")] = 7450,
    protocol: Annotated[str, typer.Option(help="How agents come to agree.")] = "shared-statistics",
    mode: Annotated[str, typer.Option(help="free (each agent at its own pace) or lock-step.")] = "free",
    partition: Annotated[str, typer.Option(help="What each agent sees: one-class or identical.")] = "one-class",
    samples: Annotated[int, typer.Option(help="Samples for each agent.")] = 60_000,
    rate: Annotated[float, typer.Option(help="Samples per second at most, like a sensor; 0: no limit.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Seeds the data.")] = 0,
) -> None:
    """Create a mesh that runs as it is: one TOML file per agent, data to learn from, and a README with what to try."""
    options = {name: value for name, value in locals().items() if name != "folder"}
    from kernelmesh.deploy.mesh_folder import MeshPlan, create_mesh

    with reported("mesh init"):
        files = create_mesh(folder, MeshPlan(**options))
    say(
        f"Created {len(files)} agent{'s' if len(files) > 1 else ''} in {folder}. "
        f"Start with `kernelmesh mesh up {folder}`; see {folder / 'README.md'} for more."
    )


@mesh.command("up")
def mesh_up(
    folder: Annotated[Path, typer.Argument(help="A folder that `mesh init` created.")],
    until_done: Annotated[bool, typer.Option("--until-done", help="Stop when every agent's stream has ended.")] = False,
) -> None:
    """Start every agent on this machine and watch them; Ctrl-C stops them all, each with its checkpoint.

    An agent that is killed is restarted after three seconds. Logs are in the folder's `logs`.
    """
    from kernelmesh.deploy.processes import ProcessState, stop_all

    processes = _start(folder)
    killed: list[str] = []
    with _stop_event() as stop:
        try:
            _watch(processes, stop, until_done=until_done)
        finally:
            if not console.is_terminal:
                console.print()  # which a live table ends with only there
            stderr.print("Stopping the agents …")
            killed = stop_all(processes)
    if killed:
        fail(f"mesh up: {', '.join(killed)} did not stop in time and had to be killed", code=1)
    if failed := [process for process in processes if process.state is ProcessState.FAILED]:
        fail("\n".join(f"{process.name} {process.remark}" for process in failed), code=1)
    say("All agents have stopped, each with its checkpoint.")


def _start(folder: Path) -> list[AgentProcess]:
    """Start the agents of a folder, after a check that they can learn together."""
    from kernelmesh.deploy import config, launch, mesh_folder, processes

    with reported("mesh up"):
        files = mesh_folder.agents_of(folder)
        configs = [config.read(file) for file in files]
        processes.check_together(configs)
        say("Starting (the first run on a machine compiles the inner loops) …")
        launch.warm_up(configs[0])
        return processes.start_all(files, folder / "logs")


@contextlib.contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(processes: Sequence[AgentProcess], stop: threading.Event, *, until_done: bool) -> None:
    """Show the agents until all have ended by themselves, or `stop` is set, or there is no more to learn."""
    from rich.live import Live

    from kernelmesh.deploy.processes import ProcessState
    from kernelmesh.deploy.watching import MeshWatcher

    over = (ProcessState.LEFT, ProcessState.FAILED)
    with MeshWatcher(processes) as watcher, Live(console=console, refresh_per_second=4) as live:
        while not stop.is_set() and not all(process.state in over for process in processes):
            for process in processes:
                process.restart_if_killed()
            views = watcher.poll()
            ended = all(view.stream_ended for view in views)
            live.update(_table(views, _ALL_ENDED if ended and not until_done else ""))
            if until_done and all(view.is_done for view in views):
                return
            stop.wait(_POLL_EVERY)


@mesh.command("status")
def mesh_status(
    folder: Annotated[Path, typer.Argument(help="A folder that `mesh init` created, with agents that are running.")],
) -> None:
    """Request the status of every agent of a mesh; exits with 1 if one does not answer."""
    from kernelmesh.deploy import client, mesh_folder, watching

    with reported("mesh status"):
        clients = [client.AgentClient.from_file(file, timeout=2.0) for file in mesh_folder.agents_of(folder)]
    with watching.MeshWatcher(clients) as watcher:
        views = watcher.poll()
    console.print(_table(views))
    if not all(view.answers for view in views):
        raise typer.Exit(1)


@mesh.command("quarantine")
def mesh_quarantine(
    folder: Annotated[Path, typer.Argument(help="A folder that `mesh init` created.")],
    agent: Annotated[str, typer.Argument(help="The agent that the others are not to listen to.")],
) -> None:
    """Have all agents of a mesh neither listen to nor answer one of them, without a restart, until it is released."""
    _exclude("mesh quarantine", folder, agent, excluded=True)


@mesh.command("release")
def mesh_release(
    folder: Annotated[Path, typer.Argument(help="A folder that `mesh init` created.")],
    agent: Annotated[str, typer.Argument(help="The agent that is to be listened to again.")],
) -> None:
    """Have all agents of a mesh listen again to one that was quarantined."""
    _exclude("mesh release", folder, agent, excluded=False)


def _exclude(command: str, folder: Path, agent: str, *, excluded: bool) -> None:
    from kernelmesh.deploy import config, mesh_folder

    with reported(command):
        changed = mesh_folder.exclude(folder, agent, excluded=excluded)
    state = "quarantined" if excluded else "released"
    if not changed:
        say(f"{agent} is {'already' if excluded else 'not'} quarantined.")
        return
    say(f"{agent} is {state}: agents that read {folder / config.QUARANTINE} heed it within a second or two.")


def _table(views: Sequence[AgentView], footer: str = "") -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("agent", "samples", "order", "loss", "disagreement", "sent", "alive", "refused"):
        table.add_column(title, justify="left" if title == "agent" else "right", no_wrap=True)
    for view in views:
        table.add_row(*_cells(view), style=None if view.answers else "red")
    # below, because remarks are long and a terminal is narrow
    remarks = [f"{view.name}: {'; '.join(view.remarks)}" for view in views if view.remarks]
    return Group(table, *(Text(line, style="dim") for line in (*remarks, footer) if line))


def _cells(view: AgentView) -> list[str]:
    status, alive = view.status, view.alive_neighbors
    if status is None:
        return [view.name, *["–"] * 7]
    loss, disagreement = ("–" if value is None else f"{value:.3g}" for value in (status.loss, status.disagreement))
    heard = "–" if alive is None else f"{alive}/{len(status.neighbors)}"
    counts = (str(status.samples), str(status.order), loss, disagreement, _size(status.bytes_sent), heard)
    return [view.name, *counts, str(status.refused)]


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
