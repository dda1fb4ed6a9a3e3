"""Agents that share sums on a network that lives in memory: in lock step as in simulation, and running freely."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Landmarks, Logistic, simulate
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import Hello, ListPart, News, PackedSums, Rows, Values, encode
from kernelmesh.messages.news import PackedTrial
from kernelmesh.numerics.sums import added
from kernelmesh.protocols import Local, Relay
from kernelmesh.protocols.relay.point_list import EMPTY
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.frames import Frame, Header, Prefix, encode_frame
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.name_list import NameList
from kernelmesh.runtimes.node import attempt as module
from kernelmesh.runtimes.runner import AgentRunner
from kernelmesh.streams import Mixture, Paced
from test_node import ArraySource, memberships
from virtual import World

CLASSES = 4


def make(**changes):
    kernel, protocol = Gaussian(bandwidth=0.6), changes.pop("protocol", Relay(every=4))
    rule = changes.pop("learner", Landmarks(max_order=60))
    options = {"dimension": 2, "outputs": CLASSES, "kernel": kernel, "loss": Logistic(), "learner": rule}
    return Agent(**{**options, "protocol": protocol, **changes})


MIXTURE = Mixture.draw(classes=CLASSES, rng=np.random.default_rng(7))
HELD_OUT = MIXTURE.sample(1000, rng=np.random.default_rng(1))


def of_one_class(seed, rows):
    """Samples of class `seed` mod 4 only."""
    points, labels = MIXTURE.sample(8 * CLASSES * rows + 100, rng=np.random.default_rng(seed))
    own = np.flatnonzero(labels == seed % CLASSES)[:rows]
    return points[own], labels[own]


def accuracy(state):
    points, labels = HELD_OUT
    return float((state.function(points).argmax(axis=1) == labels).mean())


def alone(agent, rows):
    """The accuracy of one learner with the samples of all, in turns."""
    agent = make(protocol=Local(), learner=agent.learner)
    state = agent.start()
    batches = [ArrayStream(*of_one_class(i, n), batch_size=8) for i, n in enumerate(rows)]
    for batch in itertools.chain.from_iterable(itertools.zip_longest(*batches)):
        if batch is not None:
            state, _ = agent.step(state, *batch)
    return accuracy(state)


def source(world, i, rows, *, rate=30.0):
    return ArraySource(*of_one_class(i, rows), world=world, seconds=1.0 / rate)


def start(world, agent, graph, rows, *, rate=30.0, membership=None, **options):
    for i, member in enumerate(memberships(graph, **(membership or {}))):
        world.add(agent, member, source(world, i, rows[i], rate=rate), **options)


def states(world):
    return {name: runs[-1].runner.state for name, runs in world.runs.items()}


def total(state, agent):
    return added([state.model.own, state.model.others], outputs=agent.outputs)


def assert_exact(found, agent, *, of=None):
    """Every total is the sum over the own samples of these agents, which all others use."""
    truth = added([found[name].model.own for name in of or found], outputs=agent.outputs)
    for name in of or found:
        ours = total(found[name], agent)
        assert ours.samples == truth.samples, (name, ours.samples, truth.samples)
        assert np.allclose(ours.moments, truth.moments, rtol=1e-5, atol=1e-6 * truth.moments.max())


# -- lock step -----------------------------------------------------------------------------------------------------------


def simulated(agent, graph, rows):
    named = Graph(tuple(f"agent-{i}" for i in range(len(graph))), graph.neighbors)
    return list(simulate(agent, named, [ArrayStream(*of_one_class(i, n), batch_size=8) for i, n in enumerate(rows)]))


def digest(state):
    function, memory = state.function, state.memory
    return function.points.tobytes(), function.weights.tobytes(), memory.tree.clock, memory.others.moments.tobytes()


@pytest.mark.parametrize(
    ("graph", "rows"),
    [(Graph.ring(4), [64] * 4), (Graph.line(4), [160, 16, 0, 80]), (Graph.star(4), [8, 64, 40, 24])],
    ids=["ring", "line", "star"],
)
@pytest.mark.parametrize("faults", [{}, {"loss": 0.1, "delay": 0.3, "twice": 0.2}], ids=["calm", "faults"])
def test_in_lock_step_rounds_are_those_of_the_simulation(graph, rows, faults):
    agent, world = make(), World(seed=3, **faults)
    rounds = simulated(agent, graph, rows)
    for i, member in enumerate(memberships(graph, lock_step=True)):
        world.add(agent, member, ArraySource(*of_one_class(i, rows[i])), stay=False)
    runs = world.run()
    for i, state in enumerate(rounds[-1].states):
        assert digest(runs[f"agent-{i}"].runner.state) == digest(state)
        assert runs[f"agent-{i}"].node.traffic == (rounds[-1].floats_sent[i], rounds[-1].bytes_sent[i])


# -- running freely ------------------------------------------------------------------------------------------------------


def run_freely(world, seconds):
    world.at(seconds, world.stop)
    world.run()
    return states(world)


ROWS = [200, 120, 0, 60, 160]


@pytest.mark.parametrize("faults", [{}, {"loss": 0.3, "delay": 0.1, "twice": 0.3, "garbage": 0.05}], ids=["calm", "faults"])
def test_all_agents_learn_all_classes_from_unequal_streams(faults):
    world, agent = World(seed=1, **faults), make()
    start(world, agent, Graph.ring(5), ROWS)
    found = run_freely(world, 40.0)
    assert_exact(found, agent)
    assert min(map(accuracy, found.values())) >= alone(agent, ROWS) - 0.02


def test_a_quiet_network_says_nothing_but_hellos():
    world, agent = World(), make()
    start(world, agent, Graph.ring(3), [80] * 3)
    sizes = []
    world.at(20.0, lambda: record(world, sizes))
    run_freely(world, 30.0)
    assert 3 * 2 * 4 * 10 <= len(sizes) <= 3 * 2 * 6 * 10
    assert max(size for _, _, size in sizes) < 150


def record(world, sizes):
    """From now on, note when who sends how many bytes."""
    before = world.network.send

    def send(sender, receiver, data):
        sizes.append((world.now, sender, len(data)))
        before(sender, receiver, data)

    world.network.send = send


@pytest.mark.parametrize("rate", [4000.0, 20_000.0])
def test_no_agent_exceeds_its_rate_in_any_ten_seconds(rate):
    world, agent = World(seed=4, delay=0.05), make(learner=Landmarks(max_order=60), protocol=Relay(every=2))
    sizes, rows = [], [1000] * 3
    record(world, sizes)
    start(world, agent, Graph.ring(3), rows, rate=25.0, membership={"max_bytes_per_second": rate})
    found = run_freely(world, 40.0)
    for name in found:
        own = np.array([(when, size) for when, sender, size in sizes if sender == name])
        times, bytes_before = own[:, 0], np.concatenate([[0.0], np.cumsum(own[:, 1])])
        last = np.searchsorted(times, times + 10.0, side="left")
        assert max(bytes_before[last] - bytes_before[: len(times)]) <= 1.0 * 10.0 * rate
    assert_exact(found, agent)


def test_a_rate_limit_does_not_slow_learning():
    speeds = []
    for rate in (None, 4000.0):
        world, agent = World(), make()
        for i, member in enumerate(memberships(Graph.ring(3), max_bytes_per_second=rate)):
            rows = ArraySource(*of_one_class(i, 2000))  # more than are read
            world.add(agent, member, Paced(rows, 400.0, clock=lambda world=world: world.now))
        speeds.append(min(state.samples for state in run_freely(world, 4.0).values()))
    assert speeds[1] >= 0.95 * speeds[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"number": 0, "max_bytes_per_second": 500.0}, "max_bytes_per_second must be at least"), ({}, "number")],
    ids=["a rate at which sums could never be sent", "no number"],
)
def test_memberships_that_do_not_fit_are_refused(options, words):
    member, world = Membership(name="north", listen="tcp/127.0.0.1:1", **options), World()
    with pytest.raises(InvalidArgument, match=words):
        AgentRunner(make(), member, source(world, 0, 0), world.network.carrier("north", []))


def test_a_killed_agent_resumes_to_the_last_bit(tmp_path):
    world, agent, graph = World(seed=5, delay=0.01), make(), Graph.ring(3)
    everywhere, rows = memberships(graph), [200, 120, 160]
    last, resumed = {}, []

    def begin(i):
        store = CheckpointStore(tmp_path / str(i), agent=agent, every=7)
        runner = world.add(agent, everywhere[i], source(world, i, rows[i]), store=store)
        if i in last:
            resumed.append(digest(runner.state) == last[i])

    def kill(i):
        last[i] = digest(world.newest(f"agent-{i}").runner.state)
        world.kill(world.newest(f"agent-{i}"))
        world.at(world.now + 1.0, lambda: begin(i))

    for i in range(3):
        begin(i)
    for number, i in enumerate([0, 1, 2, 0, 0, 1]):
        world.at(2.0 + 2.3 * number, lambda i=i: kill(i))
    found = run_freely(world, 35.0)
    assert resumed == [True] * 6
    assert [state.samples for state in found.values()] == rows
    assert_exact(found, agent)


def test_a_quarantined_member_is_forgotten_by_all_until_it_is_released(tmp_path):
    world, agent, quarantine = World(), make(), tmp_path / "quarantine.txt"
    for i, member in enumerate(memberships(Graph.ring(4))):
        world.add(agent, member, source(world, i, 120), quarantine=NameList(quarantine))
    during = {}
    world.at(10.0, lambda: quarantine.write_text("agent-1\n"))
    world.at(20.0, lambda: during.update(states(world)))
    world.at(20.0, lambda: quarantine.write_text("# nobody\n"))
    found = run_freely(world, 35.0)
    others = ["agent-0", "agent-2", "agent-3"]
    assert_exact(during, agent, of=others)
    assert min(accuracy(during[name]) for name in others) < 0.8
    assert_exact(found, agent)
    assert min(map(accuracy, found.values())) > 0.85


def test_a_member_released_while_nobody_ran_is_admitted_again(tmp_path):
    quarantine, agent, graph = tmp_path / "quarantine.txt", make(), Graph.line(3)

    def session(seconds):
        world = World()
        for i, member in enumerate(memberships(graph)):
            store = CheckpointStore(tmp_path / str(i), agent=agent)
            world.add(agent, member, source(world, i, 80), store=store, quarantine=NameList(quarantine))
        return run_freely(world, seconds)

    session(10.0)
    quarantine.write_text("agent-2\n")
    assert_exact(session(10.0), agent, of=["agent-0", "agent-1"])
    quarantine.write_text("# nobody\n")
    assert_exact(session(10.0), agent)


def test_when_all_leave_the_last_one_has_all_samples():
    world, agent = World(seed=8, delay=0.01), make()
    start(world, agent, Graph.ring(4), rows := [80, 120, 160, 100], stay=False)
    runs = world.run(seconds=120.0)
    assert all(run.ended for run in runs.values())
    assert world.now < 60.0
    assert max(total(run.runner.state, agent).samples for run in runs.values()) == sum(rows)


def test_an_agent_that_returns_counts_once(tmp_path):
    world, agent, everywhere = World(seed=9), make(), memberships(Graph.ring(3))
    for i, member in enumerate(everywhere):
        store = CheckpointStore(tmp_path / str(i), agent=agent)
        world.add(agent, member, source(world, i, 80), store=store, stay=i != 1)

    def again():
        assert world.newest("agent-1").ended
        store = CheckpointStore(tmp_path / "1", agent=agent)
        world.add(agent, everywhere[1], source(world, 1, 160), store=store)

    world.at(30.0, again)
    found = run_freely(world, 50.0)
    assert [state.samples for state in found.values()] == [80, 160, 80]
    assert_exact(found, agent)


def test_the_samples_of_a_slow_agent_count():
    """Every step of it takes a second."""
    world, agent = World(), make()
    start(world, agent, Graph.ring(3), [400] * 3, rate=50.0)

    def freeze():
        world.newest("agent-1").frozen = world.now + 1.0
        world.at(world.now + 1.002, freeze)

    freeze()
    assert_exact(run_freely(world, 90.0), agent)


def some_sums(order=0, *, value=1.0, **changes):
    data = np.full(order * (order + 1) // 2 + order * CLASSES, value).tobytes()
    fields = {"order": order, "outputs": CLASSES, "bits": 64, "samples": 9.0, "data": data, "roll": b"\4"}
    return PackedSums(**{**fields, **changes})


def some_points(points, **changes):
    agreed = {"start": 0, "digest": EMPTY, "stage": 0, "strength": 1.0, "scaler": 0, "scales": b""}
    return ListPart(**{**agreed, "roots": bytes(8 * len(points)), "points": Rows.of(points), **changes})


POINTS = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
INVALID = {
    "sums of other outputs": {"sums": some_sums(outputs=3)},
    "sums of other features": {"sums": some_sums(features=Rows.of(np.zeros((2, 3))))},
    "sums cut off": {"sums": some_sums(data=b"123")},
    "sums that are nan": {"sums": some_sums(1, value=np.nan)},
    "sums over more points than there are": {"sums": some_sums(4)},
    "sums that take away": {"sums": some_sums(2, value=-1.0)},
    "sums that are too large": {"sums": some_sums(2, value=1e3)},
    "points of another dimension": {"part": some_points(np.zeros((3, 5)))},
    "points without roots": {"part": some_points(POINTS, roots=b"")},
    "points with roots cut off": {"part": some_points(POINTS, roots=b"123")},
    "points with scales cut off": {"part": some_points(POINTS, scales=b"123")},
    "points with other scales": {"part": some_points(POINTS, stage=1, scales=np.ones(3).tobytes())},
    "points with scales of 0": {"part": some_points(POINTS, stage=1, scales=bytes(16))},
    "too many points": {"part": some_points(np.random.default_rng(0).normal(size=(61, 2)))},
    "a list that is too long": {"length": 501},
    "proposals of another dimension": {"proposals": Rows.of(np.zeros((3, 5)))},
}
STRANGE = {
    "huge points": {"part": some_points(1e300 * POINTS)},
    "the same points": {"part": some_points(np.zeros((9, 2)))},
    "tiny scales": {"part": some_points(POINTS, stage=1, scales=np.full(2, 1e-300).tobytes())},
    "another stage": {"part": some_points(POINTS, stage=7, strength=1e-300)},
    "huge proposals": {"proposals": Rows.of(1e300 * POINTS)},
    "trials": {"sums": some_sums(trials=3 * [PackedTrial(0, CLASSES, 64, 1.0, b"")])},
    "features": {"sums": some_sums(features=Rows.of(np.full((2, 2), 1e308)))},
    "many samples": {"sums": some_sums(samples=1e308)},
    "huge weights": {"sums": some_sums(data=np.array([*np.zeros(6), *np.full(3 * CLASSES, 1e300)]).tobytes(), order=3)},
    "all members": {"sums": some_sums(roll=b"\xff" * 8000)},
    "an estate": {"sums": some_sums(estate=True)},
    "everybody forgotten": {"standing": dict.fromkeys(range(99), 1)},
}


def beside_a_member_that_says(agent, **words):
    """Two agents between whom a third one says the same over and over."""
    world, everywhere = World(), memberships(Graph.ring(3))
    honest = [world.add(agent, everywhere[i], source(world, i, 200)) for i in range(2)]
    world.puppet("agent-2", ["agent-0", "agent-1"], lambda *_: None)
    clock = itertools.count(1)

    def say():
        now = next(clock)
        news = News(**{"hello": Hello(2, now, 0, 1, 1, 0), "length": 3, "digest": 0, **words})
        frame = Frame(Prefix(5, False, 0), Header(now, honest[0].node._model), encode(news))
        for name in ("agent-0", "agent-1"):
            world.network.send("agent-2", name, encode_frame(frame))
        world.at(world.now + 0.05, say)

    world.at(0.2, say)
    found = run_freely(world, 20.0)
    for runner in honest:
        status = runner.status(20.0)
        assert (status.samples, status.recoveries) == (200, 0)
        assert np.isfinite(runner.state.function.weights).all()
    return found, [runner.status(20.0).neighbors["agent-2"] for runner in honest]


@pytest.mark.parametrize("invalid", INVALID)
def test_invalid_news_change_nothing_and_are_counted(invalid):
    agent = make()
    found, liar = beside_a_member_that_says(agent, **INVALID[invalid])
    assert all(each.refused or each.excluded for each in liar)
    assert [state.memory.others.roll for state in found.values()] == [0b10, 0b01]
    assert_exact(found, agent)


@pytest.mark.parametrize("agrees", [False, True])
@pytest.mark.parametrize("strange", STRANGE)
def test_strange_news_do_not_stop_agents(strange, agrees):
    beside_a_member_that_says(make(protocol=Relay(every=2, scales=agrees, tunes=agrees)), **STRANGE[strange])


def test_after_a_failed_step_an_agent_continues_from_its_last_checkpoint(tmp_path, monkeypatch):
    world, agent, everywhere = World(), make(), memberships(Graph.ring(3))
    clocks = []

    def failing(agent, state, points, targets, heard=(), *, advance=module.advance):
        if state.name == "agent-0" and state.samples == 120 and not world.newest("agent-0").runner.recoveries:
            raise MemoryError
        return advance(agent, state, points, targets, heard)

    monkeypatch.setattr(module, "advance", failing)
    for i, member in enumerate(everywhere):
        store = CheckpointStore(tmp_path / str(i), agent=agent, every=5)
        world.add(agent, member, source(world, i, 200), store=store)
    first = world.newest("agent-0").runner
    for tenth in range(100):
        world.at(0.1 * tenth, lambda: clocks.append(first.state.memory.tree.clock))
    found = run_freely(world, 30.0)
    assert first.recoveries == 1
    assert first.state.samples == 200
    assert clocks == sorted(clocks)
    assert 0 < first.state.model.own.samples < 200  # what was learned since the checkpoint is gone
    assert_exact(found, agent)


@pytest.mark.parametrize("payload", [b"", b"noise", encode(Values(np.zeros((8, 3))))], ids=["nothing", "noise", "values"])
def test_other_messages_than_news_are_refused(payload):
    world, agent = World(), make()
    runner = world.add(agent, memberships(Graph.line(2))[0], source(world, 0, 80))
    world.puppet("agent-1", ["agent-0"], lambda *_: None)
    frame = Frame(Prefix(5, False, 0), Header(1, runner.node._model), payload)
    for when in range(5):
        world.at(0.1 * when, lambda: world.network.send("agent-1", "agent-0", encode_frame(frame)))
    run_freely(world, 15.0)
    status = runner.status(15.0)
    assert (status.samples, status.neighbors["agent-1"].refused) == (80, 4)  # the fifth is ignored


def test_agents_with_other_settings_are_ignored():
    world = World()
    first, second = memberships(Graph.line(2))
    world.add(make(), first, source(world, 0, 80))
    world.add(make(learner=Landmarks(max_order=61)), second, source(world, 1, 80))
    found = run_freely(world, 20.0)
    assert [state.memory.others.samples for state in found.values()] == [0.0, 0.0]
    assert world.newest("agent-0").node.status(20.0).refused > 0
