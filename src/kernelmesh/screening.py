"""Whom to believe: what neighbors say is bounded in size and tested on one's own samples before it counts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kernelmesh.checks import Floats, integer, positive
from kernelmesh.consensus import EdgeMemories, EdgeMemory, Heard
from kernelmesh.messages import Function, Message, Offer, Values
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.rules import Rule

__all__ = ["Bench", "Screened", "Screening"]

# How many times as many points as the agent itself a message may have, and how large its weights may be as a multiple of what
# its outputs may be: the sum of weights that cancel is far larger than any output.
_MORE, _LARGER = 4, 100.0
# Two points are near each other from this correlation on.
_NEAR = 0.1
# Epochs by which an end that distrusts the other goes ahead: both then begin without a dual.
_ANEW = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class Bench:
    """What words are tested on: an agent's own newest samples, and what it makes of them itself."""

    kernel: Kernel
    rule: Rule
    model: Model
    loss: Loss
    points: Floats
    targets: Any
    here: Floats
    """f(X), before anybody is listened to."""
    step: int
    """The step that is about to be taken, from 1."""


class Screened(NamedTuple):
    """What is left of what was heard."""

    heard: Sequence[Heard]
    edges: EdgeMemories
    left_out: Mapping[Hashable, str]
    """Why, by neighbor."""


@dataclass(frozen=True, kw_only=True)
class Screening:
    """Leave out of a round whoever is worse than silence: ℓ(f_j(X), y) > min(ℓ(f_i(X), y), ℓ(0, y)) + m ℓ(0, y).

    X, y are the agent's own newest samples. Where statistics are exchanged, f_j is the function that the agent would have if
    those of the neighbor were added to its own, `weight` times. Messages that are not finite, bring too many points, or give
    outputs far larger than the agent's own are left out, too; weights beyond any use are scaled down.

    Both ends forget what they remembered of the edge to a neighbor that is left out, so that a dual that it may have poisoned
    acts no longer. The neighbor is heard again as soon as it passes. One that is not hostile but merely ignorant,
    ℓ(f_j(X), y) ≤ (1 + m) ℓ(0, y), as after a long separation, is heard whenever `parole` divides the agent's steps, so that
    two ends that have forgotten each other's data can find together again.

    Parameters
    ----------
    margin : float
        m.
    reach : float
        How many times as large as the agent's own, plus 1, the outputs of a neighbor may be on these samples. The sum of its
        weights may be 100 times that.
    max_points : int
        How many points a message may have. An agent that is no longer young takes no more than four times as many as it has
        itself, new samples included.
    strangers : int
        How many points of a message may be far from everything that the agent knows, unless it is young; others are taken out
        of the message. A region that is really new is let in by and by: points near others that were let in are not far.
    youth : int
        The number of steps before which an agent is young.
    parole : int
        Steps between two in which an ignorant neighbor is heard all the same.
    weight : float
        How much the statistics of a neighbor weigh in a test, as a multiple of the agent's own.

    Examples
    --------
    >>> Screening(margin=0.5).parole
    8
    """

    margin: float = 0.5
    reach: float = 4.0
    max_points: int = 5000
    strangers: int = 1
    youth: int = 20
    parole: int = 8
    weight: float = 16.0

    def __post_init__(self) -> None:
        for name in ("margin", "reach", "weight"):
            positive("Screening", name, getattr(self, name))
        for name, least in (("max_points", 1), ("strangers", 0), ("youth", 0), ("parole", 1)):
            integer("Screening", name, getattr(self, name), minimum=least)

    def screen(self, bench: Bench, heard: Sequence[Heard], edges: EdgeMemories) -> Screened:
        """Go through what was heard, and take out what is not to be believed."""
        own = _size(bench.model.function)
        kept, anew, left_out = [], {}, {}
        before, nothing = (float(bench.loss.value(z, bench.targets).mean()) for z in (bench.here, np.zeros_like(bench.here)))
        limit, ignorance = min(before, nothing) + self.margin * nothing, (1.0 + self.margin) * nothing
        for said in heard:
            reply = said.reply
            if reply is None:
                kept.append(said)
                continue
            reply, reason = self._bounded(bench, reply, own)
            if reason is None:
                reason = self._doubt(bench, reply, limit, ignorance)
            if reason is None:
                kept.append(said if reply is said.reply else said._replace(reply=reply))
                continue
            left_out[said.neighbor] = reason
            kept.append(said._replace(question=None, reply=None))
            edge = edges.get(said.neighbor)
            if isinstance(said.reply, Offer) and edge is not None and (edge.done or edge.dual is not None):
                epoch = max(edge.epoch, min(said.reply.terms.epoch, 1 << 40))
                anew[said.neighbor] = EdgeMemory(epoch=epoch + _ANEW)
        return Screened(kept, {**edges, **anew} if anew else edges, left_out)

    def _bounded(self, bench: Bench, reply: Message, own: float) -> tuple[Message, str | None]:
        """The message, cut down where it is too large; or why it cannot be used."""
        tables = [getattr(reply, name) for name in (*reply.tables, "moments") if getattr(reply, name, None) is not None]
        if not all(np.isfinite(table).all() for table in tables):
            return reply, "is not finite"
        if not isinstance(reply, Function | Offer):
            return reply, None
        order, young = len(reply.centers), bench.step <= self.youth
        most = self.max_points
        if not young:
            most = min(most, _MORE * (bench.model.function.order + len(bench.points)))
        if order > most:
            return reply, f"has {order} points, where {most} is the limit"
        if not young:
            reply = self._known(bench, reply)
        size, largest = _size(reply), _LARGER * self.reach * (own + 1.0)
        if size == np.inf:
            return reply, "is too large for any number"
        if size > largest:
            moments = None if reply.moments is None else largest / size * reply.moments
            reply = replace(reply, weights=largest / size * reply.weights, moments=moments)
        return reply, None

    def _known(self, bench: Bench, reply: Function | Offer) -> Function | Offer:
        """The function without those points that are far from everything the agent knows, but for a few."""
        known = np.concatenate([bench.model.function.centers, bench.points])
        fresh = compiled.folding.first_of_equals(np.concatenate([known, reply.centers]).view(np.uint64))[len(known) :]
        candidates = np.flatnonzero(fresh >= len(known))
        if len(candidates) <= self.strangers:
            return reply
        centers = np.ascontiguousarray(reply.centers[candidates])
        near = np.abs(bench.kernel(centers, known)) > _NEAR * np.sqrt(np.outer(*map(bench.kernel.diag, (centers, known))))
        strangers = candidates[~near.any(axis=1)][self.strangers :]
        if not len(strangers):
            return reply
        stays = np.setdiff1d(np.arange(len(reply.centers)), strangers)
        moments = None if reply.moments is None else np.ascontiguousarray(reply.moments[np.ix_(stays, stays)])
        return replace(reply, centers=reply.centers[stays], weights=reply.weights[stays], moments=moments)

    def _doubt(self, bench: Bench, reply: Message, limit: float, ignorance: float) -> str | None:
        """Why what a neighbor says is not to be believed, seen from one's own samples; None: it may be."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not below any limit
            there = self._outputs(bench, reply)
            if there is None:
                return "makes no sense together with our own statistics"
            size, most = _rms(there), self.reach * (_rms(bench.here) + 1.0)
            if not size <= most:
                return f"has outputs of {size:.3g} on our own samples, where {most:.3g} is the limit"
            loss = float(bench.loss.value(there, bench.targets).mean())
        if loss <= limit or (loss <= ignorance and bench.step % self.parole == 0):
            return None
        return f"costs {loss:.3g} on our own samples, where {limit:.3g} is the limit"

    def _outputs(self, bench: Bench, reply: Message) -> Floats | None:
        """What a neighbor makes of one's own samples."""
        if isinstance(reply, Values):
            return reply.values
        assert isinstance(reply, Function | Offer)
        if reply.moments is None:
            return bench.kernel(bench.points, reply.centers) @ reply.weights
        said = Statistics.gathered(bench.kernel, reply.centers, reply.weights, reply.moments)
        opinion = bench.rule.opinion(bench.model, said, self.weight)
        return None if opinion is None else opinion(bench.points)


def _rms(outputs: Floats) -> float:
    return float(np.sqrt(np.mean(outputs**2)))


def _size(said: Expansion | Function | Offer) -> float:
    """Σ_m ‖w_m‖, which bounds the norm of a function where κ(x, x) ≤ 1, and with statistics the size of Θ, too."""
    with np.errstate(over="ignore"):
        size = float(np.sqrt((said.weights**2).sum(axis=1)).sum())
        moments = getattr(said, "moments", None)
        return size if moments is None else size + float(np.abs(moments).sum())
