"""What runs in a worker process or actor: one shard with its checkpoints."""

import pickle
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from kernelmesh import storage
from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument, KernelMeshError, Verbatim
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.runtimes.engines import files
from kernelmesh.runtimes.plan import Plan
from kernelmesh.runtimes.shard import Facts, Progress, Shard
from kernelmesh.streams import Batch

__all__ = ["Failed", "Host", "Seen", "Spec", "StaleRound"]

Packed = dict[str, NDArray[Any]]


class StaleRound(KernelMeshError, RuntimeError):
    """The states of an earlier round were requested after the agents had moved on."""


class Spec(NamedTuple):
    """What a host needs to start."""

    agent: Agent
    graph: Graph
    part: int
    parts: tuple[int, ...]
    streams: Sequence[Iterable[Batch]]
    states: Sequence[Packed] | None
    """The initial states; None if every agent starts from scratch."""
    called: tuple[Hashable, ...]
    """The names in the states of all agents, which may differ from those in the graph."""

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a checkpoint must match."""
        members = [str(name) for name, part in zip(self.graph.names, self.parts, strict=True) if part == self.part]
        return {"agent": self.agent.identity, "part": self.part, "agents": len(self.graph), "members": members}


class Seen(NamedTuple):
    """The report of a host on one round."""

    progress: Progress
    """Without the infos."""
    infos: bytes
    """Those, pickled: in most rounds nobody looks at them."""
    samples: list[int]
    orders: list[int]
    square_norms: list[float]
    batch_bytes: int
    """Bytes of the batches that went to other shards."""
    cpu_seconds: float
    """The CPU time of this process in the round, including taking mini-batches."""


class Failed(NamedTuple):
    """The error that a call ended with, as a value."""

    error: Exception


class Host:
    """Holds a shard. Its errors are returned as values, to distinguish them from errors of the transport."""

    def __init__(self) -> None:
        import_module("scipy.linalg.blas")  # a limit applies only to libraries already loaded
        self._limits = threadpool_limits(1)  # the other cores belong to the other hosts
        self._error: Exception | None = None

    def handle(self, method: str, *arguments: Any) -> Any:
        """The result of one of the methods below, or `Failed`."""
        try:
            return getattr(self, method)(*arguments)
        except Exception as error:
            return Failed(error)

    def start(self, spec: Spec) -> None:
        """Start a network."""
        self._spec, self._number, self._halfway = spec, 0, False
        names = spec.graph.names
        members = [i for i, part in enumerate(spec.parts) if part == spec.part]
        if spec.states is None:
            states = [spec.agent.start(name=names[i], number=i) for i in members]
        else:
            states = [self._unpack(packed, i) for packed, i in zip(spec.states, members, strict=True)]
        self.shard = Shard(spec.agent, spec.graph, spec.streams, states, part=spec.part, parts=spec.parts)

    def _unpack(self, packed: Packed, i: int) -> State:
        return storage.unpack(self._spec.agent, packed, name=self._spec.called[i], names=self._spec.called)

    def take(self, away: frozenset[int]) -> Facts:
        """As `Shard.take`."""
        self._error, self._batch_bytes, self._began = None, 0, time.process_time()
        return self.shard.take(away)

    def threads(self) -> int:
        """The largest number of threads that a numerical library of this process uses."""
        return max(int(pool["num_threads"]) for pool in threadpool_info())

    def points(self) -> list[Floats]:
        """As `Shard.points`."""
        return self.shard.points()

    def exchange(self, method: str, argument: Plan | Mapping[int, bytes]) -> dict[int, bytes]:
        """`Shard.ask` or `Shard.answer`; if it fails, `step` reports the error."""
        try:
            found: dict[int, bytes] = getattr(self.shard, method)(argument) if self._error is None else {}
        except Exception as error:
            self._error, found = error, {}
        self._batch_bytes += sum(map(len, found.values()))
        return found

    def step(self, number: int, received: Mapping[int, bytes]) -> Seen:
        """As `Shard.step`."""
        if self._error is not None:
            raise self._error
        self.shard.keep()
        self._halfway = True
        progress = self.shard.step(received)
        self._halfway, self._number = False, number
        states = self.shard.states.values()
        return Seen(
            progress._replace(infos=[]),
            pickle.dumps(progress.infos),
            [state.samples for state in states],
            [state.function.order for state in states],
            [state.model.square_norm for state in states],
            self._batch_bytes,
            time.process_time() - self._began,
        )

    def _at(self, number: int) -> dict[int, State]:
        """The states after a round, which must be the latest or the one before it."""
        if number == self._number and not self._halfway:
            return self.shard.states
        if number in (self._number, self._number - 1) and self.shard.before:
            return self.shard.before
        rule = f"round {number}: its states must be read before the next round is requested"
        raise StaleRound(f"{rule}; they are in round {self._number} now")

    def functions(self, number: int, agents: Sequence[int] | None) -> list[tuple[Kernel, Floats, Floats]]:
        """The functions of these agents of ours, or of all, after a round."""
        states = self._at(number)
        chosen = self.shard.members if agents is None else agents
        functions = [states[i].function for i in chosen]
        return [(function.kernel, function.points, function.weights) for function in functions]

    def states(self, number: int) -> list[Packed]:
        """The states of our agents after a round."""
        return [storage.pack(state, workspace=True) for state in self._at(number).values()]

    def save(self, address: str, number: int) -> None:
        """Write a checkpoint, and delete all but the latest two."""
        shard = self.shard
        arrays: Packed = {}
        for i, state in shard.states.items():
            packed = storage.pack(state, workspace=True)
            arrays |= {f"{i}/{key}": value for key, value in packed.items()}
        for name in ("taken", "floats", "bytes"):
            arrays[name] = np.array(list(getattr(shard, name).values()), dtype=np.int64)
        arrays["edge_bytes"] = np.array(shard.edge_bytes, dtype=np.int64)
        about = {"network": self._spec.identity, "round": number}
        files.write(address, files.name(number, self._spec.part), arrays=arrays, settings=about)
        files.tidy(address, self._spec.part)

    def load(self, address: str, number: int) -> None:
        """Continue from a checkpoint."""
        where = files.name(number, self._spec.part)
        arrays, about = files.read(address, where)
        if about.get("network") != self._spec.identity or about.get("round") != number:
            found = Verbatim(f"one of another network in {address}")
            remedy = "use another folder for this run, or empty that one"
            raise InvalidArgument("engine", "checkpoints", "contain a checkpoint of this network", found, remedy=remedy)
        with storage.understood(f"{address}/{where}", "a shard"):
            grouped: dict[int, Packed] = {i: {} for i in self.shard.members}
            for key, value in arrays.items():
                number_of, slash, rest = key.partition("/")
                if slash:
                    grouped[int(number_of)][rest] = value
            states = [self._unpack(packed, i) for i, packed in grouped.items()]
            sent = {name: [int(n) for n in arrays[name]] for name in ("floats", "bytes", "edge_bytes")}
            self.shard.begin(states, [int(n) for n in arrays["taken"]], sent)
        self._number, self._halfway = number, False
