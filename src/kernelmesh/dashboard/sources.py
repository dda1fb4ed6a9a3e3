"""Sources of a page: what all have in common, and folders of runs. See `live_source` and `mesh_source` for the others."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kernelmesh.dashboard.documents import Documents, check_run, find_recording, parts_message, run_of
from kernelmesh.dashboard.palette import VIRIDIS, class_colors
from kernelmesh.dashboard.portraits import Canvas, portrait
from kernelmesh.dashboard.recording import AGENT, EDGE, TOTALS, Recording, Subject, marks
from kernelmesh.dashboard.tables import frame_limit, frame_table, packed, positions
from kernelmesh.errors import KernelMeshError

__all__ = ["FolderSource", "News", "Shown", "Source"]


@dataclass(frozen=True)
class News:
    """The status of a source; a page reloads it when `generation` changes."""

    generation: int
    version: int
    status: str
    """One of running, complete, interrupted, diverged, waiting and unreadable."""
    message: str = ""
    remarks: tuple[str, ...] = ()
    """Messages about single agents."""


@dataclass(eq=False)
class Shown:
    """The contents of a source, always replaced as a whole: a recording and the documents beside it."""

    recording: Recording = field(default_factory=lambda: Recording(Subject()))
    documents: Documents = field(default_factory=Documents)

    @property
    def subject(self) -> Subject:
        """What was recorded."""
        return self.recording.subject

    @property
    def marks(self) -> list[dict[str, Any]]:
        """The events so far, with their times."""
        return marks(self.subject.names, self.recording.frames)

    @cached_property
    def canvas(self) -> Canvas:
        """Where functions are drawn."""
        return Canvas(self.subject)

    @cached_property
    def draw(self) -> Any:
        """The portrait of an agent at a round that has a snapshot; remembered, because users go back and forth."""
        return lru_cache(maxsize=2048)(lambda agent, rounds: portrait(self.recording, self.canvas, agent, rounds))

    @cached_property
    def about(self) -> dict[str, Any]:
        """What a page needs to know about the network, sent once."""
        subject, canvas = self.subject, self.canvas
        own, held = canvas.project(subject.own_points), canvas.project(subject.held_points)
        box = list(canvas.box)
        if canvas.kind == "curve":  # targets are the second coordinate
            own[:, 1], held[:, 1] = subject.own_targets, subject.held_targets
            low, high = canvas.values
            box[2:] = low - 0.1 * ((high - low) or 1.0), high + 0.1 * ((high - low) or 1.0)
        return {
            "names": subject.names,
            "edges": subject.edges.tolist(),
            "positions": positions(len(subject.names), subject.edges).round(4).tolist() if subject.names else [],
            "columns": {"totals": TOTALS, "agents": AGENT, "edges": EDGE},
            "limit": frame_limit(subject),
            "dimension": subject.dimension,
            "classes": subject.classes,
            "classifies": subject.classifies,
            "colors": class_colors(max(len(subject.classes), subject.outputs, 1)),
            "viridis": VIRIDIS,
            "picture": canvas.kind,
            "box": box,
            "range": canvas.values,
            "seen": subject.seen.tolist(),
            "own": packed(np.column_stack((own, subject.own_targets, subject.own_agents))),
            "held": packed(np.column_stack((held, subject.held_targets))),
            "total_samples": subject.total_samples,
        }


class Source(ABC):
    """What a page shows. Subclasses replace `shown` and report their status in `news`.

    Parameters
    ----------
    title : str
        The title of the page.
    """

    live = False
    part = ""
    """The network that is shown, if the run has several."""

    def __init__(self, title: str) -> None:
        self.title, self.shown = title, Shown()

    @abstractmethod
    def news(self) -> News:
        """The current status."""

    def describe(self) -> dict[str, Any]:
        """The data that does not change between frames."""
        news = self.news()  # first, because this may replace `shown`
        shown = self.shown
        documents = shown.documents
        return {
            "title": self.title,
            "part": self.part,
            "live": self.live,
            **asdict(news),
            **shown.about,
            "has_functions": bool(shown.recording.snapshots),
            "marks": shown.marks,
            "summary": _rows(documents.summary),
            "config": _rows(documents.config),
            "paragraphs": documents.paragraphs,
            "tables": documents.tables,
            "figures": [path.name for path in documents.figures],
        }

    def frames(self, *, after: int | None = None) -> dict[str, Any]:
        """All frames that a page can hold, or those after a round."""
        recording = self.shown.recording
        return frame_table(recording.subject, recording.frames, after=after)

    def function(self, agent: int, rounds: int) -> dict[str, Any] | None:
        """One agent's function at the newest snapshot up to a round."""
        shown = self.shown
        snapshot = shown.recording.snapshot_at(rounds)
        return shown.draw(agent, snapshot.round) if snapshot and 0 <= agent < len(shown.subject.names) else None


class FolderSource(Source):
    """The folder of a finished or running run; it is read again whenever its files change.

    Parameters
    ----------
    folder : Path
        The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        check_run("dashboard", folder)
        super().__init__(folder.resolve().name)
        self._folder, self._generation, self._problem = folder, 0, ""
        self._files: Any = None
        self._reading = threading.Lock()
        self.news()

    def news(self) -> News:
        """The current status; reads files that have changed."""
        with self._reading:
            run = run_of(self._folder)
            named = (find_recording(self._folder), run / "summary.json", run / "config.json")
            files = [_identity(file) for file in named]
            if files != self._files:
                self._files = files
                self._load()
                self._generation += 1
            generation, problem, shown = self._generation, self._problem, self.shown
        if problem:
            return News(generation, 0, "unreadable", problem)
        status = str(shown.documents.summary.get("outcome", "running"))
        message = str(shown.documents.summary.get("remark", "")) or parts_message(self._folder)
        if status == "running":
            message = "The run is still in progress or was killed. The page shows what it has recorded so far."
        elif not shown.subject.names:
            message = message or "This run recorded no agents. The page shows its tables and figures."
        return News(generation, 0, status, message)

    def _load(self) -> None:
        """Read the folder; if that fails, `shown` stays unchanged."""
        folder, file = self._folder, find_recording(self._folder)
        try:
            check_run("dashboard", folder)
            recording = Recording.read(file) if file else Recording(Subject())
            self.shown, self._problem = Shown(recording, Documents.read(folder)), ""
            self.part = file.parent.name if file and (file.parent != folder or run_of(folder) != folder) else ""
        except (OSError, KernelMeshError) as error:
            self._problem = f"Cannot read the run: {error}. The page retries when the files change."


def _identity(file: Path | None) -> tuple[Any, ...]:
    """What changes when a file does."""
    try:
        found = file.stat() if file else None
    except OSError:
        found = None
    return (file, found and (found.st_mtime_ns, found.st_size, found.st_ino))


def _rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, f"{value:.5g}" if isinstance(value, float) else str(value)) for name, value in facts.items()]
