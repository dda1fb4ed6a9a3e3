"""Partitions a graph into parts of equal size with few edges between them."""

from collections.abc import Sequence

from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.numerics.graphs import Graph

__all__ = ["breadth_first", "crossing", "partition"]


def partition(graph: Graph, parts: int) -> tuple[int, ...]:
    """The part of each agent, from 0: recursive bisection by Kernighan and Lin's method from a breadth-first order.

    >>> partition(Graph.line(6), 2)
    (0, 0, 0, 1, 1, 1)
    """
    if parts > len(graph):
        found = Verbatim(f"{parts} workers for {len(graph)} agents")
        remedy = f"set --workers, or `parts` in Python, to {len(graph)} or less"
        raise InvalidArgument("engine", "workers", "be at most the number of agents", found, remedy=remedy)
    out = [0] * len(graph)
    _split(graph, list(range(len(graph))), parts, 0, out)
    order = {part: n for n, part in enumerate(dict.fromkeys(out))}  # numbered by first occurrence
    return tuple(order[part] for part in out)


def _split(graph: Graph, members: list[int], parts: int, first: int, out: list[int]) -> None:
    if parts == 1:
        for i in members:
            out[i] = first
        return
    left = parts // 2
    here, there = _cut(graph, members, len(members) * left // parts)
    _split(graph, here, left, first, out)
    _split(graph, there, parts - left, first + left, out)


def _cut(graph: Graph, members: list[int], size: int) -> tuple[list[int], list[int]]:
    """Split the members into `size` of them and the rest, with few edges in between."""
    try:
        from networkx import Graph as Network
        from networkx.algorithms.community import kernighan_lin_bisection
    except ModuleNotFoundError as error:
        raise MissingExtra("Networks that are spread over processes", "ray") from error
    inside = set(members)
    network = Network()
    network.add_nodes_from(members)
    network.add_edges_from((i, j) for i in members for j in graph.neighbors[i] if i < j and j in inside)
    order = breadth_first(graph, breadth_first(graph, members)[::-1])  # from the far end, so that the front is short
    halves = set(order[:size]), set(order[size:])
    # a round of improvements takes about a second with 10,000 agents
    here, _ = kernighan_lin_bisection(network, halves, max_iter=8, seed=0)
    chosen = here if len(here) == size else inside - here
    return sorted(chosen), sorted(inside - chosen)


def breadth_first(graph: Graph, members: Sequence[int]) -> list[int]:
    """These agents in breadth-first order from the first one, and from the next unreached one whenever the search ends.

    >>> breadth_first(Graph.line(6), [2, 0, 1, 3, 5])
    [2, 1, 3, 0, 5]
    """
    left, walk = set(members), []
    for start in members:
        queue = [start] if start in left else []
        left.discard(start)
        for i in queue:
            walk.append(i)
            fresh = [j for j in graph.neighbors[i] if j in left]
            left.difference_update(fresh)
            queue += fresh
    return walk


def crossing(graph: Graph, parts: tuple[int, ...]) -> list[tuple[int, int]]:
    """The edges that run between two parts.

    >>> crossing(Graph.line(4), (0, 0, 1, 1))
    [(1, 2)]
    """
    return [(i, j) for i, j in graph.edges if parts[i] != parts[j]]
