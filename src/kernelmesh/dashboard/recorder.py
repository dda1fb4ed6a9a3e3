"""Records what a run's page needs, and writes it to the run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernelmesh.agent import Agent
from kernelmesh.checks import Floats, Ints
from kernelmesh.dashboard.recording import FILE, Frame, Recording, Snapshot, State, Subject
from kernelmesh.dashboard.thinning import evenly
from kernelmesh.errors import KernelMeshError
from kernelmesh.metrics import AgentMeasures, Measures
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.round import RemoteStates, Round
from kernelmesh.streams import StreamSlice

__all__ = ["Network", "Recorder", "frame_of", "subject_of"]

_HELD_OUT, _OWN, _OWN_TOTAL = 400, 80, 6000  # samples to show: held-out, per agent, over all agents
_SECONDS = 5.0  # between writes, so that a killed run leaves a file, and other processes can watch


class Network(Protocol):
    """A network that learns, and the samples that it is measured on."""

    @property
    def agent(self) -> Agent:
        """The settings of every agent."""

    @property
    def graph(self) -> Graph:
        """Who talks to whom."""

    @property
    def streams(self) -> Sequence[StreamSlice]:
        """The samples of each agent."""

    @property
    def points(self) -> Floats:
        """Held-out points."""

    @property
    def targets(self) -> Any:
        """Their targets."""


class Recorder:
    """Records the networks of a run as they learn, each to a file in the run's folder or in that of its part.

    Parameters
    ----------
    folder : Path
        The run's folder.
    clock : callable
        The time in seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._network: Network | None = None
        self.part, self._written, self._took = "", -np.inf, 0.0
        self.recording: Recording | None = None
        """The recording of the network that is learning, or that learned last."""
        self.settings: Mapping[str, Any] = {}
        """The settings of the run, for its page."""
        self.ended: tuple[str, str] | None = None
        """The name of the outcome, and a remark about it, once the run has ended."""

    @property
    def _file(self) -> Path:
        return self._folder / self.part / FILE

    def begin(self, network: Network, *, part: str = "", rounds: int = 0) -> None:
        """Record another network, or continue the recording of one that has made some rounds before."""
        if self.recording is not None:
            self._write()  # the previous part
        self.part, self._network = part, network
        self.recording = Recording(subject_of(network))
        if rounds:
            try:
                self.recording = Recording.read(self._file)
                self.recording.rewind(rounds)
            except (OSError, KernelMeshError):  # no earlier recording to continue: only the rest is recorded
                pass
        self._written = -np.inf

    def add(self, now: Round, measures: Measures, agents: AgentMeasures) -> None:
        """Record a measured round."""
        assert self._network is not None
        assert self.recording is not None
        self.recording.add(frame_of(now, measures, agents, self._network), _snapshot(now, agents))
        if self._clock() - self._written > max(_SECONDS, 20 * self._took):
            self._write()

    def end(self, outcome: str, remark: str = "") -> None:
        """Write everything."""
        self.ended = outcome, remark
        if self.recording is None:  # left over from an earlier run
            self._file.unlink(missing_ok=True)
        self._write()

    def _write(self) -> None:
        if self.recording is None:
            return
        began = self._clock()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.recording.write(self._file)
        self._written, self._took = self._clock(), self._clock() - began


def subject_of(network: Network) -> Subject:
    """What a recording must know about a network."""
    agent, graph = network.agent, network.graph
    rows = evenly(len(network.points), _HELD_OUT)
    own = [_own_samples(stream.stream, len(graph)) for stream in network.streams]
    classes = agent.outputs if agent.loss.classifies else 0
    return Subject(
        names=tuple(map(str, graph.names)),
        edges=np.array(graph.edges, dtype=np.int64).reshape(-1, 2),
        dimension=agent.dimension,
        outputs=agent.outputs,
        kernel=agent.kernel,
        loss=agent.loss,
        classes=tuple(map(str, range(classes))),
        held_points=network.points[rows].astype(np.float64),
        held_targets=_first_column(network.targets, rows),
        own_points=np.concatenate([points for points, _ in own]),
        own_targets=np.concatenate([targets for _, targets in own]),
        own_agents=np.repeat(np.arange(len(own)), [len(points) for points, _ in own]),
        seen=np.array([_class_counts(stream.stream.targets, classes) for stream in network.streams]),
        total_samples=max(stream.rows for stream in network.streams),
    )


def _own_samples(stream: Any, agents: int) -> tuple[Floats, Floats]:
    rows = evenly(len(stream.points), min(_OWN, max(_OWN_TOTAL // agents, 2)))
    return stream.points[rows].astype(np.float64), _first_column(stream.targets, rows)


def _first_column(targets: Any, rows: Sequence[int]) -> Floats:
    """The classes as numbers, or the first output."""
    chosen = np.asarray(targets, dtype=np.float64)[rows]
    return chosen.reshape(len(rows), -1)[:, 0] if len(rows) else np.zeros(0)


def _class_counts(targets: Any, classes: int) -> Ints:
    return np.bincount(np.asarray(targets, dtype=np.int64), minlength=classes) if classes else np.zeros(0, dtype=np.int64)


def _snapshot(now: Round, agents: AgentMeasures) -> Snapshot | None:
    """The dictionaries of a round; None if agents are remote and only some were measured, to avoid fetching the rest."""
    if isinstance(now.states, RemoteStates) and len(agents.agents) < len(now.states):
        return None
    return Snapshot.of(now.number, max(now.samples), now.functions)


def frame_of(now: Round, measures: Measures, agents: AgentMeasures, network: Network) -> Frame:
    """All numbers of a measured round."""
    ended = [samples >= stream.rows for samples, stream in zip(now.samples, network.streams, strict=True)]
    # agents that share sums wait until their network stands
    idle = State.LEARNING if network.agent.protocol.shares else State.AWAY
    states = [
        State.LEARNING if info is not None else State.ENDED if over else idle
        for info, over in zip(now.infos, ended, strict=True)
    ]
    refused = np.zeros(len(states))  # in a simulation, every message can be read
    columns = (now.samples, agents.losses, agents.scores, now.orders, now.bytes_sent, states, refused)
    totals = {
        "round": now.number,
        "samples": measures.samples,
        "objective": measures.objective,
        "disagreement": measures.disagreement,
        "order_mean": measures.order_mean,
        "order_max": measures.order_max,
        "score_mean": measures.score_mean,
        "score_worst": measures.score_worst,
        "bytes_per_sample": measures.bytes_per_sample,
        "penalty": measures.penalty,
    }
    edges = np.column_stack((agents.disagreements, now.edge_bytes)) if len(agents.disagreements) else np.zeros((0, 2))
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    return Frame(totals, table.astype(np.float32), edges.astype(np.float32))
