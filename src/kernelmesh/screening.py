"""Whom to believe: what neighbors say is bounded in size and tested on one's own samples before it counts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer, positive
from kernelmesh.consensus import EdgeMemories, EdgeMemory, Heard
from kernelmesh.messages import Function, Message, Offer, Values
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.registry import register
from kernelmesh.rules import Rule

__all__ = ["Bench", "Health", "Screened", "Screening"]

# How many times as many points as the agent itself a message may have, and how large its weights may be as a multiple of what
# its outputs may be: the sum of weights that cancel is far larger than any output.
_MORE, _LARGER = 4, 100.0
# Two points are near each other from this correlation on.
_NEAR = 0.1
# Steps that the loss of an agent is averaged over, and after which it forgets that it was ever lower.
_MEMORY, _OBLIVION = 20, 500
# How much of the margin is lost for each unit by which the agent's own loss has risen, and what is left of it at least.
_CAUTION, _LEAST = 10.0, 0.02
# A message with too many strangers is let in with some of them once in so many paroles.
_PAROLES = 8
# How much of an edge an agent that is not young can have forgotten, as a share of what it knows: rounding, not more.
_FORGOTTEN = 0.01
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
    """X; without any, only sizes are checked."""
    targets: Any
    here: Floats
    """f(X), before anybody is listened to."""
    step: int
    """The step that is about to be taken, from 1."""
    health: Health | None = None
    """How the agent itself has been doing of late."""


class Health(NamedTuple):
    """How an agent has been doing: its loss on new samples, averaged over about 20 steps, and how low that has been.

    >>> health = Health.after(None, 1.0)
    >>> round(Health.after(health, 3.0).risen, 4)
    0.0998
    """

    loss: float
    best: float
    """What forgets the past within some 500 steps: data may become harder for good."""

    @classmethod
    def after(cls, before: Health | None, loss: float) -> Health:
        """Once a step has had this loss."""
        if before is None:
            return cls(loss, loss)
        mean = before.loss + (loss - before.loss) / _MEMORY
        return cls(mean, min(before.best + (mean - before.best) / _OBLIVION, mean))

    @property
    def risen(self) -> float:
        """By how much the loss has risen."""
        return self.loss - self.best


class Screened(NamedTuple):
    """What is left of what was heard."""

    heard: Sequence[Heard]
    edges: EdgeMemories
    left_out: Mapping[Hashable, str] = {}
    """Who is not believed, and why."""
    clipped: Mapping[Hashable, str] = {}
    """Whose words were cut down before they were used, and by how much."""


class _Limits(NamedTuple):
    """What a neighbor's outputs on one's own samples may be."""

    loss: float
    ignorance: float
    """The loss up to which somebody counts as ignorant, not hostile."""
    size: float


class _Bounded(NamedTuple):
    """A message of a size that can be dealt with, or why there is none."""

    reply: Message
    doubt: str | None = None
    cut: str = ""
    """What was taken away."""


@register("screening")
@dataclass(frozen=True, kw_only=True)
class Screening:
    """Leave out of a round whoever is worse than silence: ℓ(f_j(X), y) > min(ℓ(f_i(X), y), ℓ(0, y)) + m ℓ(0, y).

    X, y are the agent's own newest samples. The more the agent's own loss has risen of late, the smaller is m: somebody may
    be leading it astray in small steps. Where statistics are exchanged, f_j is the function that the agent would have if
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
        How many points of a message may be far from everything that the agent knows, unless it is young. Of a message that
        has more, all of them are taken out, or, once in eight paroles, all but so many. A region that is really new is let
        in by and by: points near others that were let in are not far.
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
        own, limits = _size(bench.model.function), self._limits(bench)
        heard = [_doubted(said) for said in heard]
        if self._all_is_well(bench, [said.reply for said in heard if said.reply is not None], own, limits):
            return Screened(heard, edges)
        kept, anew, left_out, clipped = [], {}, {}, {}
        for said in heard:
            if said.reply is None:
                kept.append(said)
                continue
            edge = edges.get(said.neighbor)
            bounded = self._bounded(bench, said.reply, own)
            reason = bounded.doubt or self._doubt(bench, bounded.reply, limits) or self._dual_doubt(bench, said, edge, limits)
            if reason is None:
                kept.append(said if bounded.reply is said.reply else said._replace(reply=bounded.reply))
                if bounded.cut:
                    clipped[said.neighbor] = bounded.cut
                continue
            left_out[said.neighbor] = reason
            kept.append(said._replace(question=None, reply=None))
            if isinstance(said.reply, Offer) and edge is not None and (edge.done or edge.dual is not None):
                epoch = max(edge.epoch, min(said.reply.terms.epoch, 1 << 40))
                anew[said.neighbor] = EdgeMemory(epoch=epoch + _ANEW)
        return Screened(kept, {**edges, **anew} if anew else edges, left_out, clipped)

    def _all_is_well(self, bench: Bench, replies: Sequence[Message], own: float, limits: _Limits | None) -> bool:
        """Whether there is nothing to object to, found out for all neighbors at once; False: each must be looked at alone."""
        said = [reply for reply in replies if isinstance(reply, Function | Offer)]
        if limits is None or len(said) < len(replies) or any(getattr(each, "dual", None) is not None for each in said):
            return False
        orders, young = [len(each.centers) for each in said], bench.step <= self.youth
        known = np.concatenate([bench.model.function.centers, bench.points])
        if not 0 < min(orders) <= max(orders) <= (self.max_points if young else min(self.max_points, _MORE * len(known))):
            return False
        rows = np.concatenate([known, *(each.centers for each in said)])
        weights, starts = np.concatenate([each.weights for each in said]), np.cumsum([0, *orders[:-1]])
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not below any limit
            sizes = np.add.reduceat(np.sqrt(np.einsum("ij,ij->i", weights, weights)), starts)
            for i, each in enumerate(said):
                sizes[i] += 0.0 if each.moments is None else np.abs(each.moments).sum()
            if not (sizes.max() <= _LARGER * self.reach * (own + 1.0) and np.isfinite(rows.sum())):
                return False
            first = compiled.folding.first_of_equals(rows.view(np.uint64))[len(known) :]
            if not young and self._strangers(bench, known, rows, first, starts) > self.strangers:
                return False
            there = self._together(bench, said, rows[len(known) :], starts)
            if there is None:
                return False
            losses = bench.loss.value(there, np.concatenate([bench.targets] * len(said))).reshape(len(said), -1).mean(axis=1)
            most = np.einsum("ij,ij->i", there, there).reshape(len(said), -1).sum(axis=1).max()
            return bool(most <= bench.here.size * limits.size**2 and losses.max() <= limits.loss)

    def _together(self, bench: Bench, said: Sequence[Function | Offer], centers: Floats, starts: Ints) -> Floats | None:
        """What all neighbors make of one's own samples, below one another; None where one makes no sense."""
        if said[0].moments is None:
            cross = bench.kernel(bench.points, centers)
            return np.concatenate(
                [cross[:, a : a + len(each.centers)] @ each.weights for a, each in zip(starts, said, strict=True)]
            )
        opinions = []
        for each in said:
            opinion = self._opinion(bench, each)
            if opinion is None:
                return None
            opinions.append(opinion)
        cross = bench.kernel(bench.points, opinions[0].centers)  # which are the agent's own in all of them
        return np.concatenate([cross @ opinion.weights for opinion in opinions])

    def _strangers(self, bench: Bench, known: Floats, rows: Floats, first: Ints, starts: Ints) -> int:
        """The most points of one message that are far from everything the agent knows."""
        fresh = np.flatnonzero(first == np.arange(len(known), len(rows)))  # neither known nor said by somebody before
        if not len(fresh):
            return 0
        far = np.zeros(len(rows), dtype=np.int64)
        far[fresh + len(known)] = ~_near(bench.kernel, np.ascontiguousarray(rows[fresh + len(known)]), known)
        return int(np.add.reduceat(far[first], starts).max())

    def _limits(self, bench: Bench) -> _Limits | None:
        """What a neighbor may cost; None without samples to tell by."""
        if not len(bench.points):
            return None
        before, nothing = (float(bench.loss.value(z, bench.targets).mean()) for z in (bench.here, np.zeros_like(bench.here)))
        risen = 0.0 if bench.health is None else bench.health.risen
        margin = max(self.margin * nothing - _CAUTION * risen, min(self.margin, _LEAST) * nothing)
        return _Limits(
            loss=min(before, nothing) + margin,
            ignorance=(1.0 + self.margin) * nothing,
            size=self.reach * (_rms(bench.here) + 1.0),
        )

    def _bounded(self, bench: Bench, reply: Message, own: float) -> _Bounded:
        """The message, cut down where it is too large; or why it cannot be used."""
        parts = [part for part in (reply, getattr(reply, "dual", None)) if part is not None]
        tables = [getattr(part, name, None) for part in parts for name in (*part.tables, "moments")]
        if not all(np.isfinite(table).all() for table in tables if table is not None):
            return _Bounded(reply, "is not finite")
        if not isinstance(reply, Function | Offer):
            return _Bounded(reply)
        order, young, cut = len(reply.centers), bench.step <= self.youth, []
        most = self.max_points
        if not young:
            most = min(most, _MORE * (bench.model.function.order + len(bench.points)))
        if order > most:
            return _Bounded(reply, f"has {order} points, where {most} is the limit")
        if not young:
            reply = self._known(bench, reply)
            if len(reply.centers) < order:
                cut.append(f"has {order - len(reply.centers)} of {order} points far from everything known here")
        size, largest = _size(reply), _LARGER * self.reach * (own + 1.0)
        if size == np.inf:
            return _Bounded(reply, "is too large for any number")
        if size > largest:
            moments = None if reply.moments is None else largest / size * reply.moments
            reply = replace(reply, weights=largest / size * reply.weights, moments=moments)
            cut.append(f"has weights of {size:.3g} in all, where {largest:.3g} is the limit")
        return _Bounded(reply, cut=" and ".join(cut))

    def _known(self, bench: Bench, reply: Function | Offer) -> Function | Offer:
        """The function without those points that are far from everything the agent knows, unless they are few."""
        known = np.concatenate([bench.model.function.centers, bench.points])
        fresh = compiled.folding.first_of_equals(np.concatenate([known, reply.centers]).view(np.uint64))[len(known) :]
        candidates = np.flatnonzero(fresh >= len(known))
        if len(candidates) <= self.strangers:
            return reply
        centers = np.ascontiguousarray(reply.centers[candidates])
        strangers = candidates[~_near(bench.kernel, centers, known)]
        if len(strangers) <= self.strangers:
            return reply
        if bench.step % (_PAROLES * self.parole) == 0:
            strangers = strangers[self.strangers :]
        stays = np.setdiff1d(np.arange(len(reply.centers)), strangers)
        moments = None if reply.moments is None else np.ascontiguousarray(reply.moments[np.ix_(stays, stays)])
        return replace(reply, centers=reply.centers[stays], weights=reply.weights[stays], moments=moments)

    def _doubt(self, bench: Bench, reply: Message, limits: _Limits | None) -> str | None:
        """Why what a neighbor says is not to be believed, seen from one's own samples; None: it may be."""
        if limits is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not below any limit
            return self._judged(bench, self._outputs(bench, reply), limits)

    def _judged(self, bench: Bench, there: Floats | None, limits: _Limits) -> str | None:
        """Why outputs on one's own samples are not to be believed."""
        if there is None:
            return "makes no sense together with our own statistics"
        size = _rms(there)
        if not size <= limits.size:
            return f"has outputs of {size:.3g} on our own samples, where {limits.size:.3g} is the limit"
        loss = float(bench.loss.value(there, bench.targets).mean())
        if loss <= limits.loss or (loss <= limits.ignorance and bench.step % self.parole == 0):
            return None
        return f"costs {loss:.3g} on our own samples, where {limits.loss:.3g} is the limit"

    def _dual_doubt(self, bench: Bench, said: Heard, edge: EdgeMemory | None, limits: _Limits | None) -> str | None:
        """Why the dual that comes with an offer, and that this agent would go on from, is not to be believed."""
        dual = getattr(said.reply, "dual", None)
        if dual is None or said.is_first:  # who stands first keeps its own
            return None
        if len(dual.centers) > _MORE * self.max_points:
            return f"hands over a dual of {len(dual.centers)} points, where {_MORE * self.max_points} is the limit"
        # what would be added to what has flowed over the edge, as this agent remembers it
        moments = np.zeros((len(dual.centers),) * 2) if dual.moments is None else -dual.moments
        flow = Statistics.gathered(bench.kernel, dual.centers, -dual.weights, moments)
        if edge is not None and edge.dual is not None:
            flow = flow.plus([(-1.0, Statistics.of(edge.dual))])
        if bench.step > self.youth:  # else it may have begun from nothing, and know nothing better
            size, most = _size(flow), _FORGOTTEN * _size(bench.model.function)
            return (
                None
                if size <= most
                else f"hands over a dual that differs by {size:.3g} from ours, where {most:.3g} is the limit"
            )
        if limits is None or dual.moments is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            opinion = bench.rule.opinion(bench.model, flow, 1.0)
            reason = self._judged(bench, None if opinion is None else opinion(bench.points), limits)
        return None if reason is None else f"hands over a dual that {reason}"

    def _outputs(self, bench: Bench, reply: Message) -> Floats | None:
        """What a neighbor makes of one's own samples."""
        if isinstance(reply, Values):
            return reply.values
        assert isinstance(reply, Function | Offer)
        if reply.moments is None:
            return bench.kernel(bench.points, reply.centers) @ reply.weights
        opinion = self._opinion(bench, reply)
        return None if opinion is None else opinion(bench.points)

    def _opinion(self, bench: Bench, reply: Function | Offer) -> Expansion | None:
        """The function that the agent would have if it added what a neighbor has gathered to its own."""
        assert reply.moments is not None
        said = Statistics.gathered(bench.kernel, reply.centers, reply.weights, reply.moments)
        return bench.rule.opinion(bench.model, said, self.weight)


def _near(kernel: Kernel, points: Floats, known: Floats) -> NDArray[np.bool_]:
    """Which points are near one of those that are known."""
    limits = _NEAR * np.sqrt(np.outer(kernel.diag(points), kernel.diag(known)))
    return np.asarray((np.abs(kernel(points, known)) > limits).any(axis=1))


def _rms(outputs: Floats) -> float:
    return float(np.sqrt(np.mean(outputs**2)))


def _doubted(said: Heard) -> Heard:
    """The message with its statistics marked as in doubt: the agent checks them itself."""
    if isinstance(said.reply, Offer) and said.reply.moments is not None:
        return said._replace(reply=replace(said.reply, in_doubt=True))
    return said


def _size(said: Expansion | Function | Offer) -> float:
    """Σ_m ‖w_m‖, which bounds the norm of a function where κ(x, x) ≤ 1, and with statistics the size of Θ, too."""
    with np.errstate(over="ignore"):
        size = float(np.sqrt((said.weights**2).sum(axis=1)).sum())
        moments = getattr(said, "moments", None)
        return size if moments is None else size + float(np.abs(moments).sum())
