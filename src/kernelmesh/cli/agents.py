"""`kernelmesh agent` and `kernelmesh ask`."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelmesh.cli.base import app, fail, reported, say
from kernelmesh.errors import Diverged, InvalidArgument, InvalidConfig

if TYPE_CHECKING:
    from kernelmesh.checks import Floats
    from kernelmesh.deploy.client import AgentAddress
    from kernelmesh.deploy.config import Config
    from kernelmesh.runtimes.runner import AgentRunner

__all__ = ["agent", "ask"]

_log = logging.getLogger("kernelmesh.agent")
_REPORT_EVERY = 10.0  # seconds
_VALUES_PER_REQUEST = 1 << 17  # messages of about a megabyte


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
    from kernelmesh.deploy import launch, toml_positions

    logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stderr)
    try:
        launch.preview(settings)
    except InvalidConfig as error:
        fail(error, code=2)
    except (ImportError, OSError, ValueError) as error:
        line = toml_positions.locate(settings.path.read_text(encoding="utf-8")).of(("stream", "path"))
        fail(f"{settings.path}:{line}: {error}", code=2)
    member, agent = settings.membership, settings.agent
    neighbors = ", ".join(member.neighbors) or "none"
    roles = {"kernel": agent.kernel, "loss": agent.loss, "learner": agent.learner, "protocol": agent.protocol}
    model = ", ".join(f"{role} {type(kind).__name__}" for role, kind in roles.items())
    say(
        f"{settings.path.name}: OK. {member.name} listens on {member.listen}{' with TLS' if member.tls else ''}; "
        f"neighbors: {neighbors}; {model}."
    )


@contextlib.contextmanager
def _ended(name: str, *, code: int, hint: str = "") -> Iterator[None]:
    """Turn an agent's errors into exit codes: 1 if it diverged or ran out of memory, otherwise `code`."""
    try:
        yield
    except Diverged as error:
        fail(f"agent {name}: {error}", code=1)
    except MemoryError:
        fail(f"agent {name}: out of memory: the model does not fit into the memory of this machine", code=1)
    except (ImportError, OSError, ValueError) as error:
        fail(f"agent {name}: {error}{hint}", code=code)


def _run(settings: Config, parent: int) -> None:
    """Launch the agent and run it until it is stopped."""
    logging.basicConfig(
        level=settings.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    name = settings.membership.name
    _log.info("%s is starting (the first run on a machine compiles the inner loops)", name)
    with _ended(name, code=2):
        from kernelmesh.deploy.launch import launch, stream_mistakes
        from kernelmesh.runtimes.threads import use_one_thread

        use_one_thread()
        runner = launch(settings)
    _stop_on_signals(runner, parent)
    _log.info("%s is up on %s, process %d", name, settings.membership.listen, os.getpid())
    with _ended(name, code=1, hint=f"; progress is saved in {settings.checkpoint.folder}"), stream_mistakes(settings):
        _learn(runner)
    if trouble := runner.status().trouble:
        fail(f"agent {name}: the last steps could not be saved: {trouble}", code=1)
    state = runner.state
    _log.info("%s stopped after %d samples, with %d points", name, state.samples, state.function.order)


def _learn(runner: AgentRunner) -> None:
    reported = time.monotonic()
    for turn in runner.turns():
        if time.monotonic() - reported >= _REPORT_EVERY:
            reported, samples, info = time.monotonic(), turn.state.samples, turn.info
            _log.info("step %d: %d samples, loss %.3g, order %d", turn.number, samples, info.loss, info.order)


def _stop_on_signals(runner: AgentRunner, parent: int) -> None:
    """Stop after the current step on Ctrl-C, on SIGTERM, and when the parent process ends."""

    def stop(*_: object) -> None:
        runner.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C stops immediately

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if parent:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            runner.stop()

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
        rows = _rows_per_request(agent.address, points.shape[1])
        outputs = np.concatenate([agent.predict(points[i : i + rows]) for i in range(0, len(points), rows)])
    _print(agent.address, points, outputs)


def _rows_per_request(address: AgentAddress, columns: int) -> int:
    """The number of rows in a request of about a megabyte, and at most half of what the agent accepts."""
    values = _VALUES_PER_REQUEST if address.max_bytes is None else min(_VALUES_PER_REQUEST, address.max_bytes // 16)
    return max(1, values // columns)


def _points(texts: list[str], address: AgentAddress) -> list[list[float]]:
    rows = []
    for text in texts:
        try:
            rows.append([float(part) for part in text.replace(",", " ").split()])
        except ValueError:
            raise InvalidArgument("ask", "--x", "be numbers separated by commas", text) from None
        if address.points and len(rows[-1]) != len(address.points):
            raise InvalidArgument("ask", "--x", f"be {len(address.points)} numbers ({', '.join(address.points)})", text)
    return rows


def _from_file(file: Path, address: AgentAddress) -> list[list[float]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            table = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgument("ask", "--file", f"be a readable CSV file ({error})", str(file)) from None
    rows = []
    for number, row in enumerate(table, start=2):
        try:
            rows.append([float(row[name]) for name in address.points])
        except (KeyError, TypeError, ValueError):
            rule = f"contain numbers in the columns {', '.join(address.points)} (line {number})"
            raise InvalidArgument("ask", "--file", rule, dict(row)) from None
    if not any(rows):
        raise InvalidArgument("ask", "--file", "contain at least one point", str(file))
    return rows


def _print(address: AgentAddress, points: Floats, outputs: Floats) -> None:
    """Print the points with their predictions: numbers, or a class with its probabilities or scores."""
    loss, count = address.loss, outputs.shape[1]
    classes: tuple[str, ...] = ()
    if loss is not None and loss.classifies:
        classes = address.classes if len(address.classes) == count else tuple(map(str, range(count)))
        # a loss that models probabilities converts outputs to them
        if (probabilities := getattr(loss, "probabilities", None)) is not None:
            outputs = probabilities(outputs)
        columns = ["class", *(f"{'p' if probabilities else 'score'}({name})" for name in classes)]
    else:
        columns = _names(address.targets, "y", count)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_names(address.points, "x", points.shape[1]), *columns])
    for point, row, best in zip(points.tolist(), outputs.tolist(), outputs.argmax(axis=1).tolist(), strict=True):
        writer.writerow([*point, *([classes[best]] if classes else []), *(f"{value:.6g}" for value in row)])


def _names(known: tuple[str, ...], letter: str, count: int) -> list[str]:
    """The column names of the data, if they are known."""
    return list(known) if len(known) == count else [f"{letter}{i + 1}" for i in range(count)]
