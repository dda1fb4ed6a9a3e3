"""Nodes on a network that lives in memory, with a clock of its own: laws that hold whatever becomes of messages."""

import contextlib
import itertools
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kernelmesh import (
    Agent,
    Diffusion,
    Diverged,
    Gaussian,
    Gradient,
    Graph,
    Hilbert,
    Hinge,
    Komp,
    Local,
    Logistic,
    Penalty,
    Squared,
    simulate,
    storage,
)
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import Points, SentFunction, Values, decode, encode
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.frames import Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.mailbox import Arrival, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.runner import AgentRunner
from kernelmesh.runtimes.status import Status
from kernelmesh.streams import ArrayStream, Mixture
from virtual import World, question

PROTOCOLS = [
    Local(),
    Penalty(coupling=0.05),
    Hilbert(coupling=0.02),
    Diffusion(),
    Hilbert(coupling=0.01, every=2),
    Diffusion(every=3),
]
TALKING = PROTOCOLS[1:]
RELAYING = [Diffusion(), Diffusion(every=2)]


def kind(protocol):
    return type(protocol).__name__ + (f"-{protocol.every}" if protocol.every > 1 else "")


def make(protocol, **changes):
    options = {
        "dimension": 2,
        "outputs": 3,
        "kernel": Gaussian(bandwidth=0.6),
        "loss": Logistic(),
        "learner": Gradient(step_size=2.0, compression=Komp(budget=0.1)),
        "protocol": protocol,
    }
    return Agent(**{**options, **changes})


def data(seed, rows):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


class ArraySource:
    """The mini-batches of an ArrayStream, as a source; not more than one in so many seconds, if a world's time is given."""

    refused, pending = 0, None

    def __init__(self, points, targets, *, batch_size=8, passes=1, world=None, seconds=0.0):
        self._batches = list(ArrayStream(points, targets, batch_size=batch_size, passes=passes))
        self._world, self._seconds, self._due = world, seconds, 0.0
        self._next = 0
        self.closed = False

    @property
    def ended(self):
        return self._next == len(self._batches)

    @property
    def position(self):
        return {"next": self._next}

    def take(self):
        if self.ended or (self._world is not None and self._world.now < self._due):
            return None
        if self._world is not None:
            self._due = max(self._due, self._world.now) + self._seconds
        self._next += 1
        return self._batches[self._next - 1]

    def give_back(self):
        assert self._next > 0
        self._next -= 1

    def seek(self, position, pending=None):
        assert pending is None
        self._next = position["next"]

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)  # here only processes are killed, not machines


def memberships(graph, **options):
    names = [f"agent-{i}" for i in range(len(graph))]
    return [
        Membership(
            name=name,
            number=i,
            listen="tcp/127.0.0.1:1",
            neighbors={names[j]: "tcp/127.0.0.1:2" for j in graph.neighbors[i]},
            **options,
        )
        for i, name in enumerate(names)
    ]


def simulated(agent, graph, rows):
    graph = Graph(tuple(f"agent-{i}" for i in range(len(graph))), graph.neighbors)
    return list(simulate(agent, graph, [ArrayStream(*data(i, n), batch_size=8) for i, n in enumerate(rows)]))


def same(f, g):
    return f.points.tobytes() == g.points.tobytes() and f.weights.tobytes() == g.weights.tobytes()


def run_lock_step(world, agent, graph, rows, **options):
    for i, member in enumerate(memberships(graph, lock_step=True)):
        world.add(agent, member, ArraySource(*data(i, rows[i])), **options)
    if options.get("stay", True):
        world.stop_at_the_end()
    return world.run()


def assert_simulated(runs, rounds, *, counts=True):
    for i, run in enumerate(runs.values()):
        told = [now for now in rounds if now.infos[i] is not None]
        assert [turn.number for turn, _ in run.turns] == [now.number for now in told]
        for (turn, function), now in zip(run.turns, told, strict=True):
            assert same(function, now.functions[i]), f"{turn.state.name} in round {now.number}"
            assert turn.info == now.infos[i]
        if counts:
            last = rounds[-1]
            assert run.node.traffic == (last.floats_sent[i], last.bytes_sent[i])


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=kind)
class TestLockStep:
    @pytest.mark.parametrize(
        ("graph", "rows"),
        [(Graph.line(1), [48]), (Graph.star(4), [48] * 4), (Graph.ring(4), [48, 24, 0, 35]), (Graph.ring(4), [8, 40, 40, 8])],
        ids=["alone", "star", "ring", "short streams"],
    )
    def test_rounds_are_those_of_the_simulation(self, protocol, graph, rows):
        agent = make(protocol)
        runs = run_lock_step(World(seed=1), agent, graph, rows, stay=False)
        assert_simulated(runs, simulated(agent, graph, rows))

    @pytest.mark.parametrize(
        "faults",
        [
            {"delay": 0.3},
            {"twice": 0.5, "delay": 0.2},
            {"absence": 0.3},
            {"loss": 0.2},
            {"loss": 0.1, "absence": 0.1, "twice": 0.3, "delay": 6.0},
            {"garbage": 0.2},
        ],
        ids=lambda faults: "-".join(faults),
    )
    def test_faults_of_the_network_change_nothing(self, protocol, faults):
        agent, rows = make(protocol), (40, 40, 16)
        rounds = simulated(agent, Graph.ring(3), rows)
        runs = run_lock_step(World(**faults), agent, Graph.ring(3), rows)
        assert_simulated(runs, rounds)


@pytest.mark.parametrize("protocol", TALKING, ids=kind)
def test_in_lock_step_an_agent_stays_until_its_neighbors_have_finished(protocol):
    """An agent whose stream has ended is still needed by one that says nothing for a while."""
    world = World()
    first, second = memberships(Graph.line(2), lock_step=True)
    world.add(make(protocol), first, ArraySource(*data(0, 16)), stay=False)

    def freeze(node, turn):  # as a host does that is busy otherwise
        if turn.number == 3:
            world.newest("agent-1").frozen = world.now + 8.0

    world.add(make(protocol), second, ArraySource(*data(1, 48)), stay=False, each=freeze)
    runs = world.run(seconds=60.0)
    assert runs["agent-1"].node.state.samples == 48


# ---- free running


@pytest.mark.parametrize("protocol", TALKING, ids=kind)
def test_a_killed_agent_resumes_to_the_last_bit(protocol, tmp_path):
    """Agents that run freely are killed at times that are drawn, and started again a little later."""
    agent, world, before, resumed = make(protocol), World(seed=3, delay=0.02), {}, []
    everywhere = memberships(Graph.ring(3), patience=0.05)

    def state_of(runner):
        return {name: array.tobytes() for name, array in storage.pack(runner.state, workspace=True).items()}

    def begin(i):
        store = CheckpointStore(tmp_path / str(i), agent=agent, every=7)
        source = ArraySource(*data(i, 320), world=world, seconds=0.05)
        runner = world.add(agent, everywhere[i], source, store=store)
        if i in before:
            resumed.append(state_of(runner) == before[i])

    def kill(i):
        run = world.newest(f"agent-{i}")
        before[i] = state_of(run.runner)
        world.kill(run)
        world.at(world.now + 0.2, lambda: begin(i))

    for i in range(3):
        begin(i)
        for k in range(2):
            world.at(0.3 + k + 0.6 * world.rng.random(), lambda i=i: kill(i))
    runs = world.run(seconds=10.0)
    assert resumed == [True] * 6
    assert [run.node.state.samples for run in runs.values()] == [320] * 3


def run_with(agent, puppet, *, rows=80, at=(), world=None, **options):
    """One agent whose only neighbor, "b", is a puppet; `at` has times with events that arrive then."""
    world = world or World()
    b = world.puppet("b", ["a"], puppet)
    member = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""}, patience=0.05)
    runner = world.add(agent, member, ArraySource(*data(0, rows)), **{"stay": False, **options})
    for when, event in at:
        world.at(when, lambda event=event: runner.mailbox.put(event))
    run = world.run(seconds=10.0)["a"]
    assert run.ended
    return SimpleNamespace(run=run, runner=runner, node=runner.node, world=world, replies=b.replies)


def silent(sender, frame, answer):
    """A neighbor that is there and has nothing to say."""
    if frame.header.ping:
        answer(b"")


def saying(words):
    """A neighbor that answers every question with these bytes, or with what a function of the question gives."""

    def puppet(sender, frame, answer):
        answer(b"" if frame.header.ping else words(frame.payload) if callable(words) else words)

    return puppet


def question_of(agent):
    wanted = agent.protocol.question
    return b"" if wanted is None else encode(agent.protocol.ask(agent.start().sent, np.zeros((8, 2))))


def function(order=3, dimension=2, outputs=3, scale=1.0):
    rng = np.random.default_rng(3)
    return rng.normal(size=(order, dimension)), scale * rng.normal(size=(order, outputs))


def bad_answers(agent):
    yield "noise", b"\x00\xff" * 100
    yield "short", b"abc"
    yield "points", encode(Points(np.zeros((8, 2))))
    yield "cut off", encode(SentFunction(*function()))[:-1]
    yield "deep", b"\x91" * 100_000
    yield "too large", bytes((1 << 24) + 1)
    if agent.protocol.question:
        for name, values in {
            "rows": np.zeros((7, 3)),
            "columns": np.zeros((8, 2)),
            "nothing": np.zeros((0, 3)),
            "nan": np.full((8, 3), np.nan),
            "infinite": np.full((8, 3), np.inf),
            "diverged": np.full((8, 3), 1e300),
        }.items():
            yield name, encode(Values(values))
        yield "function", encode(SentFunction(*function()))
    else:
        yield "values", encode(Values(np.zeros((8, 3))))
        yield "dimension", encode(SentFunction(*function(dimension=3)))
        yield "outputs", encode(SentFunction(*function(outputs=2)))
        yield "diverged", encode(SentFunction(*function(scale=1e300)))
        yield "nan", encode(SentFunction(function()[0], np.full((3, 3), np.nan)))


@pytest.mark.parametrize("protocol", [Diffusion(), Penalty(coupling=0.1)], ids=kind)
def test_an_early_question_that_cannot_be_read_ends_nobody(protocol):
    """It is kept until the round begins that it is about, and refused then."""
    world = World()
    first = memberships(Graph.line(2), lock_step=True)[0]
    runner = world.add(make(protocol), first, ArraySource(*data(0, 16)))
    world.puppet("agent-1", ["agent-0"], silent)
    world.network.send("agent-1", "agent-0", question(Header(step=1, share=0.5), b"rubbish"))
    world.run(seconds=3.0)
    assert runner.status().refused == 1


@pytest.mark.parametrize("protocol", TALKING, ids=kind)
class TestFreeRunning:
    @pytest.mark.parametrize(
        "faults",
        [{}, {"loss": 0.3, "absence": 0.2}, {"delay": 3.0, "twice": 0.5}, {"garbage": 0.5}],
        ids=lambda faults: "-".join(faults) or "none",
    )
    def test_faults_do_not_stop_an_agent(self, protocol, faults):
        agent = make(protocol)
        world = World(**faults)
        for i, member in enumerate(memberships(Graph.ring(3), patience=0.05)):
            world.add(agent, member, ArraySource(*data(i, 80)))
        world.stop_at_the_end()
        runs = world.run()
        assert world.now < 60.0
        for run in runs.values():
            assert run.node.state.samples == 80
            assert (run.runner.status().refused > 0) == ("garbage" in faults)
            assert Status.decode(run.runner.status().encode()) == run.runner.status()

    def test_invalid_answers_are_never_used(self, protocol):
        agent = make(protocol)
        rows = 24 * protocol.every
        quiet = run_with(agent, silent, rows=rows)
        for name, words in bad_answers(agent):
            heard = run_with(agent, saying(words), rows=rows)
            assert same(heard.node.state.function, quiet.node.state.function), name
            assert heard.runner.status().neighbors["b"].refused > 0, name

    def test_valid_answers_are_used(self, protocol):
        """Else the law before says nothing."""
        agent, good = make(protocol), encode(SentFunction(*function()))
        if protocol.question:
            good = lambda payload: encode(Values(np.ones((len(decode(payload).points), 3)))) if payload else b""  # noqa: E731
        quiet, heard = run_with(agent, silent), run_with(agent, saying(good))
        assert not same(heard.node.state.function, quiet.node.state.function)
        assert heard.runner.status().refused == 0

    def test_a_neighbor_is_asked_once_in_a_round(self, protocol):
        """Else those who wait for somebody slow would flood everybody else."""
        agent, asked = make(protocol), []

        def puppet(sender, frame, answer):
            asked.append(frame.header.ping)
            answer(b"")

        heard = run_with(agent, puppet)
        assert asked.count(False) <= heard.node.state.steps

    def test_invalid_questions_are_not_answered(self, protocol):
        agent = make(protocol)
        quiet = run_with(agent, silent)
        bad = [b"\xff" * 50, encode(Values(np.zeros((8, 3)))), encode(Points(np.zeros((8, 5)))), b"x"]
        questions = [
            (1e-3 * (n + 1), Arrival("b", question(Header(step=1, share=0.5), payload, token=n)))
            for n, payload in enumerate(bad)
        ]
        heard = run_with(agent, silent, at=questions)
        assert not heard.replies
        assert heard.runner.status().neighbors["b"].refused == len(bad)
        assert same(heard.node.state.function, quiet.node.state.function)

    def test_a_question_of_another_protocol_is_answered_or_refused(self, protocol):
        """Two agents whose files name different protocols must not bring each other down."""
        agent = make(protocol)
        for payload in (b"", encode(Points(np.zeros((8, 2)))), encode(SentFunction(*function()))):
            heard = run_with(agent, silent, at=[(1e-3, Arrival("b", question(Header(step=1), payload, token=1)))])
            assert len(heard.replies) + heard.runner.status().refused == 1

    def test_strangers_are_not_answered(self, protocol):
        agent = make(protocol)
        payload = question_of(agent)
        questions = [
            (1e-3 * n, Arrival("stranger", question(Header(step=1, ping=ping), payload, token=n)))
            for n in range(1, 5)
            for ping in (False, True)
        ]
        heard = run_with(agent, silent, at=[*questions, (1e-3, Arrival("b", b"no frame"))])
        assert not heard.replies
        assert heard.runner.status().refused == 9
        assert heard.runner.status().neighbors["b"].refused == 1
        assert same(heard.node.state.function, run_with(agent, silent).node.state.function)

    def test_extreme_numbers_in_a_header(self, protocol):
        agent, most = make(protocol), (1 << 62) - 1
        payload = question_of(agent)
        extremes = itertools.product((0, most), (0, 2**64 - 1), (0.0, 1.0), (0.0, np.inf), (False, True))
        events = [
            (1e-3 * n, Arrival("b", question(Header(step=step, share=share, age=age, ended=ended), payload, token=token)))
            for n, (step, token, share, age, ended) in enumerate(extremes)
        ]
        heard = run_with(agent, silent, at=events, rows=800, stay=True)
        assert len(heard.replies) == len(events)
        for frame in heard.replies:
            decode(frame.payload)
        assert Status.decode(heard.runner.status().encode()) == heard.runner.status()

    def test_after_restarts_every_sample_has_been_used_once(self, protocol, tmp_path):
        agent, steps = make(protocol), 0
        for _ in range(4):
            store = CheckpointStore(tmp_path, agent=agent, every=3)

            def stop(node, turn, begin=steps):
                if turn.number == begin + 4:
                    node.stop()

            done = run_with(agent, silent, store=store, each=stop, rows=88)
            steps = done.node.state.steps
            assert done.run.source.closed
            assert max(tmp_path.glob("checkpoint-*")).stem.endswith(str(steps))
        assert (steps, done.node.state.samples) == (11, 88)
        assert same(done.node.state.function, run_with(agent, silent, rows=88).node.state.function)


@pytest.mark.parametrize(
    "changes", [{"kernel": Gaussian(bandwidth=0.7)}, {"loss": Hinge()}, {"protocol": Diffusion()}], ids=str
)
def test_neighbors_with_different_models_ignore_each_other(changes):
    world, graph = World(), Graph.line(2)
    agents = [make(Penalty(coupling=0.05)), make(**{"protocol": Penalty(coupling=0.05), **changes})]
    for i, (agent, member) in enumerate(zip(agents, memberships(graph, patience=0.01), strict=True)):
        world.add(agent, member, ArraySource(*data(i, 64)))
    world.stop_at_the_end()
    for i, run in enumerate(world.run().values()):
        status = run.runner.status()
        assert status.refused > 0
        assert status.samples == 64
        alone = make(**{**changes, "protocol": Local()} if i else {"protocol": Local()})
        state = alone.start()
        for points, targets in ArrayStream(*data(i, 64), batch_size=8):
            state, _ = alone.step(state, points, targets)
        assert same(run.node.state.function, state.function)


class TestRequests:
    def requests(self, agent, *asked, **options):
        answers = []
        events = [
            (0.01, Request(what, payload, answers.append, lambda reason: answers.append(reason))) for what, payload in asked
        ]
        done = run_with(agent, silent, at=events, **options)
        assert len(answers) == len(asked)
        return answers, done.runner

    def test_predictions(self):
        agent, points, found = make(Diffusion()), data(5, 20)[0], []
        (answer,), _ = self.requests(agent, ("predict", encode(Points(points[:0]))))
        assert decode(answer).values.shape == (0, 3)
        events = [(5.0, Request("predict", encode(Points(points)), found.append, found.append))]
        node = run_with(agent, silent, at=events, stay=True).node
        np.testing.assert_array_equal(decode(found[0]).values, agent.predict(node.state, points))

    @pytest.mark.parametrize(
        ("payload", "words"),
        [
            (b"", "format 1"),
            (b"x" * 100, "format 1"),
            (encode(Points(np.zeros((2, 3)))), "have points with 2 columns"),
            (encode(Values(np.zeros((2, 3)))), "request: must be points, got values"),
            (encode(Points(np.full((2, 2), np.nan))), "finite"),
            (bytes((1 << 24) + 1), "at most"),
            (encode(Points(np.zeros(((1 << 17) + 1, 2)))), "at most 131072 points"),
        ],
        ids=["nothing", "noise", "dimension", "kind", "nan", "size", "points"],
    )
    def test_refused_with_a_reason(self, payload, words):
        (reason,), runner = self.requests(make(Diffusion()), ("predict", payload))
        assert words in reason
        assert runner.status().refused == 0  # a client's slip is no offense

    def test_status(self):
        (text,), _ = self.requests(make(Diffusion()), ("status", b""), rows=40)
        status = Status.decode(text)
        assert status.neighbors.keys() == {"b"}
        assert (status.name, status.mode) == ("a", "free")


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda data: b"\0" * 17 + data))
def test_any_bytes_are_a_frame_or_refused(data):
    with contextlib.suppress(RefusedMessage):
        frame = decode_frame(data, max_bytes=1 << 20)
        assert decode_frame(encode_frame(frame), max_bytes=1 << 20) == frame
        assert 0.0 <= frame.header.share <= 1.0
        assert frame.header.age >= 0.0
        assert frame.header.step < 1 << 62


@pytest.mark.parametrize("share", [-0.1, 1.1, np.nan, np.inf])
def test_invalid_shares_are_refused(share):
    with pytest.raises(RefusedMessage, match="share"):
        decode_frame(encode_frame(Frame(Prefix(1, False, 1), Header(step=1, share=share), b"")), max_bytes=1 << 20)


def restarted(agent, member, source, store):
    """What an agent knows when it has been started again."""
    carrier = World().network.carrier(member.name, list(member.neighbors))
    return AgentRunner(agent, member, source, carrier, store=store, clock=lambda: 0.0)


class TestDivergence:
    @pytest.mark.parametrize("every", [1, 100])
    def test_divergence_of_a_single_agent_is_raised_and_its_state_saved(self, every, tmp_path):
        """The step that failed is on record, and is not taken again when the agent is started anew."""
        agent = make(Local(), loss=Squared(), learner=Gradient(step_size=1e5, compression=Komp(budget=0.1)), explosion=10.0)
        points, world = data(0, 80)[0], World()
        targets = np.concatenate([points, points[:, :1]], axis=1)
        member = Membership(name="a", listen="tcp/127.0.0.1:1")
        store = CheckpointStore(tmp_path, agent=agent, every=every)
        node = world.add(agent, member, ArraySource(points, targets), store=store)
        with pytest.raises(Diverged):
            world.run()
        assert node.state.steps > 0
        assert max(tmp_path.glob("checkpoint-*")).stem.endswith(str(node.state.steps))
        with contextlib.closing(CheckpointStore(tmp_path, agent=agent, every=every)) as store:
            again = restarted(agent, member, ArraySource(points, targets), store)
        assert same(again.state.function, node.state.function)

    @pytest.mark.parametrize("protocol", RELAYING, ids=kind)
    def test_killed_while_a_neighbor_had_diverged(self, protocol, tmp_path, caplog):
        """Its own stream had ended. The agent can be started again, and has logged it a few times."""
        agent, world, huge = make(protocol), World(), encode(SentFunction(*function(scale=1e300)))

        def puppet(sender, frame, answer):  # goes astray when the other's stream has ended
            answer(huge if frame.header.ended and not frame.header.ping else b"")

        store = CheckpointStore(tmp_path, agent=agent, every=100)
        world.at(2.0, lambda: world.kill(world.newest("a")))
        first = run_with(agent, puppet, store=store, stay=True, rows=24, world=world).node
        assert 1 <= sum(record.levelname in ("WARNING", "ERROR") for record in caplog.records) < 10
        assert first.status(2.0).refused > 0
        with contextlib.closing(CheckpointStore(tmp_path, agent=agent, every=100)) as store:
            again = restarted(agent, first.membership, ArraySource(*data(0, 24)), store)
        assert same(again.state.function, first.state.function)
