"""What crosses an edge is declared by the protocol, and a runtime needs nothing else to carry it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from kernelmesh import Diffusion, Faults, Graph, Hilbert, Local, Penalty, registry, simulate
from kernelmesh.agent import listen
from kernelmesh.checks import positive
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import Outbox, disagreement, read_question, read_reply
from kernelmesh.messages import Points, SentFunction, Values, encode
from kernelmesh.numerics.compression import Update
from kernelmesh.protocols import ConsensusProtocol, Heard
from kernelmesh.registry import register
from kernelmesh.streams import ArrayStream
from kernelmesh.testing import check_protocol
from test_node import assert_simulated, data, make, run_lock_step, same, simulated
from virtual import World

MAX = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Median(ConsensusProtocol):
    """Somebody else's protocol: f̃ = (1 − ηλ) f − (η/B) Σ_b [ℓ'(f(x_b), y_b) + c (f(x_b) − median_j f_j(x_b))] κ(x_b, ·).

    The median is over the neighbors and the agent itself.
    """

    question = Points
    reply = Values

    pull: float = 0.1

    def __post_init__(self):
        positive("Median", "pull", self.pull)

    def move(self, inputs, heard: Sequence[Heard]):
        there = [said.reply.values for said in heard if said.reply is not None]
        gap = inputs.here - np.median([inputs.here, *there], axis=0)
        push = -inputs.step_size / len(inputs.points) * (inputs.slope + self.pull * gap)
        return Update(inputs.points, push, 1.0 - inputs.step_size * inputs.regularization, inputs.cross)


@pytest.fixture(autouse=True)
def _register(monkeypatch):
    """As their packages would; gone afterwards, since other tests look at all protocols there are."""
    monkeypatch.setattr(registry, "_known", {role: dict(known) for role, known in registry._known.items()})
    register("protocol", Median)


PROTOCOLS = [
    Local(),
    Penalty(coupling=0.05),
    Penalty(coupling=2.0, implicit=True),
    Hilbert(coupling=0.02),
    Diffusion(),
    Median(),
]
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: type(protocol).__name__)


def learned(protocol, name="a"):
    agent = make(protocol)
    state = agent.start(name=name)
    for seed in range(3):
        state, _ = agent.step(state, *data(seed, 16))
    return agent, state


@every_protocol
class TestEvery:
    def test_an_outbox_says_what_the_protocol_declares(self, protocol):
        """Values are of the function shown, and functions are those sent; without samples it only answers."""
        agent, state = learned(protocol)
        points = data(9, 8)[0]
        outbox, idle = Outbox(agent, state, points), Outbox(agent, state, None)
        assert outbox.step == state.steps + 1
        assert idle.question is None
        assert type(outbox.question) is (protocol.question or type(None))
        for reply in (outbox.reply(outbox.question), idle.reply(outbox.question)):
            assert type(reply) is (protocol.reply or type(None))
            if isinstance(reply, Values):
                np.testing.assert_array_equal(reply.values, state.function(points))
            elif reply is not None:
                assert same(reply, state.sent)
        assert outbox.reply(None) is None or protocol.question is None

    def test_an_agent_without_samples_can_take_part_in_a_round(self, protocol):
        agent, state = learned(protocol)
        _, other = learned(protocol, "b")
        outbox = Outbox(agent, other, data(9, 8)[0])
        reply = None if protocol.question else outbox.reply(None)
        before = state.sent
        after = listen(agent, state, [Heard(reply, 0.5, "b")])
        assert (after.samples, after.steps) == (state.samples, state.steps + 1)
        if not protocol.listens:
            assert after.sent is before
        # a state that was relayed from belongs to the past, and the new one goes on
        agent.step(after, *data(10, 8))


POINTS, VALUES = np.zeros((8, 2)), np.zeros((8, 3))
MESSAGES = {Points: Points(POINTS), Values: Values(VALUES), SentFunction: SentFunction(POINTS, VALUES)}


@every_protocol
class TestReading:
    def read(self, protocol, is_reply, message, *, rows=8, max_bytes=MAX):
        agent, data = make(protocol), b"" if message is None else encode(message)
        if is_reply:
            return read_reply(agent, data, rows=rows, max_bytes=max_bytes)
        return read_question(agent, data, max_bytes=max_bytes)

    @pytest.mark.parametrize("is_reply", [False, True])
    def test_the_declared_kind_is_read_and_every_other_refused(self, protocol, is_reply):
        wanted, what = (protocol.reply, "answer") if is_reply else (protocol.question, "question")
        for kind, message in MESSAGES.items():
            if kind is wanted:
                assert type(self.read(protocol, is_reply, message)) is kind
            else:
                with pytest.raises(RefusedMessage, match=f"{what}: must be "):
                    self.read(protocol, is_reply, message)
        if wanted is None and not is_reply:
            assert self.read(protocol, is_reply, None) is None
        elif wanted is not None:
            with pytest.raises(RefusedMessage, match="message: must be one of format"):
                self.read(protocol, is_reply, None)
            with pytest.raises(RefusedMessage, match="message: must be at most 100 bytes"):
                self.read(protocol, is_reply, MESSAGES[wanted], max_bytes=100)


def test_disagreement_uses_all_answers():
    agent, state = learned(Local())
    points = data(9, 8)[0]
    here, f = state.function(points), state.function
    double = [SentFunction(f.points, 2 * f.weights), Values(2 * here)]
    expected = np.sqrt((here**2).sum(axis=1).mean())
    for reply in double:
        assert disagreement(agent, state, points, [Heard(reply)]) == pytest.approx(expected)
        both = disagreement(agent, state, points, [Heard(reply), Heard(Values(here)), Heard(None)])
        assert both == pytest.approx(expected / np.sqrt(2))
    assert disagreement(agent, state, points, []) is None
    assert disagreement(agent, state, points, [Heard(None)]) is None


class TestTheirs:
    def test_it_obeys_the_laws(self):
        check_protocol(Median())

    def test_on_hosts_in_lock_step_its_rounds_are_those_of_the_simulation(self):
        rows = (48, 24, 0, 40)
        runs = run_lock_step(World(seed=1, loss=0.1), make(Median()), Graph.star(4), rows)
        assert_simulated(runs, simulated(make(Median()), Graph.star(4), rows), counts=False)

    def test_it_learns_in_a_network_with_faults(self):
        streams = [ArrayStream(*data(i, 640)) for i in range(5)]
        faults = Faults(drop=0.2, absent={1: [(3, 8)]}, rng=np.random.default_rng(0))
        *_, last = simulate(make(Median()), Graph.ring(5), streams, faults=faults)
        points, labels = data(99, 500)
        assert min((f(points).argmax(axis=1) == labels).mean() for f in last.functions) > 0.8
