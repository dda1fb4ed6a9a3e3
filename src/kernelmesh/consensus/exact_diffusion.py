"""Exact diffusion: unbiased averaging of functions, with a dual function on every edge."""

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh.consensus.base import NUMBERED_OFFERS, Tuning
from kernelmesh.consensus.duals import Shared, opposite
from kernelmesh.consensus.edge_duals import EdgeDuals
from kernelmesh.consensus.numbered import Completed
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import Offer
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import compressed_distinct
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.projection import without
from kernelmesh.numerics.schedules import Constant, Schedule, as_schedule
from kernelmesh.registry import register

__all__ = ["ExactDiffusion"]

# A dual of up to this many points is compressed in every exchange, or in every other one with k > 1; a larger one in one of
# so many. With k = 1, a dual that is compressed less often costs the worst agent 0.9 points in `heterogeneous`; with k = 6,
# nothing.
_FEW, _TURN = 96, 8
# So many points that neither end has any more may stay in a dual: this many, or one part in so many of the others.
_ROOM, _PART = 16, 2
# Of that room, one part in so many may be taken by points that compression leaves.
_LEFT = 8
# Up to this many points of a dual are compressed one by one, which leaves fewest.
_SMALL = 256
_SHARED = Shared()


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class ExactDiffusion(EdgeDuals):
    """With ā_ij half the Metropolis weight of an edge, ā_ii the rest, and C for compression:

    f_i ← C_ε[Σ_j ā_ij φ_j],  λ_ij ← C_δ[λ_ij + ā_ij (φ_j − φ_i)]   from the functions φ that the neighbors sent, then
    φ_i ← C_ε[(1 − ηλ) f_i − (η/B) Σ_b ℓ'(f_i(x_b), y_b) κ(x_b, ·) + Σ_j λ_ij]   which is sent in the next round.

    Agents that see different data pull in different directions, and plain diffusion settles where pull and averaging balance,
    which is not the solution of a learner with all the data. The duals λ_ij = −λ_ji accumulate what was averaged away until
    they cancel the difference. Both ends of an edge compute them from the same two functions in the same order, so that they
    stay opposite bit for bit, whatever compression does, and sum to zero over the network. Exchanges over an edge are
    numbered, and an offer stays unchanged until both ends have used it, so that this also holds when messages are lost. A
    dual acts in rounds in which an exchange was completed.

    With `every` = k > 1, the first line applies in every k-th round; in the others, f_i is the φ_i of the previous round, and
    duals do not change. They act with weight 1/k in all rounds: in the one in which an exchange was completed and k − 1 more,
    then not until the neighbor is heard again. With k > 2, ā_ij is the Metropolis weight itself.

    If the duals of two ends are not opposite, because one was restored from an older state or runs on a host that rounds
    differently, the ends detect it by count and digest; then the end that comes first in the graph sends its dual along with
    an offer, and the other continues from its negative.

    The agent predicts with f and sends φ.

    Parameters
    ----------
    budget : float or Schedule
        The budget δ for compressing duals, a constant; a quarter of the agent's ε is a good choice.
    every : int
        k, the same for all agents.

    Examples
    --------
    >>> ExactDiffusion(budget=0.05).penalty(0)
    0.0
    """

    exchange = NUMBERED_OFFERS
    usual_every = 6  # docs/consensus.md, "Exchanging less often"

    budget: Schedule | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", as_schedule("ExactDiffusion", "budget", self.budget))
        if not isinstance(self.budget, Constant):
            # both ends must use the same δ in the same round, and they may have seen different numbers of samples
            raise InvalidArgument("ExactDiffusion", "budget", "be a constant number >= 0", self.budget)
        super().__post_init__()

    @property
    def agreement(self) -> Any:
        return [type(self).__name__, cast(Constant, self.budget).value, self.every]

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        return cls(budget=tuning.dual_budget, every=tuning.every or cls.usual_every)

    def renewed(self, exchange: Completed, kernel: Kernel, weight: float, is_first: bool) -> Expansion:
        return self._dual(exchange.before, kernel, exchange.ours, exchange.theirs, weight, is_first)

    def _dual(
        self, dual: Expansion | None, kernel: Kernel, ours: Offer, theirs: Offer, weight: float, is_first: bool
    ) -> Expansion:
        """λ_ij ← C_δ[λ_ij + ā_ij (φ_j − φ_i)], as seen by the end that comes first in the graph.

        The points of φ_i and φ_j come with every exchange, so most exchanges of large functions only add up weights. C_δ has
        its turn now and then while there are few points, and whenever there are many that neither end has any more.
        """
        first, second = (ours, theirs) if is_first else (theirs, ours)
        before = dual if dual is None or is_first else opposite(dual)
        settings = weight, cast(Constant, self.budget).value, self.every, kernel
        found = _SHARED.take(before, first, second, *settings)
        if found is None:
            if before is None:
                nothing = Expansion.zero(kernel, dimension=ours.centers.shape[1], outputs=ours.weights.shape[1])
            found = self._renewed(nothing if before is None else before, first, second, weight)
            _SHARED.keep(found, before, first, second, *settings)
        return found if is_first else opposite(found)

    def _renewed(self, dual: Expansion, first: Offer, second: Offer, weight: float) -> Expansion:
        points = np.concatenate([dual.centers, first.centers, second.centers])
        change = np.concatenate([-weight * first.weights, weight * second.weights])
        fresh, weights, live = compiled.folding.gather(points.view(np.uint64), dual.weights, change)
        centers = np.concatenate([dual.centers, points[dual.order :][fresh]]) if len(fresh) else dual.centers
        found = Expansion.trusted(dual.kernel, centers, weights)
        count = int(np.count_nonzero(live))
        room = max(_ROOM, count // _PART)
        turn = min(self.every, 2) if found.order <= _FEW else _TURN
        if (found.order <= _SMALL and first.terms.exchange % turn == 1 % turn) or len(live) - count > room:
            found = self._compressed(found, live, room)
        return found

    def _compressed(self, dual: Expansion, live: NDArray[np.bool_], room: int) -> Expansion:
        """C_δ: of all points while they are few, else of those that neither end has any more, an eighth of `room` at most."""
        budget = cast(Constant, self.budget).value
        if dual.order <= _SMALL:
            return compressed_distinct(dual.kernel, dual.centers, dual.weights, budget)[0]
        return without(dual, np.flatnonzero(~live), budget, max_left=room // _LEFT)
