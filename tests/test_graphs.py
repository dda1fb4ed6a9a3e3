import networkx as nx
import numpy as np
import pytest

from kernelmesh import Graph


def rng(seed=3):
    return np.random.default_rng(seed)


GRAPHS = {
    "one": lambda: Graph.line(1),
    "line": lambda: Graph.line(6),
    "ring": lambda: Graph.ring(7),
    "grid": lambda: Graph.grid(3, 4),
    "star": lambda: Graph.star(6),
    "complete": lambda: Graph.complete(5),
    "random": lambda: Graph.random(20, rng=rng()),
    "geometric": lambda: Graph.geometric(15, radius=0.4, rng=rng()),
    "small world": lambda: Graph.small_world(12, rng=rng()),
    "networkx": lambda: Graph.of(nx.petersen_graph()),
    "edges": lambda: Graph.of([("a", "b"), ("b", "c"), ("c", "b")]),
}


@pytest.mark.parametrize("name", GRAPHS)
class TestLaws:
    def test_symmetric_connected_without_loops(self, name):
        graph = GRAPHS[name]()
        for i, around in enumerate(graph.neighbors):
            assert list(around) == sorted(set(around))
            assert all(i in graph.neighbors[j] and i != j for j in around)
        whole = nx.Graph(list(graph.edges))
        whole.add_nodes_from(range(len(graph)))
        assert nx.is_connected(whole)
        assert 2 * len(graph.edges) == sum(map(len, graph.neighbors))

    def test_metropolis_weights_are_doubly_stochastic(self, name):
        graph = GRAPHS[name]()
        weights = graph.metropolis()
        np.testing.assert_allclose(weights, weights.T)
        np.testing.assert_allclose(weights.sum(axis=0), 1.0)
        assert (weights >= -1e-15).all()
        off = ~np.eye(len(graph), dtype=bool)
        joined = np.zeros_like(off)
        for i, j in graph.edges:
            joined[i, j] = joined[j, i] = True
        assert ((weights > 0) & off == joined).all()


def test_the_same_generator_gives_the_same_network():
    assert Graph.random(20, rng=rng()) == Graph.random(20, rng=rng())
    assert Graph.random(20, rng=rng()) != Graph.random(20, rng=rng(4))


def test_the_papers_network_is_as_dense_as_two_directed_draws():
    degrees = [2 * len(Graph.random(20, rng=np.random.default_rng(s)).edges) / 20 for s in range(60)]
    assert np.mean(degrees) == pytest.approx(19 * (1 - 0.8**2), rel=0.05)


def test_numbered_agents_keep_their_order():
    assert Graph.of([(2, 1), (0, 2)]).names == (0, 1, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Graph.of([(0, 1), (2, 3)]), "the network must be connected"),
        (lambda: Graph.of(nx.DiGraph([(0, 1)])), "edges must be symmetric"),
        (lambda: Graph.of([(0, 0), (0, 1)]), "edges must join two different agents"),
        (lambda: Graph.of("ring"), "Graph.of: graph must be"),
        (lambda: Graph.of([(0, 1, 2)]), "each edge must be a pair"),
        (lambda: Graph.ring(2), "Graph.ring: agents must be an integer >= 3, got 2"),
        (lambda: Graph.random(20, probability=1.5, rng=rng()), "probability must be in"),
        (lambda: Graph.random(30, probability=0.001, rng=rng()), "the draw must be connected"),
        (lambda: Graph.small_world(4, nearest=4, rng=rng()), "nearest must be < agents"),
        (lambda: Graph((0, 1), ((1,), (0, 5))), "each neighbor must be an agent"),
        (lambda: Graph((0, 1), ((1, 1), (0,))), "neighbors must be named once each"),
        (lambda: Graph.random(5, rng=None), "Graph.random: rng must be a numpy.random.Generator, got None"),
        (lambda: Graph.random(5, probability=None, rng=rng()), "Graph.random: probability"),
        (lambda: Graph.geometric(5, rng=rng()), "radius or degree must be given"),
        (lambda: Graph.geometric(5, degree=5, rng=rng()), "degree must be at most agents - 1 = 4"),
        (lambda: Graph.of([([1], 2)]), "agents must have names that can be hashed"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        make()


@pytest.mark.parametrize("seed", range(5))
def test_geometric_graphs_are_those_of_all_pairs_of_distances(seed):
    graph, again, found = Graph.geometric(40, radius=0.3, rng=rng(seed)), rng(seed), nx.empty_graph(2)
    while not nx.is_connected(found):  # then it is drawn again
        places = again.random((40, 2))
        near = ((places[:, None] - places) ** 2).sum(axis=2) <= 0.3**2
        np.fill_diagonal(near, False)
        found = nx.from_numpy_array(near)
    assert graph.neighbors == tuple(tuple(sorted(found[i])) for i in range(40))


@pytest.mark.parametrize("agents", [1, 2, 30, 2000])
def test_geometric_graphs_have_the_degree_asked_for_and_are_connected(agents):
    degree = min(6, agents - 1) or 1
    graph = Graph.geometric(agents, degree=degree, rng=np.random.default_rng(0))
    assert len(graph) == agents  # and connected, which Graph checks
    mean = 2 * len(graph.edges) / agents
    assert mean == (0 if agents == 1 else pytest.approx(degree, rel=0.04))


def test_the_stiffness_of_large_graphs_is_that_of_the_full_matrix():
    graph = Graph.geometric(600, degree=6, rng=np.random.default_rng(0))
    laplacian = np.diag([float(len(near)) for near in graph.neighbors])
    for i, j in graph.edges:
        laplacian[i, j] = laplacian[j, i] = -1.0
    assert graph.stiffness == pytest.approx(np.linalg.eigvalsh(laplacian)[-1], rel=1e-9)
