"""What a network does to its agents in simulation: edges that come and go, messages that are lost, agents that are away."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelmesh.checks import Told, generator, non_negative, refuse, whole
from kernelmesh.maths.graphs import Graph

__all__ = ["Conditions", "Tie"]

Tie = tuple[int, float, Hashable, bool, float]
"""An agent's view of one edge in one round: neighbour, weight, its name, whether we stand first, our share."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Faults to simulate; the default is a network without any.

    `edges` says who is connected in each round: a list of edge lists, taken in turn and then from the start again, or a
    function of the round's number (from 1). An edge list holds pairs of names and need not connect everybody. `loss` is the
    probability that a message is lost; then `rng` must be given. `absent` names the rounds (first, last) in which an agent is
    away: it neither learns nor speaks, and its stream waits for it.

    >>> Conditions(edges=[[(0, 1)], [(1, 2)]], absent={2: [(10, 20)]}).away(2, 15)
    True
    """

    edges: Sequence[Iterable[Any]] | Callable[[int], Iterable[Any]] | None = None
    loss: float = 0.0
    absent: Mapping[Hashable, Sequence[tuple[int, int]]] = field(default_factory=dict)
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        if non_negative("Conditions", "loss", self.loss) >= 1.0:
            raise refuse("Conditions", "loss", "be a probability >= 0 and < 1", self.loss)
        if self.loss > 0:
            generator("Conditions", self.rng)
        if self.edges is not None and not callable(self.edges) and not len(self.edges):
            raise refuse("Conditions", "edges", "have at least one edge list", self.edges)
        for agent, spans in self.absent.items():
            for span in spans:
                pair = tuple(span)
                if len(pair) != 2 or whole("Conditions", f"absent[{agent!r}]", pair[0], least=1) > whole(
                    "Conditions", f"absent[{agent!r}]", pair[1], least=1
                ):
                    raise refuse("Conditions", f"absent[{agent!r}]", "be pairs (first round, last round)", span)

    def check(self, graph: Graph) -> None:
        """Refuse agents that the network does not have."""
        for agent in self.absent:
            if agent not in graph.names:
                raise refuse("Conditions", "absent", f"name agents among {graph.names[:5]}…", agent)

    def away(self, name: Hashable, number: int) -> bool:
        """Whether an agent is absent in a round."""
        return any(first <= number <= last for first, last in self.absent.get(name, ()))

    def lost(self) -> bool:
        """Whether the next message is lost."""
        return self.loss > 0 and self.rng is not None and bool(self.rng.random() < self.loss)

    def ties(self, graph: Graph, number: int) -> list[list[Tie]]:
        """Who hears whom in a round, with Metropolis weights over the edges that are there."""
        here = [not self.away(name, number) for name in graph.names]
        around: list[set[int]] = [set() for _ in graph.names]
        for i, j in self._pairs(graph, number):
            if here[i] and here[j]:
                around[i].add(j)
                around[j].add(i)
        shares = [1.0 / (1 + len(near)) for near in around]
        return [
            [(j, min(shares[i], shares[j]), graph.names[j], i < j, shares[i]) for j in sorted(near)]
            for i, near in enumerate(around)
        ]

    def _pairs(self, graph: Graph, number: int) -> Iterable[tuple[int, int]]:
        if self.edges is None:
            return graph.edges
        listed = self.edges(number) if callable(self.edges) else self.edges[(number - 1) % len(self.edges)]
        index = {name: i for i, name in enumerate(graph.names)}
        pairs = []
        for edge in listed:
            pair = tuple(edge) if isinstance(edge, Iterable) and not isinstance(edge, str) else ()
            if len(pair) != 2 or pair[0] not in index or pair[1] not in index or pair[0] == pair[1]:
                rule = f"be two different agents of the network (round {number})"
                raise refuse("Conditions", "each edge", rule, Told(repr(edge)))
            pairs.append((index[pair[0]], index[pair[1]]))
        return pairs
