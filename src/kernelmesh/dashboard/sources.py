"""Sources of a page: the interface, and folders of runs. See `live_source` and `mesh_source` for the others."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernelmesh.dashboard.documents import Documents, check_run, find_recording, parts_message, rounds_of, run_of
from kernelmesh.dashboard.frames import frame_limit, frame_table, frames_after, packed
from kernelmesh.dashboard.layout import place
from kernelmesh.dashboard.marks import marks
from kernelmesh.dashboard.palette import VIRIDIS, class_colors
from kernelmesh.dashboard.portraits import Canvas, portrait
from kernelmesh.dashboard.recording import AGENT, EDGE, TOTALS, Frame, Recording, Subject
from kernelmesh.errors import KernelMeshError

__all__ = ["FolderSource", "News", "RecordedSource", "Shown", "Source", "about_subject"]

_EMPTY = Subject(names=(), edges=np.zeros((0, 2), dtype=np.int64))


@dataclasses.dataclass(frozen=True)
class News:
    """The status of a source; a page reloads it when `generation` changes."""

    generation: int
    version: int
    status: str
    """One of running, complete, interrupted, diverged, waiting and unreadable."""
    message: str = ""
    remarks: tuple[str, ...] = ()
    """Messages about single agents."""


class Source(Protocol):
    """The interface through which the server reads a run or a mesh."""

    title: str
    live: bool

    def news(self) -> News:
        """The current status."""

    def describe(self) -> dict[str, Any]:
        """The data that does not change between frames."""

    def frames(self) -> dict[str, Any]:
        """All frames that a page can hold."""

    def frames_after(self, rounds: int) -> dict[str, Any]:
        """The frames after a round."""

    def marks(self) -> list[dict[str, Any]]:
        """The events so far, with their times."""

    def function(self, agent: int, rounds: int) -> dict[str, Any] | None:
        """One agent's function after a round."""

    def figures(self) -> Sequence[Path]:
        """The pictures that a page may load."""


class Shown:
    """The contents of a source, always replaced as a whole: a recording or bare frames, and the documents beside it.

    Parameters
    ----------
    recording : Recording, optional
        The recording.
    frames : sequence of Frame
        The frames if there is no recording.
    documents : Documents, optional
        The other files of the folder.
    """

    def __init__(
        self, recording: Recording | None = None, frames: Sequence[Frame] = (), documents: Documents | None = None
    ) -> None:
        self.recording, self._bare, self.documents = recording, tuple(frames), documents or Documents()
        self.subject = recording.subject if recording else _EMPTY
        self.canvas = Canvas(self.subject)
        self._drawn = lru_cache(maxsize=2048)(self._draw)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """All frames."""
        return self.recording.frames if self.recording else self._bare

    @property
    def marks(self) -> list[dict[str, Any]]:
        """The events so far, with their times."""
        return self.recording.marks if self.recording else marks((), self._bare).shown

    @cached_property
    def about(self) -> dict[str, Any]:
        """What a page needs to know about the network, sent once."""
        return about_subject(self.subject, self.canvas)

    def function(self, agent: int, rounds: int) -> dict[str, Any] | None:
        """One agent's function at the newest snapshot up to a round."""
        snapshot = self.recording.snapshot_at(rounds) if self.recording else None
        if snapshot is None or not 0 <= agent < len(self.subject.names):
            return None
        return self._drawn(agent, snapshot.round)

    def _draw(self, agent: int, rounds: int) -> dict[str, Any] | None:
        return portrait(self.recording, self.canvas, agent, rounds) if self.recording else None


class RecordedSource:
    """The base class of sources with a recording. Subclasses replace `shown` and report their status.

    Parameters
    ----------
    title : str
        The title of the page.
    """

    live = False

    def __init__(self, title: str) -> None:
        self.title = title
        self.shown = Shown()

    @property
    def recording(self) -> Recording | None:
        """The recording, if there is one."""
        return self.shown.recording

    @property
    def part(self) -> str:
        """The network that is shown, if the run has several; otherwise empty."""
        return ""

    @property
    def subject(self) -> Subject:
        """The subject of what is shown."""
        return self.shown.subject

    def news(self) -> News:
        """The current status."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The data that does not change between frames."""
        news = self.news()  # first, because this may replace `shown`
        shown = self.shown
        documents = shown.documents
        return {
            "title": self.title,
            "part": self.part,
            "live": self.live,
            **dataclasses.asdict(news),
            **shown.about,
            "has_functions": bool(shown.recording and shown.recording.snapshots),
            "marks": shown.marks,
            "summary": _rows(documents.summary),
            "config": _rows(documents.config),
            "paragraphs": list(documents.paragraphs),
            "tables": {name: [list(row) for row in rows] for name, rows in documents.tables.items()},
            "figures": [path.name for path in documents.figures],
        }

    def frames(self) -> dict[str, Any]:
        """All frames that a page can hold."""
        shown = self.shown
        return frame_table(shown.subject, shown.frames)

    def frames_after(self, rounds: int) -> dict[str, Any]:
        """The frames after a round."""
        shown = self.shown
        return frames_after(shown.subject, shown.frames, rounds)

    def marks(self) -> list[dict[str, Any]]:
        """The events so far, with their times."""
        return self.shown.marks

    def function(self, agent: int, rounds: int) -> dict[str, Any] | None:
        """One agent's function after a round."""
        return self.shown.function(agent, rounds)

    def figures(self) -> Sequence[Path]:
        """The pictures that a page may load."""
        return self.shown.documents.figures


class FolderSource(RecordedSource):
    """The folder of a finished or running run; it is read again whenever its files change.

    Parameters
    ----------
    folder : Path
        The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        check_run("dashboard", folder)
        super().__init__(folder.resolve().name)
        self._folder = folder
        self._stamp: tuple[Any, ...] | None = None
        self._generation = 0
        self._problem = ""
        self._reading = threading.Lock()
        self.news()

    def news(self) -> News:
        """The current status; reads files that have changed."""
        with self._reading:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._stamp = stamp
                self._load()
                self._generation += 1
            generation, problem, shown = self._generation, self._problem, self.shown
        if problem:
            return News(generation, 0, "unreadable", problem)
        summary = shown.documents.summary
        status, message = str(summary.get("outcome", "running")), str(summary.get("remark", ""))
        if status == "running":
            message = "The run is still in progress or was killed. The page shows what it has recorded so far."
        elif not shown.recording:
            message = message or "This run recorded no agents. The page shows its curves, tables and figures."
        elif not message:
            message = parts_message(self._folder)
        return News(generation, 0, status, message)

    @property
    def part(self) -> str:
        """The network that is shown, if the run has several; otherwise empty."""
        file = find_recording(self._folder)
        return file.parent.name if file and (file.parent != self._folder or run_of(self._folder) != self._folder) else ""

    def _stamp_now(self) -> tuple[Any, ...]:
        files = [
            find_recording(self._folder),
            *(run_of(self._folder) / name for name in ("summary.json", "config.json")),
            self._folder / "rounds.csv",
        ]
        return tuple(_stamp(file) for file in files)

    def _load(self) -> None:
        """Read the folder; if that fails, `shown` stays unchanged."""
        try:
            check_run("dashboard", self._folder)
            documents, file = Documents.read(self._folder), find_recording(self._folder)
            recording = Recording.read(file) if file else None
            self.shown = Shown(recording, () if recording else rounds_of(self._folder), documents)
            self._problem = ""
        except (OSError, KernelMeshError) as error:
            self._problem = f"Cannot read the run: {error}. The page retries when the files change."


def about_subject(subject: Subject, canvas: Canvas) -> dict[str, Any]:
    """What a page needs to know about a network, sent once."""
    own = canvas.project(subject.own_points) if len(subject.own_points) else np.zeros((0, 2))
    held = canvas.project(subject.held_points) if len(subject.held_points) else np.zeros((0, 2))
    if canvas.kind == "curve":  # targets are the second coordinate
        own, held = (np.column_stack((points[:, 0], targets)) for points, targets in _with_targets(subject, own, held))
    return {
        "names": list(subject.names),
        "edges": subject.edges.tolist(),
        "positions": place(len(subject.names), subject.edges).round(4).tolist() if subject.names else [],
        "columns": {"totals": TOTALS, "agents": AGENT, "edges": EDGE},
        "limit": frame_limit(subject),
        "dimension": subject.dimension,
        "classes": list(subject.classes),
        "classifies": subject.classifies,
        "colors": list(class_colors(max(len(subject.classes), subject.outputs, 1))),
        "viridis": VIRIDIS,
        "picture": canvas.kind,
        "box": _box(canvas, own, held),
        "range": canvas.values,
        "seen": subject.seen.tolist(),
        "own": packed(np.column_stack((own, subject.own_targets, subject.own_agents))) if len(own) else "",
        "held": packed(np.column_stack((held, subject.held_targets))) if len(held) else "",
        "total_samples": subject.total_samples,
    }


def _with_targets(subject: Subject, own: Any, held: Any) -> list[tuple[Any, Any]]:
    return [(own, subject.own_targets), (held, subject.held_targets)]


def _box(canvas: Canvas, own: Any, held: Any) -> list[float]:
    if canvas.kind != "curve" or not len(own) + len(held):
        return list(canvas.box)
    heights = np.concatenate((own[:, 1], held[:, 1]))
    margin = 0.1 * float(heights.max() - heights.min() or 1.0)
    return [*canvas.box[:2], float(heights.min()) - margin, float(heights.max()) + margin]


def _stamp(file: Path | None) -> tuple[Any, ...]:
    try:
        found = file.stat() if file else None
    except OSError:
        found = None
    return (str(file), found.st_mtime_ns, found.st_size, found.st_ino) if found else (str(file),)


def _rows(facts: Mapping[str, Any]) -> list[list[str]]:
    return [[name, f"{value:.5g}" if isinstance(value, float) else str(value)] for name, value in facts.items()]
