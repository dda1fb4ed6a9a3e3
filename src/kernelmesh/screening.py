"""Whom to believe: what neighbors say is bounded in size and tested on one's own samples before it counts."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer, positive
from kernelmesh.consensus import EdgeMemories, EdgeMemory, Heard
from kernelmesh.messages import Function, Message, Offer, Values
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Model, Update
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
# Statistics that differ from the agent's own by at most this share are tested in every so many steps only.
_CLOSE, _SPARED = 0.2, 8
# How much of an edge an agent that is not young can have forgotten, as a share of what it knows: rounding, not more.
_FORGOTTEN = 0.01
# Where an agent's own loss is low, it expects less scatter of those that it knows: the margin is this multiple of its loss,
# as a share of that of predicting nothing, and at least so much.
_SCATTER, _FAMILIAR = 2.0, 0.5
# Epochs by which an end that distrusts the other goes ahead, so that both begin without a dual: few, or, where the two had
# known each other, so many that it shows in the number how often that has happened.
_ANEW, _BETRAYED = 2, 64
# Ends that know each other have a parole in the place of so many, times the number of such times, of which so many count.
_SKIPPED, _COUNTED = 8, 8


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
    function: Expansion
    """f, before anybody is listened to."""
    step: int
    """The step that is about to be taken, from 1."""
    health: Health | None = None
    """How the agent itself has been doing of late."""

    @functools.cached_property
    def here(self) -> Floats:
        """f(X)."""
        return self.function(self.points)


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
    barred: Floats | None = None
    """Points that come with statistics and must not enter the dictionary."""

    def admitted(self, update: Update) -> Update:
        """An update without the points that are barred.

        Statistics are cut down here, not in the message: both ends of an edge must count the same flow.
        """
        new = update.statistics
        if self.barred is None or new is None:
            return update
        rows = np.concatenate([self.barred, new.centers])
        first = compiled.folding.first_of_equals(rows.view(np.uint64))[len(self.barred) :]
        stays = np.flatnonzero(first >= len(self.barred))
        moments = np.ascontiguousarray(new.moments[np.ix_(stays, stays)])
        kept = Statistics.gathered(new.kernel, new.centers[stays], new.weights[stays], moments, definite=new.definite)
        return replace(update, points=kept.centers, coefficients=kept.weights, statistics=kept)


class _Limits(NamedTuple):
    """What a neighbor's outputs on one's own samples may be."""

    best: float
    """The loss of the agent itself, or that of predicting nothing if it is lower."""
    nothing: float
    """The loss of predicting nothing."""
    risen: float
    """By how much the agent's own loss has risen of late."""
    usual: float
    """What the agent's own loss has been of late, as a share of that of predicting nothing."""
    size: float

    def loss(self, standing: _Standing) -> float:
        """What a neighbor may cost."""
        margin = standing.margin
        if standing.is_known:
            margin *= min(max(_SCATTER * self.usual, _FAMILIAR), 1.0)
        return self.best + max(margin * self.nothing - _CAUTION * self.risen, min(margin, _LEAST) * self.nothing)


class _Standing(NamedTuple):
    """How strictly one neighbor is tested."""

    margin: float
    parole: int
    weight: float = 1.0
    """How much its statistics weigh in the test, as a multiple of the agent's own."""
    is_known: bool = False
    """Whether the two ends have exchanged statistics for so long that they should agree."""

    @property
    def ahead(self) -> int:
        """Epochs by which this end goes ahead when the neighbor is left out."""
        return _BETRAYED if self.is_known else _ANEW


class _Bounded(NamedTuple):
    """A message of a size that can be dealt with, or why there is none."""

    reply: Message
    doubt: str | None = None
    cut: str = ""
    """What was taken away."""
    barred: Floats | None = None
    """Points that must not enter the dictionary, where the message itself is left as it is."""


@register("screening")
@dataclass(frozen=True, kw_only=True)
class Screening:
    """Leave out of a round whoever is worse than silence: ℓ(f_j(X), y) > min(ℓ(f_i(X), y), ℓ(0, y)) + m ℓ(0, y).

    X, y are the agent's own newest samples. The more the agent's own loss has risen of late, the smaller is m: somebody may
    be leading it astray in small steps. Where statistics are exchanged, f_j is the function that the agent would have if
    those of the neighbor were added to its own: once, until the two have completed `youth` exchanges, and may honestly
    disagree; then `weight` times, with half of m where the agent's own loss is low, and paroles eight times as rare, or
    rarer after each time the neighbor was left out. Statistics that differ from the agent's own by less than a fifth are
    tested in every eighth step.

    Messages that are not finite, bring too many points, or give outputs far larger than the agent's own are left out, too;
    weights beyond any use are scaled down.

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
        The number of steps before which an agent is young, and of exchanges of statistics before which an edge is.
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
        heard = [_doubted(said) for said in heard]
        doubtful = self._doubtful(bench, heard, edges)
        if not doubtful:
            return Screened(heard, edges)
        own, limits = _size(bench.model.function), self._limits(bench)
        if self._all_is_well(bench, doubtful, edges, own, limits):
            return Screened(heard, edges)
        kept, anew, left_out, clipped, barred = [], {}, {}, {}, []
        for said in heard:
            if said.reply is None:
                kept.append(said)
                continue
            edge = edges.get(said.neighbor)
            standing = self._standing(bench, said.reply, edge)
            bounded = self._bounded(bench, said.reply, own)
            reason = (
                bounded.doubt
                or self._doubt(bench, bounded.reply, limits, standing)
                or self._dual_doubt(bench, said, edge, limits)
            )
            if reason is None:
                kept.append(said if bounded.reply is said.reply else said._replace(reply=bounded.reply))
                if bounded.cut:
                    clipped[said.neighbor] = bounded.cut
                if bounded.barred is not None:
                    barred.append(bounded.barred)
                continue
            left_out[said.neighbor] = reason
            kept.append(said._replace(question=None, reply=None))
            if isinstance(said.reply, Offer) and (said.reply.dual is not None or (edge is not None and edge.has_begun)):
                epoch = max(0 if edge is None else edge.epoch, min(said.reply.terms.epoch, 1 << 40))
                anew[said.neighbor] = EdgeMemory(epoch=epoch + standing.ahead)
        for neighbor in edges.keys() - anew.keys():
            early = edges[neighbor].early  # an offer of an earlier round, which may be used only now
            if early is not None and early.moments is not None and len(far := self._far(bench, early)):
                barred.append(early.centers[far])
        return Screened(
            kept, {**edges, **anew} if anew else edges, left_out, clipped, np.concatenate(barred) if barred else None
        )

    def _standing(self, bench: Bench, reply: Message, edge: EdgeMemory | None) -> _Standing:
        """How strictly a neighbor is tested, by what has passed over the edge to it.

        Two ends that have not exchanged statistics often may honestly disagree. Who is left out after that must wait the
        longer, the more often it was.
        """
        if getattr(reply, "moments", None) is None:
            return _Standing(self.margin, self.parole)
        epoch, done = (0, 0) if edge is None else (edge.epoch, edge.done)
        betrayed = min(epoch // _BETRAYED, _COUNTED)
        if not betrayed and done < self.youth:
            return _Standing(self.margin, self.parole)
        return _Standing(self.margin, _SKIPPED * max(betrayed, 1) * self.parole, self.weight, is_known=True)

    def _doubtful(self, bench: Bench, heard: Sequence[Heard], edges: EdgeMemories) -> list[Heard]:
        """Who must be tested in this step.

        Statistics over one's own points that differ from one's own by little cannot move the agent by more than that. Most
        do where everybody is honest, so these are tested in every eighth step only.
        """
        said = [each for each in heard if each.reply is not None]
        if bench.step <= self.youth or bench.step % _SPARED == 0 or not isinstance(bench.model.function, Statistics):
            return said
        if any(edge.early is not None for edge in edges.values()):
            return said
        return [each for each in said if not _is_close(bench.model.function, each.reply)]

    def _all_is_well(
        self, bench: Bench, heard: Sequence[Heard], edges: EdgeMemories, own: float, limits: _Limits | None
    ) -> bool:
        """Whether there is nothing to object to, found out for all neighbors at once; False: each must be looked at alone."""
        said = [each.reply for each in heard if isinstance(each.reply, Function | Offer)]
        if limits is None or len(said) < len(heard) or any(getattr(each, "dual", None) is not None for each in said):
            return False
        orders, young = [len(each.centers) for each in said], bench.step <= self.youth
        known = np.concatenate([bench.model.function.centers, bench.points])
        if not 0 < min(orders) <= max(orders) <= (self.max_points if young else min(self.max_points, _MORE * len(known))):
            return False
        if said[0].moments is not None and any(edge.early is not None for edge in edges.values()):
            return False
        rows = np.concatenate([known, *(each.centers for each in said)])
        weights, starts = np.concatenate([each.weights for each in said]), np.cumsum([0, *orders[:-1]])
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not below any limit
            sizes = np.add.reduceat(np.sqrt(np.einsum("ij,ij->i", weights, weights)), starts)
            for i, each in enumerate(said):
                sizes[i] += 0.0 if each.moments is None else np.abs(each.moments).sum()
            if not (sizes.max() <= _LARGER * self.reach * (own + 1.0) and np.isfinite(rows.sum())):
                return False
            if not young and self._strangers(bench, known, rows, starts) > self.strangers:
                return False
            standings = [
                self._standing(bench, reply, edges.get(each.neighbor)) for reply, each in zip(said, heard, strict=True)
            ]
            there = self._together(bench, said, standings, rows[len(known) :], starts)
            if there is None:
                return False
            losses = bench.loss.value(there, np.concatenate([bench.targets] * len(said))).reshape(len(said), -1).mean(axis=1)
            most = np.einsum("ij,ij->i", there, there).reshape(len(said), -1).sum(axis=1).max()
            allowed = np.array([limits.loss(standing) for standing in standings])
            return bool(most <= bench.here.size * limits.size**2 and (losses <= allowed).all())

    def _together(
        self, bench: Bench, said: Sequence[Function | Offer], standings: Sequence[_Standing], centers: Floats, starts: Ints
    ) -> Floats | None:
        """What all neighbors make of one's own samples, below one another; None where one makes no sense."""
        if said[0].moments is None:
            cross = bench.kernel(bench.points, centers)
            return np.concatenate(
                [cross[:, a : a + len(each.centers)] @ each.weights for a, each in zip(starts, said, strict=True)]
            )
        opinions = []
        for each, standing in zip(said, standings, strict=True):
            opinion = self._opinion(bench, each, standing.weight)
            if opinion is None:
                return None
            opinions.append(opinion)
        cross = bench.kernel(bench.points, opinions[0].centers)  # which are the agent's own in all of them
        return np.concatenate([cross @ opinion.weights for opinion in opinions])

    def _strangers(self, bench: Bench, known: Floats, rows: Floats, starts: Ints) -> int:
        """The most points of one message that are far from everything the agent knows."""
        first = compiled.folding.first_of_equals(rows.view(np.uint64))[len(known) :]
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
        return _Limits(
            best=min(before, nothing),
            nothing=nothing,
            risen=0.0 if bench.health is None else bench.health.risen,
            usual=1.0 if bench.health is None else bench.health.loss / max(nothing, np.finfo(float).tiny),
            size=self.reach * (_rms(bench.here) + 1.0),
        )

    def _bounded(self, bench: Bench, reply: Message, own: float) -> _Bounded:
        """The message, cut down where it is too large; or why it cannot be used."""
        parts = [part for part in (reply, getattr(reply, "dual", None)) if part is not None]
        tables = [getattr(part, name, None) for part in parts for name in (*part.tables, "moments")]
        if not all(np.isfinite(table).all() for table in tables if table is not None):
            return _Bounded(reply, "contains values that are not finite")
        if not isinstance(reply, Function | Offer):
            return _Bounded(reply)
        order, young, cut = len(reply.centers), bench.step <= self.youth, []
        most = self.max_points
        if not young:
            most = min(most, _MORE * (bench.model.function.order + len(bench.points)))
        if order > most:
            return _Bounded(reply, f"has {order} points (limit {most})")
        far, barred = self._far(bench, reply), None
        if len(far):
            cut.append(f"has {len(far)} of {order} points far from all known points")
            if reply.moments is None:
                stays = np.setdiff1d(np.arange(order), far)
                reply = replace(reply, centers=reply.centers[stays], weights=reply.weights[stays])
            else:
                barred = reply.centers[far]
        size, largest = _size(reply), _LARGER * self.reach * (own + 1.0)
        if size == np.inf:
            return _Bounded(reply, "overflows")
        if size > largest:
            moments = None if reply.moments is None else largest / size * reply.moments
            reply = replace(reply, weights=largest / size * reply.weights, moments=moments)
            cut.append(f"has weights of {size:.3g} in total (limit {largest:.3g})")
        return _Bounded(reply, cut=" and ".join(cut), barred=barred)

    def _far(self, bench: Bench, reply: Function | Offer) -> Ints:
        """Which points of a message must not enter: those far from everything that the agent knows, if they are many."""
        nobody = np.empty(0, dtype=np.int64)
        if bench.step <= self.youth:
            return nobody
        known = np.concatenate([bench.model.function.centers, bench.points])
        fresh = compiled.folding.first_of_equals(np.concatenate([known, reply.centers]).view(np.uint64))[len(known) :]
        candidates = np.flatnonzero(fresh >= len(known))
        if len(candidates) <= self.strangers:
            return nobody
        centers = np.ascontiguousarray(reply.centers[candidates])
        strangers = candidates[~_near(bench.kernel, centers, known)]
        if len(strangers) <= self.strangers:
            return nobody
        return strangers[self.strangers :] if bench.step % (_PAROLES * self.parole) == 0 else strangers

    def _doubt(self, bench: Bench, reply: Message, limits: _Limits | None, standing: _Standing) -> str | None:
        """Why what a neighbor says is not to be believed, seen from one's own samples; None: it may be."""
        if limits is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not below any limit
            return self._judged(bench, self._outputs(bench, reply, standing.weight), limits, standing)

    def _judged(self, bench: Bench, there: Floats | None, limits: _Limits, standing: _Standing) -> str | None:
        """Why outputs on one's own samples are not to be believed."""
        if there is None:
            return "is inconsistent with this agent's own statistics"
        size = _rms(there)
        if not size <= limits.size:
            return f"has outputs of {size:.3g} on this agent's samples (limit {limits.size:.3g})"
        loss, most = float(bench.loss.value(there, bench.targets).mean()), limits.loss(standing)
        is_ignorant = loss <= (1.0 + self.margin) * limits.nothing
        if loss <= most or (is_ignorant and bench.step % standing.parole == 0):
            return None
        return f"has a loss of {loss:.3g} on this agent's samples (limit {most:.3g})"

    def _dual_doubt(self, bench: Bench, said: Heard, edge: EdgeMemory | None, limits: _Limits | None) -> str | None:
        """Why the dual that comes with an offer, and that this agent would go on from, is not to be believed."""
        dual = getattr(said.reply, "dual", None)
        if dual is None or said.is_first:  # who stands first keeps its own
            return None
        if len(dual.centers) > _MORE * self.max_points:
            return f"hands over a dual with {len(dual.centers)} points (limit {_MORE * self.max_points})"
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
                else f"hands over a dual that differs by {size:.3g} from the known one (limit {most:.3g})"
            )
        if limits is None or dual.moments is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            opinion = bench.rule.opinion(bench.model, flow, 1.0)
            there = None if opinion is None else opinion(bench.points)
            reason = self._judged(bench, there, limits, _Standing(self.margin, self.parole))
        return None if reason is None else f"hands over a dual that {reason}"

    def _outputs(self, bench: Bench, reply: Message, weight: float) -> Floats | None:
        """What a neighbor makes of one's own samples."""
        if isinstance(reply, Values):
            return reply.values
        assert isinstance(reply, Function | Offer)
        if reply.moments is None:
            return bench.kernel(bench.points, reply.centers) @ reply.weights
        opinion = self._opinion(bench, reply, weight)
        return None if opinion is None else opinion(bench.points)

    def _opinion(self, bench: Bench, reply: Function | Offer, weight: float) -> Expansion | None:
        """The function that the agent would have if it added what a neighbor has gathered to its own."""
        assert reply.moments is not None
        said = Statistics.gathered(bench.kernel, reply.centers, reply.weights, reply.moments)
        return bench.rule.opinion(bench.model, said, weight)


def _is_close(own: Statistics, reply: Message | None) -> bool:
    """Whether statistics are over points of one's own, and differ from one's own by a small share."""
    if not isinstance(reply, Offer) or reply.dual is not None or reply.moments is None:
        return False
    bits = np.concatenate([own.centers, reply.centers]).view(np.uint64)
    sums, square, *size = compiled.symmetric.apart(bits, own.weights, own.moments, reply.weights, reply.moments)
    return sums <= _CLOSE**2 * size[0] and square <= _CLOSE**2 * size[1]  # which nothing is that is not finite


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
