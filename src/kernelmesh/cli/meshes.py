"""`kernelmesh mesh`: create, run and monitor a network of agents."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmesh.cli.base import app, console, fail, reported, say, stderr

if TYPE_CHECKING:
    from rich.console import Group

    from kernelmesh.deploy.processes import AgentProcess
    from kernelmesh.deploy.watching import AgentView

__all__ = ["mesh_init", "mesh_quarantine", "mesh_release", "mesh_status", "mesh_up"]

mesh = typer.Typer(help="Create, run and monitor a network of agents.", no_args_is_help=True)
app.add_typer(mesh, name="mesh")

_ALL_ENDED = "All streams have ended. The agents keep answering requests until Ctrl-C."


@mesh.command("init")
def mesh_init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    agents: Annotated[int, typer.Option(help="The number of agents.")] = 5,
    topology: Annotated[str, typer.Option(help="The graph: ring, line, star, complete or random.")] = "ring",
    tls: Annotated[
        bool, typer.Option("--tls", help="Create a certificate authority and a certificate for each agent.")
    ] = False,
    host: Annotated[str, typer.Option(help="The address that the agents listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port of the first agent; the others use the next ones.")] = 7450,
    protocol: Annotated[str, typer.Option(help="The consensus protocol, such as relay, diffusion or penalty.")] = "relay",
    mode: Annotated[str, typer.Option(help="free (each agent at its own pace) or lock-step.")] = "free",
    partition: Annotated[str, typer.Option(help="What each agent sees: one-class or identical.")] = "one-class",
    samples: Annotated[int, typer.Option(help="The number of samples per agent.")] = 60_000,
    rate: Annotated[float, typer.Option(help="The maximum samples per second and agent; 0 means no limit.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="The random seed of the data.")] = 0,
) -> None:
    """Create a mesh that is ready to run: one TOML file per agent, demo data, and a README."""
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
    folder: Annotated[Path, typer.Argument(help="The folder of a mesh, as created by `mesh init`.")],
    until_done: Annotated[bool, typer.Option("--until-done", help="Stop when every agent's stream has ended.")] = False,
) -> None:
    """Start all agents of a mesh on this machine and show their status until Ctrl-C.

    On Ctrl-C, all agents write a checkpoint and stop. An agent that is killed is restarted after three seconds.
    Logs are in `logs` inside the folder.
    """
    from kernelmesh.deploy.processes import stop_all

    processes = _start(folder)
    killed: list[str] = []
    with _stop_event() as stop:
        try:
            _watch(processes, stop, until_done=until_done)
        finally:
            if not console.is_terminal:
                console.print()  # a live table ends its last line only on a terminal
            stderr.print("Stopping the agents …")
            killed = stop_all(processes)
    if killed:
        fail(f"mesh up: {', '.join(killed)} did not stop in time; killed", code=1)
    if failed := [f"{process.name} {process.remark}" for process in processes if (process.code or 0) > 0]:
        fail("\n".join(failed), code=1)
    say("All agents have stopped and saved a checkpoint.")


def _start(folder: Path) -> list[AgentProcess]:
    """Check that the agents of a folder can learn together, and start them."""
    from kernelmesh.deploy import config, launch, mesh_folder, processes

    with reported("mesh up"):
        files = mesh_folder.agents_of(folder)
        configs = [config.read(file) for file in files]
        processes.check_together(configs)
        for each in configs:  # an agent whose file does not match its data would end at once, in a process of its own
            launch.preview(each)
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
    """Show the agents until all have exited, `stop` is set, or there is nothing left to learn."""
    from rich.live import Live

    from kernelmesh.deploy.watching import MeshWatcher

    reported: dict[str, str] = {}
    with MeshWatcher(processes) as watcher, Live(console=console, refresh_per_second=4) as live:
        while not stop.is_set() and any(process.code is None or process.code < 0 for process in processes):
            for process in processes:
                process.restart_if_killed()
            views = watcher.poll()
            ended = all(view.stream_ended for view in views)
            live.update(_table(views, _ALL_ENDED if ended and not until_done else ""))
            if not console.is_terminal:  # which shows no live table: print a line whenever an agent's state changes
                states = {process.name: process.remark or view.state for process, view in zip(processes, views, strict=True)}
                for name, state in sorted(states.items() - reported.items()):
                    stderr.print(f"{name}: {state}", highlight=False, soft_wrap=True)
                reported = states
            if until_done and ended:
                return
            stop.wait(0.5)  # seconds between two looks


@mesh.command("status")
def mesh_status(
    folder: Annotated[Path, typer.Argument(help="The folder of a running mesh.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per agent and line instead of a table.")
    ] = False,
) -> None:
    """Print the status of every agent of a mesh; exits with 1 if an agent does not answer."""
    import msgspec

    from kernelmesh.deploy import client, mesh_folder, watching

    with reported("mesh status"):
        clients = [client.AgentClient.from_file(file, timeout=2.0) for file in mesh_folder.agents_of(folder)]
    with watching.MeshWatcher(clients) as watcher:
        views = watcher.poll()
    for view in views if as_json else ():
        line = {"agent": view.name, "answers": view.answers, "remarks": view.remarks, "status": view.status}
        typer.echo(msgspec.json.encode(line).decode())
    if not as_json:
        console.print(_table(views))
    if not all(view.answers for view in views):
        raise typer.Exit(1)


_Folder = Annotated[Path, typer.Argument(help="The folder of a mesh.")]


@mesh.command("quarantine")
def mesh_quarantine(folder: _Folder, agent: Annotated[str, typer.Argument(help="The agent to exclude.")]) -> None:
    """Exclude an agent without a restart: the others ignore it and do not answer it until it is released."""
    _exclude("mesh quarantine", folder, agent, excluded=True)


@mesh.command("release")
def mesh_release(folder: _Folder, agent: Annotated[str, typer.Argument(help="The agent to readmit.")]) -> None:
    """Readmit an agent that was quarantined."""
    _exclude("mesh release", folder, agent, excluded=False)


def _exclude(command: str, folder: Path, agent: str, *, excluded: bool) -> None:
    from kernelmesh.deploy import config, mesh_folder

    with reported(command):
        changed = mesh_folder.exclude(folder, agent, excluded=excluded)
    if not changed:
        say(f"{agent} is {'already' if excluded else 'not'} quarantined.")
        return
    state, file = "quarantined" if excluded else "released", folder / config.QUARANTINE
    say(f"{agent} is {state}. Running agents that read {file} apply this within two seconds.")


def _table(views: Sequence[AgentView], footer: str = "") -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("agent", "samples", "order", "loss", "disagreement", "sent", "alive", "refused"):
        table.add_column(title, justify="left" if title == "agent" else "right", no_wrap=True)
    for view in views:
        table.add_row(*_cells(view), style=None if view.answers else "red")
    # below the table, because remarks are long and terminals are narrow
    remarks = [f"{view.name}: {'; '.join(view.remarks)}" for view in views if view.remarks]
    return Group(table, *(Text(line, style="dim") for line in (*remarks, footer) if line))


def _cells(view: AgentView) -> list[str]:
    status = view.status
    if status is None:
        return [view.name, *["–"] * 7]
    loss, disagreement = ("–" if value is None else f"{value:.3g}" for value in (status.loss, status.disagreement))
    alive = sum(neighbor.alive for neighbor in status.neighbors.values())
    heard = "–" if view.stale else f"{alive}/{len(status.neighbors)}"
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    texts = (f"{status.bytes_sent / size:.3g} {unit}" for unit, size in units if status.bytes_sent >= size)
    sent = next(texts, f"{status.bytes_sent} B")
    return [view.name, str(status.samples), str(status.order), loss, disagreement, sent, heard, str(status.refused)]
