"""Statistics that agents share: alone they are ridge regression, together nothing of them is lost."""

import dataclasses
import functools
import math
import weakref

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmesh import (
    Agent,
    Expansion,
    Faults,
    Gaussian,
    Graph,
    KernelMeshClassifier,
    Landmarks,
    Linear,
    Logistic,
    Matern32,
    Mixture,
    OnlineKernelClassifier,
    Penalty,
    SecondOrder,
    SharedStatistics,
    Squared,
    simulate,
    storage,
)
from kernelmesh.consensus import EdgeMemory, Heard
from kernelmesh.consensus.duals import Compact, digest, opposite
from kernelmesh.errors import InvalidArgument, RefusedMessage
from kernelmesh.exchange import Link
from kernelmesh.messages import Function, Offer, Terms, decode, encode, wire_size
from kernelmesh.numerics import compiled, statistics
from kernelmesh.numerics.covariance import Covariance
from kernelmesh.numerics.halves import Half, halved, whole
from kernelmesh.numerics.landmarks import lifted, on_grid, united
from kernelmesh.numerics.statistics import Difference, Statistics, Total
from kernelmesh.rules.landmarks import _halves_in_debt, _solved
from kernelmesh.runtimes import shard
from kernelmesh.streams import ArrayStream
from kernelmesh.testing import check_consensus, check_rule
from test_rules import in_lock_step

KERNEL = Gaussian(bandwidth=0.6)
LANDMARKS = np.random.default_rng(3).uniform(-2, 2, size=(20, 2))


def samples(rows, seed=0, loss=None):
    rng = np.random.default_rng(seed)
    points, labels = Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=rng)
    if loss is None or loss.classifies:
        return points, labels
    return points, np.stack([np.sin(2 * points[:, 0]), points[:, 1], points[:, 0] * points[:, 1]], axis=1)


def make(rule=None, **changes):
    options = {"dimension": 2, "outputs": 3, "kernel": KERNEL, "loss": Logistic(), "rule": rule or Landmarks()}
    return Agent(**{**options, **changes})


def given_landmarks(kernel=KERNEL, centers=LANDMARKS):
    return Expansion(kernel, centers, np.zeros((len(centers), 3)))


def run(agent, points, targets, *, batch=16, state=None):
    state = agent.start() if state is None else state
    for start in range(0, len(points), batch):
        state, _ = agent.step(state, points[start : start + batch], targets[start : start + batch])
    return state


def total(states):
    """Σ_i Θ_i and Σ_i β_i, over the landmarks in their order."""
    return sum(s.model.function.moments for s in states), sum(s.model.function.weights for s in states)


# One learner.


@pytest.mark.parametrize(
    "rule", [Landmarks(), Landmarks(max_order=5), Landmarks(half_life=200.0), Landmarks(grid=0.5)], ids=str
)
def test_the_laws_of_rules_hold(rule):
    check_rule(rule)


@pytest.mark.parametrize("weight", [1e-3, 0.3, 10.0])
@pytest.mark.parametrize("kernel", [KERNEL, Matern32(), Linear(offset=1.0)], ids=str)
def test_the_quadratic_case_is_ridge_regression_on_the_landmarks(kernel, weight):
    points, targets = samples(400, loss=Squared())
    centers = LANDMARKS[:3] if isinstance(kernel, Linear) else LANDMARKS
    agent = make(Landmarks(novelty=math.inf), loss=Squared(), kernel=kernel, regularization=weight)
    state = run(agent, points, targets, state=agent.start(function=given_landmarks(kernel, centers)))
    np.testing.assert_array_equal(state.function.centers, centers)
    cross = kernel(points, centers)
    wanted = np.linalg.solve(weight * kernel(centers, centers) + cross.T @ cross, cross.T @ targets)
    np.testing.assert_allclose(agent.predict(state, points), cross @ wanted, atol=1e-6 * np.abs(targets).max())


@pytest.mark.parametrize("grid", [0.0, 0.4])
@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=str)
def test_a_dictionary_that_grows_equals_the_sums_over_its_samples(loss, grid):
    """Θ, β, R and W against the formulas, with each sample projected onto the points that there were when it came."""
    points, targets = samples(320, loss=loss)
    agent = make(Landmarks(novelty=0.05, iterations=500, grid=grid), loss=loss, regularization=0.2)
    state, moments, sums = agent.start(), np.zeros((0, 0)), np.zeros((0, 3))
    for start in range(0, 320, 16):
        batch = slice(start, start + 16)
        state, info = agent.step(state, points[batch], targets[batch])
        z = state.function.centers
        gram = KERNEL(z, z) + 1e-8 * np.eye(len(z))
        c = np.linalg.solve(gram, KERNEL(z, points[batch])).T
        there = agent.predict(state, points[batch])
        h = loss.curvature(there, agent.check(points[batch], targets[batch])[1])
        slope = loss.slope(there, agent.check(points[batch], targets[batch])[1])
        more = len(z) - len(moments)
        moments = np.pad(moments, (0, more)) + (c * h[:, None]).T @ c
        sums = np.pad(sums, ((0, more), (0, 0))) + c.T @ (h[:, None] * there - slope)
        model = state.model
        # an implicit step ends when it moves less than 0.001
        np.testing.assert_allclose(model.function.moments, moments, atol=2e-3 * np.abs(moments).max())
        np.testing.assert_allclose(model.function.weights, sums, atol=2e-3 * np.abs(sums).max())
        exact = np.linalg.inv(0.2 * gram + gram @ model.function.moments @ gram)
        np.testing.assert_allclose(model.covariance, exact, atol=1e-6 * np.abs(exact).max())
        solution = np.linalg.solve(0.2 * np.eye(len(z)) + model.function.moments @ gram, model.function.weights)
        np.testing.assert_allclose(KERNEL(points, z) @ model.weights, KERNEL(points, z) @ solution, atol=1e-6)
        moments, sums = model.function.moments, model.function.weights
        assert info.order == len(z)
    assert len(z) > 10


@pytest.mark.parametrize("grid", [0.1, 0.4, 1.0])
def test_points_on_a_grid_are_multiples_of_its_spacing_and_new_to_each_other(grid):
    points, labels = samples(640)
    state = run(make(Landmarks(grid=grid)), points, labels)
    z = state.function.centers
    np.testing.assert_array_equal(z, np.round(z / grid) * grid)
    assert len(z) > 5
    # each point was at least this far from the span of those before it
    factor = np.linalg.cholesky(KERNEL(z, z) + 1e-8 * np.eye(len(z)))
    assert (np.diag(factor) ** 2 > 0.1 - 1e-6).all()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5), st.floats(1e-300, 1e300))
def test_rounding_to_a_grid_moves_no_coordinate_by_more_than_half_its_spacing(numbers, spacing):
    before = np.array([numbers])
    after = on_grid(before, spacing)
    assert np.isfinite(after).all()
    # and by no more than rounding errors where numbers are farther apart than the grid is wide
    assert (np.abs(after / 2 - before / 2) <= spacing / 4 + 1e-15 * np.abs(before)).all()
    assert not np.signbit(after[after == 0.0]).any()  # points are compared by their bits
    np.testing.assert_array_equal(on_grid(-before, spacing), -after)


def test_agents_on_a_grid_agree_on_their_points_sooner_and_learn_as_much():
    graph = Graph.geometric(40, degree=5, rng=np.random.default_rng(2))
    held, truth = samples(2000, seed=1)
    changed, right = [], []
    for rule in (Landmarks(), Landmarks(grid=0.6)):
        streams = [ArrayStream(*samples(320, seed=10 + i)) for i in range(40)]
        before, moved = [None] * 40, 0
        for now in simulate(make(rule, consensus=SharedStatistics()), graph, streams):
            after = [f.centers.tobytes() for f in now.functions]
            moved += sum(one != other for one, other in zip(before, after, strict=True)) if now.number > 5 else 0
            before = after
        changed.append(moved)
        right.append(min((f.evaluate(held).argmax(axis=1) == truth).mean() for f in now.functions))
    assert changed[1] < 0.7 * changed[0]
    assert right[1] > right[0] - 0.005


def test_a_grid_without_new_points_is_refused():
    with pytest.raises(InvalidArgument, match="Landmarks: grid must be 0 with infinite novelty"):
        Landmarks(grid=0.5, novelty=math.inf)


@pytest.mark.parametrize("grid", [-0.1, math.nan, math.inf, "wide"])
def test_the_spacing_of_a_grid_is_a_number(grid):
    with pytest.raises(InvalidArgument, match="Landmarks: grid must be"):
        Landmarks(grid=grid)


def test_the_dictionary_stays_within_its_limit():
    points, labels = samples(640)
    state = run(make(Landmarks(novelty=1e-6, max_order=7)), points, labels)
    assert state.function.order == 7


def test_it_learns_as_well_as_the_rule_that_chooses_points_by_their_worth():
    points, labels = samples(2000)
    held, truth = samples(2000, seed=1)
    gradual, chosen = (make(rule) for rule in (Landmarks(), SecondOrder()))
    right = [(a.predict(run(a, points, labels), held).argmax(axis=1) == truth).mean() for a in (gradual, chosen)]
    assert right[0] > right[1] - 0.01


def test_who_forgets_follows_a_change():
    points, labels = samples(2160)
    changed = np.where(np.arange(2160) < 2000, labels, (labels + 1) % 3)
    right = {}
    for half_life in (math.inf, 100.0):
        agent = make(Landmarks(half_life=half_life))
        state = run(agent, points, changed)
        right[half_life] = (agent.predict(state, points[:1000]).argmax(axis=1) == (labels[:1000] + 1) % 3).mean()
    assert right[100.0] > 0.9
    assert right[100.0] > right[math.inf] + 0.05


def test_a_state_from_a_file_goes_on_bit_for_bit():
    points, labels = samples(960)
    agent = make(Landmarks(half_life=700.0))
    state = run(agent, points[:480], labels[:480])
    again = storage.unpack(agent, storage.pack(state, [], workspace=True), name=0, names=[])
    wanted, found = (run(agent, points[480:], labels[480:], state=s) for s in (state, again))
    np.testing.assert_array_equal(found.function.weights, wanted.function.weights)
    np.testing.assert_array_equal(found.sent.moments, wanted.sent.moments)


def test_moments_are_symmetric_to_the_last_bit():
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(960, 8)), rng.integers(3, size=960)
    agent = make(Landmarks(max_order=150), dimension=8, kernel=Gaussian(bandwidth=2.0))
    state = run(agent, points, labels, batch=96)
    moments = state.sent.moments
    assert len(moments) == 150
    np.testing.assert_array_equal(moments, moments.T)


@pytest.mark.parametrize("kind", [OnlineKernelClassifier, KernelMeshClassifier])
def test_estimators_learn_by_it_and_survive_a_file(kind, tmp_path):
    points, labels = samples(900)
    model = kind(rule="landmarks", random_state=0).fit(points, labels)
    assert model.score(points, labels) > 0.95
    model.save(tmp_path / "model")
    again = kind.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(points), model.predict(points))
    np.testing.assert_array_equal(
        again.partial_fit(points, labels).predict(points), model.partial_fit(points, labels).predict(points)
    )


# Networks.


def network(graph, agent, *, rows=320, faults=None, states=None, seed=0, loss=None):
    streams = [ArrayStream(*samples(rows, seed=seed + i, loss=loss), batch_size=16) for i in range(len(graph))]
    return simulate(agent, graph, streams, faults=faults, states=states)


def started(agent, graph, function=None):
    return [agent.start(name=name, function=function) for name in graph.names]


@functools.cache
def quadratic(every=1):
    """Agents whose statistics do not depend on what they have learned so far."""
    return make(Landmarks(novelty=math.inf), loss=Squared(), consensus=SharedStatistics(every=every), regularization=0.05)


def brought(graph, rows=320, seed=0):
    """What the samples of all agents bring, over given landmarks."""
    gram = KERNEL(LANDMARKS, LANDMARKS) + 1e-8 * np.eye(len(LANDMARKS))
    moments, sums = 0.0, 0.0
    for i in range(len(graph)):
        points, targets = samples(rows, seed=seed + i, loss=Squared())
        c = np.linalg.solve(gram, KERNEL(LANDMARKS, points)).T
        moments, sums = moments + c.T @ c, sums + c.T @ targets
    return moments, sums


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), every=st.integers(1, 3), drop=st.sampled_from([0.0, 0.3, 0.8]))
def test_nothing_is_lost_with_the_messages(seed, every, drop):
    graph = Graph.ring(5)
    faults = Faults(drop=drop, rng=np.random.default_rng(seed), absent={2: [(4, 9)]})
    agent = quadratic(every)
    *_, last = network(graph, agent, faults=faults, states=started(agent, graph, given_landmarks()), loss=Squared())
    # an exchange that only one end has completed is made up for as soon as the two hear each other again
    *_, calm = network(graph, agent, rows=192, states=last.states, seed=50, loss=Squared())
    for found, before, more in zip(total(calm.states), brought(graph), brought(graph, rows=192, seed=50), strict=True):
        np.testing.assert_allclose(found, before + more, atol=1e-9 * np.abs(before + more).max())


def test_flows_are_opposite_bit_for_bit():
    graph = Graph.ring(4)
    agent = make(consensus=SharedStatistics())
    for now in network(graph, agent, rows=160):
        for i, name in enumerate(graph.names):
            for j in graph.neighbors[i]:
                ours, theirs = now.states[i].edges.get(graph.names[j]), now.states[j].edges.get(name)
                if ours is None or ours.dual is None:
                    continue
                np.testing.assert_array_equal(ours.dual.moments, -theirs.dual.moments)
                np.testing.assert_array_equal(ours.dual.weights, -theirs.dual.weights)
                assert ours.digest == theirs.digest


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_flows_are_over_points_that_one_end_has_and_few_others(drop):
    graph, most = Graph.ring(4), 0
    faults = Faults(drop=drop, rng=np.random.default_rng(0)) if drop else None
    for now in network(graph, make(Landmarks(novelty=0.03), consensus=SharedStatistics()), faults=faults):
        for i, j in graph.edges:
            ours, theirs = now.states[i].edges.get(j), now.states[j].edges.get(i)
            if ours is None or theirs is None or not ours.done == theirs.done > 0:
                continue
            np.testing.assert_array_equal(ours.dual.moments, -theirs.dual.moments)
            np.testing.assert_array_equal(ours.dual.weights, -theirs.dual.weights)
            points = {row.tobytes() for offer in (ours.before, theirs.before) for row in offer.centers}
            gone = [row for row in ours.dual.centers if row.tobytes() not in points]
            assert len(gone) <= len(points) / 4
            most = max(most, len(gone))
    assert most > 0  # some have left the dictionaries of both


@pytest.mark.parametrize("late", [0, 1, 3])
def test_an_agent_that_returns_from_an_older_state_costs_only_its_own_samples(late):
    graph = Graph.ring(4)
    agent = quadratic()
    rounds = list(network(graph, agent, states=started(agent, graph, given_landmarks()), loss=Squared()))
    states = list(rounds[-1].states)
    states[late] = rounds[8].states[late]  # rounds 10 to 20 of this agent never were
    kept = [s.model.function.plus([(-1.0, e.dual) for e in s.edges.values()]) for s in states]
    *_, last = network(graph, agent, rows=160, states=states, seed=50, loss=Squared())
    more = brought(graph, rows=160, seed=50)
    for found, before, new in zip(total(last.states), total_of(kept), more, strict=True):
        np.testing.assert_allclose(found, before + new, atol=1e-9 * np.abs(before + new).max())
    assert all(edge.epoch > 0 for edge in last.states[late].edges.values())


def total_of(statistics):
    return sum(s.moments for s in statistics), sum(s.weights for s in statistics)


def test_an_agent_that_begins_anew_leaves_the_others_what_they_brought():
    graph = Graph.ring(4)
    agent = quadratic()
    rounds = list(network(graph, agent, states=started(agent, graph, given_landmarks()), loss=Squared()))
    states = list(rounds[-1].states)
    states[1] = agent.start(name=graph.names[1], function=given_landmarks())
    kept = [s.model.function.plus([(-1.0, e.dual) for e in s.edges.values()]) for i, s in enumerate(states) if i != 1]
    *_, last = network(graph, agent, rows=160, states=states, seed=50, loss=Squared())
    for found, before, new in zip(total(last.states), total_of(kept), brought(graph, rows=160, seed=50), strict=True):
        np.testing.assert_allclose(found, before + new, atol=1e-9 * np.abs(before + new).max())


@pytest.mark.parametrize("faults", [None, Faults(drop=0.3, rng=np.random.default_rng(0))], ids=["calm", "losses"])
def test_all_agents_come_to_learn_what_one_learner_with_all_samples_learns(faults):
    graph = Graph.ring(4)
    agent = dataclasses.replace(quadratic(), rule=Landmarks(novelty=math.inf, half_life=math.inf))
    *_, last = network(graph, agent, states=started(agent, graph, given_landmarks()), faults=faults, loss=Squared())
    # more rounds in which hardly anything is learned, so that averages settle
    idle = [ArrayStream(np.full((640, 2), 50.0), np.zeros((640, 3)), batch_size=16) for _ in range(4)]
    *_, settled = simulate(agent, graph, idle, states=last.states, faults=faults)
    moments, sums = brought(graph)
    gram = KERNEL(LANDMARKS, LANDMARKS) + 1e-8 * np.eye(len(LANDMARKS))
    wanted = np.linalg.solve(4 * 0.05 * np.eye(len(gram)) + moments @ gram, sums)
    held = samples(200, seed=99)[0]
    for f in settled.functions:
        np.testing.assert_allclose(f(held), KERNEL(held, LANDMARKS) @ wanted, atol=1e-3)


def one_class(agent, graph, *, faults=None, rounds=40, mini=16):
    points, labels = samples(6000)
    streams = [
        ArrayStream(
            points[labels == i % 3][i::4][: rounds * mini], labels[labels == i % 3][i::4][: rounds * mini], batch_size=mini
        )
        for i in range(len(graph))
    ]
    *_, last = simulate(agent, graph, streams, faults=faults)
    held, truth = samples(2000, seed=1)
    return last, [(f(held).argmax(axis=1) == truth).mean() for f in last.functions]


FAULTS = {
    "calm": lambda: None,
    "30 % lost": lambda: Faults(drop=0.3, rng=np.random.default_rng(0)),
    "a partition of 15 rounds": lambda: Faults(
        edges=lambda number: [(0, 1), (2, 3)] if 5 <= number < 20 else [(0, 1), (1, 2), (2, 3), (3, 0)]
    ),
    "an agent away": lambda: Faults(absent={1: [(3, 15)]}),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_agents_with_one_class_each_learn_all_and_share_one_dictionary(faults):
    graph = Graph.ring(4)
    agent = make(consensus=SharedStatistics())
    last, right = one_class(agent, graph, faults=faults())
    points, labels = samples(2500)
    held, truth = samples(2000, seed=1)
    alone = make(regularization=4 * 0.005)
    wanted = (alone.predict(run(alone, points, labels), held).argmax(axis=1) == truth).mean()
    assert min(right) > wanted - 0.02
    # rounds in which nobody sees anything new: what was proposed last spreads
    idle = [
        ArrayStream(np.tile(f.centers[:1], (128, 1)), np.full(128, i % 3), batch_size=8) for i, f in enumerate(last.functions)
    ]
    *_, settled = simulate(agent, graph, idle, states=last.states)
    assert len({f.centers.tobytes() for f in settled.functions}) == 1  # in one order, too


def test_what_an_agent_brought_stays_when_its_stream_ends():
    """One class each, and streams that end one after the other."""
    graph = Graph.ring(6)
    points, labels = samples(24_000)
    rounds = [30, 30, 40, 40, 50, 60]
    streams = [
        ArrayStream(points[labels == i % 3][i::6][: 16 * n], labels[labels == i % 3][i::6][: 16 * n], batch_size=16)
        for i, n in enumerate(rounds)
    ]
    held, truth = samples(2000, seed=1)
    right = {}
    for now in simulate(make(consensus=SharedStatistics()), graph, streams):
        if now.number in (29, max(rounds)):
            right[now.number] = min((f(held).argmax(axis=1) == truth).mean() for f in now.functions)
    assert right[max(rounds)] > right[29] - 0.01


@pytest.mark.parametrize("every", [1, 2])
def test_in_lock_step_it_equals_the_simulation(every):
    agent = make(consensus=SharedStatistics(every=every))
    compared = 0
    for turn, function, wanted in in_lock_step(agent, [samples(80, seed=i) for i in range(4)]):
        np.testing.assert_array_equal(function.weights, wanted.function.weights)
        np.testing.assert_array_equal(turn.state.sent.moments, wanted.sent.moments)
        compared += 1
    assert compared == 40


def test_the_laws_of_protocols_hold():
    check_consensus(SharedStatistics())


def test_rule_and_protocol_belong_together():
    with pytest.raises(InvalidArgument, match="Agent: rule must be a rule that gathers statistics with"):
        make(SecondOrder(), consensus=SharedStatistics())
    with pytest.raises(InvalidArgument, match=r"Landmarks learns with consensus SharedStatistics\(\) or Local\(\)"):
        make(consensus=Penalty(coupling=0.1))


# Values and messages.


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_sums_do_not_depend_on_the_order(seed):
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(12, 2))
    parts = []
    for _ in range(3):
        rows = rng.choice(12, size=rng.integers(0, 9), replace=False)
        square = rng.normal(size=(len(rows), len(rows)))
        parts.append(Statistics(KERNEL, pool[rows], rng.normal(size=(len(rows), 2)), square + square.T))

    def table(s):
        at = {row.tobytes(): i for i, row in enumerate(pool)}
        place = [at[row.tobytes()] for row in s.centers]
        weights, moments = np.zeros((12, 2)), np.zeros((12, 12))
        weights[place], moments[np.ix_(place, place)] = s.weights, s.moments
        return np.hstack([weights, moments])

    a, b, c = parts
    wanted = table(a) + 2.0 * table(b) - table(c)
    np.testing.assert_allclose(table(a.plus([(2.0, b), (-1.0, c)])), wanted, atol=1e-12)
    np.testing.assert_allclose(table(a.plus([(-1.0, c), (2.0, b)])), wanted, atol=1e-12)


def drawn(rng, pool, rows):
    """Statistics over some points of a pool."""
    square = rng.normal(size=(len(rows), len(rows)))
    return Statistics(KERNEL, pool[rows], rng.normal(size=(len(rows), 2)), square + square.T)


def some(rng, points, at_most):
    return rng.choice(points, size=rng.integers(0, at_most + 1), replace=False)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_union_says_where_every_point_stands(seed):
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(9, 2))
    own, *others = (pool[some(rng, 9, 7)] for _ in range(4))
    centers, placed = united(own, *others, own)
    np.testing.assert_array_equal(centers[: len(own)], own)
    for other, place in zip((*others, own), placed, strict=True):
        np.testing.assert_array_equal(centers[place], other)
    assert {row.tobytes() for row in centers} == {row.tobytes() for part in (own, *others) for row in part}
    assert len(np.unique(centers, axis=0)) == len(centers)


def test_a_neighbor_that_sends_a_point_twice_adds_to_it_twice():
    """A union holds the point once, and the sum is that over its two rows and columns."""
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(5, 2))
    there = drawn(rng, pool, np.array([3, 1, 4, 1]))
    centers, (place,) = united(pool[:3], there.centers)
    np.testing.assert_array_equal(centers, pool)
    onto = np.zeros((5, 4))
    onto[place, np.arange(4)] = 1.0
    total = Total.zero(5, 2)
    nothing = np.zeros((0, 0)), np.zeros((0, 2))
    difference = Difference(-0.5, place, (there.moments, there.weights), np.arange(0), nothing)
    total.add_difference(difference)
    np.testing.assert_allclose(total.moments, 0.5 * onto @ there.moments @ onto.T, atol=1e-12)
    total.add(place, lower(there.moments), there.weights)
    np.testing.assert_allclose(total.moments, 1.5 * onto @ there.moments @ onto.T, atol=1e-12)
    np.testing.assert_allclose(total.weights, 1.5 * onto @ there.weights, atol=1e-12)


def lower(square):
    return square[np.tril_indices(len(square))]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    factor=st.sampled_from([0.3, -0.3]),
    rows=st.sampled_from([1, 5, 128]),
    in_common=st.booleans(),
)
def test_a_sum_of_differences_rounds_as_if_each_had_been_computed_first(seed, factor, rows, in_common):
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(12, 2))
    own, *ends = (drawn(rng, pool, rng.permutation(12) if in_common else some(rng, 12, 9)) for _ in range(5))
    wanted = own.plus([(factor, ends[1].plus([(-1.0, ends[0])])), (0.1, ends[3].plus([(-1.0, ends[2])]))])
    centers, placed = united(own.centers, *(end.centers for end in ends))
    total, differences = Total.zero(len(centers), 2), []
    total.add(np.arange(own.order), lower(own.moments), own.weights)
    for n, share in ((0, factor), (2, 0.1)):
        first, second = ((end.moments, end.weights) for end in ends[n : n + 2])
        differences.append(Difference(share, placed[n], first, placed[n + 1], second))
        total.add_difference(differences[-1])
    at = {row.tobytes(): i for i, row in enumerate(centers)}
    place = [at[row.tobytes()] for row in wanted.centers]
    assert len(place) == len(centers)
    np.testing.assert_array_equal(total.moments[np.ix_(place, place)], wanted.moments)
    np.testing.assert_array_equal(total.weights[place], wanted.weights)
    # as a whole matrix, block by block
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_ROWS", rows)
        found = own.plus_differences(centers, differences)
    np.testing.assert_array_equal(found.moments, total.moments)
    np.testing.assert_array_equal(found.weights, total.weights)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.integers(1, 40))
def test_statistics_over_fewer_points_are_those_of_projected_samples(seed, order):
    """Against the formula: c becomes (K_ss + nugget)⁻¹ K_s,all c, for Θ = Σ h c cᵀ and β = Σ c τᵀ."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-2, 2, size=(order, 2))
    square = rng.normal(size=(order, order))
    full = Statistics(KERNEL, centers, rng.normal(size=(order, 3)), square + square.T, definite=bool(seed % 2))
    stays = np.sort(rng.choice(order, size=rng.integers(1, order + 1), replace=False))
    # a distance between points, so that rounding does not decide
    gram = KERNEL(centers, centers) + 0.1 * np.eye(order)
    inverse = np.linalg.inv(gram[np.ix_(stays, stays)] + 1e-8 * np.eye(len(stays)))
    onto = np.eye(order)[stays]
    leaves = np.setdiff1d(np.arange(order), stays)
    onto[:, leaves] = inverse @ gram[np.ix_(stays, leaves)]
    found, held = full.restricted(stays, gram)
    scale = np.abs(onto @ full.moments @ onto.T).max() + 1.0
    np.testing.assert_allclose(held, inverse, atol=1e-9 * np.abs(inverse).max())
    np.testing.assert_allclose(found.moments, onto @ full.moments @ onto.T, atol=1e-10 * scale)
    np.testing.assert_allclose(found.weights, onto @ full.weights, atol=1e-10 * scale)
    np.testing.assert_array_equal(found.moments, found.moments.T)
    np.testing.assert_array_equal(found.centers, centers[stays])
    assert found.definite == full.definite
    # duals are projected onto the first points, by halves
    turn = np.concatenate([stays, leaves])
    total = Total.zero(order, 3)
    total.add(np.argsort(turn), lower(full.moments), full.weights)
    fewer = total.projected(np.ascontiguousarray(onto[:, leaves]))
    np.testing.assert_allclose(fewer.moments, found.moments, atol=1e-10 * scale)
    np.testing.assert_allclose(fewer.weights, found.weights, atol=1e-10 * scale)


def test_points_that_leave_are_represented_by_those_that_stay():
    rng = np.random.default_rng(0)
    gone = rng.uniform(-2, 2, size=(4, 2))
    gram = KERNEL(LANDMARKS, LANDMARKS) + 1e-8 * np.eye(20)
    wanted = np.linalg.solve(gram, KERNEL(LANDMARKS, gone))
    np.testing.assert_allclose(lifted(KERNEL, LANDMARKS, gone), wanted, atol=1e-8 * np.abs(wanted).max())
    assert lifted(KERNEL, LANDMARKS[:0], gone).shape == (0, 4)


@given(seed=st.integers(0, 10_000), order=st.integers(0, 9))
def test_a_digest_does_not_depend_on_how_the_dual_is_stored(seed, order):
    rng = np.random.default_rng(seed)
    whole_one = drawn(rng, rng.normal(size=(9, 2)), np.arange(order))
    half = Compact.over(KERNEL, whole_one.centers, whole_one.weights, lower(whole_one.moments))
    np.testing.assert_array_equal(half.moments, whole_one.moments)
    columns = np.bitwise_xor.reduce(whole_one.moments.view(np.uint64), axis=0) & np.uint64((1 << 63) - 1)
    np.testing.assert_array_equal(compiled.symmetric.folded_half(lower(whole_one.moments), order), columns)
    assert digest(half) == digest(whole_one) == digest(opposite(half)) == digest(opposite(whole_one))


@pytest.mark.parametrize("order", [0, 1, 3, 40])
def test_moments_travel_as_half_a_matrix(order):
    rng = np.random.default_rng(0)
    square = rng.normal(size=(order, order))
    square = square + square.T
    centers, weights, terms = rng.normal(size=(order, 2)), rng.normal(size=(order, 3)), Terms(0, 1, 0, 0, 0.5)
    for dual in (None, Function(centers[:1], weights[:1], moments=square[:1, :1])):
        message = Offer(centers, weights, terms, dual, moments=square)
        data = encode(message)
        assert len(data) == wire_size(message).bytes
        more = 0 if dual is None else 5 * len(centers[:1]) + len(centers[:1])
        assert wire_size(message).floats == 5 * order + order * (order + 1) // 2 + more
        np.testing.assert_array_equal(decode(data).moments, square)
        if dual is not None:
            np.testing.assert_array_equal(decode(data).dual.moments, dual.moments)


def test_points_that_the_other_end_has_do_not_travel_again():
    here, there, rng = Link(), Link(), np.random.default_rng(0)
    centers, weights, terms = rng.normal(size=(9, 8)), rng.normal(size=(9, 3)), Terms(0, 1, 0, 0, 0.5)
    for _ in range(3):
        message = Offer(centers, weights, terms, moments=np.eye(9))
        out, back = here.pack(message), there.pack(message)
        arrived = there.unpack(decode(encode(out)))
        here.unpack(back)
    assert type(out).__name__ == "Difference"
    assert wire_size(out).floats == 9 * 3 + 45
    np.testing.assert_array_equal(arrived.centers, centers)
    np.testing.assert_array_equal(arrived.moments, np.eye(9))


def test_moments_where_none_belong_and_none_where_they_do_are_refused():
    statistics = make(consensus=SharedStatistics())
    from kernelmesh.agent import check_message

    plain = Offer(np.zeros((1, 2)), np.zeros((1, 3)), Terms(0, 1, 0, 0, 0.5))
    with pytest.raises(InvalidArgument, match="must have moments with SharedStatistics"):
        check_message(statistics, "test", "answer", plain)
    broken = bytearray(encode(dataclasses.replace(plain, moments=np.ones((1, 1)))))
    broken[-8:] = np.array([np.nan]).tobytes()
    with pytest.raises(RefusedMessage, match="finite"):
        decode(bytes(broken))


def test_a_learner_that_gave_away_more_than_it_has_knows_nothing_there():
    """Late exchanges make Θ indefinite for a while: what is left is the solution over the directions that are known."""
    rng = np.random.default_rng(0)
    inverse = np.linalg.inv(KERNEL(LANDMARKS, LANDMARKS) + 1e-8 * np.eye(20))
    lower = np.linalg.cholesky(inverse)
    basis, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    values, sums = rng.uniform(0.1, 5.0, size=20), rng.normal(size=(20, 3))

    def both(values):
        moments = lower @ basis * values @ basis.T @ lower.T
        statistics = Statistics(KERNEL, LANDMARKS, sums, 0.5 * (moments + moments.T))
        solved = _solved(statistics, 0.05, inverse=inverse)
        return statistics, (solved.covariance, solved.weights)

    statistics, (covariance, weights) = both(values)
    half, image = _halves_in_debt(statistics.moments, sums, 0.05, inverse)
    np.testing.assert_allclose(half.T @ half, covariance, rtol=1e-6, atol=1e-6 * np.abs(covariance).max())
    np.testing.assert_allclose(half.T @ image, weights, rtol=1e-6, atol=1e-6 * np.abs(weights).max())
    values[:4] *= -1.0
    _, (covariance, weights) = both(values)
    known = (lower @ basis)[:, 4:] / np.sqrt(0.05 + values[4:])
    unknown = (lower @ basis)[:, :4] / np.sqrt(0.05)
    wanted = known @ known.T + unknown @ unknown.T
    np.testing.assert_allclose(covariance, wanted, atol=1e-6 * np.abs(wanted).max())
    solution = known @ ((basis.T @ np.linalg.solve(lower, sums))[4:] / np.sqrt(0.05 + values[4:])[:, None])
    np.testing.assert_allclose(weights, solution, atol=1e-6 * np.abs(solution).max())


@pytest.mark.parametrize("seed", range(3))
def test_losses_in_the_first_rounds_do_not_stop_anybody(seed):
    graph = Graph.random(10, probability=0.2, rng=np.random.default_rng(0))
    points, labels = Mixture.draw(classes=5, rng=np.random.default_rng(seed)).sample(4000, rng=np.random.default_rng(seed))
    agent = make(outputs=5, consensus=SharedStatistics())
    streams = [ArrayStream(points[labels == i % 5][:96], labels[labels == i % 5][:96], batch_size=16) for i in range(10)]
    *_, last = simulate(agent, graph, streams, faults=Faults(drop=0.3, rng=np.random.default_rng(seed)))
    assert all(np.isfinite(f.weights).all() for f in last.functions)


def test_a_covariance_is_the_same_by_its_factor_and_as_a_matrix():
    rng = np.random.default_rng(0)
    inverse = np.linalg.inv(KERNEL(LANDMARKS, LANDMARKS) + 1e-3 * np.eye(20))
    square = 0.1 * inverse + (root := rng.normal(size=(20, 20))) @ root.T
    wanted, cross, lost = inverse @ np.linalg.solve(square, inverse), rng.normal(size=(5, 20)), rng.normal(size=(2, 20))
    half = Covariance.factored(np.linalg.cholesky(square), inverse)
    lifted = cross @ inverse
    rows = half.solved(lifted)
    np.testing.assert_allclose(rows @ inverse, cross @ wanted, atol=1e-8 * np.abs(wanted).max())
    np.testing.assert_allclose(half.matrix, wanted, atol=1e-8 * np.abs(wanted).max())
    np.testing.assert_array_equal(half.solved(lifted), rows)  # also now that somebody has asked for R
    less = wanted - inverse @ lost.T @ lost @ inverse
    for found in (half.less(lost), Covariance(wanted).less(lost @ inverse)):
        np.testing.assert_allclose(found.matrix, less, atol=1e-8 * np.abs(less).max())
        assert found.solved(lifted) is None


def test_statistics_know_that_they_are_sums_of_samples():
    """An average of what all have now stays definite; what may have been given away twice is in doubt."""
    agent = make(Landmarks(novelty=np.inf), consensus=SharedStatistics())
    here, there = (run(agent, *samples(32, seed), state=agent.start(function=given_landmarks())) for seed in (1, 2))
    own, theirs = here.model.statistics, there.model.statistics
    assert own.definite
    assert not own.plus([(-1.0, theirs)]).definite
    assert own.plus([(0.5, theirs)]).definite

    def offer(of, **more):
        return Offer(of.centers, of.weights, Terms(0, 1, 0, 0, 0.5), moments=of.moments, **more)

    for in_doubt, is_late in ((False, False), (True, False), (False, True)):
        heard = [Heard(None, offer(theirs, in_doubt=in_doubt), neighbor=1, is_first=True, share=0.5)]
        edges = {1: EdgeMemory(offered=offer(own))} if is_late else {}
        update, _ = agent.consensus.combine(own, heard, edges)
        assert update.statistics.definite == (not in_doubt and not is_late)
        after = agent.rule.absorb(here.model, update, None, samples=0)
        assert after.statistics.definite  # somebody has looked


@pytest.mark.parametrize("in_doubt", [False, True])
def test_doubt_travels_with_an_offer(in_doubt):
    moments = np.eye(20)
    message = Offer(LANDMARKS, np.ones((20, 3)), Terms(0, 1, 0, 0, 0.5), moments=moments, in_doubt=in_doubt)
    assert decode(encode(message)).in_doubt == in_doubt
    assert wire_size(message).bytes == len(encode(message))
    here, there = Link(), Link()
    for _ in range(3):
        packed = here.pack(message)
        assert there.unpack(decode(encode(packed))).in_doubt == in_doubt
        assert wire_size(packed).bytes == len(encode(packed))
        here.unpack(there.pack(message))
    assert type(packed).__name__ == "Difference"


def test_doubt_about_nothing_is_refused():
    message = Offer(LANDMARKS, np.ones((20, 3)), Terms(0, 1, 0, 0, 0.5), moments=np.eye(20), in_doubt=True)
    parts = msgspec.msgpack.decode(encode(message))
    parts[6] = None
    with pytest.raises(RefusedMessage, match="doubt must be about the moments of an offer"):
        decode(msgspec.msgpack.encode(parts))


def test_a_neighbor_that_hides_its_debt_is_found_out():
    """λ P + Θ is then not positive definite: the agent looks for itself, and goes on as if it had been told."""
    inverse = np.linalg.inv(KERNEL(LANDMARKS, LANDMARKS) + 1e-8 * np.eye(20))
    statistics = Statistics(KERNEL, LANDMARKS, np.ones((20, 3)), -0.5 * (inverse + inverse.T))
    told, hidden = (_solved(statistics.known(definite=d), 0.05, inverse=inverse) for d in (False, True))
    np.testing.assert_array_equal(told.weights, hidden.weights)
    assert not hidden.statistics.definite


def test_a_model_that_has_just_been_solved_for_is_restored_bit_for_bit():
    """Its R is known by a factor, and a file holds R: both must go on alike."""
    agent = make(Landmarks(novelty=0.05), consensus=SharedStatistics())
    points, targets = samples(64)
    state = agent.start(name=0, function=Statistics.of(Expansion(KERNEL, LANDMARKS, np.ones((20, 3)))))
    restored = storage.unpack(agent, storage.pack(state, {}, workspace=True), name=0, names=(0,))
    for one in (slice(0, 16), slice(16, 64)):
        state, restored = (agent.step(each, points[one], targets[one])[0] for each in (state, restored))
        np.testing.assert_array_equal(state.model.weights, restored.model.weights)
        np.testing.assert_array_equal(state.model.covariance, restored.model.covariance)


@given(seed=st.integers(0, 10_000), order=st.integers(0, 9))
def test_a_symmetric_matrix_comes_back_from_its_half_bit_for_bit(seed, order):
    square = np.random.default_rng(seed).normal(size=(order, order))
    symmetric = square + square.T
    kept = halved(symmetric)
    assert isinstance(kept, Half)
    assert kept.numbers.size == order * (order + 1) // 2
    np.testing.assert_array_equal(whole(kept), symmetric)
    if order > 1:
        assert whole(halved(square)) is square  # which a half could not stand for


def test_the_covariance_goes_where_the_next_exchange_replaces_it_and_is_formed_when_it_is_asked_for():
    """R is as large as the statistics. Who exchanges in every round needs none between two; who does not, keeps it."""
    graph = Graph.ring(4)
    *_, often = network(graph, make(consensus=SharedStatistics()), rows=96)
    *_, seldom = network(graph, make(consensus=SharedStatistics(every=4)), rows=96)
    assert all(state.model.spread is None for state in often.states)
    assert all(state.model.spread is not None for state in seldom.states)
    model = often.states[0].model
    gram = KERNEL(model.function.centers, model.function.centers)
    wanted = np.linalg.inv(model.regularization * gram + gram @ model.statistics.moments @ gram)
    np.testing.assert_allclose(model.covariance, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_a_state_without_its_covariance_goes_on_from_a_file_bit_for_bit():
    """Also when it hears nobody, so that no exchange replaces R."""
    agent, graph = make(Landmarks(half_life=500.0), consensus=SharedStatistics()), Graph.ring(4)
    *_, last = network(graph, agent, rows=96)
    state, index = last.states[0], {name: n for n, name in enumerate(graph.names)}
    restored = storage.unpack(agent, storage.pack(state, index, workspace=True), name=0, names=graph.names)
    for points, targets in (samples(16, seed=8), samples(16, seed=9)):
        state, restored = (agent.step(each, points, targets)[0] for each in (state, restored))
        np.testing.assert_array_equal(state.model.weights, restored.model.weights)
        np.testing.assert_array_equal(state.model.statistics.moments, restored.model.statistics.moments)


def test_what_was_before_a_round_goes_while_the_round_is_computed(monkeypatch):
    """At the last step of a round, only the last agents still have their states, flows and messages of before."""
    graph, left, advance = Graph.line(12), [], shard.advance

    def watched(agent, state, *rest, **options):
        left.append(tuple(sum(one() is not None for one in kind) for kind in (states, duals, moments)))
        return advance(agent, state, *rest, **options)

    states, duals, moments = [], [], []
    monkeypatch.setattr(shard, "advance", watched)
    for now in network(graph, make(consensus=SharedStatistics()), rows=64):
        states = [weakref.ref(state) for state in now.states]
        duals = [weakref.ref(edge.dual) for state in now.states for edge in state.edges.values()]
        moments = [weakref.ref(state.sent.moments) for state in now.states]
        assert len(duals) == 22
        del now
    assert len(left) == 48
    assert left[-12] == (12, 22, 12)
    assert left[-1] == (1, 2, 2)  # the last one's own, and those that its neighbor has sent


def test_the_last_offer_is_kept_for_all_neighbors_as_one_half_of_a_matrix():
    graph, before = Graph.ring(4), None
    for now in network(graph, make(consensus=SharedStatistics()), rows=96):
        for state, past in zip(now.states, before or (), strict=bool(before)):
            assert len({id(edge.before.half) for edge in state.edges.values()}) == 1
            for edge in state.edges.values():
                assert isinstance(edge.before.half, Half)
                again = edge.before.offer(edge.before.terms)
                assert again.centers is past.sent.centers
                assert again.in_doubt == (not past.sent.definite)
                np.testing.assert_array_equal(again.weights, past.sent.weights)
                np.testing.assert_array_equal(again.moments, past.sent.moments)
        before = now.states
    assert before is not None
