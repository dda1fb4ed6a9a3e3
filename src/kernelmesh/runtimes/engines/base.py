"""The interface of engines, which hold the shards of a network and pass batches of messages between them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.errors import KernelMeshError
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.plan import Plan
from kernelmesh.runtimes.round import Round
from kernelmesh.runtimes.shard import Shard
from kernelmesh.streams import Batch

__all__ = ["Engine", "InProcess", "LostShard"]


class LostShard(KernelMeshError, RuntimeError):
    """A process that ran some of the agents was lost."""


@runtime_checkable
class Engine(Protocol):
    """Holds the shards of one network at a time, controlled by `simulate`.

    Batches of messages are opaque to the caller: they may stay where they were made until another shard needs them.
    """

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> None:
        """Start a network, which replaces the previous one."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every shard concurrently; returns all results."""

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> Any:
        """Deliver to each shard the batches from the others, and return the batches it has for them."""

    def step(self, number: int, batches: Any) -> Round:
        """Deliver the last batches, let all agents learn, and return the results."""

    def recover(self, lost: LostShard) -> int:
        """Return to the last round that all shards can restore, and return its number. Raises `lost` if there is none."""


class InProcess:
    """All agents in one shard in this process: the reference for all other engines."""

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> None:
        """Start a network."""
        now = [agent.start(name=name, number=i) for i, name in enumerate(graph.names)] if states is None else states
        self.shard = Shard(agent, graph, streams, now)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the only shard; returns a list of one result."""
        return [getattr(self.shard, method)(*arguments)]

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> list[Mapping[int, bytes]]:
        """Do nothing: there are no other shards."""
        return self.call(method, {} if plan is None else plan)

    def step(self, number: int, batches: Any) -> Round:
        """Let all agents learn."""
        found = self.shard.step({})
        return Round(
            number=number,
            states=tuple(self.shard.states.values()),
            infos=tuple(found.infos),
            floats_sent=np.array(found.floats),
            bytes_sent=np.array(found.bytes),
            edge_bytes=found.edge_bytes,
        )

    def recover(self, lost: LostShard) -> int:
        """Nothing can be lost here."""
        raise lost
