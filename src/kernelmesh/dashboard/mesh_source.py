"""A source for a page: a mesh of deployed agents, polled for status and predictions over zenoh, read-only."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelmesh import registry
from kernelmesh.checks import Floats
from kernelmesh.dashboard.documents import Documents
from kernelmesh.dashboard.recorder import Samples, subject_of
from kernelmesh.dashboard.recording import AGENT, EDGE, TOTALS, Frame, Recording, State
from kernelmesh.dashboard.sources import News, Shown, Source
from kernelmesh.deploy import config, mesh_folder
from kernelmesh.deploy.client import AgentClient
from kernelmesh.deploy.watching import AgentView, MeshWatcher
from kernelmesh.errors import KernelMeshError

__all__ = ["MeshSource", "frame_of"]


class MeshSource(Source):
    """The agents of a mesh folder, wherever they run. Their answers are recorded, so users can scrub back. A context manager.

    Parameters
    ----------
    folder : Path
        A folder with one TOML file per agent.
    timeout : float
        Seconds to wait for an agent's answer.
    every : float
        Seconds between polls.
    """

    live = True

    def __init__(self, folder: Path, *, timeout: float = 2.0, every: float = 1.0) -> None:
        super().__init__(folder.resolve().name)
        self._every = every
        configs = [config.read(file) for file in mesh_folder.agents_of(folder)]
        self._watcher = MeshWatcher([AgentClient.from_file(each.path, timeout=timeout) for each in configs])
        self._clients = [AgentClient.from_file(each.path, timeout=timeout) for each in configs]
        names = [each.membership.name for each in configs]
        pairs = {
            (min(i, j), max(i, j))
            for i, each in enumerate(configs)
            for j in (names.index(name) for name in each.membership.neighbors if name in names)
        }
        agent, labels = configs[0].agent, configs[0].stream.classes
        nothing = np.zeros((0, agent.dimension)), np.zeros(0)
        subject = subject_of(agent, names, sorted(pairs), [_preview(each) or nothing for each in configs], nothing)
        if labels and subject.classes:
            subject = replace(subject, classes=labels)
        protocol = registry.kebab(type(agent.protocol).__name__)
        self.shown = Shown(Recording(subject), Documents(config={"mesh": self.title, "protocol": protocol}))
        self._views: Sequence[AgentView] = ()
        self._portraits: dict[int, dict[str, Any]] = {}
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
            self._stop.wait(self._every)

    def poll(self) -> None:
        """Ask every agent for its status, and those viewed within the last ten seconds for predictions."""
        self._views = self._watcher.poll()
        frames = self.shown.recording.frames[-2:]
        if not frames and not any(view.answers for view in self._views):
            return  # no agent has answered yet
        self._number += 1
        frame = frame_of(self._number, self._views, self.shown.subject.edges)
        if frames and _began_anew(frames[-1], frame):
            self._generation += 1
            self._portraits.clear()
            self.shown = Shown(Recording(self.shown.subject), self.shown.documents)
            frames = ()
        # time does not go back when the agent with most samples starts over
        samples = max([frame.totals["samples"], *(before.totals["samples"] for before in frames)])
        frame = replace(frame, totals={**frame.totals, "samples": samples})
        # polls during which no agent learned, left or returned need not all be kept
        columns = [AGENT.index(name) for name in ("samples", "state")]
        idle = [np.array_equal(before.agents[:, columns], frame.agents[:, columns]) for before in frames]
        self.shown.recording.add(frame, replace=len(idle) == 2 and all(idle))
        for agent in [agent for agent, when in self._asked.items() if time.monotonic() - when < 10.0]:
            self._ask(agent)

    def news(self) -> News:
        """The status of the mesh, with the problems that its agents report."""
        generation, version, views = self._generation, self.shown.recording.version, self._views
        silent = [view.name for view in views if not view.answers]
        if len(silent) == len(views):
            message = "No agent answers. The page resumes when one does." if views else "Connecting to the agents …"
            return News(generation, version, "waiting", message)
        message = f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer." if silent else ""
        if all(view.answers and view.stream_ended for view in views):
            message = "All streams have ended. The agents continue to answer."
        troubled = [view for view in views if view.answers and len(view.remarks) > view.stream_ended]
        remarks = tuple(f"{view.name}: {'; '.join(view.remarks)}" for view in troubled)
        return News(generation, version, "running", message, remarks)

    def describe(self) -> dict[str, Any]:
        """The data that does not change between frames."""
        return {**super().describe(), "has_functions": self.shown.canvas.is_image, "mesh": True}

    def function(self, agent: int, rounds: int) -> dict[str, Any] | None:
        """One agent's function as of now, or the newest one that it sent."""
        if not 0 <= agent < len(self._clients) or not self.shown.canvas.is_image:
            return None
        self._asked[agent] = time.monotonic()
        if agent not in self._portraits or self._portraits[agent]["round"] < min(rounds, self._number):
            self._ask(agent)
        return self._portraits.get(agent)

    def _ask(self, agent: int) -> None:
        """Ask an agent for its function on a grid; without an answer, the picture stays unchanged."""
        canvas = replace(self.shown.canvas, size=60)  # an agent predicts at the square of that many points
        try:
            image = canvas.data_uri(self._clients[agent].predict(canvas.grid))
        except (OSError, KernelMeshError):
            return
        status = self._views[agent].status if self._views else None
        about = {"agent": agent, "round": self._number, "points": [], "weights": [], "image": image}
        about |= {"samples": status.samples if status else 0, "order": status.order if status else 0}
        self._portraits[agent] = about


def _preview(each: config.Config) -> Samples | None:
    """The first 2000 rows of an agent's data file, if it has one that can be read from here."""
    if not each.stream.kind.rereadable:
        return None
    try:
        source = replace(each, stream=replace(each.stream, batch_size=2000, rate=0.0)).open_stream()
        with contextlib.closing(source):
            batch = source.take()
        return batch and each.agent.check(*batch)
    except (OSError, KernelMeshError):
        return None


def _began_anew(before: Frame, now: Frame) -> bool:
    """Whether the mesh restarted without its checkpoints: every agent that answers has fewer samples than before."""
    column = AGENT.index("samples")
    present = ~now.away & (before.agents[:, column] > 0)
    return bool(present.any() and (now.agents[present, column] < before.agents[present, column]).all())


def frame_of(number: int, views: Sequence[AgentView], edges: NDArray[np.int64]) -> Frame:
    """A poll of all agents as a frame; the disagreement of an edge is the mean of what its two ends report."""
    agents = np.array([_row(view, views) for view in views], dtype=np.float32)
    samples, losses, _, orders, sent, _, _ = agents.T
    disagreements = np.array([_number(view.status.disagreement if view.status else None) for view in views])
    share = sent / np.maximum(np.bincount(edges.ravel(), minlength=len(views)), 1)
    ends = disagreements[edges]
    known = np.isfinite(ends)
    apart = np.where(known, ends, 0.0).sum(axis=1) / np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    present = orders[[view.status is not None for view in views]]
    totals = {
        **dict.fromkeys(TOTALS, np.nan),
        "round": number,
        "samples": float(samples.max()),
        "objective": _total(losses),
        "disagreement": _total(disagreements),
        "order_mean": float(present.mean()) if len(present) else 0.0,
        "order_max": float(orders.max()),
        "bytes_per_sample": float(sent.sum() / max(samples.sum(), 1.0)),
        "penalty": 0.0,
    }
    table = np.column_stack((apart, share[edges].sum(axis=1))).reshape(-1, len(EDGE))
    return Frame(totals, agents, table.astype(np.float32))


def _total(values: Floats | NDArray[np.float32]) -> float:
    """The sum over all agents, with unknown values replaced by the mean of the others."""
    known = values[np.isfinite(values)]
    return float(known.mean() * len(values)) if len(known) else np.nan


def _row(view: AgentView, views: Sequence[AgentView]) -> list[float]:
    """The numbers of an agent; its neighbors report how many of its messages they did not use."""
    reports = [other.status.neighbors.get(view.name) for other in views if other.status is not None]
    refused = sum(report.refused + report.left_out for report in reports if report is not None)
    status = view.status
    if status is None:
        return [0.0, np.nan, np.nan, 0.0, 0.0, State.AWAY, refused]
    state = State.AWAY if view.stale else State.ENDED if status.ended else State.LEARNING
    return [status.samples, _number(status.loss), np.nan, status.order, status.bytes_sent, state, refused]


def _number(value: float | None) -> float:
    return np.nan if value is None else value
