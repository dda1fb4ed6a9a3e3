"""The recording of a run for its page: numbers of every agent and edge over time, and dictionaries at some rounds.

Its size is bounded: when a record is full, every second entry is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelmesh import registry, storage
from kernelmesh.checks import Floats, Ints, integer, matrix
from kernelmesh.dashboard.thinning import Thinned, evenly
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.losses import Loss

__all__ = ["AGENT", "EDGE", "FILE", "TOTALS", "Frame", "Recording", "Snapshot", "State", "Subject", "marks"]

FILE = "recording.safetensors"
_QUANTITIES = ("objective", "disagreement", "order_mean", "order_max", "score_mean", "score_worst")
TOTALS = ("round", "samples", *_QUANTITIES, "bytes_per_sample", "penalty")
"""The numbers of the network in each frame."""
AGENT = ("samples", "loss", "score", "order", "bytes", "state", "refused")
"""The numbers of each agent; NaN if unknown. `refused` counts its own messages."""
EDGE = ("disagreement", "bytes")
"""The numbers of each edge."""

_BUDGET = 32e6  # bytes of all frames; the dictionaries get the same again
_MARKS = 24  # events that a page can show


class State:
    """What an agent is doing, as a number in a frame."""

    LEARNING, AWAY, ENDED = 0.0, 1.0, 2.0


def _table(*shape: int, dtype: type = np.float64) -> Callable[[], NDArray[Any]]:
    return lambda: np.zeros(shape, dtype=dtype)


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

    names: tuple[str, ...] = ()
    edges: Ints = field(default_factory=_table(0, 2, dtype=np.int64))
    dimension: int = 0
    outputs: int = 0
    kernel: Any = None
    loss: Loss | None = None
    classes: tuple[str, ...] = ()
    held_points: Floats = field(default_factory=_table(0, 0))
    held_targets: Floats = field(default_factory=_table(0))
    own_points: Floats = field(default_factory=_table(0, 0))
    own_targets: Floats = field(default_factory=_table(0))
    own_agents: Ints = field(default_factory=_table(0, dtype=np.int64))
    seen: Ints = field(default_factory=_table(0, 0, dtype=np.int64))
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


def marks(names: Sequence[str], frames: Iterable[Frame]) -> list[dict[str, Any]]:
    """The events of a run, each with a sentence: when the penalty doubled, and when agents left or returned."""
    found: list[dict[str, Any]] = []
    penalty, before = 0.0, np.zeros(len(names), dtype=bool)
    for frame in frames:
        texts = []
        if doubled := frame.totals["penalty"] >= 2 * penalty * (1 - 1e-9):
            texts += [("penalty", f"The penalty doubled to {frame.totals['penalty']:.3g}.")] if penalty else []
            penalty = frame.totals["penalty"] if doubled else penalty
        for agent in np.flatnonzero(frame.away != before).tolist():
            # a bare number is prefixed, but agent-3 stays as it is
            name = names[agent] if names[agent].lower().startswith("agent") else f"Agent {names[agent]}"
            texts.append(("away", f"{name} went away.") if frame.away[agent] else ("back", f"{name} came back."))
        before = frame.away
        found += [{"samples": frame.totals["samples"], "kind": kind, "text": text} for kind, text in texts]
    return [found[n] for n in evenly(len(found), _MARKS)]


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
        centers = np.concatenate([f.points for f in functions]).astype(np.float32)
        weights = np.concatenate([f.weights for f in functions]).astype(np.float32)
        return cls(rounds, samples, np.cumsum([0, *(f.order for f in functions)]), centers, weights)

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
    frames, snapshots : sequence
        What has been recorded before.
    """

    def __init__(self, subject: Subject, frames: Iterable[Frame] = (), snapshots: Iterable[Snapshot] = ()) -> None:
        self.subject = subject
        self.version = 0
        self._lock = threading.Lock()
        size = 8 * len(TOTALS) + 4 * (len(AGENT) * len(subject.names) + len(EDGE) * len(subject.edges))
        self._frames: Thinned[Frame] = Thinned(max(_BUDGET / size, 2), items=frames)
        self._snapshots: Thinned[Snapshot] = Thinned(_BUDGET, lambda snapshot: snapshot.size, items=snapshots)

    def add(self, frame: Frame, snapshot: Snapshot | None = None, *, replace: bool = False) -> None:
        """Record a round; with `replace`, it replaces the newest frame."""
        with self._lock:
            if replace and self._frames.items:
                before = self._frames.items[-1]
                self._frames.drop_after(lambda other: other is not before)
            self._frames.append(frame)
            if snapshot is not None:
                self._snapshots.append(snapshot)
            self.version += 1

    def rewind(self, rounds: int) -> None:
        """Drop everything after this round."""
        with self._lock:
            self._frames.drop_after(lambda frame: frame.round <= rounds)
            self._snapshots.drop_after(lambda snapshot: snapshot.round <= rounds)
            self.version += 1

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The recorded frames, in order."""
        with self._lock:
            return self._frames.items

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
            "totals": np.array([[frame.totals[name] for name in TOTALS] for frame in frames]).reshape(-1, len(TOTALS)),
            "frames.agents": _stacked([frame.agents for frame in frames], agents, len(AGENT)),
            "frames.edges": _stacked([frame.edges for frame in frames], edges, len(EDGE)),
            "snapshots.clock": np.array([[s.round, s.samples] for s in snapshots], dtype=np.int64).reshape(-1, 2),
            "snapshots.offsets": np.array([s.offsets for s in snapshots], dtype=np.int64).reshape(-1, agents + 1),
            "snapshots.centers": np.concatenate(
                [_table(0, subject.dimension)(), *(s.centers for s in snapshots)], dtype="f4"
            ),
            "snapshots.weights": np.concatenate([_table(0, subject.outputs)(), *(s.weights for s in snapshots)], dtype="f4"),
        }
        arrays |= {name: getattr(subject, name) for name in _ARRAYS}
        about = {name: registry.describe(getattr(subject, name)) for name in _SETTINGS}
        storage.write(path, kind="recording", arrays=arrays, settings=about)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate a file of `write`; raises `UnreadableFile` if it is invalid."""
        arrays, about = storage.read(path, kind="recording")
        with storage.understood(path, "a recording"):
            subject = _subject(arrays, about)
            return cls(subject, _frames(arrays, subject), _snapshots(arrays, subject))


_ARRAYS = ("edges", "held_points", "held_targets", "own_points", "own_targets", "own_agents", "seen")
_SETTINGS = ("names", "dimension", "outputs", "kernel", "loss", "classes", "total_samples")


def _joined(parts: Sequence[NDArray[np.float32]], columns: int) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((0, columns), dtype=np.float32), *parts])


def _stacked(parts: Sequence[NDArray[np.float32]], rows: int, columns: int) -> NDArray[np.float32]:
    return np.array(parts, dtype=np.float32).reshape(len(parts), rows, columns)


def _subject(arrays: Mapping[str, NDArray[Any]], about: Any) -> Subject:
    names, classes = (tuple(map(str, registry.restore(about[key]))) for key in ("names", "classes"))
    for key in ("edges", "own_agents"):
        array = arrays[key]
        if array.size and not (array.dtype.kind == "i" and array.min() >= 0 and array.max() < len(names)):
            raise InvalidArgument("recording", key, f"name agents below {len(names)}", Verbatim("others"))
    counts = {key: integer("recording", key, about[key], minimum=0) for key in ("dimension", "outputs", "total_samples")}
    kinds = {role: registry.restore(about[role], role=role) for role in ("kernel", "loss")}
    known: dict[str, Any] = {**counts, **kinds, **{key: arrays[key] for key in _ARRAYS}}
    return Subject(names=names, classes=classes, **known)


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
    starts = np.concatenate(([0], np.cumsum(offsets[:, -1]))).astype(np.int64)
    centers, weights = arrays["snapshots.centers"], arrays["snapshots.weights"]
    matrix("recording", "snapshots.centers", centers, columns=subject.dimension, rows=int(starts[-1]))
    matrix("recording", "snapshots.weights", weights, columns=subject.outputs, rows=len(centers))
    return [
        Snapshot(int(clock[n, 0]), int(clock[n, 1]), offsets[n], centers[a:b], weights[a:b])
        for n, (a, b) in enumerate(pairwise(starts))
    ]
