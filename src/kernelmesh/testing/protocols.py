"""The laws of consensus protocols."""

from dataclasses import replace
from typing import Any

import numpy as np

from kernelmesh.agent import Agent, State, advance, listen
from kernelmesh.checks import Floats
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import Outbox
from kernelmesh.learners import Gradient
from kernelmesh.messages import Message, decode, encode
from kernelmesh.numerics.compression import Uncompressed
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.graphs import Graph, metropolis_weight, share
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic
from kernelmesh.numerics.schedules import Doubling
from kernelmesh.protocols import ConsensusProtocol, Heard, Local, Tuning
from kernelmesh.runtimes.simulation import simulate
from kernelmesh.streams import ArrayStream
from kernelmesh.testing.laws import require, require_role, require_round_trip

__all__ = ["check_protocol"]

_CLASSES, _BATCH, _STEP_SIZE = 3, 16, 0.5


def check_protocol(protocol: ConsensusProtocol) -> None:
    """Check that a protocol does not move agents that agree, and sends what it has declared.

    A single agent learns as with `Local`. Equal agents that see the same data stay equal, and learn what a single agent
    learns. Queries and replies match the declared `question` and `reply` and survive encoding. The order in which
    neighbors are heard makes no difference. Settings survive being saved.

    Parameters
    ----------
    protocol : ConsensusProtocol
        The protocol to check.

    Raises
    ------
    AssertionError
        Says which law is broken, and how.

    Examples
    --------
    >>> from kernelmesh import Penalty
    >>> check_protocol(Penalty(coupling=0.05))
    """
    owner = repr(protocol)
    require_role(protocol, ConsensusProtocol, owner)
    for name in ("question", "reply"):
        kind = getattr(protocol, name)
        is_message = kind is None or (isinstance(kind, type) and issubclass(kind, Message))
        require(is_message, owner, f"must have a message type, or None, as its {name}", kind)
    learner, kernel = Gradient(step_size=_STEP_SIZE, compression=Uncompressed()), Gaussian(bandwidth=0.6)
    agent = Agent(dimension=2, outputs=_CLASSES, kernel=kernel, loss=Logistic(), learner=learner, protocol=protocol)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((4 * _BATCH, 2))
    targets = rng.integers(_CLASSES, size=len(points))
    _check_force(agent, owner, points, targets)
    functions = [Function.of(kernel, rng.standard_normal((5, 2)), rng.standard_normal((5, _CLASSES))) for _ in range(4)]
    states = [agent.start(name=name, function=function) for name, function in enumerate(functions)]
    _check_exchange(agent, owner, states, points[:_BATCH])
    _check_order(agent, owner, states, points[:_BATCH], targets[:_BATCH])
    _check_settings(agent, owner, points)


def _check_force(agent: Agent, owner: str, points: Floats, labels: Any) -> None:
    """Without neighbors, or without disagreement, the result is that of `Local`."""
    local = replace(agent, protocol=Local())
    *_, last = simulate(local, Graph.line(1), [ArrayStream(points, labels, batch_size=_BATCH)])
    alone = last.states[0].sent
    for agents, law in ((1, "must learn as Local does without neighbors"), (4, "must not move equal agents")):
        streams = [ArrayStream(points, labels, batch_size=_BATCH) for _ in range(agents)]
        *_, last = simulate(agent, Graph.complete(agents), streams)
        for state in last.states:
            _require_equal(state.sent, alone, owner, law)


def _check_exchange(agent: Agent, owner: str, states: list[State], points: Floats) -> None:
    question, wanted = agent.protocol.question, agent.protocol.reply
    here, there = (Outbox(agent, state, points) for state in states[:2])
    if question is not None:
        law = f"must query with {question.__name__}, as it declares"
        require(type(here.question) is question, owner, law, type(here.question).__name__)
    reply = there.reply(here.question)
    law = f"must reply with {wanted.__name__}, as it declares" if wanted else "must not reply, as it declares"
    require(type(reply) is (wanted or type(None)), owner, law, type(reply).__name__)
    for message in (here.question, reply):
        if message is not None:
            _check_wire(message, owner)


def _check_wire(message: Message, owner: str) -> None:
    law = f"must send a {type(message).__name__} that survives encode and decode"
    try:
        back = decode(encode(message))
    except RefusedMessage as error:
        raise AssertionError(f"{owner}: {law}, got {error}") from error
    require(type(back) is type(message), owner, law, type(back).__name__)
    for name in (*message.inputs, *message.outputs):
        same = np.array_equal(getattr(back, name), getattr(message, name))
        require(same, owner, law, f"other {name}")


def _heard(agent: Agent, states: list[State], points: Floats) -> list[Heard]:
    """What the first agent receives from the others, which all have the same mini-batch."""
    outboxes = [Outbox(agent, state, points) for state in states]
    part = share(len(states) - 1)
    return [
        Heard(reply=outbox.reply(outboxes[0].question), weight=metropolis_weight(part, part), neighbor=state.name)
        for state, outbox in zip(states[1:], outboxes[1:], strict=True)
    ]


def _check_order(agent: Agent, owner: str, states: list[State], points: Floats, labels: Any) -> None:
    heard = _heard(agent, states, points) if agent.protocol.reply else []
    law = "must not depend on the order in which neighbors are heard"
    one, _ = advance(agent, states[0], points, labels, heard)
    other, _ = advance(agent, states[0], points, labels, heard[::-1])
    _require_equal(one.sent, other.sent, owner, law)
    _require_equal(one.function, other.function, owner, law)
    if agent.protocol.listens:
        one, other = (listen(agent, states[0], said) for said in (heard, heard[::-1]))
        _require_equal(one.sent, other.sent, owner, law)


def _check_settings(agent: Agent, owner: str, points: Floats) -> None:
    protocol, kernel = agent.protocol, agent.kernel
    require(protocol.penalty(0) >= 0, owner, "must have a penalty >= 0", protocol.penalty(0))
    limit = protocol.max_stable_penalty(kernel, [points], _STEP_SIZE, 4.0)
    require(limit > 0, owner, "must have a maximum stable penalty > 0", limit)
    coupling = Doubling(start=0.01, every=200)
    tuning = Tuning(step_size=_STEP_SIZE, coupling=coupling, kernel=kernel, batches=[points], stiffness=4.0)
    try:
        tuned = type(protocol).tuned(tuning)
    except TypeError as error:
        raise AssertionError(f"{owner}: must define tuned if settings have no default, got {error}") from error
    require(type(tuned) is type(protocol), owner, "must return its own kind when tuned", tuned)
    for each in (protocol, tuned):
        require_round_trip("protocol", each, owner)


def _require_equal(left: Function, right: Function, owner: str, law: str) -> None:
    distance, norm = left.distance(right), right.norm()
    require(distance <= 1e-5 * norm, owner, law, f"functions {distance:.3g} apart, of norm {norm:.3g}")
