"""The interface of engines, which hold the shards of a network and carry batches of messages between them."""

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
    """A process that held some of the agents is gone."""


@runtime_checkable
class Engine(Protocol):
    """Holds the shards of one network at a time, controlled by `simulate`.

    Batches of messages are opaque to the caller: they may stay where they were made until another shard needs them.
    """

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> None:
        """Begin with a network, which takes the place of the one before."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """What a method of every shard returns; all of them work at the same time."""

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> Any:
        """Hand each shard what the others have for it, if anything; what each has for the others."""

    def step(self, number: int, batches: Any) -> Round:
        """Hand out what was said last, let everybody learn, and say what there is to see."""

    def recover(self, lost: LostShard) -> int:
        """Go back to the last round that all shards can go back to; its number. Raises `lost` where there is no way back."""


class InProcess:
    """All agents in one shard in this process: the reference for all other engines."""

    def start(self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None) -> None:
        """Begin with a network."""
        now = [agent.start(name=name) for name in graph.names] if states is None else states
        self.shard = Shard(agent, graph, streams, now)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """What the method returns, in a list of one."""
        return [getattr(self.shard, method)(*arguments)]

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> list[Mapping[int, bytes]]:
        """There is nobody else."""
        return self.call(method, {} if plan is None else plan)

    def step(self, number: int, batches: Any) -> Round:
        """Everybody learns."""
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
