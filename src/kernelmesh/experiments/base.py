"""What an experiment is, what it can use while it runs, and running it: events, outcome and report are the same for all."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.experiments.cells import Cell, run_cells
from kernelmesh.experiments.events import Event, Finished, Observer, Progress, Started
from kernelmesh.experiments.network import Network
from kernelmesh.experiments.outcome import Complete, Interrupted, Outcome
from kernelmesh.experiments.settings import settings_of
from kernelmesh.experiments.trial import Stop, Trial, learn
from kernelmesh.report import Findings, Report

__all__ = ["Experiment", "Job", "Session", "run"]


class Session:
    """A run as an experiment sees it: it trains networks and computes cells, and knows how that ended.

    Observers, stops, checkpoints and resuming are taken care of here.
    """

    def __init__(
        self, folder: Path, *, resume: bool = False, observers: Sequence[Observer] = (), stop: Stop = lambda: False
    ) -> None:
        self.folder = folder
        self.resume = resume
        self.outcome: Outcome = Complete()
        self.seconds_before = 0.0
        """What resumed parts took before they were interrupted."""
        self._observers = tuple(observers)
        self._stop = stop

    @property
    def complete(self) -> bool:
        """Whether nothing has gone amiss so far."""
        return self.outcome == Complete()

    def publish(self, event: Event) -> None:
        """Tell all observers."""
        for observer in self._observers:
            observer(event)

    def prepare(self, what: str) -> None:
        """Tell observers what takes a while before the next part can start."""
        self.publish(Progress(done=0, total=None, unit="steps", part=what))

    def train(self, network: Network) -> Trial:
        """Train a network in this process; its checkpoint is in the folder, or in one of the part's name."""
        folder = self.folder / network.part
        folder.mkdir(parents=True, exist_ok=True)
        trial = learn(network, folder=folder, resume=self.resume, publish=self.publish, stop=self._stop)
        self.seconds_before += trial.seconds_before
        if self.complete:
            self.outcome = trial.outcome
        return trial

    def compute(self, cells: Mapping[str, Cell]) -> dict[str, dict[str, Any]]:
        """Compute cells on all cores; what each gave, by name. Some are missing where the run was stopped."""
        done = run_cells(cells, folder=self.folder, resume=self.resume, publish=self.publish, stop=self._stop)
        if self.complete and len(done) < len(cells):
            self.outcome = Interrupted(done=len(done), total=len(cells), unit="cells")
        return done

    def sweep(self, groups: Mapping[str, Cell], seeds: range) -> dict[str, list[dict[str, Any]]]:
        """Compute a cell of each group with each seed; what those that are done gave, by group."""
        cells = {
            f"{name}-{seed}": Cell(group.function, dataclasses.replace(group.settings, seed=seed))
            for seed in seeds
            for name, group in groups.items()
        }
        done = self.compute(cells)
        return {name: [done[key] for seed in seeds if (key := f"{name}-{seed}") in done] for name in groups}


Job = Callable[[Any, Session], Findings]
"""Takes the settings and the session; trains or computes, and says what was found."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A name, what it shows, its settings (a frozen dataclass with defaults), and what it does with them."""

    name: str
    about: str
    config: type[Any]
    run: Job
    table: Job | None = None
    """The whole table behind one claim (`--all`), where there is one."""
    swept: tuple[str, ...] = ()
    """The settings that the table goes through, or the run where there is no table; they cannot be given with it."""


def run(
    experiment: Experiment,
    config: Any,
    folder: Path,
    *,
    table: bool = False,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    stop: Stop = lambda: False,
) -> Finished:
    """Run an experiment, or its whole table, until it ends or is stopped, and write its report to the folder.

    `resume` continues from what an interrupted run with the same settings left there. Observers receive every event; the last
    one is also returned.
    """
    job = experiment.table if table else experiment.run
    if job is None:
        raise InvalidArgument("run", "--all", "be used with an experiment that has a table", Verbatim(experiment.name))
    began = time.perf_counter()
    session = Session(folder, resume=resume, observers=observers, stop=stop)
    session.publish(Started(experiment.name, config))
    findings = job(config, session)
    outcome = session.outcome
    summary = {
        "experiment": experiment.name,
        **outcome.row(),
        **outcome.facts(),
        **findings.summary,
        "seconds": time.perf_counter() - began + session.seconds_before,
    }
    report = Report(config=settings_of(config), summary=summary, findings=findings)
    finished = Finished(outcome, report, report.write(folder))
    session.publish(finished)
    return finished
