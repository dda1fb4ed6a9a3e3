"""The base class of engines with several shards: placement, checkpoints, and fetching on demand."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np

from kernelmesh import storage
from kernelmesh.agent import Agent, Info, State
from kernelmesh.checks import integer
from kernelmesh.errors import Diverged, InvalidArgument, Verbatim
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.engines import files
from kernelmesh.runtimes.engines.base import LostShard
from kernelmesh.runtimes.engines.host import Failed, Seen, Spec
from kernelmesh.runtimes.engines.partition import crossing, partition
from kernelmesh.runtimes.plan import Plan
from kernelmesh.runtimes.round import LazyInfos, RemoteStates, Round
from kernelmesh.streams import Batch

__all__ = ["Partitioned"]

# The number of times in a row that a network may lose a shard without having made progress.
_PATIENCE = 3


class Partitioned:
    """An engine with several hosts; a subclass starts them, calls them, and moves batches between them.

    Hosts write a checkpoint every `every` rounds if `checkpoints` is set. When a host is lost, all return to the latest
    checkpoint that every host has, or to the start.
    """

    def __init__(self, parts: int, *, checkpoints: str | Path | None = None, every: int = 10) -> None:
        owner = type(self).__name__
        self.parts = integer(owner, "parts", parts, minimum=1)
        self._every = integer(owner, "every", every, minimum=1)
        self._address = None if checkpoints is None else str(checkpoints)
        if self._address is not None and "://" not in self._address:
            self._address = str(Path(self._address).resolve())  # hosts may run in other folders
        self.batch_bytes = 0
        """Bytes of all batches sent between shards in the latest network."""
        self.cpu_seconds = [0.0] * parts
        """CPU seconds that each shard has spent on rounds of the latest network."""
        self._number = self._furthest = self._setbacks = 0
        self._network = 0

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> None:
        """Start a network, which replaces the previous one."""
        _check_streams(streams)
        self._agent, self._graph = agent, graph
        self.placement = partition(graph, self.parts)
        """The shard of each agent."""
        pairs = {(self.placement[i], self.placement[j]) for i, j in crossing(graph, self.placement)}
        self.peers = [sorted({a + b - part for a, b in pairs if part in (a, b)}) for part in range(self.parts)]
        """For each shard, the other shards with neighbors of its agents."""
        self._members = [[i for i, p in enumerate(self.placement) if p == part] for part in range(self.parts)]
        self._edges: list[list[int]] = [[] for _ in range(self.parts)]
        for n, (i, j) in enumerate(graph.edges):
            for part in {self.placement[i], self.placement[j]}:
                self._edges[part].append(n)
        packed = None if states is None else [storage.pack(state, workspace=True) for state in states]
        self._called = graph.names if states is None else tuple(state.name for state in states)
        specs = [
            Spec(
                agent,
                graph,
                part,
                self.placement,
                [streams[i] for i in members],
                None if packed is None else [packed[i] for i in members],
                self._called,
            )
            for part, members in enumerate(self._members)
        ]
        self.batch_bytes = self._number = self._furthest = self._setbacks = 0
        self.cpu_seconds = [0.0] * self.parts
        self._network += 1
        if self._address is not None:
            for part in range(self.parts):
                files.tidy(self._address, part, kept=0)  # those of an earlier network
        self._launch(specs)

    @abstractmethod
    def _launch(self, specs: Sequence[Spec]) -> None:
        """Start a host for each spec; hosts that are still running can be reused."""

    @abstractmethod
    def _relaunch(self) -> None:
        """Start again with the same specs, replacing the hosts that were lost."""

    @abstractmethod
    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of some hosts; returns the results by shard, or raises `LostShard`."""

    @abstractmethod
    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> Any:
        """Deliver to each shard the batches from the others, and return the batches it has for them."""

    @abstractmethod
    def _step(self, number: int, batches: Any) -> list[Any]:
        """Deliver the last batches, and return the results of `Host.step`."""

    @abstractmethod
    def close(self) -> None:
        """End all hosts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every host; returns all results, or raises the error of the first agent that failed."""
        found = self._ask(method, dict.fromkeys(range(self.parts), arguments))
        return self._checked([found[part] for part in range(self.parts)])

    def _checked(self, results: list[Any]) -> list[Any]:
        errors = [result.error for result in results if isinstance(result, Failed)]
        if not errors:
            return results
        order = {name: i for i, name in enumerate(self._graph.names)}
        raise min(errors, key=lambda error: order.get(error.agent, -1) if isinstance(error, Diverged) else -1)

    def step(self, number: int, batches: Any) -> Round:
        """Let all agents learn; small results are returned at once, the rest on demand."""
        found: list[Seen] = self._checked(self._step(number, batches))
        floats, sent, samples = (np.zeros(len(self._graph), dtype=np.int64) for _ in range(3))
        orders, norms = np.zeros(len(self._graph), dtype=np.int64), np.zeros(len(self._graph))
        edge_bytes = np.zeros(len(self._graph.edges), dtype=np.int64)
        for members, seen in zip(self._members, found, strict=True):
            floats[members], sent[members] = seen.progress.floats, seen.progress.bytes
            samples[members], orders[members], norms[members] = seen.samples, seen.orders, seen.square_norms
        for edges, seen in zip(self._edges, found, strict=True):
            edge_bytes[edges] += seen.progress.edge_bytes  # each direction is counted by one shard
        self.batch_bytes += sum(seen.batch_bytes for seen in found)
        self.cpu_seconds = [spent + seen.cpu_seconds for spent, seen in zip(self.cpu_seconds, found, strict=True)]
        self._number = number
        if number > self._furthest:
            self._furthest, self._setbacks = number, 0
        if self._address is not None and number % self._every == 0:
            self.call("save", self._address, number)
        states = _States(self, self._network, number, samples.tolist(), orders.tolist(), norms.tolist())
        traffic = {"floats_sent": floats, "bytes_sent": sent, "edge_bytes": edge_bytes}
        infos = LazyInfos(len(self._graph), partial(_unpickled, self._members, [seen.infos for seen in found]))
        return Round(number=number, states=states, infos=infos, **traffic)

    def recover(self, lost: LostShard) -> int:
        """Return to the latest checkpoint that all hosts have, or to the start."""
        while True:
            self._setbacks += 1
            if self._setbacks > _PATIENCE:
                reason = f"{lost}; {_PATIENCE} attempts to continue from round {self._number} have failed"
                raise LostShard(reason) from lost
            try:
                self._relaunch()
                self._number = 0 if self._address is None else files.newest(self._address, self.parts)
                if self._number:
                    self.call("load", self._address, self._number)
            except LostShard as again:
                lost = again
            else:
                return self._number

    def functions(self, network: int, number: int, agents: Sequence[int] | None) -> list[Function]:
        """The functions of these agents, or of all, after a round of a network."""
        self._check_network(network)
        wanted = range(len(self._graph)) if agents is None else agents
        of: dict[int, list[int]] = {}
        for i in wanted:
            of.setdefault(self.placement[i], []).append(i)
        found = self._ask("functions", {part: (number, own) for part, own in of.items()})
        self._checked(list(found.values()))
        tables = {i: table for part, own in of.items() for i, table in zip(own, found[part], strict=True)}
        return [Function(*tables[i]) for i in wanted]

    def states(self, network: int, number: int) -> list[State]:
        """The states of all agents after a round of a network."""
        self._check_network(network)
        found = self.call("states", number)
        packed = {
            i: own
            for members, states in zip(self._members, found, strict=True)
            for i, own in zip(members, states, strict=True)
        }
        return [storage.unpack(self._agent, packed[i], name=name, names=self._called) for i, name in enumerate(self._called)]

    def _check_network(self, network: int) -> None:
        if network != self._network:
            found = Verbatim("those of an earlier one")
            remedy = "read them before the engine starts another network"
            raise InvalidArgument(type(self).__name__, "states", "be of the network it holds", found, remedy=remedy)


def _unpickled(members: Sequence[Sequence[int]], pickled: Sequence[bytes]) -> list[Info | None]:
    """The infos of all agents, from those of each shard."""
    found: dict[int, Info | None] = {}
    for own, data in zip(members, pickled, strict=True):
        found |= zip(own, pickle.loads(data), strict=True)  # noqa: S301 (from a worker of ours)
    return [found[i] for i in range(len(found))]


class _States(RemoteStates):
    def __init__(
        self,
        engine: Partitioned,
        network: int,
        number: int,
        samples: Sequence[int],
        orders: Sequence[int],
        square_norms: Sequence[float],
    ) -> None:
        self._engine, self._network, self._number = engine, network, number
        self.samples, self.orders, self.square_norms = samples, orders, square_norms
        self._functions: list[Function] | None = None

    def functions(self, agents: Sequence[int] | None = None) -> list[Function]:
        if self._functions is None:
            found = self._engine.functions(self._network, self._number, agents)
            if agents is not None:
                return found
            self._functions = found
        return self._functions if agents is None else [self._functions[i] for i in agents]

    @cached_property
    def _all(self) -> list[State]:
        return self._engine.states(self._network, self._number)

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: int | slice) -> State | list[State]:
        return self._all[index]

    def __iter__(self) -> Iterator[State]:
        return iter(self._all)


def _check_streams(streams: Sequence[Iterable[Batch]]) -> None:
    """Reject streams that depend on where they are iterated over, or that cannot restart after a loss."""
    owners: dict[int, int] = {}
    for i, stream in enumerate(streams):
        if isinstance(stream, Iterator):
            remedy = "for example ArrayStream; a generator can be read only once, and only here"
            found = Verbatim(type(stream).__name__)
            raise InvalidArgument("engine", "streams", "be readable from the start", found, remedy=remedy)
        rng = getattr(getattr(stream, "stream", stream), "rng", None)
        if rng is not None and owners.setdefault(id(rng), i) != i:
            found = Verbatim(f"one of agents {owners[id(rng)]} and {i}")
            remedy = "use rng.spawn(agents)"
            raise InvalidArgument("engine", "streams", "each have their own generator", found, remedy=remedy)
