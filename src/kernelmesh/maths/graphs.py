"""Who talks to whom: connected, symmetric graphs without loops, checked once and then immutable."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np

from kernelmesh.checks import Floats, Told, generator, non_negative, positive, refuse, whole

__all__ = ["Graph"]

_MOST_DRAWS = 10_000


@dataclass(frozen=True)
class Graph:
    """A connected, symmetric network of agents; agent i is called names[i] and hears neighbours[i].

    >>> Graph.ring(4).neighbours
    ((1, 3), (0, 2), (1, 3), (0, 2))
    """

    names: tuple[Hashable, ...]
    neighbours: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise refuse("Graph", "the network", "have at least one agent", Told("none"))
        if len(self.names) != len(self.neighbours):
            raise refuse("Graph", "neighbours", f"have one entry for each of {len(self.names)} agents", self.neighbours)
        if len(set(self.names)) != len(self.names):
            raise refuse("Graph", "names", "differ from each other", self.names)
        sets = [set(around) for around in self.neighbours]
        for i, around in enumerate(self.neighbours):
            if len(sets[i]) != len(around):
                raise refuse("Graph", "neighbours", "be named once each", around)
            for j in around:
                if not 0 <= j < len(self.names):
                    raise refuse("Graph", "each neighbour", f"be an agent 0..{len(self.names) - 1}", j)
                if i == j:
                    raise refuse("Graph", "edges", "join two different agents", (self.names[i], self.names[i]))
                if i not in sets[j]:
                    edge = (self.names[i], self.names[j])
                    raise refuse("Graph", "edges", "be symmetric", Told(f"{edge} without its reverse"))
        reached, fresh = {0}, {0}
        while fresh:
            fresh = {j for i in fresh for j in self.neighbours[i]} - reached
            reached |= fresh
        if len(reached) < len(self.names):
            lonely = next(i for i in range(len(self.names)) if i not in reached)
            raise refuse(
                "Graph",
                "the network",
                "be connected",
                f"no path from {self.names[0]!r} to {self.names[lonely]!r}",
                remedy="add an edge between the parts",
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Each pair of neighbours once, (i, j) with i < j."""
        return tuple((i, j) for i, around in enumerate(self.neighbours) for j in around if i < j)

    def degree(self, agent: int) -> int:
        """How many neighbours an agent has."""
        return len(self.neighbours[agent])

    def metropolis(self) -> Floats:
        """A symmetric, doubly stochastic matrix over the edges: a_ij = 1 / (1 + max(deg i, deg j)), the rest on the diagonal.

        >>> Graph.star(3).metropolis().sum(axis=0)
        array([1., 1., 1.])
        """
        weights = np.zeros((len(self), len(self)))
        for i, j in self.edges:
            weights[i, j] = weights[j, i] = 1.0 / (1 + max(self.degree(i), self.degree(j)))
        np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
        return weights

    @cached_property
    def stiffness(self) -> float:
        """The largest eigenvalue of the graph's Laplacian: how much faster than one pair the network can be driven apart.

        At least 1 + the largest degree, at most twice the largest degree (reached where two groups only talk to each other).

        >>> round(Graph.ring(4).stiffness, 6), round(Graph.complete(4).stiffness, 6)
        (4.0, 4.0)
        """
        if len(self) == 1:
            return 0.0
        laplacian = np.zeros((len(self), len(self)))
        for i, j in self.edges:
            laplacian[i, j] = laplacian[j, i] = -1.0
        np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
        return float(np.linalg.eigvalsh(laplacian)[-1])

    @classmethod
    def of(cls, graph: Any) -> Graph:
        """Take a `Graph`, any networkx graph (directed ones must be symmetric), or a list of edges (either direction)."""
        if isinstance(graph, cls):
            return graph
        if not isinstance(graph, nx.Graph):
            graph = _from_edges(graph)
        names = tuple(graph.nodes)
        index = {name: i for i, name in enumerate(names)}
        return cls(names, tuple(tuple(sorted(index[other] for other in graph.adj[name])) for name in names))

    @classmethod
    def ring(cls, agents: int) -> Graph:
        """Each agent talks to the two beside it."""
        return cls.of(nx.cycle_graph(whole("Graph.ring", "agents", agents, least=3)))

    @classmethod
    def line(cls, agents: int) -> Graph:
        """A chain: the sparsest connected network. One agent alone is a line of length 1."""
        return cls.of(nx.path_graph(whole("Graph.line", "agents", agents, least=1)))

    @classmethod
    def grid(cls, rows: int, columns: int) -> Graph:
        """Agents on a rectangle talk to those above, below, left and right; named (row, column)."""
        rows, columns = whole("Graph.grid", "rows", rows, least=1), whole("Graph.grid", "columns", columns, least=1)
        return cls.of(nx.grid_2d_graph(rows, columns))

    @classmethod
    def star(cls, agents: int) -> Graph:
        """Agent 0 talks to everybody, the others only to it."""
        return cls.of(nx.star_graph(whole("Graph.star", "agents", agents, least=2) - 1))

    @classmethod
    def complete(cls, agents: int) -> Graph:
        """Everybody talks to everybody."""
        return cls.of(nx.complete_graph(whole("Graph.complete", "agents", agents, least=1)))

    @classmethod
    def random(cls, agents: int, *, probability: float = 0.2, rng: np.random.Generator) -> Graph:
        """The paper's network: directed edges with a probability, redrawn until connected, then made symmetric."""
        n = whole("Graph.random", "agents", agents, least=1)
        p = _probability("Graph.random", "probability", probability)
        generator("Graph.random", rng)
        return _draw("Graph.random", lambda: _symmetrised(rng.random((n, n)) < p), f"probability {p}")

    @classmethod
    def geometric(cls, agents: int, *, radius: float, rng: np.random.Generator) -> Graph:
        """Agents at random places of the unit square talk to those within the radius; redrawn until connected."""
        n = whole("Graph.geometric", "agents", agents, least=1)
        reach = positive("Graph.geometric", "radius", radius)
        generator("Graph.geometric", rng)

        def draw() -> nx.Graph:
            places = rng.random((n, 2))
            near = ((places[:, None] - places) ** 2).sum(axis=2) <= reach**2
            return _symmetrised(near)

        return _draw("Graph.geometric", draw, f"radius {reach}")

    @classmethod
    def small_world(cls, agents: int, *, nearest: int = 4, rewiring: float = 0.1, rng: np.random.Generator) -> Graph:
        """A ring in which each agent talks to its `nearest` nearest ones, with some edges rewired (Watts and Strogatz)."""
        n = whole("Graph.small_world", "agents", agents, least=3)
        k = whole("Graph.small_world", "nearest", nearest, least=2)
        if k >= n:
            raise refuse("Graph.small_world", "nearest", f"be < agents = {n}", k)
        p = _probability("Graph.small_world", "rewiring", rewiring, zero=True)
        generator("Graph.small_world", rng)
        return _draw(
            "Graph.small_world",
            lambda: nx.watts_strogatz_graph(n, k, p, seed=int(rng.integers(2**31))),
            f"nearest {k} and rewiring {p}",
        )


def _probability(owner: str, argument: str, value: float, *, zero: bool = False) -> float:
    number = non_negative(owner, argument, value)
    if not (number >= 0.0 if zero else number > 0.0) or not number <= 1.0:
        raise refuse(owner, argument, f"be in {'[0' if zero else '(0'}, 1]", value)
    return number


def _symmetrised(adjacency: Any) -> nx.Graph:
    both = adjacency | adjacency.T
    np.fill_diagonal(both, False)
    return nx.from_numpy_array(both)


def _draw(owner: str, draw: Any, what: str) -> Graph:
    for _ in range(_MOST_DRAWS):
        graph = draw()
        if nx.is_connected(graph):
            return Graph.of(graph)
    raise refuse(owner, "the draw", f"be connected within {_MOST_DRAWS} tries", what, remedy="make edges more likely")


def _from_edges(edges: Iterable[Any]) -> nx.Graph:
    if isinstance(edges, str) or not isinstance(edges, Iterable):
        raise refuse("Graph.of", "graph", "be a Graph, a networkx graph or a list of pairs", edges)
    graph = nx.Graph()
    for edge in edges:
        pair = tuple(edge) if isinstance(edge, Iterable) else ()
        if len(pair) != 2:
            raise refuse("Graph.of", "each edge", "be a pair of agents", edge)
        try:
            graph.add_edge(*pair)
        except TypeError:
            raise refuse("Graph.of", "agents", "have names that can be hashed", edge) from None
    # agents that are numbers stand in their own order, whatever order the edges were written in
    ordered = nx.Graph()
    ordered.add_nodes_from(sorted(graph) if all(isinstance(name, int) for name in graph) else graph)
    ordered.add_edges_from(graph.edges)
    return ordered
