"""The recording of a run for its page: numbers of every agent and edge over time, and dictionaries at some rounds.

Its size is bounded: when a record is full, every second entry is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelmesh import registry, storage
from kernelmesh.checks import Floats, Ints, integer, matrix
from kernelmesh.dashboard.marks import Marks, marks
from kernelmesh.dashboard.thinning import Thinned
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.losses import Loss

__all__ = ["AGENT", "EDGE", "FILE", "TOTALS", "Frame", "Recording", "Snapshot", "State", "Subject"]

FILE = "recording.safetensors"
TOTALS = (
    "round",
    "samples",
    "objective",
    "disagreement",
    "order_mean",
    "order_max",
    "score_mean",
    "score_worst",
    "bytes_per_sample",
    "penalty",
)
"""The numbers of the network in each frame."""
AGENT = ("samples", "loss", "score", "order", "bytes", "state", "refused")
"""The numbers of each agent; NaN if unknown. `refused` counts its own messages."""
EDGE = ("disagreement", "bytes")
"""The numbers of each edge."""

_NUMBERS_BUDGET = 32e6  # bytes for the numbers; the dictionaries get the same again
_SNAPSHOT_BUDGET = 32e6


class State:
    """What an agent is doing, as a number in a frame."""

    LEARNING, AWAY, ENDED = 0.0, 1.0, 2.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """What is recorded: the network, its kernel and loss, and some of the samples.

    Attributes
    ----------
    names : tuple of str
        The agents.
    edges : ndarray of shape (edges, 2)
        Pairs of neighbors.
    dimension, outputs : int
        The length of a point, and the number of outputs; 0 if unknown.
    kernel, loss : Kernel and Loss, optional
        The kernel of the functions, and the loss that measures them.
    classes : tuple of str
        The names of the classes; empty for regression.
    held_points, held_targets : ndarray
        Some of the held-out samples.
    own_points, own_targets, own_agents : ndarray
        Some samples of every agent's own stream, and the agent of each.
    seen : ndarray of shape (agents, classes)
        The number of samples of each class in every agent's stream.
    total_samples : int
        The number of samples per agent in the complete run; 0 if unknown.
    """

    names: tuple[str, ...]
    edges: Ints
    dimension: int = 0
    outputs: int = 0
    kernel: Any = None
    loss: Loss | None = None
    classes: tuple[str, ...] = ()
    held_points: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    held_targets: Floats = field(default_factory=lambda: np.zeros(0))
    own_points: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    own_targets: Floats = field(default_factory=lambda: np.zeros(0))
    own_agents: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seen: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    total_samples: int = 0

    @property
    def classifies(self) -> bool:
        """Whether targets are classes."""
        return self.loss is None or self.loss.classifies


@dataclass(frozen=True, eq=False)
class Frame:
    """All numbers of one measured round: of the network (`TOTALS`), of each agent (`AGENT`) and of each edge (`EDGE`)."""

    totals: Mapping[str, float]
    agents: NDArray[np.float32]
    edges: NDArray[np.float32]

    @property
    def round(self) -> int:
        """Rounds so far."""
        return int(self.totals["round"])

    @property
    def away(self) -> NDArray[np.bool_]:
        """Which agents are away."""
        return np.asarray(self.agents[:, AGENT.index("state")] == State.AWAY)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The dictionary of every agent after a round, in single precision: agent i has the rows offsets[i] … offsets[i + 1]."""

    round: int
    samples: int
    offsets: Ints
    centers: NDArray[np.float32]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, rounds: int, samples: int, functions: Sequence[Function]) -> Snapshot:
        """A snapshot of these functions."""
        return cls(
            rounds,
            samples,
            np.cumsum([0, *(f.order for f in functions)]),
            np.concatenate([f.points for f in functions]).astype(np.float32),
            np.concatenate([f.weights for f in functions]).astype(np.float32),
        )

    def function(self, agent: int, kernel: Any) -> Function:
        """One agent's function."""
        rows = slice(self.offsets[agent], self.offsets[agent + 1])
        return Function.of(kernel, self.centers[rows].astype(np.float64), self.weights[rows].astype(np.float64))

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.offsets.nbytes + self.centers.nbytes + self.weights.nbytes


class Recording:
    """The frames and snapshots of one network, of bounded size; one thread may append while others read.

    Parameters
    ----------
    subject : Subject
        What is recorded.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.version = 0
        self._lock = threading.Lock()
        size = 8 * len(TOTALS) + 4 * (len(AGENT) * len(subject.names) + len(EDGE) * len(subject.edges))
        self._frames: Thinned[Frame] = Thinned(max(_NUMBERS_BUDGET / size, 2))
        self._snapshots: Thinned[Snapshot] = Thinned(_SNAPSHOT_BUDGET, lambda snapshot: snapshot.size)
        self._marks = Marks(subject.names)

    def add(self, frame: Frame, snapshot: Snapshot | None = None, *, replace: bool = False) -> None:
        """Record a round; with `replace`, it replaces the newest frame."""
        with self._lock:
            if replace and self._frames.newest is not None:
                before = self._frames.newest.round
                self._frames.drop_after(lambda other: other.round < before)
            self._frames.append(frame)
            self._marks.add(frame)
            if snapshot is not None:
                self._snapshots.append(snapshot)
            self.version += 1

    def rewind(self, rounds: int) -> None:
        """Drop everything after this round."""
        with self._lock:
            self._frames.drop_after(lambda frame: frame.round <= rounds)
            self._snapshots.drop_after(lambda snapshot: snapshot.round <= rounds)
            self._marks = marks(self.subject.names, self._frames.items)
            self.version += 1

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The recorded frames, in order."""
        with self._lock:
            return self._frames.items

    @property
    def marks(self) -> list[dict[str, Any]]:
        """The events of the run, as a page shows them."""
        with self._lock:
            return self._marks.shown

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The recorded snapshots, in order."""
        with self._lock:
            return self._snapshots.items

    def snapshot_at(self, rounds: int) -> Snapshot | None:
        """The newest snapshot up to a round; the first one if that is later."""
        snapshots = self.snapshots
        before = [snapshot for snapshot in snapshots if snapshot.round <= rounds]
        return before[-1] if before else snapshots[0] if snapshots else None

    def write(self, path: Path) -> None:
        """Write everything to a file atomically."""
        subject, frames, snapshots = self.subject, self.frames, self.snapshots
        agents, edges = len(subject.names), len(subject.edges)
        arrays: dict[str, NDArray[Any]] = {
            "edges": subject.edges,
            "totals": np.array([[frame.totals[name] for name in TOTALS] for frame in frames]).reshape(-1, len(TOTALS)),
            "frames.agents": _stacked([frame.agents for frame in frames], agents, len(AGENT)),
            "frames.edges": _stacked([frame.edges for frame in frames], edges, len(EDGE)),
            "snapshots.clock": np.array([[s.round, s.samples] for s in snapshots], dtype=np.int64).reshape(-1, 2),
            "snapshots.offsets": np.array([s.offsets for s in snapshots], dtype=np.int64).reshape(-1, agents + 1),
            "snapshots.centers": _joined([s.centers for s in snapshots], subject.dimension),
            "snapshots.weights": _joined([s.weights for s in snapshots], subject.outputs),
            **{name: getattr(subject, name) for name in _SAMPLES},
        }
        about = {
            "names": list(subject.names),
            "dimension": subject.dimension,
            "outputs": subject.outputs,
            "classes": list(subject.classes),
            "total_samples": subject.total_samples,
            "kernel": registry.describe(subject.kernel),
            "loss": registry.describe(subject.loss),
        }
        storage.write(path, kind="recording", arrays=arrays, settings=about)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate a file of `write`; raises `UnreadableFile` if it is invalid."""
        arrays, about = storage.read(path, kind="recording")
        with storage.understood(path, "a recording"):
            subject = _subject(arrays, about)
            recording = cls(subject)
            frames, snapshots = _frames(arrays, subject), _snapshots(arrays, subject)
            for frame in frames:
                recording._frames.append(frame)
                recording._marks.add(frame)
            for snapshot in snapshots:
                recording._snapshots.append(snapshot)
        return recording


_SAMPLES = ("held_points", "held_targets", "own_points", "own_targets", "own_agents", "seen")


def _stacked(parts: Sequence[NDArray[np.float32]], rows: int, columns: int) -> NDArray[np.float32]:
    return np.array(parts, dtype=np.float32).reshape(len(parts), rows, columns)


def _joined(parts: Sequence[NDArray[np.float32]], columns: int) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((0, columns), dtype=np.float32), *parts])


def _subject(arrays: Mapping[str, NDArray[Any]], about: Any) -> Subject:
    names = tuple(str(name) for name in about["names"])
    edges = arrays["edges"].reshape(-1, 2)
    if len(edges) and not (edges.dtype.kind == "i" and edges.min() >= 0 and edges.max() < len(names)):
        raise InvalidArgument("recording", "edges", f"join agents below {len(names)}", Verbatim("others"))
    owners = arrays["own_agents"]
    if len(owners) and not (owners.dtype.kind == "i" and owners.min() >= 0 and owners.max() < len(names)):
        raise InvalidArgument("recording", "own_agents", f"be agents below {len(names)}", Verbatim("others"))
    dimension, outputs = (integer("recording", key, about[key], minimum=0) for key in ("dimension", "outputs"))
    return Subject(
        names=names,
        edges=edges,
        dimension=dimension,
        outputs=outputs,
        kernel=registry.restore(about["kernel"], role="kernel"),
        loss=registry.restore(about["loss"], role="loss"),
        classes=tuple(str(name) for name in about["classes"]),
        total_samples=integer("recording", "total_samples", about["total_samples"], minimum=0),
        **{name: arrays[name] for name in _SAMPLES},
    )


def _frames(arrays: Mapping[str, NDArray[Any]], subject: Subject) -> list[Frame]:
    totals, agents, edges = arrays["totals"], arrays["frames.agents"], arrays["frames.edges"]
    expected = (len(totals), len(subject.names), len(AGENT)), (len(totals), len(subject.edges), len(EDGE))
    if totals.shape != (len(totals), len(TOTALS)) or (agents.shape, edges.shape) != expected:
        raise InvalidArgument("recording", "frames", f"have shapes {expected}", Verbatim(f"{agents.shape}, {edges.shape}"))
    rows = (dict(zip(TOTALS, map(float, row), strict=True)) for row in totals)
    return [Frame(*parts) for parts in zip(rows, agents, edges, strict=True)]


def _snapshots(arrays: Mapping[str, NDArray[Any]], subject: Subject) -> list[Snapshot]:
    clock, offsets = arrays["snapshots.clock"], arrays["snapshots.offsets"]
    if offsets.shape != (len(clock), len(subject.names) + 1) or (np.diff(offsets, axis=1) < 0).any():
        raise InvalidArgument("recording", "snapshots.offsets", "grow along the agents", Verbatim(f"shape {offsets.shape}"))
    sizes = offsets[:, -1] if len(offsets) else np.zeros(0, dtype=np.int64)
    centers = arrays["snapshots.centers"]
    matrix("recording", "snapshots.centers", centers, columns=subject.dimension, rows=int(sizes.sum()))
    weights = arrays["snapshots.weights"]
    matrix("recording", "snapshots.weights", weights, columns=subject.outputs, rows=len(centers))
    starts = np.concatenate(([0], np.cumsum(sizes)))
    return [
        Snapshot(int(clock[n, 0]), int(clock[n, 1]), offsets[n], centers[a:b], weights[a:b])
        for n, (a, b) in enumerate(pairwise(starts))
    ]
