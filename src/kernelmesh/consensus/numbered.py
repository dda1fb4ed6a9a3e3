"""Numbered exchanges: both ends of an edge use the same two values once, even if messages are lost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import EdgeMemories, EdgeMemory, Heard, PastOffer
from kernelmesh.messages import Function, Offer, Terms
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import metropolis_weight
from kernelmesh.numerics.halves import Half, halved
from kernelmesh.numerics.statistics import Statistics

__all__ = ["Completed", "complete", "offer"]

# No real edge restarts this often, so larger epochs are rejected.
_FAR = 1 << 32


class Completed(NamedTuple):
    """An exchange completed in this round: the values that both ends used, and the resulting state of the edge."""

    neighbor: object
    ours: Offer
    theirs: Offer
    weight: float
    """The Metropolis weight of the edge."""
    is_late: bool
    """Whether our value was offered in an earlier round, so that it is not the current one."""
    before: Expansion | None
    """The dual before the exchange, after a handover from the other end if there was one."""
    had: Expansion | None
    """The dual that this end had; it differs from `before` only after a handover."""


Renew = Callable[[Completed, bool], Expansion]
"""Computes the dual after an exchange, given whether we come first in the graph."""


def offer(value: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None) -> Offer:
    """The message to one neighbor; see `Consensus.tell`."""
    edge = edge or EdgeMemory()
    ours = _open(value, edge, share)
    behind = edge.behind if there is None or there[0] != edge.epoch else there[1] < edge.done
    if behind and edge.before is not None:
        terms = msgspec.structs.replace(edge.before.terms, done=ours.terms.done, digest=ours.terms.digest)
        ours = edge.before.offer(terms)
    if edge.handed is None or ours.terms.exchange > 1:
        return ours
    moments = edge.handed.moments if isinstance(edge.handed, Statistics) else None
    return replace(ours, dual=Function(edge.handed.centers, edge.handed.weights, moments=moments))


def complete(
    value: Expansion, heard: Sequence[Heard], edges: EdgeMemories, renew: Renew
) -> tuple[list[Completed], EdgeMemories]:
    """Complete the exchanges that can be completed; returns them and the new memory of each edge."""
    after, done = dict(edges), []
    past = _Past()
    for said in heard:
        edge = edges.get(said.neighbor) or EdgeMemory()
        theirs = said.reply if isinstance(said.reply, Offer) else None
        if theirs is not None and theirs.terms.epoch > edge.epoch + _FAR:
            theirs = None
        if theirs is not None and (epoch := _common_epoch(edge, theirs)) != edge.epoch:
            # an end that rejects the other skips more than one epoch: then both restart without a dual
            dual = edge.dual if epoch == edge.epoch + 1 else None
            edge = EdgeMemory(epoch=epoch, dual=dual, handed=dual if said.is_first else None)
        if theirs is not None and theirs.terms.epoch != edge.epoch:
            theirs = None  # from an earlier epoch
        ours = _open(value, edge, said.share)
        behind = edge.behind if theirs is None else theirs.terms.done < edge.done
        wanted, early = _meant(edge.done + 1, theirs, edge.early), _meant(edge.done + 2, theirs, edge.early)
        if wanted is None:
            after[said.neighbor] = replace(edge, offered=ours, early=early, behind=behind)
            continue
        before = edge.dual
        if not (said.is_first or edge.done):
            # an epoch starts with the dual of the first end; the other end takes over its negative, if there is one
            before = _opposite(value, wanted.dual)
        weight = metropolis_weight(ours.terms.share, wanted.terms.share)
        exchange = Completed(said.neighbor, ours, wanted, weight, edge.offered is not None, before, edge.dual)
        done.append(exchange)
        after[said.neighbor] = EdgeMemory(
            dual=renew(exchange, said.is_first),
            epoch=edge.epoch,
            done=edge.done + 1,
            before=past(ours),
            early=early,
            behind=behind,
            handed=None if edge.done else edge.handed,  # an offer for the second exchange means that the first is complete
        )
    return done, after


class _Past:
    """The offers of one agent to its neighbors, for later: of moments that they have in common, one half is kept for all."""

    def __init__(self) -> None:
        self._moments: Floats | None = None
        self._half: Floats | Half | None = None

    def __call__(self, offer: Offer) -> PastOffer:
        if offer.moments is not self._moments:
            self._moments, self._half = offer.moments, None if offer.moments is None else halved(offer.moments)
        return PastOffer.of(offer, self._half)


def _meant(exchange: int, newest: Offer | None, early: Offer | None) -> Offer | None:
    """The offer for this exchange; the newest if both match."""
    if newest is not None and newest.terms.exchange == exchange:
        return newest
    return early if early is not None and early.terms.exchange == exchange else None


def _opposite(value: Expansion, given: Function | None) -> Expansion | None:
    if given is None:
        return None
    if given.moments is not None:
        return Statistics(value.kernel, given.centers, -given.weights, -given.moments)
    return Expansion(value.kernel, given.centers, -given.weights)


def _open(value: Expansion, edge: EdgeMemory, share: float) -> Offer:
    """Our offer in the open exchange: the earlier one if there is any, otherwise the current value."""
    if edge.offered is not None:
        return edge.offered
    newest, moments = edge.newest, value.moments if isinstance(value, Statistics) else None
    same = newest is not None and newest.centers is value.centers and newest.weights is value.weights
    if newest is not None and same and newest.moments is moments and newest.terms.share == share:
        return newest  # the step uses the value that was sent before it
    terms = Terms(edge.epoch, edge.done + 1, edge.done, edge.digest, share)
    in_doubt = isinstance(value, Statistics) and not value.definite
    ours = Offer(value.centers, value.weights, terms, moments=moments, in_doubt=in_doubt)
    object.__setattr__(edge, "newest", ours)
    return ours


def _common_epoch(edge: EdgeMemory, theirs: Offer) -> int:
    """The epoch to continue in: later than ours if the duals of the two ends are not, or will not be, opposite."""
    if theirs.terms.epoch != edge.epoch:
        return max(edge.epoch, theirs.terms.epoch)
    lost = abs(theirs.terms.done - edge.done) > 1 or (theirs.terms.done == edge.done and theirs.terms.digest != edge.digest)
    return edge.epoch + 1 if lost else edge.epoch
