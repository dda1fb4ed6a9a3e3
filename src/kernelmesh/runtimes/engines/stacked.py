"""Runs agents over given shared points as one tensor in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import Any, overload

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.errors import InvalidArgument
from kernelmesh.exchange import Link
from kernelmesh.messages import Offer, Terms, WireSize, wire_size
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.engines.base import InProcess, LostShard
from kernelmesh.runtimes.plan import Plan
from kernelmesh.runtimes.round import LazyInfos, RemoteStates, Round
from kernelmesh.runtimes.shard import Facts
from kernelmesh.stack import Rows, Stack
from kernelmesh.streams import Batch

__all__ = ["Stacked"]

# A stand-in for the digest of a dual, with the same size on the wire: only one in two billion digests is shorter.
_DIGEST = 1 << 62


class Stacked:
    """The engine that `simulate` chooses if `kernelmesh.stack.stackable` allows it and no faults are planned.

    Rounds equal those of `InProcess`. As soon as an agent has no samples left, it continues as that engine.
    """

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> None:
        """Start a network whose states are known to be stackable."""
        assert states is not None
        self._agent, self._graph = agent, graph
        self._stack = Stack.of(agent, graph, states)
        self._sources: list[Iterator[Batch]] = [iter(stream) for stream in streams]
        self._tally = _Tally(self._stack)
        self._talks = False
        self._rest: InProcess | None = None

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """The result of a method of `Shard` for all agents, in a list of one."""
        if self._rest is None and method == "take":
            facts = self._take()
            if facts is not None:
                return [facts]
        if self._rest is not None:
            return self._rest.call(method, *arguments)
        assert method == "points", method
        return [[self._rows.points[self._rows.own(i)] for i in range(len(self._graph))]]

    def _take(self) -> Facts | None:
        """Take a mini-batch for every agent; None if some agents have none while others do."""
        batches = [next(source, None) for source in self._sources]
        there = [batch for batch in batches if batch is not None]
        if len(there) == len(batches):
            self._rows = _checked(self._agent, there)
            return Facts(list(range(len(batches))), int(self._stack.steps.max()), False, {})
        if not there:
            return Facts([], 0, True, {})
        self._hand_over(batches)
        return None

    def _hand_over(self, batches: Sequence[Batch | None]) -> None:
        """Continue as a simulation, one agent at a time."""
        states = [self._stack.state(i) for i in range(len(self._graph))]
        streams = [
            chain([] if batch is None else [batch], source) for batch, source in zip(batches, self._sources, strict=True)
        ]
        self._rest = InProcess()
        self._rest.start(self._agent, self._graph, streams, states)
        self._rest.shard.begin(states, sent=self._tally.sent)
        self._rest.shard.link(self._tally.links())

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> Any:
        """All exchanges are part of the step."""
        if self._rest is not None:
            return self._rest.exchange(method, batches, plan)
        self._talks = True
        return None

    def step(self, number: int, batches: Any) -> Round:
        """Let all agents learn."""
        if self._rest is not None:
            return self._rest.step(number, batches)
        talks, self._talks = self._talks, False
        if talks:
            self._tally.count(self._stack)
        self._stack, steps = self._stack.step(self._rows, talks=talks)
        return Round(
            number=number,
            states=_States(self._stack),
            infos=LazyInfos(len(steps.losses), steps.infos),
            **self._tally.traffic(),
        )

    def recover(self, lost: LostShard) -> int:
        """Nothing can be lost here."""
        raise lost


def _checked(agent: Agent, batches: Sequence[Batch]) -> Rows:
    """Validate all mini-batches together; if that fails, one at a time, so that the error is that of a single agent."""
    points, targets = ([np.asarray(batch[part]) for batch in batches] for part in (0, 1))
    alike = all(len({(table.dtype, table.shape[1:]) for table in tables}) == 1 for tables in (points, targets))
    if alike and all(x.ndim and y.ndim and len(x) == len(y) > 0 for x, y in zip(points, targets, strict=True)):
        rows = Rows.of(list(zip(points, targets, strict=True)))
        with suppress(InvalidArgument):
            return Rows(*agent.check(rows.points, rows.targets), rows.starts)
    return Rows.of([agent.check(*batch) for batch in batches])


class _Tally:
    """The traffic of all agents. All messages of a round have the same size, so only one is packed and measured."""

    def __init__(self, stack: Stack) -> None:
        self._graph, self._degrees = stack.graph, stack.gossip.degrees
        self._ends = Link(), Link()
        self._total = WireSize(0, 0)

    def count(self, before: Stack) -> None:
        """Count one exchange over every edge in both directions."""
        done = before.exchanges
        offer = Offer(before.centers, before.sent[0], Terms(0, done + 1, done, _DIGEST if done else 0, 0.5))
        here, there = (end.pack(offer) for end in self._ends)
        size = wire_size(here)
        self._total = WireSize(self._total.floats + size.floats, self._total.bytes + size.bytes)
        self._ends[0].unpack(there)
        self._ends[1].unpack(here)

    def traffic(self) -> dict[str, Any]:
        """Floats and bytes by agent, and bytes by edge."""
        floats, size = self._total
        edge_bytes = np.full(len(self._graph.edges), 2 * size, dtype=np.int64)
        return {"floats_sent": self._degrees * floats, "bytes_sent": self._degrees * size, "edge_bytes": edge_bytes}

    @property
    def sent(self) -> dict[str, list[int]]:
        """The same in the form that `Shard.begin` takes."""
        names = {"floats": "floats_sent", "bytes": "bytes_sent", "edge_bytes": "edge_bytes"}
        return {name: self.traffic()[found].tolist() for name, found in names.items()}

    def links(self) -> dict[tuple[int, int], Link]:
        """The two ends of every edge."""
        pairs = [pair for i, j in self._graph.edges for pair in ((i, j), (j, i))]
        return {pair: self._ends[0].copy() for pair in pairs}


class _States(RemoteStates):
    """The states of a round, each assembled on demand; tensors are immutable, so rounds can be kept."""

    def __init__(self, stack: Stack) -> None:
        self._stack, agents = stack, len(stack.names)
        self.samples = stack.samples.tolist()
        self.orders, self.square_norms = [len(stack.centers)] * agents, [np.nan] * agents

    def functions(self, agents: Sequence[int] | None = None) -> list[Expansion]:
        return [self._stack.function(i) for i in (range(len(self)) if agents is None else agents)]

    @cached_property
    def _all(self) -> list[State]:
        return [self._stack.state(i) for i in range(len(self))]

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: int | slice) -> State | list[State]:
        return self._all[index]
