"""The base of protocols with a dual function on every edge: how exchanges move an agent, and how duals act."""

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import EdgeMemories, EdgeMemory, Heard, Spaced, StepInputs
from kernelmesh.consensus.numbered import Completed, complete, offer
from kernelmesh.messages import Message
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.received import Received

__all__ = ["EdgeDuals"]


@dataclass(frozen=True, kw_only=True)
class EdgeDuals(Spaced, Protocol):
    """f_i ← Σ_j ā_ij φ_j from the neighbors' functions, then φ_i ← the result of learning from there + (1/k) Σ_j λ_ij.

    The protocol defines how a dual is updated: `renewed`.
    """

    relays: ClassVar[bool] = True

    def renewed(self, exchange: Completed, kernel: Kernel, weight: float, is_first: bool) -> Expansion:
        """λ_ij after an exchange, as seen by the end that comes first in the graph; `weight` is ā_ij."""

    @property
    def part(self) -> float:
        """ā_ij / a_ij."""
        # duals that act at once are stable with half of it only; spread over rounds they bear all of it, which is faster
        return 0.5 if self.every <= 2 else 1.0

    @property
    def patience(self) -> int:
        """The number of rounds for which an edge still counts as alive after its dual has stopped acting."""
        return 0

    def tell(
        self, function: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        return offer(function, edge, share, there)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[Update, EdgeMemories]:
        def renew(exchange: Completed, is_first: bool) -> Expansion:
            return self.renewed(exchange, function.kernel, self.part * exchange.weight, is_first)

        nothing = _no_points(function.dimension, function.outputs)
        if not heard and isinstance(edges, _Memories):
            return Update(*nothing), edges.later()
        done, after = complete(function, heard, edges, renew) if heard else ([], edges)
        after = self._acting(after, {exchange.neighbor for exchange in done})
        own, terms = 1.0, []
        for exchange in done:
            weight = self.part * exchange.weight
            terms.append((exchange.theirs.centers, weight * exchange.theirs.weights))
            if not exchange.is_late:
                own -= weight
            else:  # the two ends must add opposite things, so what counts is what was offered, not what we are now
                terms.append((exchange.ours.centers, -weight * exchange.ours.weights))
        received = Received.of(terms) if terms else None
        return Update(*nothing, own, received=received), after

    def _acting(self, after: EdgeMemories, completed: Set[Hashable]) -> EdgeMemories:
        """The edges one round on: a dual acts for k rounds from the one in which its exchange was completed."""
        most, out = self.every + self.patience, {}
        for name, edge in after.items():
            acts = most if name in completed else max(min(edge.acts, most) - 1, 0)
            out[name] = edge if acts == edge.acts else edge.with_acts(acts)
        return _Memories(out, self.patience)

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        # the duals are all that is left of the second move; the first one has been made
        return Update(*_no_points(function.dimension, function.outputs), received=self._push(edges))

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        push = inputs.slope * (-inputs.step_size / len(inputs.points))
        return Update(inputs.points, push, inputs.shrink, inputs.cross, received=self._push(edges))

    def _push(self, edges: EdgeMemories) -> Received | None:
        """(1/k) Σ_j λ_ij over the edges on which an exchange was completed less than k rounds ago.

        It stays the same until the next exchange, and depends on the duals alone: it is kept beside them and not stored.
        """
        if isinstance(edges, _Memories) and edges.push is not None:
            return edges.push
        # a dual answers to an exchange: were it to act while the neighbor is silent, nothing would hold it back
        duals = [edge.dual for edge in edges.values() if edge.dual is not None and edge.acts > self.patience]
        if not duals:
            return None
        push = Received.of([(dual.centers, dual.weights / self.every) for dual in duals])
        if self.every > 1:  # acts in several rounds, so it pays to find out once what the dictionary has of it
            push = push.put_together()
        if isinstance(edges, _Memories):
            edges.push = push
        return push


class _Memories(Mapping[Hashable, EdgeMemory]):
    """The memory of each edge some rounds without an exchange later, and the sum of the duals.

    Only `acts` changes in such a round, so it is evaluated lazily.
    """

    def __init__(self, edges: Mapping[Hashable, EdgeMemory], silent: int) -> None:
        self._edges, self._age = edges, 0
        self._now: Mapping[Hashable, EdgeMemory] | None = edges
        self._same = min((edge.acts - silent for edge in edges.values() if edge.acts > silent), default=0)
        """The number of rounds, including this one, in which the same duals act."""
        self.push: Received | None = None
        """Their sum, computed on demand."""

    def later(self) -> "_Memories":
        """One round on."""
        out = object.__new__(_Memories)
        out._edges, out._age, out._now, out._same = self._edges, self._age + 1, None, self._same
        out.push = self.push if out._age < self._same else None
        return out

    def _seen(self) -> Mapping[Hashable, EdgeMemory]:
        if self._now is None:
            aged = ((name, edge, max(edge.acts - self._age, 0)) for name, edge in self._edges.items())
            self._now = {name: edge if acts == edge.acts else edge.with_acts(acts) for name, edge, acts in aged}
        return self._now

    def __getitem__(self, name: Hashable) -> EdgeMemory:
        return self._seen()[name]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._seen())

    def __len__(self) -> int:
        return len(self._edges)


@cache
def _no_points(dimension: int, outputs: int) -> tuple[Floats, Floats]:
    return np.empty((0, dimension)), np.empty((0, outputs))
