"""Agents as one tensor: the rounds are those of the simulation that takes one agent at a time."""

import dataclasses
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from kernelmesh import (
    Agent,
    Averaged,
    Diverged,
    Expansion,
    Faults,
    Gaussian,
    Gradient,
    Graph,
    Hinge,
    InverseRoot,
    Komp,
    Laplacian,
    Linear,
    Logistic,
    Penalty,
    Screening,
    SharedDictionary,
    SharedDiffusion,
    Squared,
    simulate,
)
from kernelmesh.consensus.gossip import Gossip
from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.engines import InProcess, Stacked
from kernelmesh.stack import stackable

GRAPHS = {
    "ring": Graph.ring(5),
    "star": Graph.star(4),
    "geometric": Graph.geometric(90, degree=5, rng=np.random.default_rng(0)),
}


def make(**changes):
    options = {"dimension": 2, "outputs": 3, "kernel": Gaussian(bandwidth=0.6), "loss": Logistic(), "step_size": 3.0}
    shared = {"compression": SharedDictionary(novelty=math.inf), "consensus": SharedDiffusion()}
    return Agent(**{**options, **shared, **changes})


def network(agent, graph, *, points=12, sizes=(8,) * 6, seed=0, weights=0.0):
    """States over the same points, and streams whose mini-batches have these sizes, or for each agent sizes of its own."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-2, 2, size=(points, agent.dimension))
    states = [
        agent.start(name=name, function=Expansion(agent.kernel, centers, weights * rng.normal(size=(points, agent.outputs))))
        for name in graph.names
    ]
    streams = []
    for i in range(len(graph)):
        own = sizes(i) if callable(sizes) else sizes
        rows = sum(own)
        x = rng.uniform(-2, 2, size=(rows, agent.dimension))
        y = rng.integers(agent.outputs, size=rows) if agent.loss.classifies else np.sin(x[:, : agent.outputs])
        cuts = np.cumsum(own)[:-1]
        streams.append(list(zip(np.split(x, cuts), np.split(y, cuts), strict=True)))
    return states, streams


def rounds(agent, graph, states, streams, engine=None):
    with threadpool_limits(1):
        return list(simulate(agent, graph, streams, states=[state.copy() for state in states], engine=engine))


def assert_close(ours, theirs):
    """To 1e-10 of the size of the numbers; in most of the cases below they are equal."""
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def assert_same_states(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert (one.name, one.samples, one.steps) == (other.name, other.samples, other.steps)
        assert_close(one.function.weights, other.function.weights)
        assert_close(one.sent.weights, other.sent.weights)
        assert_close(one.baseline_loss, other.baseline_loss)
        assert list(one.edges) == list(other.edges)
        for name, edge in one.edges.items():
            wanted = other.edges[name]
            for field in ("epoch", "done", "acts", "early", "behind", "handed"):
                assert getattr(edge, field) == getattr(wanted, field), field
            for field in ("dual", "offered", "before"):
                one_has, other_has = getattr(edge, field), getattr(wanted, field)
                assert (one_has is None) == (other_has is None)
                if one_has is not None:
                    assert_close(one_has.weights, other_has.weights)
                if field != "dual" and one_has is not None:
                    terms, expected = one_has.terms, other_has.terms
                    assert (terms.exchange, terms.done, terms.share) == (expected.exchange, expected.done, expected.share)


def assert_same_info(ours, theirs):
    for name, value in dataclasses.asdict(theirs).items():
        if isinstance(value, float):
            # an error is the root of a difference
            np.testing.assert_allclose(getattr(ours, name), value, rtol=1e-10, atol=1e-7 if name == "error" else 0.0)
        else:
            assert getattr(ours, name) == value, name


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        assert (one.number, one.samples, one.orders) == (other.number, other.samples, other.orders)
        np.testing.assert_array_equal(one.floats_sent, other.floats_sent)
        np.testing.assert_array_equal(one.bytes_sent, other.bytes_sent)
        np.testing.assert_array_equal(one.edge_bytes, other.edge_bytes)
        for info, wanted in zip(one.infos, other.infos, strict=True):
            assert (info is None) == (wanted is None)
            if info is not None:
                assert_same_info(info, wanted)
        for f, g in zip(one.functions, other.functions, strict=True):
            np.testing.assert_array_equal(f.centers, g.centers)
            assert_close(f.weights, g.weights)
    assert_same_states(ours[-1].states, theirs[-1].states)


CASES = {
    "logistic": {},
    "hinge": {"loss": Hinge(), "kernel": Laplacian(bandwidth=0.8)},
    "squared": {"loss": Squared(), "outputs": 1, "step_size": 0.5, "regularization": 0.0},
    "linear": {"loss": Squared(), "outputs": 2, "kernel": Linear(offset=1.0), "step_size": 0.05},
    "many coordinates": {"dimension": 20, "kernel": Gaussian(bandwidth=4.0)},
    "schedule": {"step_size": InverseRoot(scale=3.0), "regularization": 1e-2},
    "every 2": {"consensus": SharedDiffusion(every=2)},
    "every 3": {"consensus": SharedDiffusion(every=3)},
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("case", CASES)
def test_rounds_are_those_of_the_simulation(case, graph):
    agent = make(**CASES[case])
    states, streams = network(agent, GRAPHS[graph], points=12 if case != "linear" else 3, weights=0.1)
    assert stackable(agent, GRAPHS[graph], states)
    assert_same(*(rounds(agent, GRAPHS[graph], states, streams, engine) for engine in (None, InProcess())))


def test_mini_batches_may_differ_in_size():
    agent, graph = make(), GRAPHS["geometric"]
    states, streams = network(agent, graph, sizes=lambda i: (8, 7 if i % 3 else 8, 12 if i < 40 else 1, 5))
    assert_same(*(rounds(agent, graph, states, streams, engine) for engine in (None, InProcess())))


@pytest.mark.parametrize("every", [1, 2])
def test_when_streams_end_agents_go_on_one_at_a_time(every):
    """The same links and duals: also what is sent stays the same."""
    agent, graph = make(consensus=SharedDiffusion(every=every)), GRAPHS["star"]
    states, streams = network(agent, graph, sizes=lambda i: (8,) * (9 - i))
    found = rounds(agent, graph, states, streams)
    assert_same(found, rounds(agent, graph, states, streams, InProcess()))
    assert any(info is None for info in found[-1].infos)
    states, streams = network(agent, graph, sizes=lambda i: (8,) * i or (8,))  # from the second round on
    assert_same(*(rounds(agent, graph, states, streams, engine) for engine in (None, InProcess())))


def test_states_go_on_in_any_engine_and_rounds_can_be_kept():
    agent, graph = make(consensus=SharedDiffusion(every=2)), GRAPHS["ring"]
    states, streams = network(agent, graph, sizes=(8,) * 7)
    found, wanted = (rounds(agent, graph, states, streams, engine) for engine in (None, InProcess()))
    for one, other in zip(found, wanted, strict=True):
        assert_same_states(one.states, other.states)  # those of earlier rounds too
    _, more = network(agent, graph, seed=1)
    assert not stackable(agent, graph, found[-1].states)
    assert_same(*(rounds(agent, graph, last.states, more) for last in (found[-1], wanted[-1])))


def test_functions_of_some_agents_and_measures_are_there():
    agent, graph = make(), GRAPHS["ring"]
    now = rounds(agent, graph, *network(agent, graph))[-1]
    assert now.functions_of([3])[3].order == 12
    assert repr(now.infos[2]) == repr(now.infos[:3][2])
    assert repr(now.infos).startswith("(Info(")
    assert all(math.isnan(norm) for norm in now.square_norms)


def test_who_diverges_is_named_as_in_the_simulation():
    agent, graph = make(loss=Squared(), outputs=1, step_size=80.0, explosion=100.0), GRAPHS["ring"]
    states, streams = network(agent, graph, sizes=(8,) * 60)
    said = []
    for engine in (None, InProcess()):
        with pytest.raises(Diverged) as error:
            rounds(agent, graph, states, streams, engine)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((np.full((2, 2), np.nan), [0, 1]), "points must be finite"),
        ((np.zeros((2, 3)), [0, 1]), "points must have 2 columns"),
        ((np.zeros((0, 2)), []), "points must have at least one row"),
        ((np.zeros((2, 2)), [0, 7]), "must be class numbers 0..2"),
        ((np.zeros((2, 2)), [0, 1, 1]), r"must have shape \(2,\)"),
        ((np.zeros(2), [0, 1]), "points must have 2 dimensions"),
        (([["a", "b"]], [0]), "points must contain real numbers"),
        ((np.zeros((2, 2)), [True, False]), "must contain integers"),
        ((np.zeros((8, 2)), np.zeros(8)), "must contain integers"),
    ],
    ids=str,
)
def test_bad_samples_are_refused_as_in_the_simulation(bad, words):
    agent, graph = make(), GRAPHS["ring"]
    states, streams = network(agent, graph)
    streams[3][1] = bad
    said = []
    for engine in (None, InProcess()):
        with pytest.raises(InvalidArgument, match=words) as error:
            rounds(agent, graph, states, streams, engine)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_networks_that_are_not_one_tensor_are_told():
    graph = GRAPHS["ring"]
    agent = make()
    states, streams = network(agent, graph)
    assert stackable(agent, graph, states)
    assert not stackable(agent, graph, None)
    assert not stackable(agent, Graph.line(1), states[:1])
    for changes in (
        {"rule": Averaged()},
        {"compression": SharedDictionary()},
        {"compression": Komp(budget=0.1), "consensus": Penalty(coupling=0.1)},
        {"replay": 4},
        {"screening": Screening()},
    ):
        other = make(**changes)
        assert not stackable(other, graph, network(other, graph)[0]), changes
    moved = [*states[:-1], network(agent, graph, seed=9)[0][-1]]
    assert not stackable(agent, graph, moved)
    doubled = Expansion(agent.kernel, np.zeros((2, 2)), np.zeros((2, 3)))
    assert not stackable(agent, graph, [agent.start(name=name, function=doubled) for name in graph.names])
    assert not stackable(agent, graph, [agent.start(name=name) for name in graph.names])
    # faults are for the simulation that takes one agent at a time
    lossy = simulate(agent, graph, streams, states=states, faults=Faults(absent={1: [(2, 3)]}))
    assert [now.infos[1] is None for now in lossy] == [False, True, True, *[False] * 5]


def test_the_engine_is_chosen_without_being_asked(monkeypatch):
    asked, step = [], Stacked.step
    monkeypatch.setattr(Stacked, "step", lambda self, number, said: asked.append(number) or step(self, number, said))
    agent, graph = make(rule=Gradient()), GRAPHS["ring"]
    rounds(agent, graph, *network(agent, graph))
    assert asked == [1, 2, 3, 4, 5, 6]
    rounds(agent, graph, *network(agent, graph), InProcess())
    assert len(asked) == 6


@pytest.mark.parametrize("graph", GRAPHS)
def test_gossip_is_the_product_with_the_matrix_of_metropolis_weights(graph):
    graph = GRAPHS[graph]
    values = np.random.default_rng(0).normal(size=(len(graph), 4, 2))
    half = 0.5 * (np.eye(len(graph)) + graph.metropolis())
    for part, matrix in ((1.0, graph.metropolis()), (0.5, half)):
        gossip = Gossip.over(graph, part=part)
        np.testing.assert_allclose(gossip.mixed(values), np.einsum("ij,jkl->ikl", matrix, values), atol=1e-14)
        flows = gossip.flowed(None, values)
        np.testing.assert_allclose(gossip.gathered(flows), gossip.mixed(values) - values, atol=1e-14)
        np.testing.assert_allclose(gossip.gathered(gossip.flowed(flows, values)).sum(axis=0), 0.0, atol=1e-13)
