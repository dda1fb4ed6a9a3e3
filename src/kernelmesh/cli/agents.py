"""`kernelmesh agent` and `kernelmesh ask`."""

from __future__ import annotations

import csv
import logging
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmesh.cli.base import app, fail, reported, say
from kernelmesh.errors import InvalidArgument, InvalidConfig

if TYPE_CHECKING:
    from kernelmesh.checks import Floats
    from kernelmesh.deploy.client import AgentAddress
    from kernelmesh.deploy.config import Config
    from kernelmesh.runtimes.runner import AgentRunner

__all__ = ["agent", "ask"]

_log = logging.getLogger("kernelmesh.agent")


@app.command()
def agent(
    config: Annotated[Path, typer.Argument(help="The agent's TOML file, as created by `kernelmesh mesh init`.")],
    check: Annotated[bool, typer.Option("--check", help="Validate the file and exit.")] = False,
    parent: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Run one agent: learn from its stream together with its neighbors until Ctrl-C or SIGTERM.

    The agent writes checkpoints while it runs and when it stops, and resumes from them at the next start.
    """
    from kernelmesh.deploy.config import read

    with reported("agent"):
        settings = read(config)
    if check:
        _check(settings)
    else:
        _run(settings, parent)


def _check(settings: Config) -> None:
    """Preview the stream of a valid file and print a summary of the agent."""
    from kernelmesh.deploy.launch import preview

    logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stderr)
    try:
        preview(settings)
    except InvalidConfig as error:
        fail(error, code=2)
    except (ImportError, OSError, ValueError) as error:
        fail(f"{settings.path}:{settings.line_of('stream', 'path')}: {error}", code=2)
    member, agent = settings.membership, settings.agent
    roles = {"kernel": agent.kernel, "loss": agent.loss, "learner": agent.learner, "protocol": agent.protocol}
    say(
        f"{settings.path.name}: OK. {member.name} listens on {member.listen}{' with TLS' if member.tls else ''}; "
        f"neighbors: {', '.join(member.neighbors) or 'none'}; "
        f"{', '.join(f'{role} {type(kind).__name__}' for role, kind in roles.items())}."
    )


def _run(settings: Config, parent: int) -> None:
    """Launch the agent and run it until it is stopped."""
    logging.basicConfig(
        level=settings.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    name = settings.membership.name
    _log.info("%s is starting (the first run on a machine compiles the inner loops)", name)
    with reported(f"agent {name}", code=2):
        from kernelmesh.deploy.launch import launch, stream_mistakes

        runner = launch(settings)
    _stop_on_signals(runner, parent)
    _log.info("%s is up on %s, process %d", name, settings.membership.listen, os.getpid())
    hint, logged = f"; progress is saved in {settings.checkpoint.folder}", time.monotonic()
    with reported(f"agent {name}", code=1, hint=hint), stream_mistakes(settings):
        for turn in runner.turns():
            if time.monotonic() - logged >= 10.0:  # seconds
                logged, samples, info = time.monotonic(), turn.state.samples, turn.info
                _log.info("step %d: %d samples, loss %.3g, order %d", turn.number, samples, info.loss, info.order)
    if trouble := runner.status().trouble:
        fail(f"agent {name}: the last steps could not be saved: {trouble}", code=1)
    state = runner.state
    _log.info("%s stopped after %d samples, with %d points", name, state.samples, state.function.order)


def _stop_on_signals(runner: AgentRunner, parent: int) -> None:
    """Stop after the current step on Ctrl-C, on SIGTERM, and when the parent process ends."""

    def stop(*_: object) -> None:
        runner.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C stops immediately

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        runner.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if parent:
        threading.Thread(target=watch, daemon=True).start()


@app.command()
def ask(
    config: Annotated[Path, typer.Argument(help="The TOML file of a running agent.")],
    x: Annotated[list[str] | None, typer.Option("--x", help='A point, such as "0.1, 0.2"; can be repeated.')] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A CSV file of points, with the stream's column names as its header.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--as", help="With TLS: the client name to connect as; its certificate is in tls/.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The agent's host, if different from the one in its file.")] = None,
) -> None:
    """Request predictions from a running agent.

    Prints CSV with the points, the predictions, and the class probabilities or scores.
    """
    import numpy as np

    from kernelmesh.checks import matrix
    from kernelmesh.deploy.client import AgentClient

    if (x is None) == (file is None):
        fail('ask: specify either --x "0.1, 0.2" or --file points.csv', code=2)
    with reported("ask"), AgentClient.from_file(config, client=client, host=host) as agent:
        given = _points(x or [], agent.address) if file is None else _from_file(file, agent.address)
        points = matrix("ask", "--x" if file is None else "--file", given)
        # requests of about a megabyte, and at most half of what the agent accepts
        values = min(1 << 17, (agent.address.max_bytes or math.inf) // 16)
        rows = max(1, int(values // points.shape[1]))
        outputs = np.concatenate([agent.predict(points[i : i + rows]) for i in range(0, len(points), rows)])
    _print(agent.address, points, outputs)


def _points(texts: list[str], address: AgentAddress) -> list[list[float]]:
    rows, count = [], len(address.points)
    for text in texts:
        try:
            rows.append([float(part) for part in text.replace(",", " ").split()])
        except ValueError:
            raise InvalidArgument("ask", "--x", "be numbers separated by commas", text) from None
        if count and len(rows[-1]) != count:
            raise InvalidArgument("ask", "--x", f"be {count} numbers ({', '.join(address.points)})", text)
    return rows


def _from_file(file: Path, address: AgentAddress) -> list[list[float]]:
    rows: list[list[float]] = []
    names = ", ".join(address.points)
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            for row in csv.DictReader(opened):
                try:
                    rows.append([float(row[name]) for name in address.points])
                except (KeyError, TypeError, ValueError):
                    rule = f"contain numbers in the columns {names} (line {len(rows) + 2})"
                    raise InvalidArgument("ask", "--file", rule, dict(row)) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgument("ask", "--file", f"be a readable CSV file ({error})", str(file)) from None
    if not any(rows):
        raise InvalidArgument("ask", "--file", "contain at least one point", str(file))
    return rows


def _print(address: AgentAddress, points: Floats, outputs: Floats) -> None:
    """Print the points with their predictions: numbers, or a class with its probabilities or scores."""
    loss, count = address.loss, outputs.shape[1]
    numbered = tuple(map(str, range(count)))
    classes: tuple[str, ...] = ()
    columns = _names(address.targets, "y", count)
    if loss is not None and loss.classifies:
        classes = address.classes if len(address.classes) == count else numbered
        # a loss that models probabilities converts outputs to them
        if (probabilities := getattr(loss, "probabilities", None)) is not None:
            outputs = probabilities(outputs)
        columns = ["class", *(f"{'p' if probabilities else 'score'}({name})" for name in classes)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_names(address.points, "x", points.shape[1]), *columns])
    for point, row, best in zip(points.tolist(), outputs.tolist(), outputs.argmax(axis=1).tolist(), strict=True):
        writer.writerow([*point, *([classes[best]] if classes else []), *(f"{value:.6g}" for value in row)])


def _names(known: tuple[str, ...], letter: str, count: int) -> list[str]:
    """The column names of the data, if they are known."""
    return list(known) if len(known) == count else [f"{letter}{i + 1}" for i in range(count)]
