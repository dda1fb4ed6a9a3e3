"""A source for a page: a run in progress."""

from __future__ import annotations

import threading
from pathlib import Path

from kernelmesh.dashboard.documents import Documents
from kernelmesh.dashboard.recorder import Recorder
from kernelmesh.dashboard.sources import News, RecordedSource, Shown

__all__ = ["LiveSource"]


class LiveSource(RecordedSource):
    """A run in progress in this process.

    Parameters
    ----------
    recorder : Recorder
        What records the run.
    title : str
        The title of the page.
    folder : Path
        The run's folder.
    """

    live = True

    def __init__(self, recorder: Recorder, title: str, folder: Path) -> None:
        super().__init__(title)
        self._recorder, self._folder = recorder, folder
        self._generation, self._complete = 0, False
        self._looking = threading.Lock()

    @property
    def part(self) -> str:
        """The network that is learning, if the run has several."""
        return self._recorder.part

    def news(self) -> News:
        """The current status."""
        recorder = self._recorder
        with self._looking:
            ended = recorder.ended
            if recorder.recording is not self.recording or (ended is not None) != self._complete:
                self._complete = ended is not None
                documents = Documents.read(self._folder) if self._complete else Documents(config=recorder.settings)
                self.shown = Shown(recorder.recording, (), documents)
                self._generation += 1
            generation, recording = self._generation, self.recording
        version = recording.version if recording else 0
        if ended is not None:
            outcome, remark = ended
            return News(generation, version, outcome, remark or "The run has ended.")
        waiting = "The run has started; no measurements yet." if not version else ""
        return News(generation, version, "running" if version else "waiting", waiting)
