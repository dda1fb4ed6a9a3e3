"""What protocols with a dual function on every edge share: how exchanges move an agent, and how duals act."""

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

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
    """f_i ← Σ_j ā_ij φ_j from what the neighbors sent, then φ_i ← what is learned from there + (1/k) Σ_j λ_ij.

    How a dual is renewed is left to the protocol: `renewed`.
    """

    relays: ClassVar[bool] = True

    def renewed(self, exchange: Completed, kernel: Kernel, weight: float, is_first: bool) -> Expansion:
        """λ_ij after an exchange, computed as the end that stands first in the graph sees it; `weight` is ā_ij."""

    @property
    def part(self) -> float:
        """ā_ij / a_ij."""
        # duals that act at once are stable with half of it only; spread over rounds they bear all of it, which is faster
        return 0.5 if self.every <= 2 else 1.0

    @property
    def patience(self) -> int:
        """For how many rounds after its dual has stopped acting an edge is still remembered as alive."""
        return 0

    def tell(
        self, function: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        return offer(function, edge, share, there)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[Update, EdgeMemories]:
        def renew(exchange: Completed, is_first: bool) -> Expansion:
            return self.renewed(exchange, function.kernel, self.part * exchange.weight, is_first)

        done, after = complete(function, heard, edges, renew) if heard else ([], edges)
        after = self._acting(after, {exchange.neighbor for exchange in done}, edges)
        own, terms = 1.0, []
        for exchange in done:
            weight = self.part * exchange.weight
            terms.append((exchange.theirs.centers, weight * exchange.theirs.weights))
            if not exchange.is_late:
                own -= weight
            else:  # the two ends must add opposite things, so what counts is what was offered, not what we are now
                terms.append((exchange.ours.centers, -weight * exchange.ours.weights))
        received = Received.of(terms) if terms else None
        return Update(*_nothing(function), own, received=received), after

    def _acting(self, after: EdgeMemories, completed: Set[Hashable], before: EdgeMemories) -> EdgeMemories:
        """The edges one round on: a dual acts for k rounds from the one in which its exchange was completed."""
        most, silent, out = self.every + self.patience, self.patience, _Memories()
        same = after is before and isinstance(before, _Memories)  # the same duals, if they still act
        for name, edge in after.items():
            acts = most if name in completed else max(min(edge.acts, most) - 1, 0)
            same = same and (acts > silent) == (edge.acts > silent)
            out[name] = edge if acts == edge.acts else edge.with_acts(acts)
        if same:
            out.push = cast(_Memories, before).push
        return out

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        # the duals are all that is left of the second move; the first one has been made
        return Update(*_nothing(function), received=self._push(edges))

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
        push = Received.of([(dual.centers, dual.weights / self.every) for dual in duals]).put_together()
        if isinstance(edges, _Memories):
            edges.push = push
        return push


class _Memories(dict[Hashable, EdgeMemory]):
    """What is remembered of each edge, and what the duals come to together once somebody has asked for it."""

    push: Received | None = None


def _nothing(function: Expansion) -> tuple[Floats, Floats]:
    return np.empty((0, function.dimension)), np.empty((0, function.outputs))
