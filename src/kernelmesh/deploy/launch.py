"""From an agent's file to an agent that runs: stream, carrier, keeper, node."""

from __future__ import annotations

from collections.abc import Callable

from kernelmesh.deploy.config import Config
from kernelmesh.runtimes.keeping import Keeper
from kernelmesh.runtimes.node import Node
from kernelmesh.streams import Columns, FileSource, LineSource, Paced, Source, read_stdin

__all__ = ["launch"]


def launch(config: Config) -> Node:
    """Open everything that an agent needs; its `turns` are the run. What cannot be opened is let go of again."""
    # only those who run agents need zenoh
    from kernelmesh.runtimes.zenoh import ZenohCarrier

    source, feeds = _source(config)
    keeper = carrier = None
    try:
        keeper = Keeper(config.keep.folder, agent=config.agent, settings=config.settings, every=config.keep.every)
        carrier = ZenohCarrier(config.place, feeds=feeds)
        return Node(config.agent, config.place, source, carrier, keeper=keeper, stay=config.stay)
    except BaseException:
        if carrier is not None:
            carrier.close()
        if keeper is not None:
            keeper.close()
        source.close()
        raise


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
        lines = LineSource(columns, format=settings.format, batch_size=settings.batch_size)
        source = lines
        if settings.key is not None:
            # every publication is one or more whole lines, with or without a newline after the last
            feeds[settings.key] = lambda data: lines.feed(data if data.endswith(b"\n") else data + b"\n")
        else:
            read_stdin(lines)
    return (Paced(source, settings.rate) if settings.rate > 0 else source), feeds
