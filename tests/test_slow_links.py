"""Free running, a slow link costs freshness and not speed: both ends step as often as on a fast one, and learn as well."""

import functools

import numpy as np
import pytest

from kernelmesh import Diffusion, Graph, Landmarks, Penalty, Relay
from kernelmesh.messages import Values, decode, encode
from kernelmesh.runtimes.membership import Membership
from kernelmesh.streams import Paced
from test_node import ArraySource, data, kind, make, memberships, run_with
from virtual import World

PROTOCOLS = [Penalty(coupling=0.05), Diffusion(), Diffusion(every=3), Relay()]
EDGE = {"agent-0", "agent-1"}


class SlowEdge(World):
    """A world in which one edge takes long, both ways, and the others do not."""

    def __init__(self, delay, *, drop=0.0, twice=0.0):
        super().__init__(seed=1)
        self._slow, self._drop, self._twice = delay, drop, twice

    def _fate(self, sender, receiver, data):
        if {sender, receiver} != EDGE:
            return [(0.0, data)]
        if self.rng.random() < self._drop:
            return []
        return [(self._slow, data)] * (1 + (self.rng.random() < self._twice))


@functools.cache
def outcome(protocol, delay, *, rate=400.0, **faults):
    """Steps per second of each agent, and mean accuracy, of a ring of three on which one edge is slow."""
    changes = {"learner": Landmarks(max_order=30)} if protocol.shares else {}
    agent, world = make(protocol, **changes), SlowEdge(delay, **faults)
    times = {}
    for i, member in enumerate(memberships(Graph.ring(3))):
        source, own = ArraySource(*data(i, 800)), times.setdefault(member.name, [])
        paced = Paced(source, rate, clock=lambda: world.now) if rate else source
        world.add(agent, member, paced, each=lambda runner, turn, own=own: own.append(world.now))
    world.stop_at_the_end()
    runs = world.run()
    points, labels = data(99, 3000)
    rates = [(len(own) - 1) / (own[-1] - own[0]) for own in times.values()]
    functions = [run.node.state.function for run in runs.values()]
    right = [float((f(points).argmax(axis=1) == labels).mean()) for f in functions]
    return rates, float(np.mean(right))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=kind)
@pytest.mark.parametrize(("delay", "faults"), [(0.01, {}), (0.5, {}), (0.15, {"drop": 0.3, "twice": 0.3})], ids=str)
def test_a_slow_edge_costs_neither_speed_nor_accuracy(protocol, delay, faults):
    calm, calm_accuracy = outcome(protocol, 0.0)
    slow, accuracy = outcome(protocol, delay, **faults)
    assert min(np.divide(slow, calm)) >= 0.8
    assert accuracy >= calm_accuracy - 0.01


@pytest.mark.parametrize("protocol", [Penalty(coupling=0.05), Diffusion(), Relay()], ids=kind)
@pytest.mark.parametrize("delay", [0.01, 0.2])
def test_a_slow_edge_without_a_limit_on_the_rate(protocol, delay):
    calm, slow = (outcome(protocol, seconds, rate=0.0)[0] for seconds in (0.0, delay))
    assert min(np.divide(slow, calm)) >= 0.8


def test_values_are_used_for_the_points_that_were_asked_about():
    """A neighbor that answers after 100 ms is heard now and then, each time about the mini-batch at hand."""
    agent, world, used = make(Penalty(coupling=0.05)), World(), []

    def puppet(sender, frame, answer):
        if frame.header.ping:
            answer(b"")
        else:
            points = decode(frame.payload).points
            world.at(world.now + 0.1, lambda: answer(encode(Values(np.repeat(points[:, :1], 3, axis=1)))))

    def watch(runner, turn):
        points, heard = runner.node.hindsight.points, runner.node.hindsight.heard
        used.extend((points, said.reply.values) for said in heard if said.reply is not None)

    source = Paced(ArraySource(*data(0, 4000)), 400.0, clock=lambda: world.now)
    world.puppet("b", ["a"], puppet)
    member = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""})
    world.add(agent, member, source, each=watch)
    run = world.run(seconds=8.0)["a"]
    assert len(run.turns) >= 0.8 * 8.0 * 50
    assert len(used) >= 4
    for points, values in used:
        assert np.array_equal(values[:, 0], points[:, 0])


def test_an_occasionally_slow_neighbor_is_not_always_waited_for():
    """Every second answer comes after 50 ms: a step never waits long, and most do not wait at all."""
    agent, world, count = make(Diffusion()), World(), iter(range(10**6))

    def puppet(sender, frame, answer):
        world.at(world.now + (0.05 if next(count) % 2 else 0.0), lambda: answer(b""))

    run = run_with(agent, puppet, world=world, rows=1600)
    assert run.node.state.steps == 200
    assert world.now < 1.0
