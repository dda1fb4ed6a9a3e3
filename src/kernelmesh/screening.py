"""Screening of received messages: each one is bounded in size and tested on the agent's own samples before it is used."""

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
# Statistics that differ from the agent's own by at most this fraction are tested only once in this many steps.
_CLOSE, _SPARED = 0.2, 8
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


@dataclass(frozen=True, eq=False, kw_only=True)
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
    health: Health | None = None
    """The agent's own recent loss."""

    @functools.cached_property
    def here(self) -> Floats:
        """f(X)."""
        return self.function(self.points)


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

    def admitted(self, update: Update) -> Update:
        """The update without the barred points.

        Statistics are clipped here, not in the message, because both ends of an edge must count the same flow.
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

    @property
    def ahead(self) -> int:
        """The number of epochs that this end skips when it rejects the neighbor."""
        return _BETRAYED if self.is_known else _ANEW


class _Bounded(NamedTuple):
    """A message of acceptable size, or the reason why it is rejected."""

    reply: Message
    doubt: str | None = None
    cut: str = ""
    """What was clipped, and why."""
    barred: Floats | None = None
    """Points that must not enter the dictionary, if the message itself is left unchanged."""


@register("screening")
@dataclass(frozen=True, kw_only=True)
class Screening:
    """Reject a neighbor j in a round if it does more harm than good: ℓ(f_j(X), y) > min(ℓ(f_i(X), y), ℓ(0, y)) + m ℓ(0, y).

    X, y are the agent's own newest samples. The more the agent's own loss has risen recently, the smaller m becomes, in case
    a neighbor misleads it in small steps. If agents exchange statistics, f_j is the function that the agent would have after
    adding the neighbor's statistics to its own. Until the two have completed `youth` exchanges, honest agents may disagree,
    and the statistics are added once. After that they are added `weight` times, m is halved if the agent's own loss is low,
    and paroles are eight times as rare, and rarer still after each rejection. Statistics that differ from the agent's own by
    less than a fifth are tested only in every eighth step.

    Messages with non-finite values, too many points, or outputs far larger than the agent's own are rejected as well.
    Excessive weights are scaled down.

    After a rejection both ends reset their memory of the edge, so that a dual that the neighbor may have poisoned no longer
    acts. The neighbor is accepted again as soon as it passes the test. One that is not hostile but merely uninformed,
    ℓ(f_j(X), y) ≤ (1 + m) ℓ(0, y), for example after a long separation, is accepted whenever the number of the step is a
    multiple of `parole`, so that two ends that have forgotten each other's data can reach agreement again.

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
        The number of steps for which an agent counts as young, and of exchanges of statistics for which an edge does.
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
            early = edges[neighbor].early  # an offer from an earlier round that may only be used now
            if early is not None and early.moments is not None and len(far := self._far(bench, early)):
                barred.append(early.centers[far])
        return Screened(
            kept, {**edges, **anew} if anew else edges, left_out, clipped, np.concatenate(barred) if barred else None
        )

    def _standing(self, bench: Bench, reply: Message, edge: EdgeMemory | None) -> _Standing:
        """How strictly a neighbor is tested, given the history of the edge to it.

        Two honest ends may disagree until they have exchanged statistics often. A neighbor that is rejected after that waits
        longer after each rejection.
        """
        if getattr(reply, "moments", None) is None:
            return _Standing(self.margin, self.parole)
        epoch, done = (0, 0) if edge is None else (edge.epoch, edge.done)
        betrayed = min(epoch // _BETRAYED, _COUNTED)
        if not betrayed and done < self.youth:
            return _Standing(self.margin, self.parole)
        return _Standing(self.margin, _SKIPPED * max(betrayed, 1) * self.parole, self.weight, is_known=True)

    def _doubtful(self, bench: Bench, heard: Sequence[Heard], edges: EdgeMemories) -> list[Heard]:
        """The messages that must be tested in this step.

        Statistics over the agent's own points that differ little from its own can move it only that little. If all agents are
        honest, most statistics are like that, so they are tested only in every eighth step.
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
        """Whether all neighbors pass, tested together; if False, each must be tested separately."""
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
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite fail every check
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
        """The outputs of all neighbors on the agent's own samples, stacked by rows; None if one is invalid."""
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
        cross = bench.kernel(bench.points, opinions[0].centers)  # all opinions are over the agent's own points
        return np.concatenate([cross @ opinion.weights for opinion in opinions])

    def _strangers(self, bench: Bench, known: Floats, rows: Floats, starts: Ints) -> int:
        """The largest number of points in one message that are far from all points known to the agent."""
        first = compiled.folding.first_of_equals(rows.view(np.uint64))[len(known) :]
        fresh = np.flatnonzero(first == np.arange(len(known), len(rows)))  # neither known nor in an earlier message
        if not len(fresh):
            return 0
        far = np.zeros(len(rows), dtype=np.int64)
        far[fresh + len(known)] = ~_near(bench.kernel, np.ascontiguousarray(rows[fresh + len(known)]), known)
        return int(np.add.reduceat(far[first], starts).max())

    def _limits(self, bench: Bench) -> _Limits | None:
        """The limits on a neighbor's outputs; None without samples to test on."""
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
        """The message, clipped if it is too large; or the reason why it is rejected."""
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
        """The points of a message that must not enter: those far from all points that the agent knows, if too many."""
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
        """Why a message fails the test on the agent's own samples; None if it passes."""
        if limits is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite fail every check
            return self._judged(bench, self._outputs(bench, reply, standing.weight), limits, standing)

    def _judged(self, bench: Bench, there: Floats | None, limits: _Limits, standing: _Standing) -> str | None:
        """Why outputs on the agent's own samples fail the test; None if they pass."""
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
        if bench.step > self.youth:  # a young agent may have started from scratch, without a dual of its own to compare
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
        """A neighbor's outputs on the agent's own samples."""
        if isinstance(reply, Values):
            return reply.values
        assert isinstance(reply, Function | Offer)
        if reply.moments is None:
            return bench.kernel(bench.points, reply.centers) @ reply.weights
        opinion = self._opinion(bench, reply, weight)
        return None if opinion is None else opinion(bench.points)

    def _opinion(self, bench: Bench, reply: Function | Offer, weight: float) -> Expansion | None:
        """The function that the agent would have after adding a neighbor's statistics to its own."""
        assert reply.moments is not None
        said = Statistics.gathered(bench.kernel, reply.centers, reply.weights, reply.moments)
        return bench.rule.opinion(bench.model, said, weight)


def _is_close(own: Statistics, reply: Message | None) -> bool:
    """Whether received statistics are over the agent's own points, and differ from its own by a small fraction."""
    if not isinstance(reply, Offer) or reply.dual is not None or reply.moments is None:
        return False
    bits = np.concatenate([own.centers, reply.centers]).view(np.uint64)
    sums, square, *size = compiled.symmetric.apart(bits, own.weights, own.moments, reply.weights, reply.moments)
    return sums <= _CLOSE**2 * size[0] and square <= _CLOSE**2 * size[1]  # never true for values that are not finite


def _near(kernel: Kernel, points: Floats, known: Floats) -> NDArray[np.bool_]:
    """Which points are near at least one known point."""
    limits = _NEAR * np.sqrt(np.outer(kernel.diag(points), kernel.diag(known)))
    return np.asarray((np.abs(kernel(points, known)) > limits).any(axis=1))


def _rms(outputs: Floats) -> float:
    return float(np.sqrt(np.mean(outputs**2)))


def _doubted(said: Heard) -> Heard:
    """The message with its statistics marked as in doubt, so that the agent checks them itself."""
    if isinstance(said.reply, Offer) and said.reply.moments is not None:
        return said._replace(reply=replace(said.reply, in_doubt=True))
    return said


def _size(said: Expansion | Function | Offer) -> float:
    """Σ_m ‖w_m‖, which bounds the norm of a function if κ(x, x) ≤ 1; for statistics, plus the size of Θ."""
    with np.errstate(over="ignore"):
        size = float(np.sqrt((said.weights**2).sum(axis=1)).sum())
        moments = getattr(said, "moments", None)
        return size if moments is None else size + float(np.abs(moments).sum())
