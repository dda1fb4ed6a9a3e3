"""What protocols with a dual function on every edge share: how exchanges move an agent, and how duals act."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from kernelmesh.consensus.base import EdgeMemories, EdgeMemory, Heard, Spaced, StepInputs
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.numbered import Completed, complete, offer
from kernelmesh.messages import Message
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel

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
    def _part(self) -> float:
        """ā_ij / a_ij."""
        # duals that act at once are stable with half of it only; spread over rounds they bear all of it, which is faster
        return 0.5 if self.every <= 2 else 1.0

    @property
    def _patience(self) -> int:
        """For how many rounds after its dual has stopped acting an edge is still remembered as alive."""
        return 0

    def tell(
        self, function: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        return offer(function, edge, share, there)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[Update, EdgeMemories]:
        def renew(exchange: Completed, is_first: bool) -> Expansion:
            return self.renewed(exchange, function.kernel, self._part * exchange.weight, is_first)

        done, after = complete(function, heard, edges, renew)
        completed = {exchange.neighbor for exchange in done}
        # a dual acts for k rounds from the one in which its exchange was completed
        most = self.every + self._patience
        after = {
            name: edge.with_acts(most if name in completed else max(min(edge.acts, most) - 1, 0))
            for name, edge in after.items()
        }
        own = 1.0
        centers, weights = [np.empty((0, function.dimension))], [np.empty((0, function.outputs))]
        for exchange in done:
            weight = self._part * exchange.weight
            centers.append(exchange.theirs.centers)
            weights.append(weight * exchange.theirs.weights)
            if not exchange.is_late:
                own -= weight
            else:  # the two ends must add opposite things, so what counts is what was offered, not what we are now
                centers.append(exchange.ours.centers)
                weights.append(-weight * exchange.ours.weights)
        return Update(np.concatenate(centers), np.concatenate(weights), own, shared=True, own=0), after

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        # the duals are all that is left of the second move; the first one has been made
        nothing = Update(np.empty((0, function.dimension)), np.empty((0, function.outputs)), shared=True)
        return self._with_duals(nothing, edges)

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        return self._with_duals(Local().move(inputs, (), edges), edges)

    def _with_duals(self, update: Update, edges: EdgeMemories) -> Update:
        """The update with (1/k) Σ_j λ_ij added, over the edges on which an exchange was completed less than k rounds ago."""
        # a dual answers to an exchange: were it to act while the neighbor is silent, nothing would hold it back
        duals = [edge.dual for edge in edges.values() if edge.dual is not None and edge.acts > self._patience]
        if not duals:
            return update
        return update.joined([dual.centers for dual in duals], [dual.weights / self.every for dual in duals])
