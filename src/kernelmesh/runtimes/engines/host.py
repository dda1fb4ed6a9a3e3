"""What runs in a worker process or actor: one shard, whose messages for other shards are packed."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kernelmesh.agent import Agent, Info, State
from kernelmesh.checks import Floats, Ints
from kernelmesh.errors import KernelMeshError
from kernelmesh.messages import decode, encode
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.faults import Plan
from kernelmesh.runtimes.shard import Facts, Messages, Shard
from kernelmesh.runtimes.threads import use_one_thread
from kernelmesh.streams import Batch

__all__ = ["Failed", "Host", "Seen", "Spec", "StaleRound"]


class StaleRound(KernelMeshError, RuntimeError):
    """The states of an earlier round were requested after the agents had moved on."""


class Spec(NamedTuple):
    """What a host needs to start."""

    agent: Agent
    graph: Graph
    part: int
    parts: Sequence[int]
    """The part of each agent of the graph."""
    streams: Sequence[Iterable[Batch]]
    states: Sequence[State] | None
    """The initial states; None if every agent starts from scratch."""


class Seen(NamedTuple):
    """The report of a host on one round; states stay where they are."""

    infos: Sequence[Info | None]
    samples: Sequence[int]
    orders: Sequence[int]
    square_norms: Sequence[float]
    floats_sent: Ints
    bytes_sent: Ints
    edge_bytes: Ints
    batch_bytes: int
    """Bytes of the batches that went to other shards."""
    cpu_seconds: float
    """The CPU time of this process in the round, including taking mini-batches."""


class Failed(NamedTuple):
    """The error that a call ended with, as a value."""

    error: Exception


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """One message of a batch."""

    sender: int
    receiver: int
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Entry])


class Host:
    """Holds a shard. Its errors are returned as values, to distinguish them from errors of the transport."""

    def __init__(self) -> None:
        use_one_thread()  # the other cores belong to the other hosts

    def handle(self, method: str, *arguments: Any) -> Any:
        """The result of one of the methods below, or `Failed`."""
        try:
            return getattr(self, method)(*arguments)
        except Exception as error:
            return Failed(error)

    def start(self, spec: Spec) -> None:
        """Start a network."""
        self._spec, self._states = spec, dict[int, dict[int, State]]()
        members = [i for i, part in enumerate(spec.parts) if part == spec.part]
        self._shard = Shard(spec.agent, spec.graph, spec.streams, spec.states, members=members)

    def take(self, absent: frozenset[int]) -> Facts:
        """As `Shard.take`."""
        self._batch_bytes, self._began = 0, time.process_time()
        return self._shard.take(absent)

    def points(self) -> list[Floats]:
        """As `Shard.points`."""
        return self._shard.points()

    def speak(self, plan: Plan) -> dict[int, Any]:
        """As `Shard.speak`; returns a batch of messages for each other shard."""
        return self._sorted(self._shard.speak(plan))

    def answer(self, arrived: Mapping[int, Any]) -> dict[int, Any]:
        """As `Shard.answer`, from the batches of other shards."""
        return self._sorted(self._shard.answer(self._joined(arrived)))

    def step(self, number: int, arrived: Mapping[int, Any]) -> Seen:
        """As `Shard.step`, from the batches of other shards."""
        said = self._joined(arrived)
        self._states = {number - 1: dict(self._shard.states)}  # another shard may fail
        now = self._shard.step(number, said)
        self._states[number] = dict(self._shard.states)
        traffic = now.floats_sent, now.bytes_sent, now.edge_bytes
        spent = time.process_time() - self._began
        return Seen(now.infos, now.samples, now.orders, now.square_norms, *traffic, self._batch_bytes, spent)

    def _sorted(self, said: Messages) -> dict[int, Any]:
        """Keeps what our agents say to each other; the rest is packed, for each shard."""
        parts, out = self._spec.parts, defaultdict[int, list[_Entry]](list)
        self._own = {pair: message for pair, message in said.items() if parts[pair[1]] == self._spec.part}
        for (i, j), message in said.items():
            if (i, j) not in self._own:
                out[parts[j]].append(_Entry(i, j, encode(message)))
        packed = {part: _encoder.encode(entries) for part, entries in out.items()}
        self._batch_bytes += sum(map(len, packed.values()))
        return {part: self._sent(batch) for part, batch in packed.items()}

    def _joined(self, arrived: Mapping[int, Any]) -> Messages:
        """What our agents hear."""
        for batch in arrived.values():
            self._own |= {(each.sender, each.receiver): decode(each.data) for each in _decoder.decode(self._fetched(batch))}
        return self._own

    def _sent(self, batch: bytes) -> Any:
        """What stands for a batch on its way."""
        return batch

    def _fetched(self, batch: Any) -> bytes:
        """The batch."""
        found: bytes = batch
        return found

    def states(self, number: int, agents: Sequence[int]) -> list[State]:
        """The states of these agents of ours after a round, which must be the latest or the one before it."""
        if number not in self._states:
            rule = f"round {number}: its states must be read before the next round is requested"
            raise StaleRound(f"{rule}; they are in round {max(self._states, default=0)} now")
        return [self._states[number][i] for i in agents]

    def functions(self, number: int, agents: Sequence[int]) -> list[Function]:
        """The functions of these agents of ours after a round."""
        return [state.function for state in self.states(number, agents)]
