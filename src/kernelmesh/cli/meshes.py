"""`kernelmesh mesh`: agents on this machine, laid out, started and looked at."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernelmesh.cli.base import app, console, fail, stderr

if TYPE_CHECKING:
    from kernelmesh.deploy.processes import AgentProcess

__all__ = ["mesh_init", "mesh_status", "mesh_up"]

mesh = typer.Typer(help="A network of agents: lay one out, run it on this machine, look at it.", no_args_is_help=True)
app.add_typer(mesh, name="mesh")


@mesh.command("init")
def mesh_init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    agents: Annotated[int, typer.Option(help="How many agents.")] = 5,
    topology: Annotated[str, typer.Option(help="Who talks to whom: ring, line, star, complete, random.")] = "ring",
    tls: Annotated[bool, typer.Option("--tls", help="With an authority and a certificate for each agent.")] = False,
    host: Annotated[str, typer.Option(help="Where the agents listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The first agent's port; the others have the next ones.")] = 7450,
    protocol: Annotated[
        str, typer.Option(help="exact-diffusion, diffusion, penalty, proximal, symmetric or hilbert.")
    ] = "exact-diffusion",
    mode: Annotated[str, typer.Option(help="free (at their own pace) or lock-step.")] = "free",
    partition: Annotated[str, typer.Option(help="What each agent sees: one-class or identical.")] = "one-class",
    samples: Annotated[int, typer.Option(help="Samples for each agent.")] = 60_000,
    rate: Annotated[float, typer.Option(help="Samples per second at most, like a sensor; 0: no limit.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Seeds the data.")] = 0,
) -> None:
    """Write a mesh that runs as it is: one TOML file per agent, data to learn from, and a README with what to try."""
    from kernelmesh.deploy import create_mesh

    try:
        files = create_mesh(
            folder,
            agents=agents,
            topology=topology,
            tls=tls,
            host=host,
            port=port,
            protocol=protocol,
            mode=mode,
            partition=partition,
            samples=samples,
            rate=rate,
            seed=seed,
        )
    except (ImportError, OSError) as error:
        fail(f"mesh init: {error}", code=1)
    except ValueError as error:
        fail(str(error).replace("create_mesh:", "mesh init:", 1), code=2)
    console.print(
        f"{len(files)} agent{'s' if len(files) > 1 else ''} in {folder}. Start with `kernelmesh mesh up {folder}`; "
        f"{folder / 'README.md'} has more.",
        highlight=False,
        soft_wrap=True,
    )


@mesh.command("up")
def mesh_up(
    folder: Annotated[Path, typer.Argument(help="A folder that `mesh init` wrote.")],
    until_done: Annotated[bool, typer.Option("--until-done", help="Stop when every agent's stream has ended.")] = False,
) -> None:
    """Start every agent on this machine and watch them; Ctrl-C stops them all, each with its checkpoint.

    An agent that is killed is started again after three seconds. Logs are in the folder's `logs`.
    """
    from kernelmesh.deploy import InvalidConfig, agents_of, read
    from kernelmesh.deploy.launch import warm_up
    from kernelmesh.deploy.processes import check_together, start_all, stop_all

    try:
        files = agents_of(folder)
        configs = [read(file) for file in files]
        check_together(configs)
        console.print("getting ready (on a new machine the inner loops are compiled first) …", highlight=False)
        warm_up(configs[0])
        processes = start_all(files, folder / "logs")
    except InvalidConfig as error:
        fail(str(error), code=2)
    except (MemoryError, OSError) as error:
        fail(f"mesh up: {error}", code=1)
    except ValueError as error:
        fail(str(error), code=2)
    statuses: list[dict[str, Any] | None] = [None] * len(processes)
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            ThreadPoolExecutor(len(processes)) as pool,
            Live(console=console, refresh_per_second=4) as live,
        ):
            while not stopping and not all(
                process.ended is not None and process.process and process.process.returncode >= 0
                for process in processes
            ):
                for process in processes:
                    process.watch()
                now = list(pool.map(_status, processes))
                ended = all(status and status["ended"] for status in now)
                live.update(_table(_rows(processes, now, statuses), _ALL_ENDED if ended and not until_done else ""))
                statuses = [status or last for status, last in zip(now, statuses, strict=True)]
                if until_done and all(status and status["ended"] for status in statuses):
                    break
                for _ in range(5):
                    if not stopping:
                        time.sleep(0.1)
    finally:
        if not console.is_terminal:
            console.print()  # which a live table ends with only there
        stderr.print("stopping the agents …")
        killed = stop_all(processes)
        for number, handler in before.items():
            signal.signal(number, handler)
    failed = [process for process in processes if process.process is not None and process.process.returncode > 0]
    if killed:
        fail(f"mesh up: {', '.join(killed)} did not end in time and had to be killed", code=1)
    if failed:
        fail("\n".join(f"{process.name} {process.remark()}" for process in failed), code=1)
    console.print("all agents have stopped, each with its checkpoint", highlight=False)


def _status(process: AgentProcess) -> dict[str, Any] | None:
    return process.status()


@mesh.command("status")
def mesh_status(
    folder: Annotated[Path, typer.Argument(help="A folder that `mesh init` wrote, with agents that are running.")],
) -> None:
    """Ask every agent of a mesh how it is doing; exits with 1 if one does not answer."""
    from kernelmesh.deploy import agents_of
    from kernelmesh.deploy.client import AgentAddress, Line

    try:
        lines = [Line(AgentAddress.read(file), timeout=2.0) for file in agents_of(folder)]
    except ValueError as error:
        fail(str(error), code=2)

    def look(line: Line) -> tuple[dict[str, Any] | None, str]:
        try:
            return line.status(), ""
        except OSError:
            return None, "does not answer"
        except (ImportError, ValueError) as error:
            return None, str(error)
        finally:
            line.close()

    with ThreadPoolExecutor(len(lines)) as pool:
        found = list(pool.map(look, lines))
    rows = [_Row(line.address.name, status, problem) for line, (status, problem) in zip(lines, found, strict=True)]
    console.print(_table(rows))
    if any(status is None for status, _ in found):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Row:
    """One agent in the table: what it says, or said last, and what else is to be said of it."""

    name: str
    status: dict[str, Any] | None
    remark: str = ""
    stale: bool = False

    def cells(self) -> list[str]:
        status = self.status
        if status is None:
            return [self.name, *["–"] * 7]
        around = status["neighbors"].values()
        return [
            self.name,
            str(status["samples"]),
            str(status["order"]),
            _short(status["loss"]),
            _short(status["disagreement"]),
            _size(status["bytes_sent"]),
            "–" if self.stale else f"{sum(known['alive'] for known in around)}/{len(around)}",
            str(status["refused"]),
        ]

    def remarks(self) -> str:
        status, remarks = self.status, [self.remark] if self.remark else []
        if status is not None:
            ignored = [name for name, known in status["neighbors"].items() if known["ignored"]]
            remarks += [
                text
                for text, wanted in (
                    ("stream has ended", status["ended"]),
                    (f"waits for {', '.join(status['waiting_for'])}", status["waiting_for"] and not self.stale),
                    (f"out of step with {', '.join(status['out_of_step'])}: see the log", status["out_of_step"]),
                    (f"ignores {', '.join(ignored)}", ignored),
                    (f"{status['bad_rows']} bad rows", status["bad_rows"]),
                    (f"no checkpoint: {status['trouble']}", status["trouble"]),
                )
                if wanted
            ]
        return "; ".join(remarks)


_ALL_ENDED = "all streams have ended; the agents go on answering until Ctrl-C"


def _table(rows: list[_Row], last: str = "") -> Group:
    table = Table(box=None, pad_edge=False)
    for title in ("agent", "samples", "order", "loss", "disagreement", "sent", "alive", "refused"):
        table.add_column(title, justify="left" if title == "agent" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells(), style="red" if row.stale or row.status is None else None)
    # below, because remarks are long and a terminal is narrow
    told = [Text(f"{row.name}: {row.remarks()}", style="dim") for row in rows if row.remarks()]
    return Group(table, *told, *([Text(last, style="dim")] if last else []))


def _rows(
    processes: list[AgentProcess], now: list[dict[str, Any] | None], before: list[dict[str, Any] | None]
) -> list[_Row]:
    rows = []
    for process, status, last in zip(processes, now, before, strict=True):
        silent = "" if status else "does not answer" if last else "starting"
        remark = "; ".join(part for part in (process.remark(), silent if process.running else "") if part)
        rows.append(_Row(process.name, status or last, remark, stale=status is None and last is not None))
    return rows


def _short(number: float | None) -> str:
    return "–" if number is None else f"{number:.3g}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
