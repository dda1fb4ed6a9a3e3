"""Orders in which agents are visited: all of them once, and neighbors close together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh import Graph
from kernelmesh.runtimes.walks import breadth_first, neighbors_together


def slow_breadth_first(graph, members):
    """Literally: of all agents that were not visited, next come the neighbors of the one visited first."""
    walk = []
    for start in members:
        if start in walk:
            continue
        walk.append(start)
        front = [start]
        while front:
            front = [j for j in dict.fromkeys(j for i in front for j in graph.neighbors[i]) if j in members and j not in walk]
            walk += front
    return walk


@given(st.integers(1, 80), st.integers(0, 5), st.randoms(use_true_random=False))
def test_every_agent_is_visited_once(agents, seed, random):
    graph = (
        Graph.geometric(agents, degree=min(3, agents - 1) or 1, rng=np.random.default_rng(seed))
        if agents > 1
        else Graph.line(1)
    )
    members = random.sample(range(agents), random.randint(1, agents))
    assert breadth_first(graph, members) == slow_breadth_first(graph, members)
    assert sorted(neighbors_together(graph, members)) == sorted(members)


def test_neighbors_follow_each_other_more_closely_than_in_breadth_first_order():
    graph = Graph.geometric(3000, degree=6, rng=np.random.default_rng(0))

    def typical_distance(walk):
        at = {i: n for n, i in enumerate(walk)}
        return np.median([abs(at[i] - at[j]) for i, j in graph.edges])

    everyone = range(len(graph))
    assert typical_distance(neighbors_together(graph, everyone)) < 0.3 * typical_distance(breadth_first(graph, everyone))


def test_a_long_line_is_ordered_along_its_length():
    walk = neighbors_together(Graph.line(5000), range(5000))
    gaps = np.abs(np.diff(walk))
    assert (gaps == 1).mean() > 0.9
