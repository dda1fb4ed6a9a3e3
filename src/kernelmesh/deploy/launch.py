"""Starts an agent from its file: stream, carrier, checkpoint store, runner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmesh.deploy.config import Config
from kernelmesh.deploy.sections import StreamSection
from kernelmesh.deploy.tables import declared
from kernelmesh.errors import Diverged, InvalidArgument, InvalidConfig, Verbatim
from kernelmesh.schema import settings_of

if TYPE_CHECKING:
    from kernelmesh.runtimes.expiry import Expiry
    from kernelmesh.runtimes.membership import Tls
    from kernelmesh.runtimes.runner import AgentRunner

__all__ = ["launch", "preview", "stream_mistakes", "warm_up"]


def launch(config: Config) -> AgentRunner:
    """Open everything an agent needs; iterating over the runner's `turns` runs it. On an error, everything is closed."""
    # only running agents need zenoh
    from kernelmesh.runtimes.checkpoints import CheckpointStore
    from kernelmesh.runtimes.name_list import NameList
    from kernelmesh.runtimes.runner import AgentRunner
    from kernelmesh.runtimes.zenoh import ZenohCarrier

    tls = config.membership.tls
    warm_up(config)
    with contextlib.ExitStack() as opened:
        with stream_mistakes(config):
            source: Any = config.open_stream()
        opened.enter_context(contextlib.closing(source))
        store = CheckpointStore(config.checkpoint.folder, agent=config.agent, every=config.checkpoint.every)
        opened.enter_context(contextlib.closing(store))
        key = config.stream.kind.subscription
        carrier = ZenohCarrier(config.membership, feeds={} if key is None else {key: source.publish})
        opened.enter_context(contextlib.closing(carrier))
        runner = AgentRunner(
            config.agent,
            config.membership,
            source,
            carrier,
            store=store,
            stay=config.stay,
            quarantine=NameList(config.quarantine),
            revoked=None if tls is None or tls.revoked is None else NameList(tls.revoked),
            expiry=None if tls is None else _expiry(config.membership.name, tls),
        )
        opened.pop_all()  # the runner closes them
    return runner


def _expiry(name: str, tls: Tls) -> Expiry:
    from kernelmesh.deploy.certificates import valid_until
    from kernelmesh.runtimes.expiry import Expiry

    files = {f"the certificate of {name}": tls.certificate, "the authority's certificate": tls.authority}
    return Expiry({what: valid_until(file) for what, file in files.items()})


def warm_up(config: Config) -> None:
    """Compile the inner loops before anyone waits for an answer; the first time on a machine takes long."""
    from kernelmesh.messages import SentFunction
    from kernelmesh.numerics.compression import compress

    agent, rng = config.agent, np.random.default_rng(0)
    state, rows = agent.start(), config.stream.batch_size
    points, values = rng.standard_normal((rows, agent.dimension)), rng.standard_normal((rows, agent.outputs))
    targets = np.arange(rows) % agent.outputs if agent.loss.classifies else values
    with contextlib.suppress(Diverged):  # on dummy numbers
        for shift in (0.0, 1.0, 2.0):
            state, _ = agent.step(state, points + shift, targets)
    if agent.protocol.reply is SentFunction:  # some of whose points will already be known
        compress(agent.kernel, points, values, 0.1)


def preview(config: Config) -> None:
    """Read the first mini-batch if that is harmless, to find mismatched columns or classes early."""
    if not config.stream.kind.rereadable:
        return
    with stream_mistakes(config), contextlib.closing(config.open_stream()) as source:
        for _ in range(8):
            if source.take() is not None:
                return
            if source.ended:
                break
        if source.refused:
            found = Verbatim(f"{source.refused} invalid rows and no valid row")
            remedy = "see the first errors above" if config.stream.classes else "text classes need classes = [...]"
            error = InvalidArgument("", "stream", "have columns and classes that match the data", found, remedy=remedy)
            raise InvalidConfig([config.problem(("stream",), error)])


@contextlib.contextmanager
def stream_mistakes(config: Config) -> Iterator[None]:
    """Report stream errors as mistakes in the file: users know its keys, not the class that reads the data."""
    try:
        yield
    except InvalidArgument as error:
        if error.argument in settings_of(StreamSection) or error.argument in declared(type(config.stream.kind)):
            problem = config.problem(("stream", error.argument), error)
        else:  # the data is at fault
            problem = config.problem(("stream", "path"), error)._replace(key=error.argument)
        raise InvalidConfig([problem]) from None
