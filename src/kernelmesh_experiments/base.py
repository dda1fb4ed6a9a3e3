"""The framework of experiments: definition, session, and the run that ends with a report."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh import InvalidArgument
from kernelmesh.runtimes.engines import Engine
from kernelmesh_experiments import events
from kernelmesh_experiments.cells import Cell, Pool, run_cells
from kernelmesh_experiments.report import Findings, write_report
from kernelmesh_experiments.settings import settings_of
from kernelmesh_experiments.trial import Stop, Trial, learn

__all__ = ["Experiment", "Job", "Session", "run"]


class Session:
    """A run as seen by an experiment: it trains networks and computes cells, and records the outcome.

    It handles observers, stops, checkpoints and resuming.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resume: bool = False,
        observers: Sequence[events.Observer] = (),
        stop: Stop = lambda: False,
        engine: Engine | None = None,
    ) -> None:
        self.folder, self.resume = folder, resume
        self.outcome: events.Outcome = events.Complete()
        self._observers, self._stop, self._engine = tuple(observers), stop, engine

    @property
    def complete(self) -> bool:
        """Whether everything has completed so far."""
        return self.outcome == events.Complete()

    def publish(self, event: events.Event) -> None:
        """Tell all observers."""
        for observer in self._observers:
            observer(event)

    def train(self, network: events.Network) -> Trial:
        """Train a network, here or where the engine is; its checkpoint is in the folder, or in one of the part's name."""
        folder = self.folder / network.part
        folder.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"folder": folder, "resume": self.resume, "publish": self.publish, "stop": self._stop}
        trial = learn(network, **options, engine=self._engine)
        if self.complete:
            self.outcome = trial.outcome
        return trial

    def compare(self, references: Callable[[Stop], dict[str, float]]) -> dict[str, float]:
        """What `references` returns, such as the accuracy of a batch SVM; nothing if the run has been or is now stopped.

        References take long with many samples: they ask whether to stop, and then raise KeyboardInterrupt.
        """
        try:
            if not isinstance(self.outcome, events.Interrupted):
                return references(self._stop)
        except KeyboardInterrupt:
            self.outcome = events.Interrupted(done=0, total=1, unit="references")
        return {}

    def compute(
        self, cells: Mapping[str, Cell], *, failures: dict[str, str] | None = None, pool: Pool | None = None
    ) -> dict[str, dict[str, Any]]:
        """Compute cells on all cores; what each gave, by name. Some are missing where the run was stopped.

        Cells that fail end the run, unless there are `failures` to put their errors into.
        """
        options: dict[str, Any] = {"folder": self.folder, "resume": self.resume, "publish": self.publish, "stop": self._stop}
        done = run_cells(cells, **options, failures=failures, pool=pool)
        if self.complete and len(done) + len(cells.keys() & (failures or {}).keys()) < len(cells):
            self.outcome = events.Interrupted(done=len(done), total=len(cells), unit="cells")
        return done


Job = Callable[[Any, Session], Findings]
"""Takes the settings and the session; trains or computes, and returns the findings."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment: its name, description, settings (a frozen dataclass with defaults), and function."""

    name: str
    about: str
    config: type[Any]
    run: Job
    table: Job | None = None
    """The whole experiment (`--all`), if the run is only a part of it."""
    takes: str = ""
    """About how long a run takes on two cores."""
    trains: bool = False
    """Whether its run trains networks in the session, so that their agents can be spread by an engine."""


def run(
    experiment: Experiment,
    config: Any,
    folder: Path,
    *,
    table: bool = False,
    resume: bool = False,
    observers: Sequence[events.Observer] = (),
    stop: Stop = lambda: False,
    engine: Engine | None = None,
) -> events.Finished:
    """Run an experiment, or its whole table, until it ends or is stopped, and write its report to the folder.

    `resume` continues from what an interrupted run with the same settings left there. Observers receive every event; the last
    one is also returned. An engine spreads the agents of networks over processes or a cluster.
    """
    job = experiment.table if table else experiment.run
    if job is None:
        raise InvalidArgument("run", "--all", "be used with an experiment that has more to compute", experiment.name)
    if engine is not None and not experiment.trains:
        remedy = "gmm-logistic, heterogeneous and brodatz do"
        rule = "be used with an experiment that trains one network at a time"
        raise InvalidArgument("run", "--engine", rule, experiment.name, remedy=remedy)
    began = time.perf_counter()
    session = Session(folder, resume=resume, observers=observers, stop=stop, engine=engine)
    folder.mkdir(parents=True, exist_ok=True)
    session.publish(events.Started(experiment.name, config))
    findings = job(config, session)
    outcome = session.outcome
    about = {"experiment": experiment.name, **outcome.row(), **outcome.facts()}
    summary = {**about, **findings.summary, "seconds": time.perf_counter() - began}
    files = write_report(folder, settings_of(config), summary, findings)
    finished = events.Finished(outcome, summary, findings, files)
    session.publish(finished)
    return finished
