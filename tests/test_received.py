"""What neighbors' functions bring: projected onto the dictionary as the equations say, and duals made once for both ends."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmesh import (
    Agent,
    ArrayStream,
    Averaged,
    ExactDiffusion,
    Expansion,
    Gaussian,
    Gradient,
    Graph,
    Komp,
    Logistic,
    simulate,
)
from kernelmesh.consensus.duals import Shared, digest, opposite
from kernelmesh.messages import Offer, Terms
from kernelmesh.numerics.compression import Uncompressed, Update
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.numerics.projection import values_at_own
from kernelmesh.numerics.received import Received

KERNEL = Gaussian(bandwidth=0.7)


def function(order: int, seed: int, scale: float = 1.0) -> Expansion:
    rng = np.random.default_rng(seed)
    return Expansion(KERNEL, rng.uniform(-2, 2, (order, 2)), scale * rng.standard_normal((order, 3)))


def joined(f: Expansion, g: Expansion, shrink: float) -> Expansion:
    return Expansion(KERNEL, np.concatenate([f.centers, g.centers]), np.concatenate([shrink * f.weights, g.weights]))


def projected(f: Expansion, points: np.ndarray) -> Expansion:
    """By least squares, literally."""
    values = KERNEL(points, f.centers) @ f.weights
    return Expansion(KERNEL, points, np.linalg.lstsq(KERNEL(points, points), values, rcond=1e-12)[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 14), st.integers(1, 20), st.sampled_from([1e-3, 0.05, 1.0, 1e6]), st.integers(0, 10**6))
def test_a_received_function_settles_on_its_projection(order, new, square_budget, seed):
    f, s = function(order, seed), function(new, seed + 1, scale=0.3)
    inverse = InverseGram()
    if not inverse.rebuild(KERNEL, f.centers):
        return  # two points coincide
    received = Received(s.centers, s.weights, distinct=True)
    found = received.settle(f, inverse, f.inner(f), 0.9, square_budget)
    if found is None:
        assert inverse.matrix.diagonal().max() > 1e6  # P cannot resolve so fine a budget
        return
    moved, points = joined(f, s, 0.9), np.concatenate([f.centers, s.centers[found.kept]])
    after = Expansion(KERNEL, points, np.concatenate([found.weights, found.coefficients]))
    assert after.distance(projected(moved, points)) < 1e-3
    assert found.square_error == pytest.approx(after.distance(moved) ** 2, rel=1e-3, abs=1e-4)
    assert found.square_error <= square_budget or len(found.kept) == new
    own = Expansion(KERNEL, f.centers, found.weights)
    assert found.square_norm == pytest.approx(own.inner(own), rel=1e-6, abs=1e-6)


def test_what_is_kept_of_a_projection_is_what_would_be_found_again():
    f, s = function(12, 0), function(20, 1)
    inverse = InverseGram()
    assert inverse.rebuild(KERNEL, f.centers)
    kept = Received(s.centers, s.weights, distinct=True)
    kept.settle(f, inverse, f.inner(f), 1.0, 0.01)
    other = Expansion.trusted(KERNEL, f.centers, 2.0 * f.weights)
    for budget, weights in ((0.01, s.weights), (0.5, s.weights), (0.01, 0.5 * s.weights)):
        again = kept.with_weights(weights).settle(other, inverse, other.inner(other), 0.7, budget)
        fresh = Received(s.centers, weights, distinct=True).settle(other, inverse, other.inner(other), 0.7, budget)
        for name in ("kept", "coefficients", "weights", "square_norm", "square_error"):
            np.testing.assert_array_equal(getattr(again, name), getattr(fresh, name))


@pytest.mark.parametrize("budget", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("new", [5, 40, 300])
def test_samples_and_a_received_function_are_absorbed_within_the_budget(budget, new):
    f, s, x = function(20, 0), function(new, 1, scale=0.3), function(16, 2, scale=0.2)
    update = Update(
        x.centers, x.weights, 0.9, KERNEL(x.centers, f.centers), received=Received(s.centers, s.weights, distinct=True)
    )
    komp = Komp(budget=budget)
    model, report = komp.absorb(komp.start(f), update, samples=0)
    wanted = joined(joined(f, x, 0.9), s, 1.0)
    assert model.function.distance(wanted) <= report.error + 1e-4
    assert report.error <= budget * (1 + 1e-9)
    assert model.square_norm == pytest.approx(model.function.inner(model.function), rel=1e-4, abs=1e-4)
    everything, _ = Uncompressed().absorb(Uncompressed().start(f), update, samples=0)
    assert everything.function.distance(wanted) < 1e-6


def test_equal_points_become_one():
    s = function(4, 0)
    twice = Received.of([(s.centers, s.weights), (s.centers[::-1].copy(), s.weights[::-1].copy())])
    together = twice.put_together()
    assert together.distinct
    np.testing.assert_array_equal(together.points, s.centers)
    np.testing.assert_array_equal(together.weights, 2.0 * s.weights)


def offered(f: Expansion, share: float = 0.25) -> Offer:
    return Offer(f.centers, f.weights, Terms(0, 1, 0, 0, share))


def test_a_dual_is_taken_from_the_other_end_only_if_it_was_made_from_the_same():
    shared, before, found = Shared(), function(3, 0), function(3, 1)
    first, second = offered(function(4, 2)), offered(function(4, 3))
    shared.keep(found, before, first, second, 0.5)
    assert shared.take(before, first, second, 0.5) is found
    assert shared.take(opposite(opposite(before)), first, second, 0.5) is found
    assert shared.take(function(3, 0), first, second, 0.5) is None
    assert shared.take(None, first, second, 0.5) is None
    assert shared.take(before, second, first, 0.5) is None
    assert shared.take(before, first, second, 0.25) is None
    assert shared.take(before, replace(first, weights=first.weights.copy()), second, 0.5) is None
    del found
    assert shared.take(before, first, second, 0.5) is None


def test_opposite_duals_have_one_digest():
    dual = function(5, 0)
    np.testing.assert_array_equal(opposite(dual).weights, -dual.weights)
    assert digest(dual) == digest(opposite(dual)) == digest(Expansion(KERNEL, dual.centers, -dual.weights))
    assert digest(dual) != digest(function(5, 1))


def network(rule, every):
    compression = Komp(budget=0.1)
    agent = Agent(
        dimension=2, outputs=3, kernel=KERNEL, loss=Logistic(), rule=rule, step_size=2.0, compression=compression,
        consensus=ExactDiffusion(budget=0.025, every=every),
    )  # fmt: skip
    rng = np.random.default_rng(7)
    points = rng.uniform(-1, 1, (4, 320, 2))
    streams = [ArrayStream(part, (part[:, 0] > 0).astype(int) + (part[:, 1] > 0.3), batch_size=16) for part in points]
    return agent, Graph.ring(4), streams


def forgetful(state):
    """The same state as a file would bring it back: plain memories of edges, and duals that nobody else has."""
    edges = {}
    for name, edge in state.edges.items():
        edges[name] = replace(edge, dual=edge.dual and Expansion(KERNEL, edge.dual.centers, edge.dual.weights))
    return replace(state, edges=edges)


@pytest.mark.parametrize("rule", [Gradient(), Averaged()])
@pytest.mark.parametrize("every", [1, 4])
def test_nothing_depends_on_what_is_kept_beside_the_duals(monkeypatch, rule, every):
    """Neither on duals that the other end has made, nor on sums of duals and projections of earlier rounds."""
    agent, graph, streams = network(rule, every)
    *_, usual = simulate(agent, graph, streams)
    monkeypatch.setattr(Shared, "take", lambda *_: None)
    sources, states = [list(stream) for stream in streams], None
    for number in range(len(sources[0])):
        one = [ArrayStream(*source[number], batch_size=16) for source in sources]
        for last in simulate(agent, graph, one, states=states):
            states = [forgetful(state) for state in last.states]
    for here, there in zip(usual.states, last.states, strict=True):
        np.testing.assert_array_equal(here.sent.centers, there.sent.centers)
        np.testing.assert_array_equal(here.sent.weights, there.sent.weights)
        for name, edge in here.edges.items():
            np.testing.assert_array_equal(edge.dual.weights, there.edges[name].dual.weights)
    for i, state in enumerate(usual.states):
        for name, edge in state.edges.items():
            np.testing.assert_array_equal(edge.dual.weights, -usual.states[name].edges[i].dual.weights)


@pytest.mark.parametrize("every", [1, 3])
def test_a_dual_acts_for_k_rounds_whoever_looks(every):
    """Rounds without an exchange do nothing to the edges until somebody looks, which must not change anything."""
    agent, graph, streams = network(Gradient(), every)
    unseen = [now.functions for now in simulate(agent, graph, streams)]
    for now, before in zip(simulate(agent, graph, streams), unseen, strict=True):
        for state in now.states:
            acts = {edge.acts for edge in state.edges.values()}
            assert acts == ({every - now.number % every} if now.number >= every else set())
            assert len(state.edges) == len(list(state.edges)) == (2 if now.number >= every else 0)
        for here, there in zip(now.functions, before, strict=True):
            np.testing.assert_array_equal(here.weights, there.weights)


@pytest.mark.parametrize("rows", [0, 3, 256, 600])
def test_values_at_its_own_points_are_those_of_the_gram_matrix(rows):
    s = function(rows, 3)
    np.testing.assert_allclose(values_at_own(KERNEL, s.centers, s.weights), s(s.centers), atol=1e-9)


def test_many_points_settle_as_if_nothing_of_what_was_received_were_known():
    """Values that are kept for later rounds are those that `select` would find itself."""
    f, s, x = function(40, 0), function(500, 1, scale=0.1), function(16, 2, scale=0.2)
    both = Received.of(
        [(f.centers[:9], s.weights[:9]), (s.centers, s.weights), (x.centers[:2], x.weights[:2])]
    ).put_together()
    komp = Komp(budget=0.3)
    update = Update(x.centers, x.weights, 0.9, received=both)
    kept, report = komp.absorb(komp.start(f), update, samples=0)
    plain, _ = komp.absorb(komp.start(f), update.plain(), samples=0)
    assert kept.function.order < 500
    np.testing.assert_array_equal(kept.function.centers, plain.function.centers)
    np.testing.assert_allclose(kept.function.weights, plain.function.weights, rtol=1e-6, atol=1e-6)
    again, _ = komp.absorb(komp.start(f), update, samples=0)
    np.testing.assert_array_equal(kept.function.weights, again.function.weights)
    assert report.error <= 0.3 * (1 + 1e-9)
