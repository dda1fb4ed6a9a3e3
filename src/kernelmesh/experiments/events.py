"""The events that observers of a run receive: progress bars, recordings, live pages and tests all use them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh.experiments.network import Network
from kernelmesh.experiments.outcome import Outcome
from kernelmesh.metrics import AgentMeasures, Measures
from kernelmesh.report import Report
from kernelmesh.runtimes.simulation import Round

__all__ = ["CellFailed", "CellFinished", "Event", "Finished", "Measured", "NetworkStarted", "Observer", "Progress", "Started"]


@dataclass(frozen=True)
class Started:
    """A run has started."""

    experiment: str
    config: Any


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run, or of one part of it. Published at the start of each part and after every step."""

    done: int
    total: int | None
    """None if unknown."""
    unit: str
    part: str = ""
    """Which of several networks, or what is being prepared."""


@dataclass(frozen=True, eq=False)
class NetworkStarted:
    """A network is about to learn: who takes part, with what settings, and on what it will be measured."""

    part: str
    network: Network
    rounds_before: int
    """How many rounds an earlier run, which this one resumes, has made."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A round of a network was measured."""

    part: str
    round: Round
    measures: Measures
    agents: AgentMeasures


@dataclass(frozen=True, eq=False)
class CellFinished:
    """A cell of a table is there: computed, and saved for `--resume`."""

    name: str
    result: Mapping[str, Any]


@dataclass(frozen=True)
class CellFailed:
    """A cell of a sweep failed; the others continue, and `--resume` retries it."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Finished:
    """A run has ended, and its report is written."""

    outcome: Outcome
    report: Report
    files: Sequence[Path]


Event = Started | Progress | NetworkStarted | Measured | CellFinished | CellFailed | Finished
Observer = Callable[[Event], None]
