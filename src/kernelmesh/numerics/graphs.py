"""Communication graphs: connected, symmetric and without loops; validated once and immutable."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernelmesh.checks import Floats, Ints, generator, integer, non_negative, positive
from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.registry import register

__all__ = ["Graph", "metropolis_weight", "share"]

Neighbors = tuple[tuple[int, ...], ...]


def share(degree: int) -> float:
    """The maximum weight that an agent of this degree can give each neighbor: 1 / (1 + degree)."""
    return 1.0 / (1 + degree)


def metropolis_weight(share: float, other_share: float) -> float:
    """The weight of an edge from the shares of its ends, a_ij = 1 / (1 + max(deg i, deg j)): the same seen from both.

    >>> metropolis_weight(1 / 3, 1 / 5)
    0.2
    """
    return min(share, other_share)


@register("graph")
@dataclass(frozen=True)
class Graph:
    """A connected, undirected graph of agents; agent i has the name names[i] and the neighbors neighbors[i].

    `Graph.of` accepts lists of edges and networkx graphs; `ring`, `line`, `grid`, `star` and `complete` build regular
    graphs, `random`, `geometric` and `small_world` draw random ones.

    Parameters
    ----------
    names : tuple of Hashable
        The names of the agents.
    neighbors : tuple of tuple of int
        The indices of each agent's neighbors.

    Attributes
    ----------
    edges : tuple of (int, int)
        Each pair of neighbors once, (i, j) with i < j.
    stiffness : float
        The largest eigenvalue of the graph's Laplacian.

    Examples
    --------
    >>> Graph.ring(4).neighbors
    ((1, 3), (0, 2), (1, 3), (0, 2))
    >>> Graph.of([("north", "south"), ("south", "west")]).names
    ('north', 'south', 'west')
    """

    names: tuple[Hashable, ...]
    neighbors: Neighbors

    def __post_init__(self) -> None:
        if not self.names:
            raise InvalidArgument("Graph", "the network", "have at least one agent", Verbatim("none"))
        if len(self.names) != len(self.neighbors):
            raise InvalidArgument(
                "Graph", "neighbors", f"have one entry for each of {len(self.names)} agents", self.neighbors
            )
        if len(set(self.names)) != len(self.names):
            raise InvalidArgument("Graph", "names", "differ from each other", self.names)
        sets = [set(around) for around in self.neighbors]
        for i, around in enumerate(self.neighbors):
            if len(sets[i]) != len(around):
                raise InvalidArgument("Graph", "neighbors", "be named once each", around)
            for j in around:
                if not 0 <= j < len(self.names):
                    raise InvalidArgument("Graph", "each neighbor", f"be an agent 0..{len(self.names) - 1}", j)
                if i == j:
                    raise InvalidArgument("Graph", "edges", "join two different agents", (self.names[i], self.names[i]))
                if i not in sets[j]:
                    edge = (self.names[i], self.names[j])
                    raise InvalidArgument("Graph", "edges", "be symmetric", Verbatim(f"{edge} without its reverse"))
        reached = _reached(self.neighbors)
        if len(reached) < len(self.names):
            lonely = next(i for i in range(len(self.names)) if i not in reached)
            raise InvalidArgument(
                "Graph",
                "the network",
                "be connected",
                Verbatim(f"no path from {self.names[0]!r} to {self.names[lonely]!r}"),
                remedy="add an edge between the parts",
            )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Each pair of neighbors once, (i, j) with i < j."""
        return tuple((i, j) for i, around in enumerate(self.neighbors) for j in around if i < j)

    def degree(self, agent: int) -> int:
        """The number of neighbors of an agent."""
        return len(self.neighbors[agent])

    def metropolis(self) -> Floats:
        """A symmetric, doubly stochastic matrix over the edges: a_ij = 1 / (1 + max(deg i, deg j)), the rest on the diagonal.

        >>> Graph.star(3).metropolis().sum(axis=0)
        array([1., 1., 1.])
        """
        weights = np.zeros((len(self), len(self)))
        for i, j in self.edges:
            weights[i, j] = weights[j, i] = metropolis_weight(share(self.degree(i)), share(self.degree(j)))
        np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
        return weights

    @cached_property
    def stiffness(self) -> float:
        """The largest eigenvalue of the graph's Laplacian, which determines the largest stable penalty.

        It is at least 1 + the largest degree, and at most twice the largest degree (reached by bipartite regular graphs).

        >>> round(Graph.ring(4).stiffness, 6), round(Graph.complete(4).stiffness, 6)
        (4.0, 4.0)
        """
        if len(self) == 1:
            return 0.0
        if len(self) > 500:  # a full matrix would take long
            return self._sparse_stiffness()
        laplacian = np.zeros((len(self), len(self)))
        for i, j in self.edges:
            laplacian[i, j] = laplacian[j, i] = -1.0
        np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
        return float(np.linalg.eigvalsh(laplacian)[-1])

    def _sparse_stiffness(self) -> float:
        """The same by Lanczos iterations, in time and memory that grow with the edges."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import laplacian
        from scipy.sparse.linalg import eigsh

        i, j = np.array(self.edges).T
        ends = np.concatenate([i, j]), np.concatenate([j, i])
        matrix = laplacian(csr_array((np.ones(len(ends[0])), ends), shape=(len(self), len(self))))
        start = np.random.default_rng(0).standard_normal(len(self))
        return float(eigsh(matrix, k=1, which="LA", v0=start, return_eigenvectors=False)[0])

    @classmethod
    def of(cls, graph: Any) -> Graph:
        """Create a graph from a `Graph`, a networkx graph (symmetric if directed), or a list of edges (in either direction).

        Parameters
        ----------
        graph : Graph, networkx graph or iterable of pairs
            The graph. Names that are numbers are sorted; others stay in order of first occurrence.

        Returns
        -------
        Graph
            The same graph.
        """
        if isinstance(graph, cls):
            return graph
        adjacency = graph.adj if hasattr(graph, "adj") and hasattr(graph, "nodes") else _from_edges(graph)
        index = {name: i for i, name in enumerate(adjacency)}
        return cls(tuple(index), tuple(tuple(sorted(index[other] for other in adjacency[name])) for name in index))

    @classmethod
    def ring(cls, agents: int) -> Graph:
        """A ring: each agent is connected to the two next to it."""
        n = integer("Graph.ring", "agents", agents, minimum=3)
        return cls(tuple(range(n)), tuple(tuple(sorted(((i - 1) % n, (i + 1) % n))) for i in range(n)))

    @classmethod
    def line(cls, agents: int) -> Graph:
        """A path; a single agent is a line of length 1."""
        n = integer("Graph.line", "agents", agents, minimum=1)
        return cls(tuple(range(n)), tuple(tuple(j for j in (i - 1, i + 1) if 0 <= j < n) for i in range(n)))

    @classmethod
    def grid(cls, rows: int, columns: int) -> Graph:
        """A rectangular grid: agents, named (row, column), are connected to those above, below, left and right."""
        height = integer("Graph.grid", "rows", rows, minimum=1)
        width = integer("Graph.grid", "columns", columns, minimum=1)
        names = tuple((i, j) for i in range(height) for j in range(width))
        near = (((i - 1, j), (i, j - 1), (i, j + 1), (i + 1, j)) for i, j in names)
        inside = (((i, j) for i, j in around if 0 <= i < height and 0 <= j < width) for around in near)
        return cls(names, tuple(tuple(i * width + j for i, j in around) for around in inside))

    @classmethod
    def star(cls, agents: int) -> Graph:
        """A star: agent 0 is connected to all others, which are connected only to it."""
        n = integer("Graph.star", "agents", agents, minimum=2)
        return cls(tuple(range(n)), (tuple(range(1, n)), *[(0,)] * (n - 1)))

    @classmethod
    def complete(cls, agents: int) -> Graph:
        """A complete graph: all agents are connected to each other."""
        n = integer("Graph.complete", "agents", agents, minimum=1)
        return cls(tuple(range(n)), tuple(tuple(j for j in range(n) if j != i) for i in range(n)))

    @classmethod
    def random(cls, agents: int, *, probability: float = 0.2, rng: np.random.Generator) -> Graph:
        """The paper's random graph: directed edges with a given probability, redrawn until connected, then made symmetric.

        Parameters
        ----------
        agents : int
            The number of agents.
        probability : float
            The probability of each directed edge.
        rng : numpy.random.Generator
            The random generator.

        Returns
        -------
        Graph
            The graph, whose agents are named 0, 1, ….
        """
        n = integer("Graph.random", "agents", agents, minimum=1)
        p = _probability("Graph.random", "probability", probability)
        generator("Graph.random", rng)
        return _draw("Graph.random", lambda: _symmetrized(rng.random((n, n)) < p), f"probability {p}")

    @classmethod
    def geometric(
        cls, agents: int, *, radius: float | None = None, degree: float | None = None, rng: np.random.Generator
    ) -> Graph:
        """A random geometric graph: agents at random places in the unit square are connected to those nearby.

        Parameters
        ----------
        agents : int
            The number of agents.
        radius : float, optional
            The maximum distance of neighbors; the places are redrawn until the graph is connected.
        degree : float, optional
            The mean degree, instead of a radius: the shortest edges are taken. Large graphs would
            rarely be connected, so each component is joined to another by the shortest edge, which adds a few edges.
        rng : numpy.random.Generator
            The random generator.

        Returns
        -------
        Graph
            The graph, whose agents are named 0, 1, ….
        """
        n = integer("Graph.geometric", "agents", agents, minimum=1)
        if (radius is None) == (degree is None):
            raise InvalidArgument("Graph.geometric", "radius or degree", "be given, and not both", (radius, degree))
        generator("Graph.geometric", rng)
        if degree is not None:
            mean = positive("Graph.geometric", "degree", degree)
            if n > 1 and mean > n - 1:
                raise InvalidArgument("Graph.geometric", "degree", f"be at most agents - 1 = {n - 1}", degree)
            return cls(tuple(range(n)), _joined(rng.random((n, 2)), round(n * mean / 2)))
        reach = positive("Graph.geometric", "radius", radius)
        return _draw("Graph.geometric", lambda: _near(rng.random((n, 2)), reach), f"radius {reach}")

    @classmethod
    def small_world(cls, agents: int, *, nearest: int = 4, rewiring: float = 0.1, rng: np.random.Generator) -> Graph:
        """A small-world graph (Watts and Strogatz): a ring with `nearest` neighbors each and some edges rewired."""
        n = integer("Graph.small_world", "agents", agents, minimum=3)
        k = integer("Graph.small_world", "nearest", nearest, minimum=2)
        if k >= n:
            raise InvalidArgument("Graph.small_world", "nearest", f"be < agents = {n}", k)
        p = _probability("Graph.small_world", "rewiring", rewiring, zero=True)
        generator("Graph.small_world", rng)
        try:
            from networkx import watts_strogatz_graph
        except ModuleNotFoundError as error:
            raise MissingExtra("Small-world graphs", "experiments") from error

        def draw() -> Neighbors:
            drawn = watts_strogatz_graph(n, k, p, seed=int(rng.integers(2**31)))
            return tuple(tuple(sorted(drawn.adj[i])) for i in range(n))

        return _draw("Graph.small_world", draw, f"nearest {k} and rewiring {p}")


def _reached(neighbors: Neighbors) -> set[int]:
    """The agents reachable from the first one."""
    reached, fresh = {0}, {0}
    while fresh:
        fresh = {j for i in fresh for j in neighbors[i]} - reached
        reached |= fresh
    return reached


def _pairs(places: Floats, reach: float) -> tuple[Ints, Floats]:
    """The pairs of places within reach, (i, j) with i < j in order, and their squared distances."""
    from scipy.spatial import cKDTree

    pairs = cKDTree(places).query_pairs(reach * (1 + 1e-9), output_type="ndarray").astype(np.int64)
    pairs = pairs[np.lexsort(pairs.T[::-1])]
    squares = ((places[pairs[:, 0]] - places[pairs[:, 1]]) ** 2).sum(axis=1)
    inside = squares <= reach**2
    return pairs[inside], squares[inside]


def _neighbors(agents: int, pairs: Iterable[Iterable[int]]) -> Neighbors:
    around: list[list[int]] = [[] for _ in range(agents)]
    for i, j in pairs:
        around[i].append(j)
        around[j].append(i)
    return tuple(tuple(sorted(near)) for near in around)


def _near(places: Floats, reach: float) -> Neighbors:
    return _neighbors(len(places), _pairs(places, reach)[0].tolist())


def _joined(places: Floats, edges: int) -> Neighbors:
    """So many of the shortest edges, and those that join the pieces."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, reach = len(places), 1.1 * np.sqrt(2.0 * max(edges, 1) / (np.pi * len(places) ** 2))
    pairs, squares = _pairs(places, reach)
    while len(pairs) < edges:
        reach *= 1.5
        pairs, squares = _pairs(places, reach)
    found = pairs[np.sort(np.argsort(squares, kind="stable")[:edges])]
    while True:
        sparse = coo_array((np.ones(len(found)), found.T.reshape(2, -1)), shape=(n, n))
        pieces, piece = connected_components(sparse, directed=False)
        if pieces == 1:
            return _neighbors(n, found.tolist())
        largest = np.bincount(piece).argmax()
        links = {_shortest(places, piece == number) for number in range(pieces) if number != largest}
        found = np.concatenate([found, np.array(sorted(links), dtype=np.int64)])


def _shortest(places: Floats, inside: Any) -> tuple[int, int]:
    """The shortest edge between a piece and the rest."""
    here, there = np.flatnonzero(inside), np.flatnonzero(~inside)
    squares = ((places[here][:, None] - places[there]) ** 2).sum(axis=2)
    i, j = np.unravel_index(squares.argmin(), squares.shape)
    first, second = sorted((int(here[i]), int(there[j])))
    return first, second


def _probability(owner: str, argument: str, value: float, *, zero: bool = False) -> float:
    number = non_negative(owner, argument, value)
    if not (number >= 0.0 if zero else number > 0.0) or not number <= 1.0:
        raise InvalidArgument(owner, argument, f"be in {'[0' if zero else '(0'}, 1]", value)
    return number


def _symmetrized(adjacency: Any) -> Neighbors:
    both = adjacency | adjacency.T
    np.fill_diagonal(both, False)
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in both)


def _draw(owner: str, draw: Callable[[], Neighbors], what: str, *, tries: int = 10_000) -> Graph:
    for _ in range(tries):
        neighbors = draw()
        if len(_reached(neighbors)) == len(neighbors):
            return Graph(tuple(range(len(neighbors))), neighbors)
    raise InvalidArgument(owner, "the draw", f"be connected within {tries} tries", what, remedy="make edges more likely")


def _from_edges(edges: Iterable[Any]) -> dict[Hashable, set[Hashable]]:
    """Who is next to whom."""
    if isinstance(edges, str) or not isinstance(edges, Iterable):
        raise InvalidArgument("Graph.of", "graph", "be a Graph, a networkx graph or a list of pairs", edges)
    around: dict[Any, set[Hashable]] = {}
    for edge in edges:
        pair = tuple(edge) if isinstance(edge, Iterable) else ()
        if len(pair) != 2:
            raise InvalidArgument("Graph.of", "each edge", "be a pair of agents", edge)
        try:
            for name, other in (pair, pair[::-1]):
                around.setdefault(name, set()).add(other)
        except TypeError:
            raise InvalidArgument("Graph.of", "agents", "have names that can be hashed", edge) from None
    # names that are numbers are sorted, whatever the order of the edges
    return dict(sorted(around.items())) if all(isinstance(name, int) for name in around) else around
