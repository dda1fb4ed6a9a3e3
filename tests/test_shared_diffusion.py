"""Exact diffusion over shared points: projections as they should be, opposite duals, and one dictionary for all."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmesh import (
    Agent,
    Averaged,
    Expansion,
    Faults,
    Gaussian,
    Gradient,
    Graph,
    Komp,
    Linear,
    Local,
    Logistic,
    Mixture,
    SharedDictionary,
    SharedDiffusion,
    simulate,
    storage,
)
from kernelmesh.consensus import EdgeMemory, StepInputs
from kernelmesh.errors import InvalidArgument
from kernelmesh.exchange import Link
from kernelmesh.messages import Offer, Terms, wire_size
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.received import Received
from kernelmesh.streams import ArrayStream
from kernelmesh.testing import check_consensus
from test_rules import in_lock_step

KERNEL = Gaussian(bandwidth=0.6)
LANDMARKS = np.random.default_rng(3).uniform(-2, 2, size=(20, 2))


def samples(rows, seed=0):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


def make(**changes):
    options = {"dimension": 2, "outputs": 3, "kernel": KERNEL, "loss": Logistic(), "step_size": 3.0}
    return Agent(**{**options, "compression": SharedDictionary(), "consensus": SharedDiffusion(), **changes})


def zero_over(centers, kernel=KERNEL):
    return Expansion(kernel, centers, np.zeros((len(centers), 3)))


def points_of(functions):
    return {frozenset(map(bytes, f.centers)) for f in functions}


# Points.


def spanning(gram, turn, tolerance, limit):
    """The literal version: a point stays if what the ones before leave of it is more than the tolerance."""
    kept = []
    for j in turn:
        rest = gram[j, j]
        if kept:
            rest -= gram[j, kept] @ np.linalg.solve(gram[np.ix_(kept, kept)], gram[kept, j])
        if rest > tolerance * gram[j, j] and len(kept) < limit:
            kept.append(j)
    return np.array(kept, dtype=np.int64)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 150])
@pytest.mark.parametrize("limit", [5, 40, 1000])
def test_points_that_span_the_others_are_those_of_the_literal_version(size, limit):
    rng = np.random.default_rng(size)
    points = rng.uniform(-2, 2, size=(size, 2))
    gram, turn = KERNEL(points, points), rng.permutation(size)
    np.testing.assert_array_equal(compiled.symmetric.spanning(gram, turn, 0.01, limit), spanning(gram, turn, 0.01, limit))


# One learner: the compression.


@pytest.mark.parametrize("novelty", [0.01, 0.3, math.inf])
def test_a_step_is_the_projection_of_what_was_wanted(novelty):
    """Against the formula, with samples, points of neighbors, and some of both in the dictionary already."""
    rng = np.random.default_rng(0)
    compression = SharedDictionary(novelty=novelty, max_order=12)
    model = compression.start(Expansion(KERNEL, LANDMARKS[:6], rng.normal(size=(6, 3))))
    for _ in range(8):
        f = model.function
        points = np.concatenate([rng.uniform(-2, 2, size=(5, 2)), f.centers[:2], rng.permutation(LANDMARKS)[:4]])
        coefficients = rng.normal(size=(len(points), 3))
        update = Update(points[:5], coefficients[:5], 0.9, received=Received(points[5:], coefficients[5:]))
        after, _ = compression.absorb(model, update, samples=0)
        wanted = Expansion(KERNEL, np.concatenate([f.centers, points]), np.concatenate([0.9 * f.weights, coefficients]))
        z = after.function.centers
        assert len(z) <= 12
        best = np.linalg.solve(KERNEL(z, z) + 1e-10 * np.eye(len(z)), wanted(z))
        distance = Expansion(KERNEL, z, best).distance(wanted)
        # neighbors' points and samples are projected one after the other
        assert after.function.distance(wanted) <= 2.0 * distance + 1e-3
        if math.isinf(novelty):
            assert {bytes(point) for point in z} <= {bytes(point) for point in np.concatenate([f.centers, LANDMARKS])}
        model = after


def test_a_settled_step_is_the_projection_and_its_error_is_what_is_reported():
    rng = np.random.default_rng(0)
    compression = SharedDictionary(novelty=math.inf)
    model = compression.start(Expansion(KERNEL, LANDMARKS, rng.normal(size=(20, 3))))
    points, coefficients = rng.uniform(-2, 2, size=(7, 2)), rng.normal(size=(7, 3))
    after, report = compression.absorb(model, Update(points, coefficients, 0.5), samples=0)
    f = model.function
    wanted = Expansion(KERNEL, np.concatenate([f.centers, points]), np.concatenate([0.5 * f.weights, coefficients]))
    weights = np.linalg.solve(KERNEL(LANDMARKS, LANDMARKS), wanted(LANDMARKS))
    np.testing.assert_allclose(after.function(points), Expansion(KERNEL, LANDMARKS, weights)(points), atol=1e-5)
    assert report.error == pytest.approx(after.function.distance(wanted), rel=1e-4)
    assert not report.over_budget
    np.testing.assert_array_equal(after.function.centers, LANDMARKS)


@pytest.mark.parametrize("kernel", [KERNEL, Linear(offset=1.0)], ids=str)
def test_it_learns_alone_with_few_points(kernel):
    points, labels = samples(2000)
    agent = make(kernel=kernel, step_size=0.5 if isinstance(kernel, Linear) else 3.0, consensus=make().consensus)
    *_, last = simulate(agent, Graph.line(1), [ArrayStream(points, labels, batch_size=16)])
    held, truth = samples(1000, seed=1)
    f = last.functions[0]
    assert (f(held).argmax(axis=1) == truth).mean() > (0.6 if isinstance(kernel, Linear) else 0.93)
    assert f.order < (4 if isinstance(kernel, Linear) else 80)


@pytest.mark.parametrize("rule", [Gradient(), Averaged()], ids=str)
def test_a_state_from_a_file_goes_on_bit_for_bit(rule):
    graph = Graph.ring(3)
    agent = make(rule=rule)

    def streams(seed):
        return [ArrayStream(*samples(160, seed=seed + i), batch_size=16) for i in range(3)]

    *_, last = simulate(agent, graph, streams(0))
    again = [
        storage.unpack(agent, storage.pack(state, graph.names, workspace=True), name=state.name, names=graph.names)
        for state in last.states
    ]
    *_, wanted = simulate(agent, graph, streams(9), states=last.states)
    *_, found = simulate(agent, graph, streams(9), states=again)
    for one, other in zip(found.states, wanted.states, strict=True):
        np.testing.assert_array_equal(one.function.weights, other.function.weights)
        np.testing.assert_array_equal(one.sent.weights, other.sent.weights)


# Networks.


@pytest.mark.parametrize("every", [1, 4])
def test_the_laws_of_protocols_hold(every):
    check_consensus(SharedDiffusion(every=every))


def test_what_does_not_go_together_is_refused():
    with pytest.raises(InvalidArgument, match="compression must be a SharedDictionary with the consensus SharedDiffusion"):
        make(compression=Komp(budget=0.1))
    with pytest.raises(InvalidArgument, match="radius must be infinite with a SharedDictionary"):
        make(radius=5.0)
    with pytest.raises(InvalidArgument, match="SharedDictionary: novelty must be"):
        SharedDictionary(novelty=0.0)
    with pytest.raises(InvalidArgument, match="SharedDictionary: max_order must be"):
        SharedDictionary(max_order=0)


def network(graph, agent, *, rows=320, faults=None, states=None, seed=0):
    streams = [ArrayStream(*samples(rows, seed=seed + i), batch_size=16) for i in range(len(graph))]
    return simulate(agent, graph, streams, faults=faults, states=states)


def assert_opposite(graph, states):
    compared = 0
    for i, name in enumerate(graph.names):
        for j in graph.neighbors[i]:
            ours, theirs = states[i].edges.get(graph.names[j]), states[j].edges.get(name)
            if ours is None or theirs is None or ours.done != theirs.done or not ours.done:
                continue
            np.testing.assert_array_equal(ours.dual.weights, -theirs.dual.weights)
            assert ours.digest == theirs.digest
            compared += 1
    return compared


@pytest.mark.parametrize("every", [1, 3])
def test_duals_are_opposite_bit_for_bit_while_points_come_and_go(every):
    graph = Graph.ring(4)
    agent, compared = make(consensus=SharedDiffusion(every=every)), 0
    for now in network(graph, agent, faults=Faults(drop=0.3, rng=np.random.default_rng(0))):
        compared += assert_opposite(graph, now.states)
    assert compared > 30


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), every=st.integers(1, 4), drop=st.sampled_from([0.0, 0.3, 0.7]))
def test_the_sum_over_all_agents_is_conserved(seed, every, drop):
    """Agents that do not learn: they go to the mean of where they began, whatever is lost."""
    graph, rng = Graph.ring(5), np.random.default_rng(seed)
    agent = make(
        step_size=0.0,
        regularization=0.0,
        compression=SharedDictionary(novelty=math.inf),
        consensus=SharedDiffusion(every=every),
    )
    began = rng.normal(size=(5, 20, 3))
    states = [agent.start(name=i, function=Expansion(KERNEL, LANDMARKS, began[i])) for i in range(5)]
    faults = Faults(drop=drop, rng=rng, absent={2: [(4, 9)]})
    *_, last = network(graph, agent, rows=640, faults=faults, states=states)
    *_, calm = network(graph, agent, rows=3200, states=last.states)
    total = sum(state.sent.weights for state in calm.states)
    np.testing.assert_allclose(total, began.sum(axis=0), atol=1e-9)
    for state in calm.states:
        np.testing.assert_allclose(state.sent.weights, began.mean(axis=0), atol=0.05)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("anew", [False, True], ids=["older", "nothing"])
def test_an_end_that_has_lost_its_memory_takes_over_the_duals(late, anew):
    graph, agent = Graph.ring(4), make()
    rounds = list(network(graph, agent))
    states = list(rounds[-1].states)
    states[late] = agent.start(name=graph.names[late]) if anew else rounds[8].states[late]
    *_, last = network(graph, agent, states=states, seed=50)
    assert assert_opposite(graph, last.states) == 8
    assert all(edge.epoch > 0 for edge in last.states[late].edges.values())


def one_class(agent, graph, *, faults=None, rounds=60):
    points, labels = samples(9000)
    hands = [np.flatnonzero(labels == i % 3)[i :: len(graph)][: rounds * 16] for i in range(len(graph))]
    *_, last = simulate(
        agent, graph, [ArrayStream(points[mine], labels[mine], batch_size=16) for mine in hands], faults=faults
    )
    held, truth = samples(2000, seed=1)
    return last, [(f(held).argmax(axis=1) == truth).mean() for f in last.functions]


FAULTS = {
    "calm": lambda: None,
    "30 % lost": lambda: Faults(drop=0.3, rng=np.random.default_rng(0)),
    "a partition of 20 rounds": lambda: Faults(
        edges=lambda number: [(0, 1), (2, 3)] if 5 <= number < 25 else [(0, 1), (1, 2), (2, 3), (3, 0)]
    ),
    "an agent away": lambda: Faults(absent={1: [(3, 15)]}),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_agents_with_one_class_each_learn_all_and_share_one_dictionary(faults):
    graph = Graph.ring(4)
    agent = make(rule=Averaged(), step_size=20.0)
    last, right = one_class(agent, graph, faults=faults())
    assert min(right) > 0.93
    # rounds in which nobody sees anything new: what was proposed last spreads
    idle = [
        ArrayStream(np.tile(f.centers[:1], (128, 1)), np.full(128, i % 3), batch_size=8) for i, f in enumerate(last.functions)
    ]
    *_, settled = simulate(agent, graph, idle, states=last.states)
    assert len(points_of(settled.functions)) == 1


def test_no_sample_leaves_where_points_are_given():
    graph = Graph.ring(4)
    agent = make(compression=SharedDictionary(novelty=math.inf), consensus=SharedDiffusion(every=2))
    points = {row.tobytes() for row in LANDMARKS}
    states = [agent.start(name=name, function=zero_over(LANDMARKS)) for name in graph.names]
    for now in network(graph, agent, states=states):
        for state in now.states:
            offers = [o for e in state.edges.values() for o in (e.offered, e.before, e.early) if o is not None]
            for f in (state.function, state.sent, *offers, *(e.dual for e in state.edges.values() if e.dual is not None)):
                assert {row.tobytes() for row in f.centers} <= points


def test_once_points_are_known_only_weights_travel():
    here, there = Link(), Link()
    rng = np.random.default_rng(0)
    centers, terms = rng.normal(size=(9, 8)), Terms(0, 1, 0, 0, 0.5)
    for _ in range(3):
        message = Offer(centers, rng.normal(size=(9, 3)), terms)
        out, back = here.pack(message), there.pack(message)
        there.unpack(out), here.unpack(back)
    assert wire_size(out).floats == 9 * 3
    graph = Graph.ring(4)
    agent = make(compression=SharedDictionary(novelty=math.inf))
    states = [agent.start(name=name, function=zero_over(LANDMARKS)) for name in graph.names]
    rounds = list(network(graph, agent, states=states))
    sent = rounds[-1].floats_sent - rounds[-2].floats_sent
    np.testing.assert_array_equal(sent, 2 * 20 * 3)  # two neighbors


@pytest.mark.parametrize("rule", [Gradient(), Averaged()], ids=str)
def test_in_lock_step_it_equals_the_simulation(rule):
    agent = make(rule=rule, consensus=SharedDiffusion(every=2))
    compared = 0
    for turn, function, wanted in in_lock_step(agent, [samples(80, seed=i) for i in range(4)]):
        np.testing.assert_array_equal(function.weights, wanted.function.weights)
        np.testing.assert_array_equal(turn.state.sent.weights, wanted.sent.weights)
        compared += 1
    assert compared == 40


def test_settings_survive_a_file():
    agent = make(compression=SharedDictionary(novelty=0.2, max_order=30))
    from kernelmesh.registry import describe, restore

    assert restore(describe(agent.compression)) == agent.compression
    assert dataclasses.replace(agent.compression, novelty=math.inf) != agent.compression


def test_steps_are_as_large_as_the_share_of_edges_whose_duals_act():
    f, points = zero_over(LANDMARKS), LANDMARKS[:4] + 0.1
    slope = np.arange(12.0).reshape(4, 3)
    inputs = StepInputs(
        function=f,
        points=points,
        targets=np.zeros(4, dtype=int),
        loss=Logistic(),
        here=f(points),
        slope=slope,
        cross=KERNEL(points, LANDMARKS),
        step_size=2.0,
        regularization=0.0,
        samples=0,
    )
    whole = Local().move(inputs, (), {}).coefficients
    acting, silent, gone = (EdgeMemory(acts=acts) for acts in (17, 5, 0))  # with k = 2 an edge is remembered for 16 rounds
    for edges, part in (
        ([], 1.0),
        ([acting, acting], 1.0),
        ([acting, silent], 0.5),
        ([acting, silent, silent, gone], 1 / 3),
        ([gone], 1.0),
        ([silent], 0.0),
    ):
        update = SharedDiffusion(every=2).move(inputs, (), dict(enumerate(edges)))
        np.testing.assert_allclose(update.coefficients, part * whole)
