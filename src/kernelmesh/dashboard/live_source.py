"""A run in progress as a page shows it."""

from __future__ import annotations

from pathlib import Path

from kernelmesh.dashboard.documents import Documents
from kernelmesh.dashboard.recorder import Recorder
from kernelmesh.dashboard.sources import News, RecordedSource
from kernelmesh.experiments.settings import settings_of

__all__ = ["LiveSource"]


class LiveSource(RecordedSource):
    """A run in progress in this process.

    Parameters
    ----------
    recorder : Recorder
        What observes the run.
    title : str
        What it is called.
    folder : Path
        Where its files will be.
    """

    live = True

    def __init__(self, recorder: Recorder, title: str, folder: Path) -> None:
        super().__init__(title)
        self._recorder, self._folder = recorder, folder
        self._generation, self._complete = 0, False

    def news(self) -> News:
        """How it is doing."""
        recorder = self._recorder
        if recorder.recording is not self.recording or (recorder.finished is not None) != self._complete:
            self._complete = recorder.finished is not None
            self._generation += 1
            config = settings_of(recorder.started.config) if recorder.started else {}
            self._show(recorder.recording, (), Documents.read(self._folder) if self._complete else Documents(config=config))
        version = self.recording.version if self.recording else 0
        if recorder.finished is not None:
            outcome = recorder.finished.outcome
            return News(self._generation, version, outcome.name, str(outcome) or "The run has ended.")
        waiting = "The run has not measured anything yet." if not version else ""
        return News(self._generation, version, "running" if version else "waiting", waiting)
