"""Plans a round before it starts: which agents learn, who hears whom, and which messages are lost.

The plan depends only on the graph, the faults and who has samples, not on what agents have learned. So one process can plan
for agents in many processes, and random faults are the same however agents are distributed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.agent import Agent
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.faults import Faults, Lie, Tie

__all__ = ["Plan", "Planner"]

Ties = Sequence[Sequence[Tie]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The plan of one round."""

    number: int
    talks: bool
    """Whether agents exchange messages in this round."""
    learns: NDArray[np.bool_]
    """By agent: whether it has a mini-batch and is there."""
    ties: Ties | None = None
    """Who hears whom; None if as in the graph."""
    lost: frozenset[tuple[int, int]] = frozenset()
    """The queries or functions, (from, to), that are lost."""
    unanswered: frozenset[tuple[int, int]] = frozenset()
    """The replies, (from, to), that are lost."""
    bad: frozenset[int] = frozenset()
    """The agents that attack in this round or in others."""
    lies: Mapping[int, Lie] = field(default_factory=dict)
    """By agent: its attack in this round."""


class Planner:
    """Plans one round after another; all random losses are drawn here."""

    def __init__(self, agent: Agent, graph: Graph, faults: Faults | None) -> None:
        self._agent, self._graph, self._faults = agent, graph, faults
        self._marks: dict[int, Any] = {}
        self.agents = len(graph)

    def rewind(self, number: int) -> None:
        """Return to the end of a round; later rounds will then lose the same messages again."""
        if number + 1 in self._marks and self._faults is not None and self._faults.rng is not None:
            self._faults.rng.bit_generator.state = self._marks[number + 1]

    def away(self, number: int) -> frozenset[int]:
        """The agents that are absent in a round."""
        faults = self._faults
        if faults is None:
            return frozenset()
        return frozenset(i for i, name in enumerate(self._graph.names) if faults.away(name, number))

    def plan(self, number: int, learns: NDArray[np.bool_], furthest: int) -> Plan:
        """The plan of the round with this number; `furthest` is the largest number of steps of any learning agent."""
        # who has been away has taken fewer steps, and keeps to the rhythm of the others
        talks = self._agent.protocol.exchanges(furthest + 1)
        faults = self._faults
        if faults is None:
            return Plan(number=number, talks=talks, learns=learns)
        if faults.drop and faults.rng is not None:
            self._marks[number] = faults.rng.bit_generator.state
        names = dict(enumerate(self._graph.names))
        lies = {i: lie for i, name in names.items() if (lie := faults.lie(name, number)) is not None}
        bad = frozenset(i for i, name in names.items() if name in faults.byzantine)
        ties = faults.ties(self._graph, number)
        plan = Plan(number=number, talks=talks, learns=learns, ties=ties, bad=bad, lies=lies)
        if not talks or not faults.drop:
            return plan
        pairs = [(i, tie.number) for i, around in enumerate(ties) for tie in around]
        lost = frozenset(pair for pair in pairs if faults.lost())
        asked = [(i, j) for i, j in pairs if learns[i] and (i, j) not in lost] if self._agent.protocol.question else []
        unanswered = frozenset((j, i) for i, j in asked if faults.lost())
        return replace(plan, lost=lost, unanswered=unanswered)
