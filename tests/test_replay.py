"""Agents whose streams have ended replay some of their samples, so that nobody forgets what they have seen."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    ArrayStream,
    Averaged,
    Diffusion,
    ExactDiffusion,
    Faults,
    Gaussian,
    Graph,
    Hilbert,
    InverseTime,
    Komp,
    Landmarks,
    Local,
    Logistic,
    Mixture,
    Penalty,
    SharedStatistics,
    Squared,
    Symmetric,
    simulate,
    storage,
)
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics import compiled
from kernelmesh.numerics.reservoir import Reservoir
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.runner import AgentRunner
from test_node import ArraySource, assert_simulated, data, kind, make, memberships, same, simulated
from virtual import World

PROTOCOLS = [
    Penalty(coupling=0.05),
    Symmetric(coupling=2.0),
    Hilbert(coupling=0.02),
    Diffusion(),
    ExactDiffusion(budget=0.02),
    Diffusion(every=3),
    ExactDiffusion(budget=0.02, every=2),
    ExactDiffusion(budget=0.02, every=4),
]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)  # here only processes are killed, not machines


def rows_of(start, stop):
    x = np.arange(start, stop, dtype=np.float64)
    return np.stack([x, -x], axis=1), x.astype(np.int64)


def filled(name, sizes, *, size):
    reservoir, start = Reservoir.named(name, size=size), 0
    for rows in sizes:
        reservoir = reservoir.add(*rows_of(start, start + rows))
        start += rows
    return reservoir


class TestReservoir:
    @pytest.mark.parametrize("sizes", [[1] * 50, [7] * 9, [50], [3, 40, 1, 12], [2]], ids=str)
    @pytest.mark.parametrize("size", [1, 5, 16, 64])
    def test_it_is_algorithm_r_row_by_row(self, sizes, size):
        seed, kept = Reservoir.named("a", size=size).seed, []
        for t in range(sum(sizes)):
            if t < size:
                kept.append(t)
            elif (j := _splitmix(seed, t) % (t + 1)) < size:
                kept[j] = t
        reservoir = filled("a", sizes, size=size)
        assert reservoir.targets.tolist() == kept
        assert reservoir.points.tolist() == [[t, -t] for t in kept]
        assert (reservoir.seen, reservoir.rows, reservoir.kept) == (sum(sizes), sizes[-1], len(kept))

    def test_every_row_is_kept_as_often_as_every_other(self):
        counts = Counter()
        for trial in range(2000):
            counts.update(filled(trial, [7] * 8, size=14).targets.tolist())
        # binomial with p = 1/4: 500 ± 19
        assert set(counts) == set(range(56))
        assert max(abs(count - 500) for count in counts.values()) < 4.5 * 19.4

    def test_draws_are_different_rows_and_all_equally_likely(self):
        reservoir, counts = filled("a", [8] * 5, size=32), Counter()
        for _ in range(1000):
            points, targets = reservoir.draw()
            assert np.array_equal(points[:, 0], targets)
            assert len(set(targets.tolist())) == 8
            assert np.array_equal(reservoir.draw()[1], targets)  # until it is spent
            counts.update(targets.tolist())
            reservoir = reservoir.spent()
        assert len(counts) == 32
        assert max(abs(count - 250) for count in counts.values()) < 4.5 * 13.7

    def test_names_draw_differently_and_repeat(self):
        assert filled("a", [8] * 9, size=16).targets.tolist() == filled("a", [8] * 9, size=16).targets.tolist()
        assert filled("a", [8] * 9, size=16).targets.tolist() != filled("b", [8] * 9, size=16).targets.tolist()

    def test_a_reservoir_is_a_value(self):
        before = filled("a", [8] * 9, size=16)
        kept = before.targets.copy()
        before.add(*rows_of(72, 172))
        assert np.array_equal(before.targets, kept)
        assert before.seen == 72

    def test_fewer_rows_than_a_mini_batch(self):
        assert sorted(filled("a", [8], size=3).draw()[1].tolist()) == sorted(filled("a", [8], size=3).targets.tolist())


def _splitmix(seed, count):
    mask = (1 << 64) - 1
    mixed = (seed + (count + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 1


def test_places_are_counted_on_from_any_row():
    whole = compiled.sampling.places(5, 100, 60, 40)
    parts = [compiled.sampling.places(5, 100 + start, 20, 40) for start in (0, 20, 40)]
    filled_by = dict.fromkeys(range(40), -1)
    for start, part in zip((0, 20, 40), parts, strict=True):
        filled_by |= {int(place): start + i for i, place in enumerate(part) if place >= 0}
    assert {int(place): i for i, place in enumerate(whole) if place >= 0} == {k: v for k, v in filled_by.items() if v >= 0}


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"replay": -1}, "Agent: replay must be an integer >= 0, got -1"),
            ({"replay": 1.5}, "Agent: replay must be an integer >= 0"),
            ({"replay": 1 << 20}, "Agent: replay must be at most 65536 rows"),
            ({"replay": 8, "consensus": Local()}, "replay must be 0 with the consensus Local.*no neighbors to forget"),
        ],
    )
    def test_what_cannot_be_is_refused(self, changes, words):
        with pytest.raises(InvalidArgument, match=words):
            make(**{"consensus": Diffusion(), **changes})

    def test_statistics_do_not_forget(self):
        with pytest.raises(InvalidArgument, match=r"replay must be 0 with the consensus SharedStatistics.*do not forget"):
            Agent(
                dimension=1,
                outputs=2,
                kernel=Gaussian(),
                loss=Logistic(),
                rule=Landmarks(),
                consensus=SharedStatistics(),
                replay=8,
            )

    def test_who_leaves_cannot_replay_in_lock_step(self):
        (member,) = memberships(Graph.line(1), lock_step=True)
        with pytest.raises(InvalidArgument, match="AgentRunner: stay must be true in lock step with replay"):
            AgentRunner(make(Diffusion(), replay=8), member, ArraySource(*data(0, 8)), None, stay=False)


@pytest.mark.parametrize("consensus", PROTOCOLS, ids=kind)
class TestSimulated:
    def test_nothing_changes_while_streams_last(self, consensus):
        plain, replaying = (simulated(make(consensus, replay=n), Graph.ring(4), [48] * 4) for n in (0, 16))
        for before, after in zip(plain, replaying, strict=True):
            assert all(same(f, g) for f, g in zip(before.functions, after.functions, strict=True))
            assert before.infos == after.infos

    def test_who_has_ended_goes_on_until_the_last_stream_ends(self, consensus):
        rounds = simulated(make(consensus, replay=16), Graph.ring(4), rows := (48, 24, 0, 35))
        last = rounds[-1]
        assert (last.number, last.samples) == (6, rows)  # as without; what is replayed is not counted
        assert [state.steps for state in last.states] == [6, 6, 0, 6]
        assert [state.replayed for state in last.states] == [0, 24, 0, 22]  # the newest mini-batch had 11 rows
        assert [[info is not None and info.replayed for info in now.infos] for now in rounds[2:4]] == [
            [False, False, False, False],
            [False, True, False, False],
        ]
        assert last.infos[1].batch_size == 8

    def test_word_comes_from_neighbor_to_neighbor(self, consensus):
        """Nobody hears of a stream that goes on behind an agent that has nothing to say."""
        last = simulated(make(consensus, replay=16), Graph.line(4), (8, 8, 0, 40))[-1]
        assert [state.replayed for state in last.states] == [0, 0, 0, 0]
        last = simulated(make(consensus, replay=16), Graph.line(4), (8, 8, 8, 40))[-1]
        assert [state.replayed for state in last.states] == [32, 32, 32, 0]

    def test_a_run_that_is_continued_is_the_same(self, consensus):
        agent, graph, rows = make(consensus, replay=16), Graph.ring(3), (24, 48, 72)
        streams = [list(ArrayStream(*data(i, n), batch_size=8)) for i, n in enumerate(rows)]
        *_, whole = simulate(agent, graph, streams)
        for cut in (2, 5):
            for now in simulate(agent, graph, streams):
                if now.number == cut:
                    break
            packed = [storage.pack(state, graph.names, workspace=True) for state in now.states]
            states = [storage.unpack(agent, a, name=n, names=graph.names) for n, a in zip(graph.names, packed, strict=True)]
            *_, last = simulate(agent, graph, [stream[cut:] for stream in streams], states=states)
            for one, other in zip(whole.states, last.states, strict=True):
                assert same(one.function, other.function)
                assert same(one.sent, other.sent)
                assert (one.samples, one.replayed, one.steps) == (other.samples, other.replayed, other.steps)
                assert same_reservoir(one.reservoir, other.reservoir)


def same_reservoir(one, other):
    a, b = one.arrays(), other.arrays()
    return a.keys() == b.keys() and all(a[key].tobytes() == b[key].tobytes() for key in a) and one.seed == other.seed


def test_who_is_away_does_not_replay():
    agent, rows = make(Diffusion(), replay=16), (8, 64)
    streams = [ArrayStream(*data(i, n), batch_size=8) for i, n in enumerate(rows)]
    faults = Faults(absent={0: [(3, 5)]}, rng=np.random.default_rng(0))
    rounds = list(simulate(agent, Graph.line(2), streams, faults=faults))
    assert [now.infos[0] is None for now in rounds] == [False, False, True, True, True, False, False, False]


def test_schedules_go_on_with_what_is_replayed():
    """Else an agent that replays would take larger steps than those who still learn."""
    agent = make(Diffusion(), replay=16, step_size=InverseTime(scale=20.0, offset=10.0))
    last = simulated(agent, Graph.line(2), (8, 48))[-1]
    assert last.infos[0].step_size == last.infos[1].step_size < 0.5


class TestFiles:
    def state(self, **changes):
        agent = make(Diffusion(), replay=16, **changes)
        state = agent.start(name="a")
        for batch in ArrayStream(*data(0, 48), batch_size=8):
            state, _ = agent.step(state, *batch)
        return agent, state

    def test_files_without_a_reservoir_begin_with_an_empty_one(self):
        agent, state = self.state()
        arrays = storage.pack(dataclasses.replace(state, reservoir=None), ["a"], workspace=True)
        assert not [key for key in arrays if key.startswith("re")]  # such a file is as it was before there were reservoirs
        found = storage.unpack(agent, arrays, name="a", names=["a"])
        assert (found.reservoir.seen, found.reservoir.size, found.can_replay) == (0, 16, False)

    def test_models_that_are_saved_without_workspace_hold_no_samples(self):
        _, state = self.state()
        assert not [key for key in storage.pack(state, ["a"]) if key.startswith("reservoir")]

    def test_who_no_longer_replays_drops_the_samples(self):
        agent, state = self.state()
        arrays = storage.pack(state, ["a"], workspace=True)
        assert storage.unpack(dataclasses.replace(agent, replay=0), arrays, name="a", names=["a"]).reservoir is None
        kept = storage.unpack(dataclasses.replace(agent, replay=99), arrays, name="a", names=["a"]).reservoir
        assert same_reservoir(kept, state.reservoir)  # of the size that it began with

    @pytest.mark.parametrize(
        ("part", "value"),
        [
            ("clock", np.array([0, 48, 0, 8])),
            ("clock", np.array([16, 8, 0, 9])),
            ("clock", np.array([16, 48, -1, 8])),
            ("clock", np.array([16, 48, 0, 0])),
            ("clock", np.array([1 << 40, 48, 0, 8])),
            ("points", np.zeros((15, 2))),
            ("points", np.full((16, 2), np.nan)),
            ("points", np.zeros((16, 3))),
            ("targets", np.full(16, 7)),
            ("targets", np.zeros(15, dtype=np.int64)),
            ("targets", np.zeros(16)),
        ],
        ids=str,
    )
    def test_what_cannot_be_is_refused(self, part, value):
        agent, state = self.state()
        arrays = {**storage.pack(state, ["a"], workspace=True), f"reservoir.{part}": value}
        with pytest.raises(InvalidArgument, match="file: "):
            storage.unpack(agent, arrays, name="a", names=["a"])

    def test_numbers_are_kept_as_numbers(self):
        agent = Agent(
            dimension=2,
            outputs=2,
            kernel=Gaussian(),
            loss=Squared(),
            step_size=0.5,
            compression=Komp(budget=0.05),
            consensus=Diffusion(),
            replay=4,
        )
        points = data(0, 8)[0]
        state, _ = agent.step(agent.start(name="a"), points, points)
        found = storage.unpack(agent, storage.pack(state, ["a"], workspace=True), name="a", names=["a"])
        assert found.draw()[1].shape == (4, 2)
        assert same_reservoir(found.reservoir, state.reservoir)


def mixture_of_five(seed=0):
    rng = np.random.default_rng(seed)
    return Mixture.draw(rng=rng), rng


LEARNERS = {
    "exact-diffusion": {"consensus": ExactDiffusion(budget=0.05)},
    "exact-diffusion-4": {"consensus": ExactDiffusion(budget=0.05, every=4)},
    "diffusion": {"consensus": Diffusion()},
    "averaged": {
        "consensus": ExactDiffusion(budget=0.08),
        "rule": Averaged(),
        "step_size": 30.0,
        "compression": Komp.averaging(30.0),
    },
}


def learner(name, *, replay):
    options = {"step_size": 3.0, "compression": Komp.parsimonious(3.0, parsimony=0.04), **LEARNERS[name]}
    return Agent(dimension=2, outputs=5, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), replay=replay, **options)


@pytest.mark.parametrize("name", LEARNERS)
def test_no_class_is_lost_when_streams_end_one_after_the_other(name):
    """One class per agent: the worst agent stays within a point of the moment before the first stream ended."""
    worst = {}
    for replay in (0, 256):
        mixture, rng = mixture_of_five()
        points, labels = mixture.sample(1500, rng=rng)
        held, truth = mixture.sample(2000, rng=rng)
        streams = [
            ArrayStream(points[labels == c], labels[labels == c], passes=5 + c, rng=np.random.default_rng(c))
            for c in range(5)
        ]
        first = min(map(len, streams))
        for now in simulate(learner(name, replay=replay), Graph.ring(5), streams):
            accuracy = min(float((f(held).argmax(axis=1) == truth).mean()) for f in now.functions)
            if now.number == first:
                before = accuracy
        worst[replay] = accuracy - before
    assert worst[256] > -0.01
    assert worst[0] < worst[256] - 0.01


# ---- on a network


def run_until_quiet(world):
    """Stop when every stream has ended and nobody has taken a step for five seconds."""
    newest = [0, 0.0]

    def look():
        steps = sum(run.node.state.steps for *_, run in world.runs.values())
        if steps != newest[0]:
            newest[:] = steps, world.now
        if all(run.node.ended for *_, run in world.runs.values()) and world.now - newest[1] > 5.0:
            world.stop()
        elif world.now < 300.0:
            world.at(world.now + 0.1, look)

    world.at(0.1, look)
    return world.run()


@pytest.mark.parametrize("consensus", PROTOCOLS, ids=kind)
class TestLockStep:
    @pytest.mark.parametrize(
        ("graph", "rows"),
        [(Graph.ring(4), (48, 24, 0, 35)), (Graph.line(4), (8, 8, 8, 72)), (Graph.line(4), (16, 8, 0, 24))],
        ids=["ring", "line", "interrupted"],
    )
    def test_rounds_are_those_of_the_simulation(self, consensus, rows, graph):
        agent = make(consensus, replay=16)
        world = World(seed=1)
        for i, member in enumerate(memberships(graph, lock_step=True)):
            world.add(agent, member, ArraySource(*data(i, rows[i])))
        runs = run_until_quiet(world)
        assert_simulated(runs, rounds := simulated(agent, graph, rows))
        for run, state in zip(runs.values(), rounds[-1].states, strict=True):
            assert (run.node.state.samples, run.node.state.replayed) == (state.samples, state.replayed)
            assert same_reservoir(run.node.state.reservoir, state.reservoir)

    def test_what_becomes_of_messages_changes_nothing(self, consensus):
        agent, rows = make(consensus, replay=16), (8, 40, 16)
        world = World(seed=2, loss=0.1, absence=0.1, twice=0.3, delay=0.2)
        for i, member in enumerate(memberships(Graph.ring(3), lock_step=True)):
            world.add(agent, member, ArraySource(*data(i, rows[i])))
        assert_simulated(run_until_quiet(world), simulated(agent, Graph.ring(3), rows), counts=False)

    def test_killed_at_any_step_an_agent_resumes_in_the_same_state(self, consensus, tmp_path):
        agent, graph, rows = make(consensus, replay=16), Graph.ring(3), (24, 40, 80)
        rounds = simulated(agent, graph, rows)
        world = World(seed=3, delay=0.01)
        begun = Counter()

        def start(i, member):
            begun[i] += 1
            store = CheckpointStore(tmp_path / member.name, agent=agent, every=4)
            world.add(agent, member, ArraySource(*data(i, rows[i])), store=store, each=lambda _, turn: due(i, member, turn))

        def due(i, member, turn):
            if turn.number in kills[i]:
                kills[i].remove(turn.number)
                world.at(world.now, lambda: end(i, member))

        def end(i, member):
            world.kill(world.runs[member.name][-1])
            world.at(world.now + 0.3, lambda: start(i, member))

        kills = {0: {2, 5, 6, 9}, 1: {7}, 2: {8}}
        for i, member in enumerate(memberships(graph, lock_step=True)):
            start(i, member)
        runs = run_until_quiet(world)
        assert begun == {0: 5, 1: 2, 2: 2}
        for i, run in enumerate(runs.values()):
            state, true = run.node.state, rounds[-1].states[i]
            assert same(state.function, true.function)
            assert same(state.sent, true.sent)
            assert (state.samples, state.replayed, state.steps) == (true.samples, true.replayed, true.steps)
            assert same_reservoir(state.reservoir, true.reservoir)


class Timed(ArraySource):
    """A mini-batch every 0.05 seconds of the clock of a world, but none during a pause."""

    def __init__(self, world, points, targets, *, pause=(0.0, 0.0)):
        super().__init__(points, targets)
        self._world, self._due, self._pause = world, 0.0, pause

    def take(self):
        now = self._world.now
        if now < self._due or self._pause[0] <= now < self._pause[1]:
            return None
        self._due = now + 0.05
        return super().take()


@pytest.mark.parametrize(
    "consensus", [Diffusion(), ExactDiffusion(budget=0.02), ExactDiffusion(budget=0.02, every=4)], ids=kind
)
class TestFreeRunning:
    def test_who_has_ended_replays_at_its_pace_while_others_learn(self, consensus):
        agent, rows = make(consensus, replay=32), (160, 800)
        world = World(delay=0.004)
        for i, member in enumerate(memberships(Graph.line(2))):
            world.add(agent, member, Timed(world, *data(i, rows[i])), stay=False)
        runs = world.run(seconds=60.0)
        first, second = (run.node.state for run in runs.values())
        assert (first.samples, second.samples) == rows
        # 4 seconds alone and 3 more, at nearly 20 a second; the other only the 3 seconds at the end
        assert 115 <= first.replayed / 8 <= 145
        assert 45 <= second.replayed / 8 <= 65
        assert all(run.ended for run in runs.values())
        assert world.now < 15.0

    def test_a_stream_that_pauses(self, consensus):
        agent = make(consensus, replay=32)
        world, found = World(delay=0.004), {}
        sources = [Timed(world, *data(0, 400), pause=(1.0, 2.0)), Timed(world, *data(1, 400))]
        for member, source in zip(memberships(Graph.line(2)), sources, strict=True):
            world.add(agent, member, source)

        def look(when):
            status = world.runs["agent-0"][-1].runner.status()
            found[when] = status.replaying, status.replayed, status.ended

        for when in (0.9, 1.9):
            world.at(when, lambda when=when: look(when))
        world.at(2.2, lambda: look(2.2))
        world.at(3.0, lambda: look(3.0))
        world.stop_at_the_end()
        runs = world.run()
        assert found[0.9] == (False, 0, False)
        assert found[1.9][0]
        assert 10 <= found[1.9][1] / 8 <= 20
        assert found[3.0][1] == found[2.2][1]
        assert not found[3.0][0]
        assert [run.node.state.samples for run in runs.values()] == [400, 400]

    def test_a_batch_that_was_not_used_is_not_given_back_twice(self, consensus):
        """Stopped in the middle of a replayed round, an agent has learned from every sample of its stream once."""
        agent, world = make(consensus, replay=32), World(delay=0.03)
        sources = [Timed(world, *data(0, 80)), Timed(world, *data(1, 800))]
        for member, source in zip(memberships(Graph.line(2)), sources, strict=True):
            world.add(agent, member, source)
        stopped = []

        def stop_in_a_round():
            node = world.runs["agent-0"][-1].node
            if node.has_batch and not node.has_samples:
                stopped.append(True)
                world.stop()
            else:
                world.at(world.now + 0.001, stop_in_a_round)

        world.at(1.0, stop_in_a_round)
        runs = world.run()
        assert stopped
        assert runs["agent-0"].source.position == {"next": 10}

    def test_killed_and_started_again_it_replays_at_the_pace_of_its_neighbors(self, consensus, tmp_path):
        agent, world = make(consensus, replay=32), World(delay=0.004)
        first, second = memberships(Graph.line(2))

        def start():
            store = CheckpointStore(tmp_path, agent=agent, every=7)
            world.add(agent, first, Timed(world, *data(0, 80)), store=store)

        def kill():
            run = world.runs[first.name][-1]
            before.append(run.node.state)
            world.kill(run)
            start()
            after.append(world.runs[first.name][-1].node.state)

        before, after = [], []
        start()
        world.add(agent, second, Timed(world, *data(1, 800)))
        world.at(2.0, kill)
        world.stop_at_the_end()
        runs = world.run()
        (was,), (now,) = before, after
        assert was.replayed > 0
        assert (was.steps, was.samples, was.replayed) == (now.steps, now.samples, now.replayed)
        assert same(was.function, now.function)
        assert same(was.sent, now.sent)
        assert same_reservoir(was.reservoir, now.reservoir)
        assert 50 <= (runs[first.name].node.state.replayed - was.replayed) / 8 <= 75  # 3 to 4 seconds, 20 a second
