"""Screening of received messages: each one is bounded in size and tested on the agent's own samples before it is used."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from kernelmesh.checks import Floats, Ints, integer, positive
from kernelmesh.consensus import EdgeMemories, EdgeMemory, Heard
from kernelmesh.messages import Function, Message, Offer, Values
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Model, Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.landmarks import united
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.registry import register
from kernelmesh.rules import Rule, Told

__all__ = ["Bench", "Health", "Screened", "Screening"]

# Limits of a message: its points, as a multiple of the agent's own, and the sum of its weights, as a multiple of the limit on
# its outputs. Weights that cancel can add up to far more than any output.
_MORE, _LARGER = 4, 100.0
# Two points are near each other if their correlation is at least this.
_NEAR = 0.1
# Time constants, in steps: of an agent's average loss, and of the lowest average that it remembers.
_MEMORY, _OBLIVION = 20, 500
# The reduction of the margin per unit by which the agent's own loss has risen, and the smallest margin.
_CAUTION, _LEAST = 10.0, 0.02
# Of a message with too many strangers, some are admitted once in this many paroles.
_PAROLES = 8
# Messages that differ from the agent's own by at most this fraction are tested only once in this many exchanges, unless the
# agent's own loss has risen by this fraction. Functions are compared on this many samples.
_CLOSE, _SPARED, _ALARM, _FEW = 0.2, 16, 0.25, 8
# The largest difference between the duals of the two ends unless the agent is young, relative to what the agent knows: only
# rounding.
_FORGOTTEN = 0.01
# If an agent's own loss is low, known neighbors should differ less: their margin is scaled by this multiple of the agent's
# loss, relative to the loss of predicting 0, but at least by the second number.
_SCATTER, _FAMILIAR = 2.0, 0.5
# Epochs that an end skips when it rejects the other, so that both restart without a dual: a few for a new neighbor, and for a
# known one so many that the epoch number shows how often this has happened.
_ANEW, _BETRAYED = 2, 64
# Paroles of a known neighbor are rarer by this factor times the number of its rejections, of which at most this many count.
_SKIPPED, _COUNTED = 8, 8
# A neighbor that sends functions knows something if its loss is at most this fraction of that of predicting 0. If an old one
# does not, its paroles are rarer by this factor.
_LEARNED, _UNLEARNED = 0.8, 4
# An agent is young at least until it has exchanged this many times.
_FIRST = 2
_WITH_POINTS = (Function, Offer)
_TINY, _NO_MOMENTS = np.finfo(float).tiny, np.empty((0, 0))


@dataclass(eq=False, kw_only=True)
class Bench:
    """What messages are tested on: the agent's own newest samples, and its own outputs there."""

    kernel: Kernel
    rule: Rule
    model: Model
    loss: Loss
    points: Floats
    """X; if empty, only sizes are checked."""
    targets: Any
    function: Expansion
    """f, before any message is used."""
    step: int
    """The number of the upcoming step, from 1."""
    every: int = 1
    """k: agents exchange in every k-th step."""
    health: Health | None = None
    """The agent's own recent loss."""
    is_strict: bool = False
    """Whether messages are tested even if they are close to what the agent has itself."""
    _crosses: list[tuple[Floats, Floats]] = field(default_factory=list, init=False, repr=False)
    _here: Floats | None = field(default=None, init=False, repr=False)

    def cross(self, centers: Floats) -> Floats:
        """κ(X, Z), kept for the rest of the step, which needs some of these values as well."""
        for known, cross in self._crosses:
            if known is centers:
                return cross
        self._crosses.append((centers, self.kernel(self.points, centers)))
        return self._crosses[-1][1]

    @property
    def here(self) -> Floats:
        """f(X)."""
        if self._here is None:  # a cached property would take a lock
            self._here = self.function.from_cross(self.cross(self.function.centers))
        return self._here


class Health(NamedTuple):
    """An agent's recent loss on new samples, averaged over about 20 steps, and the lowest value of that average.

    >>> health = Health.after(None, 1.0)
    >>> round(Health.after(health, 3.0).risen, 4)
    0.0998
    """

    loss: float
    best: float
    """The lowest average; it forgets the past within about 500 steps, because data may become permanently harder."""

    @classmethod
    def after(cls, before: Health | None, loss: float) -> Health:
        """Update the averages with the loss of one step."""
        if before is None:
            return cls(loss, loss)
        mean = before.loss + (loss - before.loss) / _MEMORY
        return cls(mean, min(before.best + (mean - before.best) / _OBLIVION, mean))

    @property
    def risen(self) -> float:
        """The rise of the loss above its lowest average."""
        return self.loss - self.best


class Screened(NamedTuple):
    """The messages that passed screening."""

    heard: Sequence[Heard]
    edges: EdgeMemories
    left_out: Mapping[Hashable, str] = {}
    """The rejected neighbors, with the reasons."""
    clipped: Mapping[Hashable, str] = {}
    """The neighbors whose messages were clipped, with the reasons."""
    barred: Floats | None = None
    """Points of received statistics that must not enter the dictionary."""
    bench: Bench | None = None
    """What the messages were tested on; None if they were not tested."""

    def admitted(self, update: Update) -> Update:
        """The update without the barred points, and with statistics that the agent checks itself.

        Statistics are clipped here, not in the message, because both ends of an edge must count the same flow.
        """
        new = update.statistics
        if new is None or self.bench is None:
            return update
        new = new.known(definite=False)  # a neighbor may have sent moments with negative eigenvalues
        if self.barred is None:
            return replace(update, statistics=new)
        rows = np.concatenate([self.barred, new.centers])
        _, place = compiled.symmetric.places(rows.view(np.uint64), len(self.barred))
        stays = np.flatnonzero(place >= len(self.barred))
        moments = np.ascontiguousarray(new.moments[np.ix_(stays, stays)])
        kept = Statistics.gathered(new.kernel, new.centers[stays], new.weights[stays], moments, definite=new.definite)
        return replace(update, points=kept.centers, coefficients=kept.weights, statistics=kept)


class _Limits(NamedTuple):
    """Limits on a neighbor's outputs on the agent's own samples."""

    best: float
    """The agent's own loss, or the loss of predicting 0 if that is lower."""
    nothing: float
    """The loss of predicting 0."""
    risen: float
    """The recent rise of the agent's own loss."""
    usual: float
    """The agent's own recent loss, as a fraction of the loss of predicting 0."""
    size: float

    def loss(self, standing: _Standing) -> float:
        """The largest loss that a neighbor may have."""
        margin = standing.margin
        if standing.is_known:
            margin *= min(max(_SCATTER * self.usual, _FAMILIAR), 1.0)
        return self.best + max(margin * self.nothing - _CAUTION * self.risen, min(margin, _LEAST) * self.nothing)


class _Standing(NamedTuple):
    """How strictly one neighbor is tested."""

    margin: float
    parole: int
    weight: float = 1.0
    """The weight of its statistics in the test, relative to the agent's own."""
    is_known: bool = False
    """Whether the two ends have exchanged statistics long enough that they should agree."""
    unlearned: int = 0
    """The paroles of a neighbor that knows next to nothing, if they are rarer."""

    @property
    def ahead(self) -> int:
        """The number of epochs that this end skips when it rejects the neighbor."""
        return _BETRAYED if self.is_known else _ANEW


@functools.cache
def _known(margin: float, parole: int, weight: float, betrayed: int) -> _Standing:
    """The standing of a neighbor that was rejected this often after many exchanges."""
    return _Standing(margin, _SKIPPED * max(betrayed, 1) * parole, weight, is_known=True)


@functools.cache
def _old(margin: float, parole: int) -> _Standing:
    """The standing of a neighbor that sends functions, after some exchanges: it should have learned something by now."""
    return _Standing(margin, parole, unlearned=_UNLEARNED * parole)


class _Bounded(NamedTuple):
    """A message of acceptable size, or the reason why it is rejected."""

    reply: Message
    doubt: str | None = None
    cut: str = ""
    """What was clipped, and why."""
    barred: Floats | None = None
    """Points that must not enter the dictionary, if the message itself is left unchanged."""


class _Merged(NamedTuple):
    """The points of several messages, each once."""

    new: Floats
    """Those that the agent does not have."""
    place: Ints
    """The points of all messages, one after the other, as indices of the agent's own points followed by the new ones."""
    counts: Ints
    """The number of points of each message."""
    known: Floats
    """Samples of the agent, then its own points."""
    cross: Floats
    """κ(new, known)."""

    @classmethod
    def of(cls, bench: Bench, samples: Floats, said: Sequence[Function | Offer]) -> _Merged | None:
        """Merge the points of these messages; None if one is not finite."""
        own = bench.model.function.centers
        rows = np.concatenate([samples, own, *[each.centers for each in said]])
        new, place, is_finite = compiled.screening.merged(rows[len(samples) :].view(np.uint64), len(own))
        if not is_finite:
            return None
        known = rows[: len(samples) + len(own)]
        return cls(new, place, np.array([len(each.centers) for each in said]), known, bench.kernel(new, known))


@register("screening")
@dataclass(frozen=True, kw_only=True)
class Screening:
    """Reject a neighbor j in a round if it does more harm than good: ℓ(f_j(X), y) > min(ℓ(f_i(X), y), ℓ(0, y)) + m ℓ(0, y).

    X, y are the agent's own newest samples. Functions are compared with ℓ(0, y) alone if these have one class only or the
    agent is young: honest neighbors that have seen other classes cannot be as good as the agent itself yet. The more the
    agent's own loss has risen recently, the smaller m becomes, in case a neighbor misleads it in small steps.

    If agents exchange statistics, f_j is the function that the agent would have after adding the neighbor's statistics to its
    own. Until the two have completed `youth` exchanges, honest agents may disagree, and the statistics are added once. After
    that they are added `weight` times, m is halved if the agent's own loss is low, and paroles are eight times as rare, and
    rarer still after each rejection.

    Messages that differ from the agent's own by less than a fifth are tested only in every 16th exchange, unless the agent is
    young or its own loss has risen by more than a quarter. Statistics are compared in the Frobenius norm, functions by their
    outputs on the first eight of the samples.

    Messages with non-finite values, too many points, or outputs far larger than the agent's own are rejected as well.
    Excessive weights are scaled down.

    After a rejection both ends reset their memory of the edge, so that a dual that the neighbor may have poisoned no longer
    acts. The neighbor is accepted again as soon as it passes the test. One that is not hostile but merely uninformed,
    ℓ(f_j(X), y) ≤ (1 + m) ℓ(0, y), for example after a long separation, is accepted whenever the number of the step is a
    multiple of `parole`, so that two ends that have forgotten each other's data can reach agreement again; or of four times
    that, if it sends functions and should have learned something by now.

    Parameters
    ----------
    margin : float
        m.
    reach : float
        The limit on the outputs of a neighbor on these samples, as a multiple of the agent's own plus 1. The sum of its
        weights may be 100 times that.
    max_points : int
        The maximum number of points in a message. An agent that is no longer young accepts at most four times as many points
        as it has itself, including new samples.
    strangers : int
        The number of points in a message that may be far from all points known to the agent, unless the agent is young. If
        there are more, all of them are removed, or all but this many once in eight paroles. So a genuinely new region is
        admitted gradually: points near admitted ones are no longer far.
    youth : int
        The number of steps for which an agent counts as young, at least until its second exchange; and of exchanges of
        statistics for which an edge does.
    parole : int
        The number of steps between two in which an uninformed neighbor is accepted.
    weight : float
        The weight of a neighbor's statistics in a test, relative to the agent's own.

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
        """Test all received messages, and clip or reject those that fail."""
        doubtful, larger = self._doubtful(bench, heard, edges)
        if not larger and (not doubtful or self._all_pass(bench, doubtful, edges)):
            return Screened(heard, edges, bench=bench)
        cut, suspects = self._without_strangers(bench, [*doubtful, *larger]), {said.neighbor for said in doubtful}
        if cut or larger:
            doubtful = [said._replace(reply=cut[said.neighbor].reply) if said.neighbor in cut else said for said in doubtful]
            if not doubtful or self._all_pass(bench, doubtful, edges, strangers=True):
                suspects = set()
        own, limits = _size(bench.model.function), None
        if suspects and len(bench.points):
            zero = np.zeros_like(bench.here)
            limits = self._limits(bench, *(float(bench.loss.value(z, bench.targets).mean()) for z in (bench.here, zero)))
        kept, anew, left_out, clipped, barred = [], {}, {}, {}, []
        for said in heard:
            if said.reply is None or (said.neighbor not in suspects and said.neighbor not in cut):
                kept.append(said)
                continue
            edge, bounded, reason = edges.get(said.neighbor), cut.get(said.neighbor, _Bounded(said.reply)), None
            standing = self._standing(said.reply, edge)
            if said.neighbor in suspects:
                bounded = self._bounded(bench, bounded, own)
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
            early = edges[neighbor].early  # an offer from an earlier round that may only be used now
            if early is not None and early.moments is not None and len(far := self._strangers(bench, [early])[0]):
                barred.append(early.centers[far])
        return Screened(
            kept, {**edges, **anew} if anew else edges, left_out, clipped, np.concatenate(barred) if barred else None, bench
        )

    @property
    def _newcomer(self) -> _Standing:
        """How strictly neighbors are tested that sent no statistics, or not often enough."""
        return _Standing(self.margin, self.parole)

    def _standing(self, reply: Message | None, edge: EdgeMemory | None) -> _Standing:
        """How strictly a neighbor is tested, given the history of the edge to it.

        Two honest ends may disagree until they have exchanged statistics often. A neighbor that is rejected after that waits
        longer after each rejection.
        """
        epoch, done = (0, 0) if edge is None else (edge.epoch, edge.done)
        if getattr(reply, "moments", None) is None:
            is_old = isinstance(reply, Offer) and (epoch > 0 or done >= self.youth)
            return _old(self.margin, self.parole) if is_old else self._newcomer
        betrayed = min(epoch // _BETRAYED, _COUNTED)
        if not betrayed and done < self.youth:
            return self._newcomer
        return _known(self.margin, self.parole, self.weight, betrayed)

    def _is_young(self, bench: Bench) -> bool:
        """Whether the agent has taken few steps, or has hardly exchanged yet."""
        return bench.step <= max(self.youth, _FIRST * bench.every)

    def _spares(self, bench: Bench) -> bool:
        """Whether messages close to the agent's own need not be tested in this step.

        They can move the agent only a little. If all agents are honest, most messages are like that.
        """
        # counted by exchanges, as steps in between bring no messages; 1 is rarely a parole, in which tests are lenient
        is_due = bench.step // bench.every % _SPARED == 1
        if is_due or bench.is_strict or self._is_young(bench):
            return False
        return bench.health is None or bench.health.risen <= _ALARM * bench.health.best

    def _doubtful(self, bench: Bench, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[list[Heard], list[Heard]]:
        """The messages that must be tested in this step: all but statistics close to the agent's own.

        Also those close to its own that have points which it does not have; only these points must be tested.
        """
        said, own = [each for each in heard if each.reply is not None], bench.model.function
        if not isinstance(own, Statistics) or not self._spares(bench) or _is_ahead(edges):
            return said, []
        sizes = compiled.symmetric.norms(own.weights, own.moments)
        doubtful, larger, most = [], [], self._most(bench)
        for each in said:
            is_close, is_larger = _is_close(own, sizes, each.reply, most)
            if not is_close:
                doubtful.append(each)
            elif is_larger:
                larger.append(each)
        return doubtful, larger

    def _all_pass(self, bench: Bench, heard: Sequence[Heard], edges: EdgeMemories, *, strangers: bool = False) -> bool:
        """Whether all neighbors pass, tested together; if False, each must be tested separately.

        `strangers` says whether a message may have many points that are far from all known ones.
        """
        said = [each.reply for each in heard if isinstance(each.reply, _WITH_POINTS)]
        if not len(bench.points) or len(said) < len(heard):
            return False
        if isinstance(said[0], Offer) and any(cast(Offer, each).dual is not None for each in said):
            return False
        own = bench.model.function
        if max([len(each.centers) for each in said]) > self._most(bench):
            return False
        if said[0].moments is not None:
            known = [edges.get(each.neighbor) for each in heard]
            return not _is_ahead(edges) and self._statistics_pass(bench, said, known, strangers=strangers)
        weights = np.concatenate([each.weights for each in said])
        if self._spares(bench) and (is_close := self._are_close(bench, said, weights, strangers=strangers)) is not None:
            return is_close
        merged = _Merged.of(bench, bench.points, said)
        if merged is None or not (strangers or self._are_few(self._far_points(bench, merged))):
            return False
        outputs, largest = compiled.screening.outputs(
            bench.here, bench.cross(own.centers), merged.cross, merged.place, merged.counts, weights
        )
        return self._is_bounded(bench, largest) and self._losses_pass(bench, outputs, [self._newcomer] * len(said))

    def _are_close(self, bench: Bench, said: Sequence[Function | Offer], weights: Floats, *, strangers: bool) -> bool | None:
        """Whether functions are harmless because they are close to the agent's own on a few samples; None if they are not.

        False if there are too many strangers among their points, in which case no further test is needed.
        """
        own, few = bench.model.function, bench.points[:_FEW]
        merged = _Merged.of(bench, few, said)
        if merged is None:
            return False
        gap, size, largest, far = compiled.screening.gap(
            bench.here[:_FEW],
            bench.cross(own.centers)[:_FEW],
            merged.cross,
            merged.place,
            merged.counts,
            weights,
            bench.kernel.diag(merged.new),
            bench.kernel.diag(merged.known),
            _NEAR,
        )
        if not strangers and far > len(said) * self.strangers:
            return False  # one of the messages has too many
        is_few = strangers or far <= self.strangers
        return True if gap <= _CLOSE**2 * size and is_few and self._is_bounded(bench, largest) else None

    def _statistics_pass(
        self, bench: Bench, said: Sequence[Function | Offer], edges: Sequence[EdgeMemory | None], *, strangers: bool
    ) -> bool:
        """Whether statistics pass the test."""
        own = bench.model.function.centers
        standings = [self._standing(each, edge) for each, edge in zip(said, edges, strict=True)]
        unions = [united(own, each.centers) for each in said]
        if not strangers and any(len(union) > len(own) for union, _ in unions):
            merged = _Merged.of(bench, bench.points, said)
            if merged is None or not self._are_few(self._far_points(bench, merged)):
                return False
        if not self._is_bounded(bench, max(map(_size, said))):
            return False
        told = [
            Told(standing.weight, place, each.weights, cast(Floats, each.moments))
            for each, standing, (_, (place,)) in zip(said, standings, unions, strict=True)
        ]
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite fail every check
            there = _opinions(bench, told)
            if there is None:
                return False
            outputs = np.concatenate([bench.here, np.zeros_like(bench.here), there])
        return self._losses_pass(bench, outputs, standings)

    def _is_bounded(self, bench: Bench, size: float) -> bool:
        largest = _LARGER * self.reach
        return size <= largest or size <= largest * (_size(bench.model.function) + 1.0)

    def _losses_pass(self, bench: Bench, outputs: Floats, standings: Sequence[_Standing]) -> bool:
        """Whether outputs on the agent's own samples pass: its own, 0, and those of all neighbors, stacked by rows."""
        count = len(standings) + 2
        with np.errstate(over="ignore", invalid="ignore"):
            losses = bench.loss.value(outputs, np.concatenate([bench.targets] * count)).reshape(count, -1)
        squares = compiled.screening.squares(outputs, count)
        own, zero, *rest = (np.add.reduce(losses, axis=1) / len(bench.points)).tolist()
        limits = self._limits(bench, own, zero)
        if not squares.max() <= bench.here.size * limits.size**2:
            return False
        allowed = {standing: limits.loss(standing) for standing in set(standings)}
        return all(loss <= allowed[standing] for loss, standing in zip(rest, standings, strict=True))

    def _most(self, bench: Bench) -> int:
        """The maximum number of points in a message."""
        if self._is_young(bench):
            return self.max_points
        return min(self.max_points, _MORE * (bench.model.function.order + len(bench.points)))

    def _far_points(self, bench: Bench, merged: _Merged) -> list[Ints]:
        """The points of each message that are far from all points known to the agent, unless it is young."""
        far = np.empty(0, dtype=np.int64)
        if len(merged.new) > self.strangers and not self._is_young(bench):
            far = compiled.screening.far(merged.cross, bench.kernel.diag(merged.new), bench.kernel.diag(merged.known), _NEAR)
        if len(far) <= self.strangers:
            return [far[:0]] * len(merged.counts)
        own = bench.model.function.order
        is_far = np.zeros(own + len(merged.new), dtype=np.bool_)
        is_far[own + far] = True
        found, ends = is_far[merged.place], np.cumsum(merged.counts).tolist()
        return [np.flatnonzero(found[end - count : end]) for end, count in zip(ends, merged.counts.tolist(), strict=True)]

    def _are_few(self, far: Sequence[Ints]) -> bool:
        return all(len(points) <= self.strangers for points in far)

    def _strangers(self, bench: Bench, said: Sequence[Function | Offer]) -> list[Ints]:
        """The points of each message that must not enter: those far from all points that the agent knows, if too many."""
        merged = _Merged.of(bench, bench.points, said)
        if merged is None:
            return [np.empty(0, dtype=np.int64)] * len(said)
        admitted = self.strangers if bench.step % (_PAROLES * self.parole) == 0 else 0
        found = self._far_points(bench, merged)
        return [points[admitted:] if len(points) > self.strangers else points[:0] for points in found]

    def _without_strangers(self, bench: Bench, heard: Sequence[Heard]) -> dict[Hashable, _Bounded]:
        """Messages with too many strangers, without these; statistics stay whole, with these barred from the dictionary."""
        out: dict[Hashable, _Bounded] = {}
        most, names, said = self._most(bench), [], []
        for each in heard:
            reply = each.reply
            if isinstance(reply, _WITH_POINTS) and len(reply.centers) <= most and _is_finite(reply.centers, reply.weights):
                names.append(each.neighbor)
                said.append(reply)
        if not said or self._is_young(bench):
            return out
        for name, reply, far in zip(names, said, self._strangers(bench, said), strict=True):
            if not len(far):
                continue
            why = f"has {len(far)} of {len(reply.centers)} points far from all known points"
            if reply.moments is None:
                stays = np.ones(len(reply.centers), dtype=np.bool_)
                stays[far] = False
                few = replace(reply, centers=reply.centers[stays], weights=reply.weights[stays])
                out[name] = _Bounded(few, cut=why)
            else:
                out[name] = _Bounded(reply, cut=why, barred=reply.centers[far])
        return out

    def _limits(self, bench: Bench, own_loss: float, zero_loss: float) -> _Limits:
        """The limits on a neighbor's outputs, given the agent's own loss on its samples and the loss of predicting 0."""
        # the own loss of a function says little if the agent sees one class, which it may predict everywhere, or is young:
        # neighbors that have seen other classes cannot be as good on its own yet
        is_lenient = not isinstance(bench.model.function, Statistics) and (
            self._is_young(bench) or (bench.loss.classifies and _is_constant(bench.targets))
        )
        return _Limits(
            best=zero_loss if is_lenient else min(own_loss, zero_loss),
            nothing=zero_loss,
            risen=0.0 if bench.health is None or is_lenient else bench.health.risen,
            usual=1.0 if bench.health is None else bench.health.loss / max(zero_loss, _TINY),
            size=self.reach * (_rms(bench.here) + 1.0),
        )

    def _bounded(self, bench: Bench, said: _Bounded, own: float) -> _Bounded:
        """The message without strangers, clipped if it is too large; or the reason why it is rejected."""
        reply, most = said.reply, self._most(bench)
        if isinstance(reply, _WITH_POINTS) and len(reply.centers) > most:  # first, because it costs nothing
            return _Bounded(reply, f"has {len(reply.centers)} points (limit {most})")
        parts = [part for part in (reply, getattr(reply, "dual", None)) if part is not None]
        tables = [getattr(part, name, None) for part in parts for name in (*part.tables, "moments")]
        if not _is_finite(*(table for table in tables if table is not None)):
            return _Bounded(reply, "contains values that are not finite")
        if not isinstance(reply, _WITH_POINTS):
            return said
        size, largest = _size(reply), _LARGER * self.reach * (own + 1.0)
        if size == np.inf:
            return _Bounded(reply, "overflows")
        if size <= largest:
            return said
        moments = None if reply.moments is None else largest / size * reply.moments
        reply = replace(reply, weights=largest / size * reply.weights, moments=moments)
        why = f"has weights of {size:.3g} in total (limit {largest:.3g})"
        return said._replace(reply=reply, cut=f"{said.cut} and {why}" if said.cut else why)

    def _doubt(self, bench: Bench, reply: Message, limits: _Limits | None, standing: _Standing) -> str | None:
        """Why a message fails the test on the agent's own samples; None if it passes."""
        if limits is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite fail every check
            return self._judged(bench, self._outputs(bench, reply, standing), limits, standing)

    def _judged(self, bench: Bench, there: Floats | None, limits: _Limits, standing: _Standing) -> str | None:
        """Why outputs on the agent's own samples fail the test; None if they pass."""
        if there is None:
            return "is inconsistent with this agent's own statistics"
        size = _rms(there)
        if not size <= limits.size:
            return f"has outputs of {size:.3g} on this agent's samples (limit {limits.size:.3g})"
        loss, most = float(bench.loss.value(there, bench.targets).mean()), limits.loss(standing)
        is_ignorant = loss <= (1.0 + self.margin) * limits.nothing
        parole = standing.unlearned if standing.unlearned and loss > _LEARNED * limits.nothing else standing.parole
        if loss <= most or (is_ignorant and bench.step % parole == 0):
            return None
        return f"has a loss of {loss:.3g} on this agent's samples (limit {most:.3g})"

    def _dual_doubt(self, bench: Bench, said: Heard, edge: EdgeMemory | None, limits: _Limits | None) -> str | None:
        """Why the dual in an offer, which this agent would take over, fails the test; None if it passes."""
        dual = getattr(said.reply, "dual", None)
        if dual is None or said.is_first:  # the first end keeps its own dual
            return None
        if len(dual.centers) > _MORE * self.max_points:
            return f"hands over a dual with {len(dual.centers)} points (limit {_MORE * self.max_points})"
        # the change in the flow over the edge as this agent remembers it
        moments = np.zeros((len(dual.centers),) * 2) if dual.moments is None else -dual.moments
        flow = Statistics.gathered(bench.kernel, dual.centers, -dual.weights, moments)
        if edge is not None and edge.dual is not None:
            flow = flow.plus([(-1.0, Statistics.of(edge.dual))])
        if not self._is_young(bench):  # a young agent may have started from scratch, without a dual of its own to compare
            size, most = _size(flow), _FORGOTTEN * _size(bench.model.function)
            return (
                None
                if size <= most
                else f"hands over a dual that differs by {size:.3g} from the known one (limit {most:.3g})"
            )
        if limits is None or dual.moments is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            there = _opinions(bench, [_told(bench, flow, 1.0)])
            reason = self._judged(bench, there, limits, self._newcomer)
        return None if reason is None else f"hands over a dual that {reason}"

    def _outputs(self, bench: Bench, reply: Message, standing: _Standing) -> Floats | None:
        """A neighbor's outputs on the agent's own samples."""
        if isinstance(reply, Values):
            return reply.values
        assert isinstance(reply, Function | Offer)
        if reply.moments is None:
            return bench.kernel(bench.points, reply.centers) @ reply.weights
        return _opinions(bench, [_told(bench, reply, standing.weight)])


def _told(bench: Bench, said: Function | Offer | Statistics, weight: float) -> Told:
    assert said.moments is not None
    return Told(weight, united(bench.model.function.centers, said.centers)[1][0], said.weights, said.moments)


def _opinions(bench: Bench, told: Sequence[Told]) -> Floats | None:
    """The outputs of all neighbors that sent statistics, stacked by rows; None if one of them is invalid."""
    opinion = bench.rule.opinion(bench.model, told)
    if opinion is None:
        return None
    table = opinion.from_cross(bench.cross(opinion.centers)).reshape(len(bench.points), len(told), -1)
    return table.transpose(1, 0, 2).reshape(len(told) * len(bench.points), -1)


def _is_ahead(edges: EdgeMemories) -> bool:
    """Whether an offer from an earlier round may be used now."""
    return any(edge.early is not None for edge in edges.values())


def _is_close(own: Statistics, sizes: tuple[float, float], reply: Message | None, most: int) -> tuple[bool, bool]:
    """Whether received statistics differ from the agent's own by a small fraction, and whether they have other points.

    `sizes` are the squared norms of its own. Statistics of more than `most` points are not looked at.
    """
    if not isinstance(reply, Offer) or reply.dual is not None or reply.moments is None or len(reply.centers) > most:
        return False, False
    union, (place,) = united(own.centers, reply.centers)
    sums, square = compiled.symmetric.apart(place, own.weights, own.moments, reply.weights, reply.moments)
    # never close if values are not finite
    return sums <= _CLOSE**2 * sizes[0] and square <= _CLOSE**2 * sizes[1], len(union) > own.order


def _is_finite(*tables: Floats) -> bool:
    return all(np.isfinite(table).all() for table in tables)


def _is_constant(labels: Ints) -> bool:
    return bool((labels == labels[:1]).all())


def _rms(outputs: Floats) -> float:
    return math.sqrt(np.vdot(outputs, outputs) / outputs.size)


def _size(said: Expansion | Function | Offer) -> float:
    """Σ_m ‖w_m‖, which bounds the norm of a function if κ(x, x) ≤ 1; for statistics, plus the size of Θ."""
    moments = getattr(said, "moments", None)
    return compiled.screening.size(said.weights, _NO_MOMENTS if moments is None else moments)
