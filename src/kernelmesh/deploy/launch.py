"""From an agent's file to an agent that runs: stream, carrier, store, node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from kernelmesh.deploy.config import Config
from kernelmesh.errors import Diverged, InvalidArgument, Verbatim
from kernelmesh.numerics.compression import compressed
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.neighbors import style_of
from kernelmesh.runtimes.node import Node
from kernelmesh.streams import Columns, FileSource, LineSource, Paced, Source, read_stdin

__all__ = ["launch", "look", "warm_up"]


def launch(config: Config) -> Node:
    """Open everything that an agent needs; its `turns` are the run. What cannot be opened is let go of again."""
    # only those who run agents need zenoh
    from kernelmesh.runtimes.zenoh import ZenohCarrier

    warm_up(config)
    source, feeds = _source(config)
    store = carrier = None
    try:
        store = CheckpointStore(
            config.keep.folder, agent=config.agent, settings=config.settings, every=config.keep.every
        )
        carrier = ZenohCarrier(config.place, feeds=feeds)
        return Node(config.agent, config.place, source, carrier, store=store, stay=config.stay)
    except BaseException:
        if carrier is not None:
            carrier.close()
        if store is not None:
            store.close()
        source.close()
        raise


def warm_up(config: Config) -> None:
    """Have the inner loops compiled, which takes long once on every machine, before anybody waits for an answer."""
    agent, rng = config.agent, np.random.default_rng(0)
    state = agent.start()
    points = rng.standard_normal((config.stream.batch_size, agent.dimension))
    labels, values = np.arange(len(points)) % agent.outputs, rng.standard_normal((len(points), agent.outputs))
    with contextlib.suppress(Diverged):  # on these numbers, which mean nothing
        for _ in range(3):
            state, _ = agent.step(state, points + rng.standard_normal(), labels if agent.loss.classifies else values)
    if style_of(agent)[0] in ("functions", "offers"):  # of which some points will be known already
        compressed(agent.kernel, points, values, 0.1)


def look(config: Config) -> None:
    """Read the first mini-batch of a file, so that columns or classes that do not fit it are found before the start."""
    if config.stream.path is None or not config.stream.path.exists():
        return
    source, _ = _source(config)
    try:
        for _ in range(8):
            if source.take() is not None or source.ended:
                break
        if source.refused and source.position["row"] == 0:
            raise InvalidArgument(
                "stream",
                "columns and classes",
                "fit the file",
                Verbatim(f"{source.refused} rows that cannot be used, and none that can"),
                remedy="what is wrong with the first ones is told above"
                if config.stream.classes
                else "text classes need classes = [...]",
            )
    finally:
        source.close()


def _source(config: Config) -> tuple[Source, dict[str, Callable[[bytes], None]]]:
    """The stream, and what is to be fed by which zenoh key."""
    settings = config.stream
    columns = Columns(
        points=settings.points,
        targets=settings.targets,
        classes=settings.classes or None,
        labels=config.agent.loss.classifies,
        outputs=config.agent.outputs,
    )
    feeds: dict[str, Callable[[bytes], None]] = {}
    source: Source
    if settings.path is not None:
        source = FileSource(
            settings.path,
            columns,
            format=settings.format,
            batch_size=settings.batch_size,
            follow=settings.follow,
        )
    else:
        lines = LineSource(
            columns,
            format=settings.format,
            batch_size=settings.batch_size,
            max_pending=max(65536, 4 * settings.batch_size),
            endless=settings.key is not None,
        )
        source = lines
        if settings.key is not None:
            # every publication is one or more whole lines, with or without a newline after the last
            feeds[settings.key] = lambda data: lines.feed(data if data.endswith(b"\n") else data + b"\n")
        else:
            read_stdin(lines)
    return (Paced(source, settings.rate) if settings.rate > 0 else source), feeds
