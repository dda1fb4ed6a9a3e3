"""Orders in which to visit the agents of a graph."""

from collections.abc import Sequence

from kernelmesh.numerics.graphs import Graph

__all__ = ["breadth_first", "neighbors_together"]

# Groups of at most this many agents are not divided any further.
_GROUP = 16


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


def neighbors_together(graph: Graph, members: Sequence[int]) -> list[int]:
    """These agents in an order in which most neighbors follow each other closely.

    They are halved, each half is halved, and so on, each time by the distance from an agent at the far end. So most neighbors
    of an agent are visited shortly before or after it, while what they share is still in the processor's caches.
    In breadth-first order, all agents at the same distance from the start come in between: hundreds among ten thousand.

    >>> neighbors_together(Graph.line(4), [0, 1, 2, 3])
    [0, 1, 2, 3]
    """
    walk = breadth_first(graph, members)
    if len(walk) <= _GROUP:
        return walk
    walk = breadth_first(graph, walk[::-1])  # from the far end, so that the cut is short
    half = len(walk) // 2
    return [*neighbors_together(graph, walk[:half]), *neighbors_together(graph, walk[half:])]
