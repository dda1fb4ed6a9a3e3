"""Records what a run's page needs, and writes it to the run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernelmesh.agent import Agent
from kernelmesh.checks import Floats
from kernelmesh.dashboard.recording import FILE, TOTALS, Frame, Recording, Snapshot, State, Subject
from kernelmesh.dashboard.thinning import evenly
from kernelmesh.errors import KernelMeshError
from kernelmesh.metrics import AgentMeasures, Measures
from kernelmesh.runtimes.round import RemoteStates, Round

__all__ = ["Recorder", "frame_of", "subject_of"]

Samples = tuple[Floats, Any]
"""Points and targets."""


class Recorder:
    """Records the networks of a run as they learn, each to a file in the run's folder or in that of its part.

    Parameters
    ----------
    folder : Path
        The run's folder.
    clock : callable
        The time in seconds.
    every : float
        Seconds between writes, so that a killed run leaves a file, and other processes can watch.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic, every: float = 5.0) -> None:
        self.folder, self._clock, self._every = folder, clock, every
        self.settings: Mapping[str, Any] = {}
        """The settings of the run, for its page."""
        self.part, self._written, self._took = "", -np.inf, 0.0
        self._network: Any = None
        self.recording = Recording(Subject())
        """The recording of the network that is learning, or that learned last."""
        self.ended: tuple[str, str] | None = None
        """How the run ended: its outcome (complete, interrupted or diverged) and a remark; None while it runs."""

    @property
    def _file(self) -> Path:
        return self.folder / self.part / FILE

    def begin(self, network: Any, *, part: str = "", rounds: int = 0) -> None:
        """A network begins to learn, or resumes after some rounds.

        It has an `agent`, a `graph`, the `streams` of its agents, and the held-out `points` and `targets`.
        """
        self._write()  # the previous part
        self.part, self._network, graph = part, network, network.graph
        samples = [(each.stream.points, each.stream.targets) for each in network.streams]
        subject = subject_of(network.agent, graph.names, graph.edges, samples, (network.points, network.targets))
        self.recording = Recording(replace(subject, total_samples=max(each.rows for each in network.streams)))
        if rounds:
            try:
                before = Recording.read(self._file)
                before.rewind(rounds)
                self.recording = before
            except (OSError, KernelMeshError):  # no earlier recording to continue: only the rest is recorded
                pass
        self._written = -np.inf

    def add(self, now: Round, measures: Measures, agents: AgentMeasures) -> None:
        """A round was measured."""
        # fetching the functions of remote agents only for pictures would take long
        remote = isinstance(now.states, RemoteStates) and len(agents.agents) < len(now.states)
        snapshot = None if remote else Snapshot.of(now.number, max(now.samples), now.functions)
        self.recording.add(frame_of(now, measures, agents, self._network), snapshot)
        if self._clock() - self._written > max(self._every, 20 * self._took):
            self._write()

    def end(self, outcome: str, remark: str = "") -> None:
        """The run has ended."""
        if not self.recording.subject.names:  # left over from an earlier run
            self._file.unlink(missing_ok=True)
        self._write()
        self.ended = outcome, remark

    def _write(self) -> None:
        if not self.recording.subject.names:
            return
        began = self._clock()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.recording.write(self._file)
        self._written, self._took = self._clock(), self._clock() - began


def subject_of(
    agent: Agent, names: Sequence[Any], edges: Sequence[tuple[int, int]], samples: Sequence[Samples], held_out: Samples
) -> Subject:
    """What a recording must know about a network, with some samples: 400 held-out, 80 per agent, 6000 over all agents."""
    held, held_targets = _some(held_out, 400)
    own = [_some(each, min(80, max(6000 // len(names), 2))) for each in samples]
    classes = agent.outputs if agent.loss.classifies else 0
    counts = [np.bincount(np.asarray(targets, dtype=np.int64), minlength=classes) for _, targets in samples if classes]
    return Subject(
        names=tuple(map(str, names)),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        dimension=agent.dimension,
        outputs=agent.outputs,
        kernel=agent.kernel,
        loss=agent.loss,
        classes=tuple(map(str, range(classes))),
        held_points=held,
        held_targets=held_targets,
        own_points=np.concatenate([points for points, _ in own]),
        own_targets=np.concatenate([targets for _, targets in own]),
        own_agents=np.repeat(np.arange(len(own)), [len(points) for points, _ in own]),
        seen=np.array(counts, dtype=np.int64).reshape(len(names), classes),
    )


def _some(samples: Samples, limit: int) -> Samples:
    """Some samples, evenly spaced: points, and classes as numbers or the first output."""
    rows = evenly(len(samples[0]), limit)
    points, targets = (np.asarray(part, dtype=np.float64)[rows] for part in samples)
    return points, targets.reshape(len(rows), -1)[:, 0] if rows else np.zeros(0)


def frame_of(now: Round, measures: Measures, agents: AgentMeasures, network: Any) -> Frame:
    """All numbers of a measured round."""
    # agents that share sums wait until their network stands
    waits = State.LEARNING if network.agent.protocol.shares else State.AWAY
    states = [
        State.LEARNING if info is not None else State.ENDED if samples >= stream.rows else waits
        for info, samples, stream in zip(now.infos, now.samples, network.streams, strict=True)
    ]
    refused = np.zeros(len(states))  # in a simulation, every message can be read
    columns = (now.samples, agents.losses, agents.scores, now.orders, now.bytes_sent, states, refused)
    edges = np.column_stack((agents.disagreements, now.edge_bytes)) if len(agents.disagreements) else np.zeros((0, 2))
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    totals = {name: getattr(measures, name) for name in TOTALS}
    return Frame(totals, table.astype(np.float32), edges.astype(np.float32))
