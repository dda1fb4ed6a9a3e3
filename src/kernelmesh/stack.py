"""Agents over given shared points, advanced together as one tensor, agents × points × outputs, without I/O.

A step performs the same sums, products and roundings as `Agent.step` for all agents at once, so that the results are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from kernelmesh.agent import Agent, Info, State, diverged, watch
from kernelmesh.checks import Floats, Ints
from kernelmesh.consensus import EdgeMemory
from kernelmesh.consensus.base import PastOffer
from kernelmesh.consensus.duals import digest
from kernelmesh.consensus.edge_duals import EdgeDuals
from kernelmesh.consensus.gossip import Gossip
from kernelmesh.messages import Terms
from kernelmesh.numerics.compression import CompressionReport
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph, share
from kernelmesh.numerics.shared_dictionary import SharedDictionary, lost_square, model_over

__all__ = ["Rows", "Stack", "Steps", "stackable"]

# The number of agents computed at a time, so that their kernel values stay in the CPU caches.
_TOGETHER = 64


def stackable(agent: Agent, graph: Graph, states: Sequence[State] | None) -> bool:
    """Whether these agents can be advanced as one tensor, while all of them learn in every round and no message is lost.

    Their protocol and rule must allow it, points must be given and identical (in the same order) for all agents, and
    there must not have been any exchange yet.
    """
    shared = isinstance(agent.compression, SharedDictionary) and agent.compression.given
    if not (shared and agent.consensus.exchange.shared and agent.consensus.stacks and agent.rule.stacks):
        return False
    if agent.screening is not None or agent.replay or not states or len(graph) == 1:
        return False
    centers = states[0].sent.centers
    if not len(centers) or len({point.tobytes() for point in centers}) < len(centers):
        return False
    return all(_is_fresh(state) and _same(state.sent.centers, centers) for state in states)


def _is_fresh(state: State) -> bool:
    return not state.edges and state.shown is None and state.reservoir is None


def _same(left: Floats, right: Floats) -> bool:
    return left is right or np.array_equal(left, right)


class Rows(NamedTuple):
    """The mini-batches of all agents, concatenated; agent i has the rows starts[i] to starts[i + 1] − 1."""

    points: Floats
    targets: Any
    starts: Ints

    @classmethod
    def of(cls, batches: Sequence[tuple[Floats, Any]]) -> Rows:
        """Stack validated mini-batches."""
        points, targets = zip(*batches, strict=True)
        starts = np.concatenate([[0], np.cumsum([len(own) for own in points])])
        return cls(np.concatenate(points), np.concatenate(targets), starts)

    def parts(self) -> Iterator[tuple[slice, slice, int]]:
        """Groups of consecutive agents with mini-batches of equal size: the agents, their rows, and that size."""
        sizes = np.diff(self.starts)
        cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
        for first, end in pairwise(cuts):
            for start in range(first, end, _TOGETHER):
                stop = min(start + _TOGETHER, end)
                yield slice(start, stop), slice(int(self.starts[start]), int(self.starts[stop])), int(sizes[start])

    def own(self, i: int) -> slice:
        """The rows of one agent."""
        return slice(int(self.starts[i]), int(self.starts[i + 1]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Stack:
    """The states of all agents of a network over one dictionary Z, as tensors. A step returns new ones.

    f_i ← Σ_j ā_ij φ_j,  λ_ij ← λ_ij + ā_ij (φ_j − φ_i),
    φ_i ← (1 − ηλ) f_i + (1/k) Σ_j λ_ij − (η/B) P κ(Z, X_i) ℓ'(f_i(X_i), y_i),  P = κ(Z, Z)⁻¹.

    Attributes
    ----------
    agent, graph, gossip
        The settings of every agent, and the communication graph.
    names : tuple
        The names in the states.
    centers, inverse : ndarray of shape (M, p) and (M, M)
        Z and P.
    sent : ndarray of shape (agents, M, C)
        The weights of φ.
    shown : ndarray of shape (agents, M, C) or None
        The weights of f, after the first exchange.
    duals, push : ndarray of shape (edges, M, C) and (agents, M, C), or None
        λ at the first end of each edge, and (1/k) Σ_j λ_ij; None before the first exchange.
    told, duals_before : ndarray or None
        φ and λ before the latest exchange.
    exchanges, since : int
        The number of exchanges, and of rounds since the latest one.
    samples, steps, baseline_losses : ndarray
        As in the `State` of each agent.

    Examples
    --------
    >>> from kernelmesh import Expansion, Gaussian, SharedDictionary, SharedDiffusion, Squared
    >>> agent = Agent(
    ...     dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5,
    ...     compression=SharedDictionary(novelty=math.inf), consensus=SharedDiffusion(),
    ... )
    >>> zero = Expansion(agent.kernel, np.array([[0.0], [2.0]]), np.zeros((2, 1)))
    >>> stack = Stack.of(agent, Graph.line(2), [agent.start(name=i, function=zero) for i in range(2)])
    >>> rows = Rows.of([agent.check([[0.1]], [1.0]), agent.check([[2.1]], [-1.0])])
    >>> stack, steps = stack.step(rows, talks=True)
    >>> stack.sent.shape, [info.loss for info in steps.infos()]
    ((2, 2, 1), [0.5, 0.5])
    """

    agent: Agent
    graph: Graph
    gossip: Gossip
    names: tuple[Any, ...]
    centers: Floats
    inverse: Floats
    sent: Floats
    shown: Floats | None = None
    duals: Floats | None = None
    push: Floats | None = None
    told: Floats | None = None
    duals_before: Floats | None = None
    exchanges: int = 0
    since: int = 0
    samples: Ints
    steps: Ints
    baseline_losses: Floats

    @classmethod
    def of(cls, agent: Agent, graph: Graph, states: Sequence[State]) -> Stack:
        """Stack these states, which must satisfy `stackable`."""
        first = states[0].model
        assert first.workspace is not None
        return cls(
            agent=agent,
            graph=graph,
            gossip=Gossip.over(graph, part=cast(EdgeDuals, agent.consensus).part),
            names=tuple(state.name for state in states),
            centers=first.function.centers,
            inverse=first.workspace.matrix.copy(),
            sent=np.stack([state.sent.weights for state in states]),
            samples=np.array([state.samples for state in states], dtype=np.int64),
            steps=np.array([state.steps for state in states], dtype=np.int64),
            baseline_losses=np.array([state.baseline_loss for state in states]),
        )

    def step(self, rows: Rows, *, talks: bool) -> tuple[Stack, Steps]:
        """All agents learn from a mini-batch, in a round in which either all agents exchange messages or none does."""
        combined = self._exchanged() if talks else self._rested()
        agent, f = self.agent, cast(Floats, combined.shown)
        step_sizes = self._by_samples(agent.step_size_at)
        sent = (1.0 - step_sizes * cast(float, agent.regularization))[:, None, None] * f
        if combined.push is not None:
            sent += combined.push
        losses, changes = np.empty(len(rows.points)), np.empty_like(f)
        coefficients = np.empty((len(rows.points), agent.outputs))
        with np.errstate(over="ignore", invalid="ignore"):
            for some, own, size in rows.parts():
                cross = agent.kernel(rows.points[own], self.centers).reshape(-1, size, len(self.centers))
                here = np.matmul(cross, f[some]).reshape(-1, agent.outputs)
                losses[own], slope = agent.loss.value_and_slope(here, rows.targets[own])
                rates = np.repeat(-step_sizes[some] / size, size)
                np.multiply(slope, rates[:, None], out=coefficients[own])
                lifted = np.matmul(cross, self.inverse)
                pushes = coefficients[own].reshape(-1, size, agent.outputs)
                np.matmul(lifted.transpose(0, 2, 1), pushes, out=changes[some])
            sent += changes
        found, baselines = combined._watched(rows, losses, step_sizes, sent)
        after = replace(
            combined, sent=sent, samples=self.samples + np.diff(rows.starts), steps=self.steps + 1, baseline_losses=baselines
        )
        return after, Steps(self, rows, talks, step_sizes, found, coefficients, changes)

    def _exchanged(self) -> Stack:
        """All agents after averaging with their neighbors, with updated duals."""
        consensus = cast(EdgeDuals, self.agent.consensus)
        duals = self.gossip.flowed(self.duals, self.sent)
        acting = duals if consensus.every == 1 else duals / consensus.every
        return replace(
            self,
            shown=self.gossip.mixed(self.sent),
            duals=duals,
            push=self.gossip.gathered(acting),
            told=self.sent,
            duals_before=self.duals,
            exchanges=self.exchanges + 1,
            since=0,
        )

    def _rested(self) -> Stack:
        return replace(self, shown=self.sent, since=self.since + 1)

    def _by_samples(self, schedule: Any) -> Floats:
        """A schedule's value for each agent."""
        samples, place = np.unique(self.samples, return_inverse=True)
        return np.array([schedule(int(n)) for n in samples])[place]

    def _watched(self, rows: Rows, losses: Floats, step_sizes: Floats, sent: Floats) -> tuple[Floats, Floats]:
        """The mean loss of each agent and its baseline; raises `Diverged` if one has diverged."""
        sizes = np.diff(rows.starts)
        means = np.empty(len(sizes))
        for some, own, size in rows.parts():
            means[some] = np.add.reduce(losses[own].reshape(-1, size), axis=1) / size
        baselines = self.baseline_losses.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            broken = ~np.isfinite(np.add.reduce(sent, axis=(1, 2)))
            odd = ~np.isfinite(self.agent.kernel.diag(rows.points))
        doubtful = broken | ~(means <= self.agent.explosion * baselines)
        doubtful[np.searchsorted(rows.starts, np.flatnonzero(odd), side="right") - 1] = True
        for i in np.flatnonzero(doubtful).tolist():
            state, own = self.state(i), rows.own(i)
            _, baselines[i] = watch(self.agent, state, step_sizes[i], losses[own], rows.targets[own])
            if odd[own].any():
                raise diverged(self.agent, state, step_sizes[i], "κ(x, x) of the new samples is not finite")
            if broken[i]:
                raise diverged(self.agent, state, step_sizes[i], "the function is no longer finite")
        return means, baselines

    def function(self, i: int) -> Expansion:
        """The function that an agent shows."""
        weights = self.sent if self.shown is None else self.shown
        return self._over(weights[i].copy())

    def state(self, i: int) -> State:
        """The state of one agent, which can be stepped separately."""
        return State(
            name=self.names[i],
            model=model_over(self._over(self.sent[i].copy()), self.inverse),
            samples=int(self.samples[i]),
            steps=int(self.steps[i]),
            edges=self._edges(i),
            shown=None if self.shown is None else self.function(i),
            baseline_loss=float(self.baseline_losses[i]),
        )

    def _edges(self, i: int) -> dict[Any, EdgeMemory]:
        """What an agent remembers about each edge."""
        if self.duals is None or self.told is None:
            return {}
        consensus, gossip, out = cast(EdgeDuals, self.agent.consensus), self.gossip, {}
        told = self._over(self.told[i].copy())
        most = share(len(self.graph.neighbors[i]))
        for n in range(gossip.starts[i], gossip.starts[i + 1]):
            edge, sign = gossip.edges[n], gossip.signs[n]
            before = 0 if self.duals_before is None else digest(self._over(self.duals_before[edge].copy()))
            terms = Terms(0, self.exchanges, self.exchanges - 1, before, most)
            out[self.graph.names[gossip.neighbors[n]]] = EdgeMemory(
                dual=self._over(sign * self.duals[edge]),
                done=self.exchanges,
                acts=max(consensus.every + consensus.patience - self.since, 0),
                before=PastOffer(told.centers, told.weights, terms),
            )
        return out

    def _over(self, weights: Floats) -> Expansion:
        return Expansion.trusted(self.agent.kernel, self.centers, weights)


@dataclass(frozen=True, eq=False)
class Steps:
    """The diagnostics of a step of all agents, assembled on demand."""

    before: Stack
    rows: Rows
    talks: bool
    step_sizes: Floats
    losses: Floats
    coefficients: Floats
    """What each sample adds to its agent's function, before projection."""
    changes: Floats
    """The same after projection, as weights over the shared points."""

    def infos(self) -> list[Info]:
        """The infos of all agents."""
        return [self.info(i) for i in range(len(self.losses))]

    def info(self, i: int) -> Info:
        """The info of one agent."""
        agent, own = self.before.agent, self.rows.own(i)
        points, size = self.rows.points[own], own.stop - own.start
        cross = agent.kernel(points, self.before.centers)
        lost = lost_square(agent.kernel, points, self.coefficients[own], cross, self.changes[i])
        report = CompressionReport(error=math.sqrt(lost), budget=math.inf, removed=size)
        return Info(
            batch_size=size,
            loss=float(self.losses[i]),
            order=len(self.before.centers),
            norm=math.nan,
            step_size=float(self.step_sizes[i]),
            penalty=agent.consensus.penalty(int(self.before.samples[i])),
            heard=len(self.before.graph.neighbors[i]) if self.talks else 0,
            **report.facts(),
        )
