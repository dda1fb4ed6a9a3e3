"""Shared statistics: agents average sums over their samples instead of functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import NUMBERED_STATISTICS, EdgeMemories, EdgeMemory, Heard, Spaced, StepInputs
from kernelmesh.consensus.duals import Shared, compact, opposite
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.numbered import Completed, complete, offer
from kernelmesh.messages import Message, Offer
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.landmarks import united
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.registry import register

__all__ = ["SharedStatistics"]

_SHARED = Shared()
# A dual may have one obsolete point, which neither end has anymore, per this many current points.
_SPARE = 8
# The attribute under which a dual caches the latest flow until the other end has used it.
_FLOW = "dual_flow"


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class SharedStatistics(Spaced):
    """e_i ← e_i + Σ_j a_ij (e_j − e_i),  λ_ij ← λ_ij + a_ij (e_j − e_i)  with Metropolis weights a_ij; e = (Θ, β).

    For the rule `Landmarks`. Agents average the statistics of their samples, Θ = Σ h c cᵀ and β = Σ c τᵀ over a dictionary
    they share, and each solves for its own function. Averages of statistics are unbiased whatever the agents see; they only
    lag.

    Points are sent with the statistics, once over every edge. From the union of its own and received points, an agent keeps
    points by a rule that depends only on the union, so that all agents end up with the same points, regardless of lost
    messages and of the order of arrival.

    λ_ij = −λ_ji is the total flow over an edge so far, over the points that its two ends have now, and few others. Exchanges
    are numbered, so both ends count the same flow, and the sum of e over all agents is that of their samples, even when
    messages are lost. An end that has lost its flows, or is restored from an older state, takes them over from the other, and
    regains or gives up the difference.

    Cost of an exchange with M points and C outputs: M C + M (M + 1) / 2 numbers over each edge, each way, and O(M³) to solve.

    Parameters
    ----------
    every : int
        k: agents exchange in every k-th round; the same for all agents.

    Examples
    --------
    >>> SharedStatistics(every=4).exchanges(8)
    True
    """

    exchange = NUMBERED_STATISTICS
    relays = True

    def tell(
        self, function: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        return offer(function, edge, share, there)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[Update | None, EdgeMemories]:
        if not (heard or edges):
            return None, edges  # there are no neighbors
        kernel = function.kernel
        own = Statistics.of(function)
        nothing = Statistics.of(Expansion.zero(kernel, dimension=function.dimension, outputs=function.outputs))
        flows: list[tuple[float, Statistics]] = []
        definite = own.definite

        def renew(exchange: Completed, is_first: bool) -> Expansion:
            nonlocal definite
            flow, dual = _renewed(nothing, exchange, is_first)
            flows.append((exchange.weight if is_first else -exchange.weight, flow))
            before, had = exchange.before, exchange.had
            # an average of current statistics is definite; a late exchange may give away what the agent no longer has
            definite = definite and not (exchange.is_late or exchange.theirs.in_doubt)
            if before is not had:  # the flow was taken over from the other end
                definite = False
                flows.extend(
                    (sign, cast(Statistics, dual)) for sign, dual in ((1.0, before), (-1.0, had)) if dual is not None
                )
            return dual

        _, after = complete(function, heard, edges, renew)
        if not flows:
            return Update(nothing.centers, nothing.weights), after
        total = own.plus(flows).known(definite=definite)
        return Update(total.centers, total.weights, 0.0, shared=True, statistics=total), after

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        return Local().move(inputs, (), edges)


def _renewed(nothing: Statistics, exchange: Completed, is_first: bool) -> tuple[Statistics, Expansion]:
    """e_j − e_i from the view of the first end, so that both ends round alike, and λ from the view of this end."""
    kernel = nothing.kernel
    first, second = (exchange.ours, exchange.theirs) if is_first else (exchange.theirs, exchange.ours)
    before = exchange.before if exchange.before is None or is_first else opposite(exchange.before)
    settings = exchange.weight, kernel
    dual = _SHARED.take(before, first, second, *settings)
    # the flow is as large as the dual, so it is cached only until the other end has used it
    flow = None if dual is None else dual.__dict__.pop(_FLOW, None)
    if flow is None:
        flow = _statistics(kernel, second).plus([(-1.0, _statistics(kernel, first))])
    if dual is None:
        known = nothing if before is None else _known(cast(Statistics, before), flow.centers)
        dual = compact(known.plus([(exchange.weight, flow)]))
        dual.__dict__[_FLOW] = flow
        _SHARED.keep(dual, before, first, second, *settings)
    return flow, dual if is_first else opposite(dual)


def _known(dual: Statistics, centers: Floats) -> Statistics:
    """The dual; if too many of its points are obsolete, its part over them is projected onto the current points."""
    if len(united(centers, dual.centers)[0]) - len(centers) <= len(centers) // _SPARE:
        return dual
    everything = Statistics.nothing(dual.kernel, centers, dual.outputs).plus([(1.0, dual)])
    return everything.restricted(np.arange(len(centers)))[0]


def _statistics(kernel: Kernel, offer: Offer) -> Statistics:
    assert offer.moments is not None
    return Statistics.gathered(kernel, offer.centers, offer.weights, offer.moments)
