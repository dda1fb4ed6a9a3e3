"""A source for a page: a run in progress."""

from __future__ import annotations

import threading
from pathlib import Path

from kernelmesh.dashboard.documents import Documents
from kernelmesh.dashboard.recorder import Recorder
from kernelmesh.dashboard.sources import News, Shown, Source

__all__ = ["LiveSource"]


class LiveSource(Source):
    """A run in progress in this process.

    Parameters
    ----------
    recorder : Recorder
        Records the run.
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

    def news(self) -> News:
        """The current status."""
        recorder = self._recorder
        with self._looking:
            ended, recording = recorder.ended, recorder.recording
            if recording is not self.shown.recording or (ended is not None) != self._complete:
                self._complete = ended is not None
                documents = Documents.read(self._folder) if self._complete else Documents(config=recorder.settings)
                self.shown, self.part = Shown(recording, documents), recorder.part
                self._generation += 1
            generation = self._generation
        if ended is not None:
            return News(generation, recording.version, ended[0], ended[1] or "The run has ended.")
        if recording.version:
            return News(generation, recording.version, "running")
        return News(generation, 0, "waiting", "The run has started; no measurements yet." if recording.subject.names else "")
