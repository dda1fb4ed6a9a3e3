"""`kernelmesh agent` and `kernelmesh ask`."""

from __future__ import annotations

import csv
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelmesh.cli.base import app, console, fail

if TYPE_CHECKING:
    from kernelmesh.checks import Floats
    from kernelmesh.deploy import Config
    from kernelmesh.deploy.client import AgentAddress
    from kernelmesh.runtimes.node import Node

__all__ = ["agent", "ask"]


@app.command()
def agent(
    config: Annotated[Path, typer.Argument(help="The agent's TOML file; `kernelmesh mesh init` writes some.")],
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong with the file.")] = False,
    parent: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Run one agent: learn from its stream together with its neighbors, until Ctrl-C or SIGTERM.

    It writes checkpoints on the way and at the end, and goes on from them when it is started again.
    """
    from kernelmesh.deploy import InvalidConfig, read

    try:
        settings = read(config)
    except InvalidConfig as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"agent: CONFIG must be a file that can be read, got {str(config)!r} ({error.strerror})", code=2)
    if check:
        _say_in_order(settings)
        return
    _run(settings, parent)


def _say_in_order(settings: Config) -> None:
    """What `--check` says of a file without mistakes, after a look at its stream."""
    from kernelmesh.deploy.launch import look
    from kernelmesh.deploy.toml_positions import locate

    logging.basicConfig(level="WARNING", format="%(message)s", stream=sys.stderr)
    try:
        look(settings)
    except (ImportError, OSError, ValueError) as error:
        line = locate(settings.path.read_text(encoding="utf-8")).of(("stream", "path"))
        fail(f"{settings.path}:{line}: {error}", code=2)
    place, agent = settings.place, settings.agent
    around = ", ".join(place.neighbors) or "nobody"
    kinds = ", ".join(type(kind).__name__ for kind in (agent.kernel, agent.loss, agent.consensus))
    console.print(
        f"{settings.path.name}: in order. {place.name} listens on {place.listen}{' with TLS' if place.tls else ''} "
        f"and talks to {around}; {kinds}.",
        highlight=False,
        soft_wrap=True,
    )


def _run(settings: Config, parent: int) -> None:
    """Launch the agent, and have it learn until it is told to stop."""
    logging.basicConfig(
        level=settings.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    log = logging.getLogger("kernelmesh.agent")
    from threadpoolctl import threadpool_limits

    from kernelmesh.errors import Diverged
    from kernelmesh.deploy.launch import launch

    log.info("%s is getting ready (on a new machine its inner loops are compiled first)", settings.place.name)
    threadpool_limits(1)  # the products are small, and hosts have other things to do
    try:
        node = launch(settings)
    except (ImportError, OSError, ValueError) as error:
        fail(f"agent {settings.place.name}: {error}", code=2)
    except Diverged as error:
        fail(f"agent {settings.place.name}: {error}", code=1)
    except MemoryError:
        fail(f"agent {settings.place.name}: the model does not fit into the memory of this machine", code=1)
    _stop_on_signals(node, parent)
    log.info("%s is up on %s, process %d", settings.place.name, settings.place.listen, os.getpid())
    told = time.monotonic()
    try:
        for turn in node.turns():
            if time.monotonic() - told >= 10.0:
                told = time.monotonic()
                log.info(
                    "step %d: %d samples, loss %.3g, order %d",
                    turn.number,
                    turn.state.samples,
                    turn.info.loss,
                    turn.info.order,
                )
    except Diverged as error:
        fail(f"agent {settings.place.name}: {error}", code=1)
    except (OSError, ValueError) as error:
        fail(f"agent {settings.place.name}: {error}; what was learned is in {settings.keep.folder}", code=1)
    except MemoryError:
        fail(f"agent {settings.place.name}: the model does not fit into the memory of this machine", code=1)
    if trouble := node.status()["trouble"]:
        fail(f"agent {settings.place.name}: what was learned last could not be written: {trouble}", code=1)
    state = node.state
    log.info("%s has stopped after %d samples with %d points", settings.place.name, state.samples, state.function.order)


def _stop_on_signals(node: Node, parent: int) -> None:
    """Ctrl-C and SIGTERM end the run after the step at hand; so does the end of the process that started us."""

    def stop(*_: object) -> None:
        node.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second time the user means now

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if parent:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            node.stop()

        threading.Thread(target=watch, daemon=True).start()


@app.command()
def ask(
    config: Annotated[Path, typer.Argument(help="The TOML file of an agent that is running.")],
    x: Annotated[list[str] | None, typer.Option("--x", help='A point: "0.1, 0.2"; may be repeated.')] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A CSV file of points; its header names the stream's columns.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--as", help="With TLS: the client to ask as; its files lie in tls/.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where the agent is, if not where its file says it listens.")] = None,
) -> None:
    """Ask a running agent what it predicts; prints CSV: the point, what it predicts, and the outputs behind that."""
    import numpy as np

    from kernelmesh.deploy.client import AgentAddress, Line

    if (x is None) == (file is None):
        fail('ask: give either --x "0.1, 0.2" or --file points.csv', code=2)
    try:
        address = AgentAddress.read(config, client=client, host=host)
        points = _points(x, address) if x is not None else _from_file(file, address)
        line = Line(address)
        try:
            rows = max(1, (1 << 17) // points.shape[1])  # messages of about a megabyte
            outputs = np.concatenate([line.predict(points[i : i + rows]) for i in range(0, len(points), rows)])
        finally:
            line.close()
    except (ImportError, OSError) as error:
        fail(f"ask: {error}", code=1)
    except ValueError as error:
        fail(str(error), code=2)
    _print(address, points, outputs)


def _points(texts: list[str], address: AgentAddress) -> Floats:
    from kernelmesh.checks import matrix
    from kernelmesh.errors import InvalidArgument

    rows = []
    for text in texts:
        try:
            rows.append([float(part) for part in text.replace(",", " ").split()])
        except ValueError:
            raise InvalidArgument("ask", "--x", "be numbers with commas between them", text) from None
        if address.points and len(rows[-1]) != len(address.points):
            raise InvalidArgument("ask", "--x", f"be {len(address.points)} numbers ({', '.join(address.points)})", text)
    return matrix("ask", "--x", rows)


def _from_file(file: Path | None, address: AgentAddress) -> Floats:
    from kernelmesh.checks import matrix
    from kernelmesh.errors import InvalidArgument

    assert file is not None
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            table = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgument("ask", "--file", f"be a CSV file that can be read ({error})", str(file)) from None
    rows = []
    for number, row in enumerate(table, start=2):
        try:
            rows.append([float(row[name]) for name in address.points])
        except (KeyError, TypeError, ValueError):
            rule = f"hold numbers in the columns {', '.join(address.points)} (line {number})"
            raise InvalidArgument("ask", "--file", rule, dict(row)) from None
    if not rows:
        raise InvalidArgument("ask", "--file", "hold at least one point", str(file))
    return matrix("ask", "--file", rows, columns=len(address.points))


def _print(address: AgentAddress, points: Floats, outputs: Floats) -> None:
    import numpy as np

    classifies = address.loss in ("Logistic", "Hinge", "SquaredHinge")
    classes = address.classes or tuple(map(str, range(outputs.shape[1])))
    if classifies and address.loss == "Logistic":
        raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        outputs = raised / raised.sum(axis=1, keepdims=True)
    names = (
        address.points if len(address.points) == points.shape[1] else tuple(f"x{i + 1}" for i in range(points.shape[1]))
    )
    behind = [f"{'p' if address.loss == 'Logistic' else 'score'}({name})" for name in classes]
    columns = (
        ["class", *behind] if classifies else list(address.targets or (f"y{i + 1}" for i in range(outputs.shape[1])))
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*names, *columns])
    for point, row in zip(points.tolist(), outputs.tolist(), strict=True):
        best: list[Any] = [classes[int(np.argmax(row))]] if classifies else []
        writer.writerow([*point, *best, *(f"{value:.6g}" for value in row)])
