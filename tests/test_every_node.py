"""Exchanges in every k-th round, on a network in memory: who is asked when, and how far apart agents can be."""

from collections import Counter

import numpy as np
import pytest

from kernelmesh import Diffusion, Graph, simulate
from kernelmesh.metrics import accuracies
from kernelmesh.runtimes.frames import Header, decode_frame
from kernelmesh.runtimes.mailbox import Arrival
from kernelmesh.runtimes.membership import Membership
from kernelmesh.streams import ArrayStream
from test_node import ArraySource, data, kind, make, memberships, same
from virtual import World, question

SELDOM = [Diffusion(every=2), Diffusion(every=4)]
NAMES = ("agent-0", "agent-1", "agent-2")


def of_classes(seed, rows, *classes):
    points, labels = data(seed, rows)
    kept = np.isin(labels, classes)
    return points[kept], labels[kept]


def timed(world, samples, **options):
    """Mini-batches one after the other, not before their time."""
    return ArraySource(*samples, batch_size=16, world=world, **options)


def ring(**options):
    return memberships(Graph.ring(3), **options)


def count_questions(world):
    """How often each agent asks each other about which step, from now on."""
    asked, send = Counter(), world.network.send

    def listen(sender, receiver, data):
        frame = decode_frame(data, max_bytes=1 << 26)
        if not frame.prefix.is_reply and not frame.header.ping:
            asked[sender, receiver, frame.header.step] += 1
        return send(sender, receiver, data)

    world.network.send = listen
    return asked


@pytest.mark.parametrize("protocol", SELDOM, ids=kind)
class TestLockStep:
    def test_a_slow_agent_delays_others_at_the_next_exchange(self, protocol):
        """One of them stands still between two exchanges: the others are k steps ahead at most, and all ends as it should."""
        world, agent, ahead = World(seed=2), make(protocol), []
        graph = Graph(NAMES, Graph.ring(3).neighbors)
        *_, last = simulate(agent, graph, [ArrayStream(*data(i, 320), batch_size=16) for i in range(3)])

        def stop_for_a_while(runner, turn):
            if turn.number == 2 * protocol.every - 1:
                world.newest("agent-0").frozen = world.now + 2.0
                world.at(world.now + 1.9, lambda: ahead.extend(world.newest(n).node.state.steps for n in NAMES[1:]))

        for i, member in enumerate(ring(lock_step=True)):
            world.add(agent, member, timed(world, data(i, 320)), stay=False, each=stop_for_a_while if i == 0 else None)
        for run, state in zip(world.run().values(), last.states, strict=True):
            assert same(run.node.state.function, state.function)
            assert run.runner.status().out_of_step == ()
        # nobody takes the step of an exchange before all have been heard
        assert ahead == [2 * protocol.every - 1] * 2

    @pytest.mark.parametrize(("beyond", "out"), [(0, ()), (2, ("b",))])
    def test_a_question_about_a_later_exchange_is_out_of_step(self, protocol, beyond, out):
        """After k steps the exchange before step 2k is the last that a neighbor can be at."""
        world, agent, k = World(), make(protocol), protocol.every
        puppet = world.puppet("b", ["a"], lambda sender, frame, answer: answer(b""))
        member = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""}, lock_step=True)
        runner, took = (world.add(agent, member, timed(world, data(0, 16 * (2 * k)), seconds=1.0)), [])
        asked = Arrival("b", question(Header(step=2 * k + beyond, share=0.5)))
        world.at(k - 0.5, lambda: runner.mailbox.put(asked))  # between two mini-batches
        world.at(k - 0.4, lambda: took.append((runner.node.state.steps, len(puppet.replies))))
        world.at(2 * k - 0.5, world.stop)
        world.run()
        assert took == [(k, 0)]
        assert runner.status().out_of_step == out
        assert len(puppet.replies) == (not out)


@pytest.mark.parametrize("protocol", SELDOM, ids=kind)
class TestFreeRunning:
    def test_each_asks_before_every_kth_of_its_own_steps(self, protocol):
        world, agent = World(seed=1), make(protocol)
        asked = count_questions(world)
        for i, (member, seconds) in enumerate(zip(ring(patience=0.05), (0.1, 0.15, 0.2), strict=True)):
            world.add(agent, member, timed(world, data(i, 320), seconds=seconds))
        world.stop_at_the_end()
        world.run()
        assert {step % protocol.every for _, _, step in asked} == {0}
        assert set(asked.values()) == {1}
        assert {(a, b) for a, b, _ in asked} == {(a, b) for a in NAMES for b in NAMES if a != b}

    @pytest.mark.parametrize("faults", [{}, {"loss": 0.05, "delay": 0.02}], ids=["calm", "lossy"])
    def test_an_agent_without_samples_relays_what_others_learn(self, protocol, faults):
        """Its rounds without samples count like steps: it asks in every k-th. The others have different classes."""
        world, agent = World(seed=1, **faults), make(protocol)
        asked = count_questions(world)
        for i, (member, classes) in enumerate(zip(memberships(Graph.line(3), patience=0.05), ([0], [], [1, 2]), strict=True)):
            own = of_classes(i, 480, *classes)
            world.add(agent, member, timed(world, own, seconds=0.1, passes=3 if i else 6))
        world.stop_at_the_end()
        runs = world.run()
        relayed = runs["agent-1"].node.state
        assert relayed.samples == 0
        assert relayed.steps > (30 if faults else 40)
        assert {step % protocol.every for name, _, step in asked if name == "agent-1"} == {0}
        assert accuracies([run.node.state.function for run in runs.values()], *data(99, 500)).min() > 0.8

    def test_neighbors_are_known_to_be_there_between_exchanges(self, protocol):
        world, agent, alive = World(), make(protocol), []
        for i, member in enumerate(ring(patience=0.05)):
            world.add(agent, member, timed(world, data(i, 160), seconds=2.5))
        first = world.newest("agent-0").runner
        for when in np.arange(4.0, 24.0, 0.7):
            world.at(when, lambda: alive.extend(n.alive for n in first.status().neighbors.values()))
        world.stop_at_the_end()
        world.run()
        assert len(alive) > 40
        assert all(alive)

    def test_disagreement_is_known_between_exchanges(self, protocol):
        world, agent, gaps = World(), make(protocol), []

        def each(runner, turn):
            gaps.append(runner.status().disagreement)

        for i, member in enumerate(ring(patience=0.05)):
            world.add(agent, member, timed(world, data(i, 320), seconds=0.1), each=each if i == 0 else None)
        world.stop_at_the_end()
        world.run()
        known = [gap is not None for gap in gaps]
        assert not any(known[: protocol.every - 1])
        assert all(known[protocol.every :])
