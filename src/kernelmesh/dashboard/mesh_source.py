"""A source for a page: a mesh of deployed agents, polled for status and predictions over zenoh, read-only."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelmesh import registry
from kernelmesh.checks import Floats
from kernelmesh.dashboard.documents import Documents
from kernelmesh.dashboard.portraits import Canvas, class_image, data_uri, value_image
from kernelmesh.dashboard.recording import AGENT, EDGE, Frame, Recording, State, Subject
from kernelmesh.dashboard.sources import News, RecordedSource, Shown
from kernelmesh.dashboard.thinning import Thinned, evenly
from kernelmesh.deploy import config, mesh_folder
from kernelmesh.deploy.client import AgentClient
from kernelmesh.deploy.watching import AgentView, MeshWatcher
from kernelmesh.errors import KernelMeshError

__all__ = ["MeshSource", "frame_of", "subject_of"]

_EVERY = 1.0  # seconds between polls
_PREVIEW = 2000  # rows read from each agent's file to find its classes
_OWN = 80
_SIZE = 60  # pixels along each side of a picture: an agent predicts at the square of that many points
_WATCHED = 10.0  # seconds for which an agent counts as being viewed


class MeshSource(RecordedSource):
    """The agents of a mesh folder, wherever they run. Their answers are recorded, so users can scrub back. A context manager.

    Parameters
    ----------
    folder : Path
        A folder with one TOML file per agent.
    timeout : float
        Seconds to wait for an agent's answer.
    """

    live = True

    def __init__(self, folder: Path, *, timeout: float = 2.0) -> None:
        super().__init__(folder.resolve().name)
        self._configs = [config.read(file) for file in mesh_folder.agents_of(folder)]
        paths = [each.path for each in self._configs]
        self._watcher = MeshWatcher([AgentClient.from_file(path, timeout=timeout) for path in paths])
        self._clients = [AgentClient.from_file(path, timeout=timeout) for path in paths]
        protocol = registry.kebab(type(self._configs[0].agent.protocol).__name__)
        documents = Documents(config={"mesh": folder.resolve().name, "protocol": protocol})
        self.shown = Shown(Recording(subject_of(self._configs)), (), documents)
        self._views: Sequence[AgentView] = ()
        self._portraits: dict[int, Thinned[dict[str, Any]]] = defaultdict(lambda: Thinned(120))
        self._asked: dict[int, float] = {}
        self._number = self._generation = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_for_ever, daemon=True, name="kernelmesh-mesh")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10.0)
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._watcher.__exit__()
        for client in self._clients:
            client.close()

    def _poll_for_ever(self) -> None:
        while not self._stop.is_set():
            self.poll()
            self._stop.wait(_EVERY)

    def poll(self) -> None:
        """Ask every agent for its status, and those being viewed for predictions."""
        self._views = self._watcher.poll()
        if not self.recording or not (self.recording.frames or any(view.answers for view in self._views)):
            return  # no agent has answered yet
        self._number += 1
        frame = frame_of(self._number, self._views, self.subject)
        newest = self.recording.frames[-2:]
        if newest and _began_anew(newest[-1], frame):
            self._generation += 1
            self._portraits.clear()
            self.shown = Shown(Recording(self.subject), (), self.shown.documents)
            newest = ()
        samples = max(frame.totals["samples"], *(before.totals["samples"] for before in newest), 0.0)
        frame = dataclasses.replace(frame, totals={**frame.totals, "samples": samples})
        idle = len(newest) == 2 and all(_is_idle(before, frame) for before in newest)
        self.recording.add(frame, replace=idle)
        for agent in [agent for agent, when in self._asked.items() if time.monotonic() - when < _WATCHED]:
            self._ask(agent)

    def news(self) -> News:
        """The status of the mesh, with the problems that its agents report."""
        version = self.recording.version if self.recording else 0
        views = self._views
        silent = [view.name for view in views if not view.answers]
        if not views:
            return News(self._generation, version, "waiting", "Connecting to the agents …")
        if len(silent) == len(views):
            return News(self._generation, version, "waiting", "No agent answers. The page resumes when one does.")
        message = f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer." if silent else ""
        if not silent and all(view.stream_ended for view in views):
            message = "All streams have ended. The agents continue to answer."
        troubled = [view for view in views if view.answers and len(view.remarks) > view.stream_ended]
        remarks = tuple(f"{view.name}: {'; '.join(view.remarks)}" for view in troubled)
        return News(self._generation, version, "running", message, remarks)

    def describe(self) -> dict[str, Any]:
        """The data that does not change between frames."""
        return {**super().describe(), "has_functions": self.shown.canvas.kind in ("regions", "surface"), "mesh": True}

    def function(self, agent: int, rounds: int) -> dict[str, Any] | None:
        """One agent's function: requested now, or for an earlier round the newest one requested by then."""
        if not 0 <= agent < len(self.subject.names) or self.shown.canvas.kind not in ("regions", "surface"):
            return None
        self._asked[agent] = time.monotonic()
        kept = self._portraits[agent]
        if not len(kept) or (rounds >= self._number and kept.items[-1]["round"] < self._number):
            self._ask(agent)
        before = [each for each in kept.items if each["round"] <= rounds] or list(kept.items[:1])
        return before[-1] if before else None

    def _ask(self, agent: int) -> None:
        """Ask an agent for its function on a grid; without an answer, the picture stays unchanged."""
        subject, grid = self.subject, _coarse(self.shown.canvas)
        try:
            outputs = self._clients[agent].predict(grid)
        except (ImportError, OSError, KernelMeshError):
            return
        if self.shown.canvas.kind == "regions":
            image = class_image(outputs, subject.loss, _SIZE)
        else:
            image = value_image(outputs[:, 0], *self.shown.canvas.values, _SIZE)
        status = self._views[agent].status if self._views else None
        self._portraits[agent].append(
            {
                "agent": agent,
                "round": self._number,
                "samples": status.samples if status else 0,
                "order": status.order if status else 0,
                "points": [],
                "weights": [],
                "image": data_uri(image),
            }
        )


def _coarse(canvas: Canvas) -> Floats:
    return dataclasses.replace(canvas, size=_SIZE).grid


def subject_of(configs: Sequence[config.Config]) -> Subject:
    """The network as described by the agents' files."""
    names = tuple(each.membership.name for each in configs)
    pairs = {
        tuple(sorted((i, names.index(neighbor))))
        for i, each in enumerate(configs)
        for neighbor in each.membership.neighbors
        if neighbor in names
    }
    agent = configs[0].agent
    classes = agent.outputs if agent.loss.classifies else 0
    previews = [_preview(each) for each in configs]
    chosen = [evenly(len(points), _OWN) for points, _ in previews]
    own = list(zip(previews, chosen, strict=True))
    labels = configs[0].stream.classes or tuple(map(str, range(classes)))
    return Subject(
        names=names,
        edges=np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2),
        dimension=agent.dimension,
        outputs=agent.outputs,
        kernel=agent.kernel,
        loss=agent.loss,
        classes=tuple(map(str, labels)) if classes else (),
        own_points=np.concatenate([points[rows] for (points, _), rows in own]),
        own_targets=np.concatenate([targets[rows] for (_, targets), rows in own]),
        own_agents=np.repeat(np.arange(len(own)), [len(rows) for _, rows in own]),
        seen=np.array([np.bincount(targets.astype(np.int64), minlength=classes) for _, targets in previews])
        if classes
        else np.zeros((len(names), 0), dtype=np.int64),
    )


def _preview(each: config.Config) -> tuple[Floats, Floats]:
    """The first rows of an agent's data file, if it has one that can be read from here."""
    nothing = np.zeros((0, each.agent.dimension)), np.zeros(0)
    if not each.stream.kind.rereadable:
        return nothing
    source = None
    try:
        whole = dataclasses.replace(each, stream=dataclasses.replace(each.stream, batch_size=_PREVIEW, rate=0.0))
        source = whole.open_stream()
        batch = source.take()
    except (OSError, KernelMeshError):
        return nothing
    finally:
        if source is not None:
            source.close()
    if batch is None:
        return nothing
    points, targets = each.agent.check(batch.points, batch.targets)
    return points, np.asarray(targets, dtype=np.float64).reshape(len(points), -1)[:, 0]


def _began_anew(before: Frame, now: Frame) -> bool:
    """Whether the mesh restarted without its checkpoints: every agent that answers has fewer samples than before."""
    column = AGENT.index("samples")
    present = ~now.away & (before.agents[:, column] > 0)
    return bool(present.any() and (now.agents[present, column] < before.agents[present, column]).all())


def _is_idle(before: Frame, now: Frame) -> bool:
    """Whether no agent has learned, left or returned since an earlier poll; such polls need not all be kept."""
    columns = [AGENT.index(name) for name in ("samples", "state")]
    return bool(np.array_equal(before.agents[:, columns], now.agents[:, columns]))


def frame_of(number: int, views: Sequence[AgentView], subject: Subject) -> Frame:
    """A poll of all agents as a frame; the disagreement of an edge is the mean of what its two ends report."""
    refused = _refused(views)
    agents = np.array([_row(view, refused[view.name]) for view in views], dtype=np.float32).reshape(-1, len(AGENT))
    disagreements = np.array([np.nan if v.status is None else _number(v.status.disagreement) for v in views])
    degrees = np.maximum(np.bincount(subject.edges.ravel(), minlength=len(views)), 1)
    sent = np.nan_to_num(agents[:, AGENT.index("bytes")]) / degrees
    edges = np.zeros((len(subject.edges), len(EDGE)), dtype=np.float32)
    for n, (i, j) in enumerate(subject.edges):
        ends = disagreements[[i, j]]
        edges[n] = ends[np.isfinite(ends)].mean() if np.isfinite(ends).any() else np.nan, sent[i] + sent[j]
    samples, orders, losses = (agents[:, AGENT.index(name)] for name in ("samples", "order", "loss"))
    there = np.array([view.status is not None for view in views])
    totals = {
        "round": number,
        "samples": float(np.nan_to_num(samples).max()),
        "objective": _total(losses),
        "disagreement": _total(disagreements),
        "order_mean": float(orders[there].mean()) if there.any() else 0.0,
        "order_max": float(np.nan_to_num(orders).max()),
        "score_mean": np.nan,
        "score_worst": np.nan,
        "bytes_per_sample": float(np.nan_to_num(sent * degrees).sum() / max(np.nan_to_num(samples).sum(), 1.0)),
        "penalty": 0.0,
    }
    return Frame(totals, agents, edges)


def _total(values: NDArray[np.floating[Any]]) -> float:
    """The sum over all agents, with unknown values replaced by the mean of the others."""
    known = values[np.isfinite(values)]
    return float(known.mean() * len(values)) if len(known) else np.nan


def _refused(views: Sequence[AgentView]) -> Counter[str]:
    """The number of messages of each agent that its neighbors did not use."""
    refused: Counter[str] = Counter()
    for view in views:
        for name, neighbor in view.status.neighbors.items() if view.status is not None else ():
            refused[name] += neighbor.refused + neighbor.left_out
    return refused


def _row(view: AgentView, refused: int) -> list[float]:
    status = view.status
    if status is None:
        return [0.0, np.nan, np.nan, 0.0, 0.0, State.AWAY, refused]
    state = State.AWAY if view.stale else State.ENDED if status.ended else State.LEARNING
    return [status.samples, _number(status.loss), np.nan, status.order, status.bytes_sent, state, refused]


def _number(value: float | None) -> float:
    return np.nan if value is None else value
