"""What a network does to its agents in simulation: edges that come and go, messages that are lost, agents that are away."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kernelmesh.checks import generator, integer, non_negative
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics.graphs import Graph, metropolis_weight, share

__all__ = ["Faults", "Tie"]


class Tie(NamedTuple):
    """An agent's view of one edge in one round."""

    number: int
    """The neighbor's number in the graph."""
    name: Hashable
    weight: float
    """The Metropolis weight of the edge, over the edges that are there in this round."""
    is_first: bool
    """Whether we, not the neighbor, stand first in the graph."""
    share: float
    """The most weight that we can give an edge in this round."""
    other_share: float
    """The same for the neighbor."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Faults to simulate; the default is a network without any.

    Parameters
    ----------
    edges : sequence of edge lists or callable, optional
        Who is connected in each round: edge lists that are taken in turn and then from the start again, or a function of the
        round's number (from 1). An edge list holds pairs of names and need not connect everybody.
    drop : float
        The probability that a message is lost; if it is not 0, `rng` must be given.
    absent : mapping of Hashable to sequence of (int, int)
        The rounds (first, last) in which an agent is away: it neither learns nor speaks, and its stream waits for it.
    rng : numpy.random.Generator, optional
        What decides which messages are lost.

    Examples
    --------
    >>> Faults(edges=[[(0, 1)], [(1, 2)]], absent={2: [(10, 20)]}).away(2, 15)
    True
    """

    edges: Sequence[Iterable[Any]] | Callable[[int], Iterable[Any]] | None = None
    drop: float = 0.0
    absent: Mapping[Hashable, Sequence[tuple[int, int]]] = field(default_factory=dict)
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        if non_negative("Faults", "drop", self.drop) >= 1.0:
            raise InvalidArgument("Faults", "drop", "be a probability >= 0 and < 1", self.drop)
        if self.drop > 0:
            generator("Faults", self.rng)
        if self.edges is not None and not callable(self.edges):
            object.__setattr__(self, "edges", self._lists(self.edges))
        if not isinstance(self.absent, Mapping):
            raise InvalidArgument(
                "Faults", "absent", "be a mapping from agents to lists of (first, last) rounds", self.absent
            )
        for agent, spans in self.absent.items():
            rule = "be a list of pairs (first round, last round), counted from 1"
            if not isinstance(spans, Sequence) or not all(isinstance(s, Sequence) and len(s) == 2 for s in spans):
                raise InvalidArgument("Faults", f"absent[{agent!r}]", rule, spans)
            for first, last in spans:
                integer("Faults", f"absent[{agent!r}]", first, minimum=1)
                if integer("Faults", f"absent[{agent!r}]", last, minimum=1) < first:
                    raise InvalidArgument("Faults", f"absent[{agent!r}]", rule, (first, last))

    @staticmethod
    def _lists(edges: Any) -> tuple[tuple[Any, ...], ...]:
        """Edge lists that can be gone through more than once."""
        if not isinstance(edges, Sequence) or not edges or not all(isinstance(listed, Iterable) for listed in edges):
            rule = "be a list of at least one edge list (one for each round), or a function of the round's number"
            raise InvalidArgument("Faults", "edges", rule, edges)
        return tuple(tuple(listed) for listed in edges)

    def check(self, graph: Graph) -> None:
        """Refuse agents that the network does not have."""
        for agent in self.absent:
            if agent not in graph.names:
                raise InvalidArgument("Faults", "absent", f"name agents among {graph.names[:5]}…", agent)

    def away(self, name: Hashable, number: int) -> bool:
        """Whether an agent is absent in a round."""
        return any(first <= number <= last for first, last in self.absent.get(name, ()))

    def lost(self) -> bool:
        """Whether the next message is lost."""
        return self.drop > 0 and self.rng is not None and bool(self.rng.random() < self.drop)

    def ties(self, graph: Graph, number: int) -> list[list[Tie]]:
        """Who hears whom in a round, with Metropolis weights over the edges that are there."""
        here = [not self.away(name, number) for name in graph.names]
        around: list[set[int]] = [set() for _ in graph.names]
        for i, j in self._pairs(graph, number):
            if here[i] and here[j]:
                around[i].add(j)
                around[j].add(i)
        shares = [share(len(near)) for near in around]
        return [
            [
                Tie(j, graph.names[j], metropolis_weight(shares[i], shares[j]), i < j, shares[i], shares[j])
                for j in sorted(near)
            ]
            for i, near in enumerate(around)
        ]

    def _pairs(self, graph: Graph, number: int) -> Iterable[tuple[int, int]]:
        if self.edges is None:
            return graph.edges
        listed = self.edges(number) if callable(self.edges) else self.edges[(number - 1) % len(self.edges)]
        if not isinstance(listed, Iterable):
            raise InvalidArgument("Faults", "edges", f"give a list of edges (round {number})", listed)
        index = {name: i for i, name in enumerate(graph.names)}
        pairs = []
        for edge in listed:
            pair = tuple(edge) if isinstance(edge, Iterable) and not isinstance(edge, str) else ()
            known = len(pair) == 2 and all(isinstance(end, Hashable) and end in index for end in pair)
            if not known or pair[0] == pair[1]:
                rule = f"be two different agents of the network (round {number})"
                raise InvalidArgument("Faults", "each edge", rule, Verbatim(repr(edge)))
            pairs.append((index[pair[0]], index[pair[1]]))
        return pairs
