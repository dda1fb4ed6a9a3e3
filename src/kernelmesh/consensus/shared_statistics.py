"""Shared statistics: agents average sums over their samples instead of functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from kernelmesh.consensus.base import NUMBERED_STATISTICS, EdgeMemories, EdgeMemory, Heard, Spaced, StepInputs
from kernelmesh.consensus.duals import Compact, Shared, half_of, opposite
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.numbered import Completed, complete, offer
from kernelmesh.messages import Message, Offer
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.landmarks import lifted, united
from kernelmesh.numerics.statistics import Difference, Statistics, Sums, Total
from kernelmesh.registry import register

__all__ = ["SharedStatistics"]

_SHARED = Shared()
# A dual may have one obsolete point, which neither end has anymore, per this many current points.
_SPARE = 4


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
        own = Statistics.of(function)
        flows: list[_Flow] = []
        handed: list[tuple[float, Statistics]] = []
        definite = own.definite

        def renew(exchange: Completed, is_first: bool) -> Expansion:
            nonlocal definite
            first, second = (exchange.ours, exchange.theirs) if is_first else (exchange.theirs, exchange.ours)
            flows.append(_Flow(exchange.weight if is_first else -exchange.weight, first, second))
            before, had = exchange.before, exchange.had
            # an average of current statistics is definite; a late exchange may give away what the agent no longer has
            definite = definite and not (exchange.is_late or exchange.theirs.in_doubt)
            if before is not had:  # the flow was taken over from the other end
                definite = False
                handed.extend(
                    (sign, cast(Statistics, dual)) for sign, dual in ((1.0, before), (-1.0, had)) if dual is not None
                )
            return _renewed(own.kernel, exchange.before, flows[-1], is_first)

        _, after = complete(function, heard, edges, renew)
        if not flows:
            nothing = Expansion.zero(own.kernel, dimension=own.dimension, outputs=own.outputs)
            return Update(nothing.centers, nothing.weights), after
        total = _averaged(own, flows)
        if handed:
            total = total.plus(handed)
        total = total.known(definite=definite)
        return Update(total.centers, total.weights, 0.0, shared=True, statistics=total), after

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        return Local().move(inputs, (), edges)


class _Flow(NamedTuple):
    """a (e_j − e_i) over an edge, i being the first end, so that both ends round alike; a is negative at the other end."""

    factor: float
    first: Offer
    second: Offer


def _averaged(own: Statistics, flows: Sequence[_Flow]) -> Statistics:
    """The sum with all flows, over the union of all points, starting with its own."""
    centers, placed = united(own.centers, *(end.centers for flow in flows for end in flow[1:]))
    differences = [
        Difference(factor, placed[2 * n], _sums(first), placed[2 * n + 1], _sums(second))
        for n, (factor, first, second) in enumerate(flows)
    ]
    return own.plus_differences(centers, differences)


def _renewed(kernel: Kernel, before: Expansion | None, flow: _Flow, is_first: bool) -> Expansion:
    """λ after the flow, from the view of this end; computed from the view of the first end, so that both round alike."""
    factor, first, second = abs(flow.factor), flow.first, flow.second
    before = before if before is None or is_first else opposite(before)
    dual = _SHARED.take(before, first, second, factor, kernel)
    if dual is None:
        dual = _moved(kernel, cast(Statistics | None, before), factor, first, second)
        _SHARED.keep(dual, before, first, second, factor, kernel)
    return dual if is_first else opposite(dual)


def _moved(kernel: Kernel, before: Statistics | None, factor: float, first: Offer, second: Offer) -> Statistics:
    """λ + a (e_j − e_i) over the points of both ends and few others; if λ has too many others, it is projected."""
    known = [] if before is None else [before.centers]
    centers, (at_first, *place) = united(second.centers, first.centers, *known)
    order = max(len(second.centers), int(at_first.max(initial=-1)) + 1)
    total = Total.zero(len(centers), first.weights.shape[1])
    if before is not None:
        total.add(place[0], half_of(before), before.weights)
    if len(centers) - order > order // _SPARE:
        centers, gone = centers[:order].copy(), centers[order:].copy()
        total = total.projected(lifted(kernel, centers, gone))
    total.add_difference(Difference(factor, at_first, _sums(first), np.arange(len(second.centers)), _sums(second)))
    return Compact.over(kernel, centers, total.weights, total.half)


def _sums(offer: Offer) -> Sums:
    assert offer.moments is not None
    return offer.moments, offer.weights
