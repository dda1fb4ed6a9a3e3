"""Nodes on a network that lives in memory, with a clock of its own: laws that hold whatever becomes of messages."""

import contextlib
import heapq
import itertools
import json
import random
import threading
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kernelmesh import (
    Agent,
    Diffusion,
    Diverged,
    ExactDiffusion,
    Gaussian,
    Graph,
    Hilbert,
    Hinge,
    Komp,
    Local,
    Logistic,
    Penalty,
    Proximal,
    Squared,
    Symmetric,
    simulate,
)
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import Function, Offer, Points, Probe, Repair, Values, decode, encode
from kernelmesh.runtimes import neighbors
from kernelmesh.runtimes import node as node_module
from kernelmesh.runtimes.carrier import Answer, Note, Offence, Question, Request
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node import Node
from kernelmesh.streams import ArrayStream, Mixture, Source

PROTOCOLS = [
    Local(),
    Penalty(coupling=0.05),
    Proximal(coupling=2.0),
    Symmetric(coupling=2.0),
    Hilbert(coupling=0.02),
    Diffusion(),
    ExactDiffusion(budget=0.02),
]
TALKING = PROTOCOLS[1:]
RELAYING = [Diffusion(), ExactDiffusion(budget=0.02)]


def kind(consensus):
    return type(consensus).__name__


def make(consensus, **changes):
    options = {
        "dimension": 2,
        "outputs": 3,
        "kernel": Gaussian(bandwidth=0.6),
        "loss": Logistic(),
        "step_size": 2.0,
        "compression": Komp(budget=0.1),
        "consensus": consensus,
    }
    return Agent(**{**options, **changes})


def data(seed, rows):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


class ArraySource:
    """The mini-batches of an ArrayStream, as a source."""

    refused, pending = 0, None

    def __init__(self, points, targets, *, endless=False):
        self._batches, self._endless = list(ArrayStream(points, targets, batch_size=8)), endless
        self._next = 0
        self.closed = False

    @property
    def ended(self):
        return not self._endless and self._next == len(self._batches)

    @property
    def position(self):
        return {"next": self._next}

    def take(self):
        if self._next == len(self._batches):
            return None
        self._next += 1
        return self._batches[self._next - 1]

    def give_back(self):
        self._next -= 1

    def seek(self, position, pending=None):
        assert pending is None
        self._next = position["next"]

    def close(self):
        self.closed = True


class Killed(BaseException):
    """What ends a node without its being able to do anything about it."""


class World:
    """Runs nodes in threads of which one at a time has its turn, on a clock that jumps to whatever happens next.

    Who is next, what gets lost and how long messages take is drawn from a seed, so that everything can be repeated.
    """

    def __init__(self, *, seed=0, loss=0.0, refusal=0.0, delay=0.0, twice=0.0, garbage=0.0):
        self.now, self.rng = 0.0, random.Random(seed)
        self.loss, self.refusal, self.delay, self.twice, self.garbage = loss, refusal, delay, twice, garbage
        self.carriers, self.puppets, self.actors = {}, {}, []
        self.runs = {}
        self._due, self._number = [], itertools.count()
        self._over = threading.Event()

    def monotonic(self):
        return self.now

    def at(self, when, act):
        """Do something at a time of this clock."""
        heapq.heappush(self._due, (max(when, self.now), next(self._number), act))

    def later(self, act):
        self.at(self.now + self.rng.random() * self.delay, act)

    def add(self, agent, place, source, *, each=None, **options):
        """Start a node; `each` is called with it and every turn."""
        carrier = self.carriers[place.name] = FakeCarrier(self, place.name)
        node = Node(agent, place, source, carrier, **options)
        run = SimpleNamespace(node=node, turns=[], error=None, carrier=carrier, ended=False)
        self.runs.setdefault(place.name, []).append(run)

        def act():
            carrier.baton.acquire()
            try:
                for turn in node.turns():
                    run.turns.append((turn, turn.state.function))
                    if each is not None:
                        each(node, turn)
            except Killed:
                pass
            except BaseException as error:
                run.error = error
            run.ended = True
            carrier.closed = True
            self.actors.remove(carrier)
            self._pass_on()

        self.actors.append(carrier)
        run.thread = threading.Thread(target=act, daemon=True)
        run.thread.start()
        return node

    def run(self, *, seconds=300.0):
        """Until all nodes have ended; those that have not within so many seconds are stopped."""
        self.at(seconds, self.stop)
        self._pass_on()
        assert self._over.wait(60), "the nodes wait for each other"
        for run in itertools.chain(*self.runs.values()):
            run.thread.join(10)
            if run.error is not None:
                raise run.error
        return {name: runs[-1] for name, runs in self.runs.items()}

    def stop(self):
        for run in itertools.chain(*self.runs.values()):
            run.node.stop()

    def stop_at_the_end(self):
        """Stop all nodes when every stream has ended."""
        if all(run.node._ended for *_, run in self.runs.values()):
            self.stop()
        elif self.now < 300.0:
            self.at(self.now + 0.05, self.stop_at_the_end)

    def wait(self, carrier, seconds):
        if carrier.doomed:
            raise Killed
        if not carrier.events or self.now < carrier.frozen:
            carrier.deadline = self.now + max(seconds, 1e-4)  # nothing takes no time at all
            self._pass_on()
            carrier.baton.acquire()
            if carrier.doomed:
                raise Killed
        return carrier.events.pop(0) if carrier.events else None

    def _pass_on(self):
        while self.actors:
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            ready = [actor for actor in self.actors if actor.ready]
            if ready:
                self.rng.choice(ready).baton.release()
                return
            self.now = min(
                [max(actor.deadline, actor.frozen) for actor in self.actors] + [due[0] for due in self._due[:1]]
            )
        self._over.set()


class FakeCarrier:
    """Carries between the nodes of a world, and to puppets: functions that answer as they like."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.events, self.deadline, self.baton = [], 0.0, threading.Semaphore(0)
        self.closed = self.doomed = False
        self.frozen = 0.0

    @property
    def ready(self):
        now = self.world.now
        return self.doomed or (now >= self.frozen and (bool(self.events) or now >= self.deadline))

    def wait(self, seconds, *, answers=1):
        return self.world.wait(self, seconds)

    def close(self):
        self.closed = True

    def put(self, event):
        if not self.closed:
            self.events.append(event)

    def ask(self, neighbor, ticket, note, payload, *, timeout):
        world = self.world
        note = Note.decode(note.encode())
        world.at(world.now + timeout, lambda: self.put(Answer(neighbor, ticket)))
        if world.rng.random() < world.refusal:
            self.put(Answer(neighbor, ticket))
            return

        def answer(told, words, ahead=None):
            assert isinstance(words, bytes)
            told = Note.decode(told.encode())
            if ahead is not None:  # a message of its own here: it may be lost, or come before the answer
                note = told.ahead(whole=ahead.whole)
                world.carriers[neighbor].ask(self.name, ahead.ticket, note, ahead.payload, timeout=ahead.timeout)
            if world.rng.random() < world.garbage:
                words = rubbish(world.rng, words)
            if world.rng.random() >= world.loss:
                for _ in range(1 + (world.rng.random() < world.twice)):
                    world.later(lambda: self.put(Answer(neighbor, ticket, told, words)))

        def deliver():
            if neighbor in world.puppets:
                world.puppets[neighbor](self.name, note, payload, answer)
            elif (other := world.carriers.get(neighbor)) is not None and not other.closed:
                other.put(Question(self.name, note, payload, answer))
            else:
                self.put(Answer(neighbor, ticket))  # nobody listens there

        if world.rng.random() >= world.loss:
            for _ in range(1 + (world.rng.random() < world.twice)):
                world.later(deliver)


def rubbish(rng, words):
    """Bytes that can be told from a message."""
    choice = rng.randrange(4)
    if choice == 0:
        return rng.randbytes(rng.randrange(1, 200))
    if choice == 1 and len(words) > 1:
        return words[: rng.randrange(1, len(words))]
    if choice == 2:
        return words + b"x"
    return b"\xff" * 8 + words


@pytest.fixture
def clock(monkeypatch):
    """Lets nodes live by the clock of a world."""

    def use(world):
        monkeypatch.setattr(node_module, "time", world)
        return world

    return use


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)  # here only processes are killed, not machines


def places(graph, **options):
    names = [f"agent-{i}" for i in range(len(graph))]
    return [
        Membership(
            name=name,
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
    return f.centers.tobytes() == g.centers.tobytes() and f.weights.tobytes() == g.weights.tobytes()


def run_lock_step(world, agent, graph, rows, **options):
    for i, place in enumerate(places(graph, lock_step=True)):
        world.add(agent, place, ArraySource(*data(i, rows[i])), **options)
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
            assert (run.node.bytes_sent, run.node.floats_sent) == (last.bytes_sent[i], last.floats_sent[i])


GRAPHS = {"ring": Graph.ring(4), "star": Graph.star(4), "alone": Graph.line(1)}


@pytest.mark.parametrize("consensus", PROTOCOLS, ids=kind)
class TestLockStep:
    @pytest.mark.parametrize("graph", GRAPHS)
    def test_rounds_are_those_of_the_simulation(self, consensus, graph, clock):
        agent, graph = make(consensus), GRAPHS[graph]
        runs = run_lock_step(clock(World()), agent, graph, rows := [48] * len(graph), stay=False)
        assert_simulated(runs, simulated(agent, graph, rows))

    @pytest.mark.parametrize("rows", [(48, 24, 0, 35), (8, 40, 40, 8)], ids=str)
    def test_streams_of_different_length(self, consensus, rows, clock):
        agent = make(consensus)
        runs = run_lock_step(clock(World(seed=1)), agent, Graph.ring(4), rows, stay=False)
        assert_simulated(runs, simulated(agent, Graph.ring(4), rows))

    @pytest.mark.parametrize(
        "faults",
        [
            {"delay": 0.3},
            {"twice": 0.5, "delay": 0.2},
            {"refusal": 0.3},
            {"loss": 0.2},
            {"loss": 0.1, "refusal": 0.1, "twice": 0.3, "delay": 6.0},
            {"garbage": 0.2},
        ],
        ids=lambda faults: "-".join(faults),
    )
    def test_what_becomes_of_messages_changes_nothing(self, consensus, faults, clock):
        agent, rows = make(consensus), (40, 40, 16)
        rounds = simulated(agent, Graph.ring(3), rows)
        runs = run_lock_step(clock(World(**faults)), agent, Graph.ring(3), rows)
        assert_simulated(runs, rounds, counts=False)

    def test_what_is_asked_again_is_counted_once(self, consensus, clock):
        agent, rows = make(consensus), (40, 40, 40)
        world = clock(World(loss=0.2, refusal=0.1))
        assert_simulated(run_lock_step(world, agent, Graph.ring(3), rows), simulated(agent, Graph.ring(3), rows))


class TestStartedAgain:
    @pytest.mark.parametrize("how", ["stop", "kill"])
    @pytest.mark.parametrize("consensus", TALKING, ids=kind)
    def test_agents_end_where_they_would_have(self, consensus, how, clock, tmp_path):
        """Stopped or killed wherever it may be, an agent goes on as if nothing had been."""
        agent, graph, rows = make(consensus), Graph.ring(3), (64, 64, 64)
        rounds = simulated(agent, graph, rows)
        for seed in (0, 3):
            world = clock(World(seed=seed, delay=0.02))
            world.at(0.01, world.stop_at_the_end)
            begun = lock_step_that_is_disturbed(world, agent, graph, rows, tmp_path / str(seed), how)
            runs = world.run()
            assert begun["agent-0"] > 1
            for i, run in enumerate(runs.values()):
                assert run.ended
                assert same(run.node.state.function, rounds[-1].functions[i]), f"{seed}: {run.node.place.name}"
                assert (run.node.state.samples, run.node.state.steps) == (64, 8)
                for earlier in world.runs[run.node.place.name]:
                    for turn, function in earlier.turns:
                        assert same(function, rounds[turn.number - 1].functions[i])


def lock_step_that_is_disturbed(world, agent, graph, rows, folder, how):
    """Agents that are ended at times that are drawn, and started again a little later."""
    begun = dict.fromkeys((place.name for place in places(graph)), 0)

    def start(i, place):
        begun[place.name] += 1
        store = CheckpointStore(folder / place.name, agent=agent, settings={}, every=3)
        source = ArraySource(*data(i, rows[i]))
        world.add(agent, place, source, store=store)

    def end(i, place):
        run = world.runs[place.name][-1]
        if run.ended or run.node._ended:
            return
        if how == "kill":
            run.node._save = lambda **_: None
            run.carrier.doomed = True
        else:
            run.node.stop()
        world.at(world.now + 0.2, lambda: again(i, place))

    def again(i, place):
        if not world.runs[place.name][-1].ended:
            world.at(world.now + 0.1, lambda: again(i, place))
        else:
            start(i, place)

    everywhere = places(graph, lock_step=True)
    for i, place in enumerate(everywhere):
        start(i, place)
    for i, place in enumerate(everywhere):
        for _ in range(2):
            world.at(0.05 + world.rng.random() * (0.1 if i == 0 else 1.0), lambda i=i, place=place: end(i, place))
    return begun


@pytest.mark.parametrize("consensus", TALKING, ids=kind)
def test_in_lock_step_nobody_leaves_before_its_neighbors_are_done(consensus, clock):
    """An agent whose stream has ended is still needed by one that says nothing for a while."""
    world = clock(World())
    first, second = places(Graph.line(2), lock_step=True)
    world.add(make(consensus), first, ArraySource(*data(0, 16)), stay=False)

    def freeze(node, turn):  # as a host does that is busy otherwise
        if turn.number == 3:
            world.carriers["agent-1"].frozen = world.now + 8.0

    world.add(make(consensus), second, ArraySource(*data(1, 48)), stay=False, each=freeze)
    runs = world.run(seconds=60.0)
    assert runs["agent-1"].node.state.samples == 48


def test_without_a_protocol_nobody_is_asked(clock):
    world = clock(World())
    runs = run_lock_step(world, make(Local()), Graph.ring(3), (800, 80, 40))
    assert all(run.node._odd == set() for run in runs.values())


# ---- free running


def run_with(clock, agent, puppet, *, rows=80, at=(), world=None, **options):
    """One agent whose only neighbor, "b", is a puppet; `at` has times with events that arrive then."""
    world = clock(world or World())
    world.puppets["b"] = puppet
    place = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""}, patience=0.05)
    node = world.add(agent, place, ArraySource(*data(0, rows)), **{"stay": False, **options})
    for when, event in at:
        world.at(when, lambda event=event: world.carriers["a"].put(event))
    run = world.run(seconds=10.0)["a"]
    assert run.ended
    return SimpleNamespace(run=run, node=node, world=world)


def silent(sender, note, payload, answer):
    """A neighbor that is there and has nothing to say."""
    if note.ping:
        answer(Note(step=1, token=5, share=0.5, ended=True), b"")


def saying(words):
    """A neighbor that answers every question with these bytes, or with what a function of the question gives."""

    def puppet(sender, note, payload, answer):
        answer(
            Note(step=1, token=5, share=0.5, ended=True),
            b"" if note.ping else words(payload) if callable(words) else words,
        )

    return puppet


def style_of(agent):
    return neighbors.style_of(agent)[0]


def question_of(agent):
    question = None if agent.offers else agent.ask(agent.start(), np.zeros((8, 2)))
    return encode(question) if isinstance(question, Points | Probe) else b""


def function(order=3, dimension=2, outputs=3, scale=1.0):
    rng = np.random.default_rng(3)
    return rng.normal(size=(order, dimension)), scale * rng.normal(size=(order, outputs))


def offer(centers, weights):
    return encode(Offer(centers, weights, 0, 1, 0, 0, 0.5))


def bad_answers(agent):
    style = style_of(agent)
    nan = np.full((3, 3), np.nan)
    yield "noise", b"\x00\xff" * 100
    yield "short", b"abc"
    yield "points", encode(Points(np.zeros((8, 2))))
    yield "cut off", encode(Function(*function()))[:-1]
    yield "huge header", b"\xff" * 8 + b"{" * 100
    yield "too large", bytes((1 << 24) + 1)
    if style == "points":
        for name, values in {
            "rows": np.zeros((7, 3)),
            "columns": np.zeros((8, 2)),
            "nothing": np.zeros((0, 3)),
            "nan": np.full((8, 3), np.nan),
            "infinite": np.full((8, 3), np.inf),
        }.items():
            yield name, encode(Values(values))
        yield "function", encode(Function(*function()))
        yield "probe", encode(Probe(np.zeros((8, 2)), np.zeros((8, 3))))
    else:
        yield "values", encode(Values(np.zeros((8, 3))))
        words = offer if style == "offers" else lambda *tables: encode(Function(*tables))
        yield "dimension", words(*function(dimension=3))
        yield "outputs", words(*function(outputs=2))
        yield "nan", words(function()[0], nan)
        other = Function(*function()) if style == "offers" else Offer(*function(), 0, 1, 0, 0, 0.5)
        yield "other kind", encode(other)
    if style == "offers":
        yield "dual of another dimension", encode(Repair(*function(), *function(dimension=3), 1, 1, 0, 0, 0.5))
        yield "negative count", encode(Offer(*function(), -1, 1, 0, 0, 0.5))
        yield "count of 2^62", encode(Offer(*function(), 1 << 62, 1, 0, 0, 0.5))


@pytest.mark.parametrize("consensus", TALKING, ids=kind)
class TestFreeRunning:
    @pytest.mark.parametrize(
        "faults",
        [{}, {"loss": 0.3, "refusal": 0.2}, {"delay": 3.0, "twice": 0.5}, {"garbage": 0.5}],
        ids=lambda faults: "-".join(faults) or "none",
    )
    def test_nothing_stops_it(self, consensus, faults, clock):
        agent = make(consensus)
        world = clock(World(**faults))
        for i, place in enumerate(places(Graph.ring(3), patience=0.05)):
            world.add(agent, place, ArraySource(*data(i, 80)))
        world.stop_at_the_end()
        runs = world.run()
        assert world.now < 60.0
        for run in runs.values():
            assert run.node.state.samples == 80
            assert (run.node.status()["refused"] > 0) == ("garbage" in faults)
            assert json.loads(json.dumps(run.node.status(), allow_nan=False)) == run.node.status()

    def test_what_cannot_be_read_is_never_learned_from(self, consensus, clock):
        agent = make(consensus)
        quiet = run_with(clock, agent, silent, rows=24)
        for name, words in bad_answers(agent):
            heard = run_with(clock, agent, saying(words), rows=24)
            assert same(heard.node.state.function, quiet.node.state.function), name
            assert heard.node.status()["neighbors"]["b"]["refused"] > 0, name

    def test_what_can_be_read_is(self, consensus, clock):
        """Else the law before says nothing."""
        agent = make(consensus)
        style = style_of(agent)
        good = {
            "points": lambda payload: encode(Values(np.ones((len(decode(payload).points), 3)))) if payload else b"",
            "functions": encode(Function(*function())),
            "offers": offer(*function()),
        }[style]
        quiet, heard = run_with(clock, agent, silent), run_with(clock, agent, saying(good))
        assert not same(heard.node.state.function, quiet.node.state.function)
        assert heard.node.status()["refused"] == 0

    def test_questions_that_cannot_be_read_are_not_answered(self, consensus, clock):
        agent, answered = make(consensus), []
        quiet = run_with(clock, agent, silent)
        bad = [b"\xff" * 50, encode(Values(np.zeros((8, 3)))), encode(Points(np.zeros((8, 5)))), b"x"]
        questions = [
            (
                1e-3 * (n + 1),
                Question("b", Note(step=1, token=n, share=0.5), payload, lambda *told: answered.append(told)),
            )
            for n, payload in enumerate(bad)
        ]
        heard = run_with(clock, agent, silent, at=questions)
        assert not answered
        assert heard.node.status()["neighbors"]["b"]["refused"] == len(bad)
        assert same(heard.node.state.function, quiet.node.state.function)

    def test_a_question_of_another_protocol_is_answered_or_refused(self, consensus, clock):
        """Two agents whose files name different protocols must not bring each other down."""
        agent, answered = make(consensus), []
        payloads = [b"", encode(Points(np.zeros((8, 2)))), encode(Probe(np.zeros((8, 2)), np.zeros((8, 3))))]
        for payload in payloads:
            question = Question("b", Note(step=1, token=1), payload, lambda *told: answered.append(told))
            heard = run_with(clock, agent, silent, at=[(1e-3, question)])
            assert len(answered) + heard.node.status()["refused"] == 1
            answered.clear()

    def test_strangers_are_not_answered(self, consensus, clock):
        agent, answered = make(consensus), []
        payload = question_of(agent)
        questions = [
            (
                1e-3 * n,
                Question("stranger", Note(step=1, token=n, ping=ping), payload, lambda *told: answered.append(told)),
            )
            for n in range(1, 5)
            for ping in (False, True)
        ]
        heard = run_with(
            clock, agent, silent, at=[*questions, (1e-3, Offence("c", 1, "note: must be of this version"))]
        )
        assert not answered
        assert heard.node._guard.refused == {"stranger": 8, "c": 1}
        assert same(heard.node.state.function, run_with(clock, agent, silent).node.state.function)

    def test_absurd_numbers_beside_a_message(self, consensus, clock):
        agent, answered, most = make(consensus), [], (1 << 62) - 1
        payload = question_of(agent)
        notes = [
            Note(step=step, token=token, share=share, epoch=count, done=count, age=age, whole=whole, ended=whole)
            for step, token, share, count, age, whole in itertools.product(
                (0, most), (0, 2**64 - 1), (0.0, 1.0), (0, most), (0.0, np.inf), (False, True)
            )
        ]
        events = [
            (1e-3 * n, Question("b", note, payload, lambda *told: answered.append(told)))
            for n, note in enumerate(notes)
        ]
        heard = run_with(clock, agent, silent, at=events, rows=800, stay=True)
        assert len(answered) == len(notes)
        for told, words, _ in answered:
            assert Note.decode(told.encode()) == told
            decode(words)
        json.dumps(heard.node.status(), allow_nan=False)

    def test_a_neighbor_gone_astray_is_left_out(self, consensus, clock):
        agent = make(consensus)
        quiet = run_with(clock, agent, silent)
        style = style_of(agent)
        huge = {
            "points": lambda payload: (
                encode(Values(np.full((len(decode(payload).points), 3), 1e300))) if payload else b""
            ),
            "functions": encode(Function(*function(scale=1e300))),
            "offers": offer(*function(scale=1e300)),
        }[style]
        heard = run_with(clock, agent, saying(huge))
        assert same(heard.node.state.function, quiet.node.state.function)
        assert heard.node.status()["neighbors"]["b"]["refused"] > 0

    def test_stopped_and_started_again_every_sample_is_used_once(self, consensus, clock, tmp_path):
        agent, steps = make(consensus), 0
        for _ in range(4):
            store = CheckpointStore(tmp_path, agent=agent, settings={}, every=3)

            def stop(node, turn, begin=steps):
                if turn.number == begin + 4:
                    node.stop()

            done = run_with(clock, agent, silent, store=store, each=stop, rows=88)
            steps = done.node.state.steps
            assert done.node._source.closed
            assert max(tmp_path.glob("checkpoint-*")).stem.endswith(str(steps))
        assert (steps, done.node.state.samples) == (11, 88)
        assert same(done.node.state.function, run_with(clock, agent, silent, rows=88).node.state.function)


@pytest.mark.parametrize(
    "changes", [{"kernel": Gaussian(bandwidth=0.7)}, {"loss": Hinge()}, {"consensus": Diffusion()}], ids=str
)
def test_neighbors_with_another_model_do_not_listen_to_each_other(changes, clock):
    world, graph = clock(World()), Graph.line(2)
    agents = [make(Penalty(coupling=0.05)), make(**{"consensus": Penalty(coupling=0.05), **changes})]
    for i, (agent, place) in enumerate(zip(agents, places(graph, patience=0.01), strict=True)):
        world.add(agent, place, ArraySource(*data(i, 64)))
    world.stop_at_the_end()
    for i, run in enumerate(world.run().values()):
        status = run.node.status()
        assert status["refused"] > 0
        assert status["samples"] == 64
        alone = make(**{**changes, "consensus": Local()} if i else {"consensus": Local()})
        state = alone.start()
        for points, targets in ArrayStream(*data(i, 64), batch_size=8):
            state, _ = alone.step(state, points, targets)
        assert same(run.node.state.function, state.function)


class TestRequests:
    def requests(self, clock, agent, *asked, **options):
        answers = []
        events = [
            (0.01, Request(what, payload, answers.append, lambda reason: answers.append(reason)))
            for what, payload in asked
        ]
        done = run_with(clock, agent, silent, at=events, **options)
        assert len(answers) == len(asked)
        return answers, done.node

    def test_predictions(self, clock):
        agent, points = make(Diffusion()), data(5, 20)[0]
        world = World()
        world.at(0.5, world.stop)
        answers, node = self.requests(clock, agent, ("predict", encode(Points(points[:0]))), world=world)
        assert decode(answers[0]).values.shape == (0, 3)
        found = []
        events = [(5.0, Request("predict", encode(Points(points)), found.append, found.append))]
        node = run_with(clock, agent, silent, at=events, stay=True).node
        np.testing.assert_array_equal(decode(found[0]).values, agent.predict(node.state, points))

    @pytest.mark.parametrize(
        ("payload", "words"),
        [
            (b"", "at least 8 bytes"),
            (b"x" * 100, "header"),
            (encode(Points(np.zeros((2, 3)))), "have points with 2 columns"),
            (encode(Values(np.zeros((2, 3)))), "request: must be points, got values"),
            (encode(Points(np.full((2, 2), np.nan))), "finite"),
            (bytes((1 << 24) + 1), "at most"),
        ],
        ids=["nothing", "noise", "dimension", "kind", "nan", "size"],
    )
    def test_refused_with_a_reason(self, payload, words, clock):
        (reason,), node = self.requests(clock, make(Diffusion()), ("predict", payload))
        assert words in reason
        assert node.status()["refused"] == 0  # a client's slip is no offence

    @pytest.mark.parametrize("consensus", PROTOCOLS, ids=kind)
    def test_status(self, consensus, clock):
        (text,), node = self.requests(clock, make(consensus), ("status", b""), rows=40)
        status = json.loads(text)
        assert status.keys() == node.status().keys()
        assert status["neighbors"].keys() == {"b"}
        assert (status["name"], status["mode"]) == ("a", "free")


@given(st.binary(max_size=80) | st.binary(min_size=53, max_size=53).map(lambda data: b"kmn1" + data[4:]))
def test_any_bytes_are_a_note_or_refused(data):
    with contextlib.suppress(RefusedMessage):
        note = Note.decode(data)
        assert note.encode() == data
        assert 0.0 <= note.share <= 1.0
        assert note.age >= 0.0
        assert max(note.step, note.epoch, note.done) < 1 << 62


class TestDivergence:
    def test_alone_it_is_raised_and_what_was_learned_is_kept(self, clock, tmp_path):
        agent = make(Local(), loss=Squared(), step_size=1e5, explosion=10.0)
        store = CheckpointStore(tmp_path, agent=agent, settings={}, every=100)
        points = data(0, 80)[0]
        world = clock(World())
        source = ArraySource(points, np.concatenate([points, points[:, :1]], axis=1))
        node = world.add(agent, Membership(name="a", listen="tcp/127.0.0.1:1"), source, store=store)
        with pytest.raises(Diverged):
            world.run()
        assert node.state.steps > 0
        assert max(tmp_path.glob("checkpoint-*")).stem.endswith(str(node.state.steps))

    def test_alone_right_after_a_checkpoint(self, clock, tmp_path):
        """The step that failed is on record, and is not taken again when the agent is started anew."""
        agent = make(Local(), loss=Squared(), step_size=1e5, explosion=10.0)
        points, world = data(0, 80)[0], clock(World())
        targets, place = np.concatenate([points, points[:, :1]], axis=1), Membership(name="a", listen="tcp/127.0.0.1:1")
        store = CheckpointStore(tmp_path, agent=agent, settings={}, every=1)
        node = world.add(agent, place, ArraySource(points, targets), store=store)
        with pytest.raises(Diverged):
            world.run()
        with contextlib.closing(CheckpointStore(tmp_path, agent=agent, settings={}, every=1)) as store:
            again = Node(agent, place, ArraySource(points, targets), FakeCarrier(world, "a"), store=store)
        assert same(again.state.function, node.state.function)

    @pytest.mark.parametrize("consensus", RELAYING, ids=kind)
    def test_killed_while_a_neighbor_was_astray(self, consensus, clock, tmp_path):
        """The agent can be started again."""
        first, world = self.astray(consensus, clock, tmp_path)
        agent = first.agent
        with contextlib.closing(CheckpointStore(tmp_path, agent=agent, settings={}, every=100)) as store:
            again = Node(agent, first.place, ArraySource(*data(0, 24)), FakeCarrier(world, "a"), store=store)
        assert same(again.state.function, first.state.function)

    @pytest.mark.parametrize("consensus", RELAYING, ids=kind)
    def test_a_neighbor_astray_is_told_of_a_few_times(self, consensus, clock, tmp_path, caplog):
        first, _ = self.astray(consensus, clock, tmp_path)
        assert 1 <= sum(record.levelname in ("WARNING", "ERROR") for record in caplog.records) < 10
        assert first.status()["refused"] > 0

    def astray(self, consensus, clock, folder):
        """A node that was killed while its neighbor sent huge functions and its own stream had ended."""
        agent = make(consensus)
        words = function(scale=1e300)
        huge = encode(Function(*words)) if isinstance(consensus, Diffusion) else offer(*words)

        def puppet(sender, note, payload, answer):  # goes astray when the other's stream has ended
            answer(Note(step=1, token=5, share=0.5, ended=True), huge if note.ended and not note.ping else b"")

        store = CheckpointStore(folder, agent=agent, settings={}, every=100)
        world = World()

        def kill():
            world.runs["a"][-1].node._save = lambda **_: None
            world.carriers["a"].doomed = True

        world.at(2.0, kill)
        return run_with(clock, agent, puppet, store=store, stay=True, rows=24, world=world).node, world


def test_the_source_for_tests_is_one():
    assert isinstance(ArraySource(*data(0, 8)), Source)
