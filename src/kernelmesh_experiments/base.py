"""The framework of experiments: definition, session, and the run that ends with a report."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh import InvalidArgument
from kernelmesh.runtimes.engines import Engine
from kernelmesh_experiments.cells import Cell, Pool, run_cells
from kernelmesh_experiments.events import Event, Finished, Network, Observer, Progress, Started
from kernelmesh_experiments.outcome import Complete, Interrupted, Outcome
from kernelmesh_experiments.report import Findings, Report
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
        observers: Sequence[Observer] = (),
        stop: Stop = lambda: False,
        engine: Engine | None = None,
    ) -> None:
        self.folder, self.resume = folder, resume
        self.outcome: Outcome = Complete()
        self.seconds_before = 0.0
        """What resumed parts took before they were interrupted."""
        self._observers, self._stop, self._engine = tuple(observers), stop, engine

    @property
    def complete(self) -> bool:
        """Whether everything has completed so far."""
        return self.outcome == Complete()

    def publish(self, event: Event) -> None:
        """Tell all observers."""
        for observer in self._observers:
            observer(event)

    def prepare(self, what: str) -> None:
        """Tell observers what takes a while before the next part can start."""
        self.publish(Progress(done=0, total=None, unit="steps", part=what))

    def train(self, network: Network) -> Trial:
        """Train a network, here or where the engine is; its checkpoint is in the folder, or in one of the part's name."""
        folder = self.folder / network.part
        folder.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"folder": folder, "resume": self.resume, "publish": self.publish, "stop": self._stop}
        trial = learn(network, **options, engine=self._engine)
        self.seconds_before += trial.seconds_before
        if self.complete:
            self.outcome = trial.outcome
        return trial

    def compute(
        self, cells: Mapping[str, Cell], *, failures: dict[str, str] | None = None, pool: Pool | None = None
    ) -> dict[str, dict[str, Any]]:
        """Compute cells on all cores; what each gave, by name. Some are missing where the run was stopped.

        Cells that fail end the run, unless there are `failures` to put their errors into.
        """
        options: dict[str, Any] = {"folder": self.folder, "resume": self.resume, "publish": self.publish, "stop": self._stop}
        done = run_cells(cells, **options, failures=failures, pool=pool)
        if self.complete and len(done) + len(cells.keys() & (failures or {}).keys()) < len(cells):
            self.outcome = Interrupted(done=len(done), total=len(cells), unit="cells")
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
    table_takes: str = ""
    """About how long that takes."""
    trains: bool = False
    """Whether its run trains networks in the session, so that their agents can be spread by an engine."""


def run(
    experiment: Experiment,
    config: Any,
    folder: Path,
    *,
    table: bool = False,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    stop: Stop = lambda: False,
    engine: Engine | None = None,
) -> Finished:
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
    session.publish(Started(experiment.name, config))
    findings = job(config, session)
    outcome = session.outcome
    seconds = time.perf_counter() - began + session.seconds_before
    about = {"experiment": experiment.name, **outcome.row(), **outcome.facts()}
    summary = {**about, **findings.summary, "seconds": seconds}
    report = Report(config=settings_of(config), summary=summary, findings=findings)
    finished = Finished(outcome, report, report.write(folder))
    session.publish(finished)
    return finished
