"""One bad agent among five on a network: the others keep what they know, say who it is, and forget it afterwards."""

import functools
import logging

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    Diffusion,
    ExactDiffusion,
    Gaussian,
    Graph,
    Komp,
    Landmarks,
    Logistic,
    Mixture,
    Penalty,
    Screening,
    SharedStatistics,
    storage,
)
from kernelmesh.agent import relay_screened
from kernelmesh.consensus import Heard
from kernelmesh.deploy.watching import _status_remarks
from kernelmesh.messages import Function, Offer, Terms
from kernelmesh.runtimes.attacks import ATTACKS, Drift, FarPoints, Flood, Indefinite, NotFinite, Replay, SignFlip, Zero
from kernelmesh.streams import Paced
from liar import lying
from test_node import ArraySource, lock_step_that_is_disturbed, memberships, run_lock_step, same, simulated
from test_node import make as make_small
from virtual import World

BAD, RATE = 2, 400.0
BEGIN, END, LAST = 2.0, 4.0, 8.0  # seconds: 50 steps in each, so that 200 rounds follow on the attack
SEEN = ("identical", "two-class")
MIXTURE = Mixture.draw(classes=5, rng=np.random.default_rng(1))
HELD = MIXTURE.sample(1000, rng=np.random.default_rng(2))


def kind(value):
    return value if isinstance(value, str) else type(value).__name__


def make(consensus, **options):
    common = {"dimension": 2, "outputs": 5, "kernel": Gaussian(bandwidth=0.6), "loss": Logistic(), "consensus": consensus}
    if isinstance(consensus, SharedStatistics):
        return Agent(**common, rule=Landmarks(), **options)
    return Agent(**common, step_size=3.0, compression=Komp(budget=0.2), **options)


def samples(i, partition):
    """The stream of one agent: of all classes, or of two."""
    count = int(RATE * LAST)
    points, labels = MIXTURE.sample(4 * count, rng=np.random.default_rng([3, i]))
    if partition == "two-class":
        seen = np.isin(labels, (i, (i + 1) % 5))
        points, labels = points[seen], labels[seen]
    return points[:count], labels[:count]


def right(runner):
    return float((runner.state.function(HELD[0]).argmax(axis=1) == HELD[1]).mean())


@functools.cache
def play(consensus, partition, attack=None, *, screens=True):
    """Mean accuracy of honest agents at three times during the attack, and at the end; model order; their statuses."""
    world, agent = World(seed=4), make(consensus, screening=Screening() if screens else None)
    runners, found = {}, []
    for i, member in enumerate(memberships(Graph.ring(5))):
        own = agent if attack is None or i != BAD else lying(agent, attack, lambda: BEGIN <= world.now < END)
        source = Paced(ArraySource(*samples(i, partition), endless=True), RATE, clock=lambda: world.now)
        runners[i] = world.add(own, member, source)
    honest = [runner for i, runner in runners.items() if i != BAD]

    def look():
        found.append((np.mean([right(runner) for runner in honest]), max(r.state.function.order for r in honest)))

    for when in (BEGIN + 0.5, BEGIN + 1.0, END - 0.01, LAST - 0.1):
        world.at(when, look)
    statuses = {}
    world.at(LAST - 0.05, lambda: statuses.update({r.membership.name: r.status(world.now) for r in honest}))
    world.run(seconds=LAST)
    return [accuracy for accuracy, _ in found], [order for _, order in found], statuses


EXACT = ExactDiffusion(budget=0.05)


def is_slow(consensus, partition, attack):
    """Most of all combinations are slow: exact diffusion has all attacks with identical streams, and one without."""
    if consensus is EXACT:
        return partition != "identical" and not isinstance(attack, Zero)
    return partition != "two-class" or not isinstance(attack, SignFlip | FarPoints | Indefinite)


CASES = [
    pytest.param(
        consensus,
        partition,
        attack,
        id=f"{kind(consensus)}-{partition}-{kind(attack)}",
        marks=[pytest.mark.slow] if is_slow(consensus, partition, attack) else [],
    )
    for consensus in (SharedStatistics(), EXACT)
    for partition in SEEN
    for attack in ATTACKS
    if consensus is not EXACT or not isinstance(attack, Indefinite)  # functions have no eigenvalues
]


@pytest.mark.parametrize(("consensus", "partition", "attack"), CASES)
def test_honest_agents_hold_out_and_recover(consensus, partition, attack):
    (*calm, calm_after), orders, _ = play(consensus, partition)
    (*during, after), found, statuses = play(consensus, partition, attack)
    print(
        f"during {np.subtract(during, calm).min():+.3f}, after {after - calm_after:+.3f}, order {max(found)} / {max(orders)}"
    )
    # measured: 3.6 points; with two classes each, nobody near it sees all classes that a drift is about
    is_hidden = consensus is EXACT and partition == "two-class" and isinstance(attack, Drift)
    assert min(np.subtract(during, calm)) >= (-0.045 if is_hidden else -0.03)
    assert after >= calm_after - 0.01
    assert max(found) <= 2 * max(orders)
    assert all(status.recoveries == 0 for status in statuses.values())


@pytest.mark.parametrize("consensus", [pytest.param(SharedStatistics(), marks=pytest.mark.slow), EXACT], ids=kind)
def test_screening_costs_nothing_where_everybody_is_honest(consensus):
    for partition in SEEN:
        calm, *_, statuses = play(consensus, partition)
        (*_, after), *_ = play(consensus, partition, screens=False)
        assert calm[-1] >= after - 0.003
        # mini-batches of 8 samples are so small that an honest neighbor may look bad on one of some thousand
        found = [neighbor for status in statuses.values() for neighbor in status.neighbors.values()]
        messages = RATE / 8 * LAST * len(found)
        assert sum(neighbor.disbelieved + neighbor.clipped for neighbor in found) <= 1e-3 * messages


SEEN_THROUGH = [attack for attack in ATTACKS if not isinstance(attack, Drift | Replay | Indefinite)]


@pytest.mark.parametrize("attack", SEEN_THROUGH, ids=kind)
def test_its_neighbors_say_who_it_is(attack):
    *_, statuses = play(EXACT, "identical", attack)
    for name in ("agent-1", "agent-3"):
        views = statuses[name].neighbors
        bad = views["agent-2"]
        if isinstance(attack, NotFinite | Flood):  # it is not even read, and soon ignored
            assert bad.refused >= 3
            continue
        assert bad.disbelieved + bad.clipped >= 10
        assert bad.doubt
        told = [line for line in _status_remarks(statuses[name], stale=False) if "agent-2" in line]
        assert told
        others = [view for other, view in views.items() if other != "agent-2"]
        assert sum(view.disbelieved + view.clipped for view in others) <= 0.1 * (bad.disbelieved + bad.clipped)


def test_the_log_names_it_with_a_reason_and_does_not_overflow(caplog):
    with caplog.at_level(logging.INFO, "kernelmesh.agent"):
        play.__wrapped__(EXACT, "identical", SignFlip())
    told = [line for line in caplog.messages if "rejected messages from agent-2" in line]
    assert any("(10 so far): the latest has a loss of" in line and "(limit " in line for line in told)
    assert len(told) <= 8


# Screening in lock step and in checkpoints: so strict that it also finds fault with honest neighbors.

# Later, most of them are too close to be tested in every step.
STRICT = Screening(margin=1e-6, youth=2, parole=7, strangers=0)


@pytest.mark.parametrize(
    "consensus", [Penalty(coupling=0.05), Diffusion(), ExactDiffusion(budget=0.02), SharedStatistics()], ids=kind
)
class TestLockStep:
    def agent(self, consensus):
        if isinstance(consensus, SharedStatistics):
            return make_small(consensus, rule=Landmarks(), step_size=None, compression=None, screening=STRICT)
        return make_small(consensus, screening=STRICT)

    def test_rounds_are_those_of_the_simulation(self, consensus):
        agent, rows = self.agent(consensus), (240,) * 4
        rounds = simulated(agent, Graph.ring(4), rows)
        assert sum(len(info.left_out) + len(info.clipped) for now in rounds for info in now.infos) > 5
        runs = run_lock_step(World(), agent, Graph.ring(4), rows, stay=False)
        for i, run in enumerate(runs.values()):
            assert run.node.traffic == (rounds[-1].floats_sent[i], rounds[-1].bytes_sent[i])
            for (turn, function), now in zip(run.turns, rounds, strict=True):
                assert same(function, now.functions[i])
                assert (turn.info.left_out, turn.info.clipped) == (now.infos[i].left_out, now.infos[i].clipped)
            assert run.node.state.health == rounds[-1].states[i].health

    def test_killed_agents_end_where_they_would_have(self, consensus, tmp_path):
        agent, rows = self.agent(consensus), (160,) * 3
        rounds = simulated(agent, Graph.ring(3), rows)
        world = World(seed=3, delay=0.02)
        world.at(0.01, world.stop_at_the_end)
        begun = lock_step_that_is_disturbed(world, agent, Graph.ring(3), rows, tmp_path, "kill")
        for i, run in enumerate(world.run().values()):
            assert same(run.node.state.function, rounds[-1].functions[i])
            assert same(run.node.state.sent, rounds[-1].states[i].sent)
            assert run.node.state.health == rounds[-1].states[i].health
        assert begun["agent-0"] > 1


def test_what_is_heard_without_samples_is_tested_on_the_newest_ones():
    """A stream has ended; what neighbors say then is judged by the last mini-batch, also after a restart."""
    agent = make(SharedStatistics(), screening=Screening())
    state, rng = agent.start(name="a"), np.random.default_rng(0)
    for _ in range(60):
        state, _ = agent.step(state, *MIXTURE.sample(32, rng=rng))
    sent = state.sent
    terms = Terms(0, 1, 0, 0, 0.5)
    good = Heard(None, Offer(sent.centers, sent.weights, terms, moments=sent.moments), 0.5, "b", True, 0.5)
    bad = Heard(None, Offer(sent.centers, -sent.weights, terms, moments=sent.moments), 0.5, "c", True, 0.5)
    restored = storage.unpack(agent, storage.pack(state, ["a", "b", "c"], workspace=True), name="a", names=["a", "b", "c"])
    for before in (state.copy(), restored):
        after, found = relay_screened(agent, before, [good, bad])
        assert set(found.left_out) == {"c"}
        assert "on this agent's samples" in found.left_out["c"]
        assert (after.function(HELD[0]).argmax(axis=1) == HELD[1]).mean() > 0.85
    assert np.array_equal(restored.newest[0], state.newest[0])
    assert np.array_equal(restored.newest[1], state.newest[1])


@pytest.mark.parametrize("consensus", [SharedStatistics(), ExactDiffusion(budget=0.05)], ids=kind)
def test_a_dual_that_is_handed_over_is_tested_too(consensus):
    """Who stands first may hand over a dual when an edge begins anew: one that would move us far is not taken over."""
    agent = make(consensus, screening=Screening())
    state, rng = agent.start(name="b"), np.random.default_rng(0)
    for _ in range(60):
        state, _ = agent.step(state, *MIXTURE.sample(32, rng=rng))
    sent = state.sent
    moments = getattr(sent, "moments", None)
    for scale, believed in ((0.0, True), (1e3, False), (1e30, False)):
        dual = Function(sent.centers, scale * sent.weights, moments=None if moments is None else 0.0 * moments)
        offer = Offer(sent.centers, sent.weights, Terms(1, 1, 0, 0, 0.5), dual=dual, moments=moments)
        batch = MIXTURE.sample(32, rng=np.random.default_rng(5))
        after, info = agent.step(state.copy(), *batch, [Heard(None, offer, 0.5, "a", False, 0.5)])
        assert ("a" not in info.left_out) == believed
        assert np.isfinite(after.function.weights).all()
        assert (after.function(HELD[0]).argmax(axis=1) == HELD[1]).mean() > 0.8


def test_an_agent_that_starts_over_is_taken_back():
    """It has lost its checkpoints: what its neighbor remembers of their edge is new to it, and is not refused for good."""
    world, agent = World(seed=4), make(SharedStatistics(), screening=Screening())
    members, runners = list(memberships(Graph.line(3))), {}

    def start(i):
        source = Paced(ArraySource(*samples(i, "two-class"), endless=True), RATE, clock=lambda: world.now)
        runners[i] = world.add(agent, members[i], source)

    def start_over():
        world.kill(world.runs[members[2].name][-1])
        start(2)

    for i in range(3):
        start(i)
    world.at(2.0, start_over)
    found = {}
    world.at(4.9, lambda: found.update({i: (right(r), r.status(world.now)) for i, r in runners.items()}))
    world.run(seconds=5.0)
    assert min(accuracy for accuracy, _ in found.values()) >= max(accuracy for accuracy, _ in found.values()) - 0.02
    assert sum(neighbor.disbelieved for _, status in found.values() for neighbor in status.neighbors.values()) <= 3
