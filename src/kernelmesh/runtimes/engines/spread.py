"""Networks that are spread over several hosts: placement, and fetching on demand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats, integer
from kernelmesh.errors import Diverged, InvalidArgument, KernelMeshError, Verbatim
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.engines.host import Failed, Seen, Spec
from kernelmesh.runtimes.engines.partition import partition
from kernelmesh.runtimes.faults import Plan
from kernelmesh.runtimes.round import RemoteStates, Round
from kernelmesh.runtimes.shard import Facts
from kernelmesh.streams import Batch

__all__ = ["LostShard", "Spread"]

Batches = list[dict[int, Any]]
"""For each shard, the batches of messages that it has for the others."""


_SMALL = ("samples", "orders", "square_norms")
_TRAFFIC = ("floats_sent", "bytes_sent", "edge_bytes")  # each edge and direction is counted by one shard


class LostShard(KernelMeshError, RuntimeError):
    """A process that ran some of the agents was lost."""


class Spread:
    """An engine and network of several hosts; a subclass starts them and calls them."""

    def __init__(self, parts: int) -> None:
        self.parts = integer(type(self).__name__, "parts", parts, minimum=1)
        self._runs = 0

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> Self:
        """Start a network, which replaces the previous one."""
        _check_streams(streams)
        self._names, self.placement = graph.names, partition(graph, self.parts)
        """The shard of each agent."""
        self._members = [[i for i, p in enumerate(self.placement) if p == part] for part in range(self.parts)]
        self.batch_bytes = 0
        """Bytes of all batches sent between shards in the latest network."""
        self.cpu_seconds = [0.0] * self.parts
        """CPU seconds that each shard has spent on rounds of the latest network."""
        self._runs += 1
        specs = []
        for part, members in enumerate(self._members):
            own = None if states is None else [states[i] for i in members]
            specs.append(Spec(agent, graph, part, self.placement, [streams[i] for i in members], own))
        self._launch(specs)
        return self

    @abstractmethod
    def _launch(self, specs: Sequence[Spec]) -> None:
        """Start a host for each spec; hosts that are still running can be reused."""

    @abstractmethod
    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of some hosts; returns the results by shard, or raises `LostShard`."""

    @abstractmethod
    def close(self) -> None:
        """End all hosts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """The results of hosts, or the error of the first agent that failed."""
        found = list(self._ask(method, arguments).values())
        errors = [result.error for result in found if isinstance(result, Failed)]
        if not errors:
            return found
        order = {name: i for i, name in enumerate(self._names)}
        raise min(errors, key=lambda error: order.get(error.agent, -1) if isinstance(error, Diverged) else -1)

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self._call(method, dict.fromkeys(range(self.parts), arguments))

    def _deliver(self, method: str, said: Batches, *arguments: Any) -> list[Any]:
        """Call a method of every host with the batches that the others have for it."""
        arrived = [{part: out[to] for part, out in enumerate(said) if to in out} for to in range(self.parts)]
        return self._call(method, {part: (*arguments, own) for part, own in enumerate(arrived)})

    def take(self, absent: frozenset[int]) -> Facts:
        """As `Shard.take`."""
        found: list[Facts] = self._call_all("take", absent)
        return Facts(
            [i for facts in found for i in facts.learns],
            max(facts.furthest for facts in found),
            any(facts.waits for facts in found),
            all(facts.settled for facts in found),
        )

    def points(self) -> list[Floats]:
        """As `Shard.points`."""
        return [points for found in self._call_all("points") for points in found]

    def speak(self, plan: Plan) -> Batches:
        """As `Shard.speak`."""
        return self._call_all("speak", plan)

    def answer(self, questions: Batches) -> Batches:
        """As `Shard.answer`."""
        return self._deliver("answer", questions)

    def step(self, number: int, said: Batches) -> Round:
        """As `Shard.step`; states stay where they are until they are read."""
        found: list[Seen] = self._deliver("step", said, number)
        self.batch_bytes += sum(seen.batch_bytes for seen in found)
        self.cpu_seconds = [spent + seen.cpu_seconds for spent, seen in zip(self.cpu_seconds, found, strict=True)]
        everybody = range(len(self.placement))
        fetch = partial(self._fetched, self._runs, number)
        of = {name: [getattr(seen, name) for seen in found] for name in Seen._fields}
        infos, *small = (_in_order(everybody, self._members, of[name]) for name in ("infos", *_SMALL))
        states = RemoteStates(partial(fetch, "states", everybody), partial(fetch, "functions"), *small)
        traffic = {name: np.sum(of[name], axis=0) for name in _TRAFFIC}
        return Round(number=number, states=states, infos=infos, **traffic)

    def _fetched(self, run: int, number: int, method: str, agents: Sequence[int]) -> list[Any]:
        """The states or functions of these agents after a round of a network."""
        if run != self._runs:
            found = Verbatim("those of an earlier one")
            remedy = "read them before the engine starts another network"
            raise InvalidArgument(type(self).__name__, "states", "be of the network it holds", found, remedy=remedy)
        wanted: dict[int, list[int]] = {}
        for i in agents:
            wanted.setdefault(self.placement[i], []).append(i)
        tables = self._call(method, {part: (number, own) for part, own in wanted.items()})
        return list(_in_order(agents, wanted.values(), tables))


def _in_order(agents: Iterable[int], groups: Iterable[Sequence[int]], found: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """What was found for each group of agents, in the order of `agents`."""
    by_agent: dict[int, Any] = {}
    for group, own in zip(groups, found, strict=True):
        by_agent.update(zip(group, own, strict=True))
    return tuple(by_agent[i] for i in agents)


def _check_streams(streams: Sequence[Iterable[Batch]]) -> None:
    """Reject streams that depend on where they are iterated over."""
    owners: dict[Any, int] = {}
    for i, stream in enumerate(streams):
        if isinstance(stream, Iterator):
            remedy = "for example ArrayStream; a generator can be read only once, and only here"
            found = Verbatim(type(stream).__name__)
            raise InvalidArgument("engine", "streams", "be readable from the start", found, remedy=remedy)
        rng = getattr(getattr(stream, "stream", stream), "rng", None)
        if rng is not None and owners.setdefault(rng, i) != i:
            found = Verbatim(f"one of agents {owners[rng]} and {i}")
            raise InvalidArgument("engine", "streams", "each have their own generator", found, remedy="use rng.spawn(agents)")
