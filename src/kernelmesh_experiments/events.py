"""The events that observers of a run receive, and the outcomes with which it can end, which determine the exit code."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kernelmesh import Agent, Graph, Measures, Round
from kernelmesh import Diverged as DivergedError
from kernelmesh.metrics import AgentMeasures
from kernelmesh.streams import StreamSlice
from kernelmesh_experiments.report import Findings
from kernelmesh_experiments.settings import Floats

__all__ = ["CellFailed", "CellFinished", "Complete", "Diverged", "Event", "Finished", "Incomplete", "Interrupted", "Measured"]
__all__ += ["Network", "NetworkStarted", "Observer", "Outcome", "Progress", "Started"]


@dataclass(frozen=True)
class Outcome:
    """One of the below; as text, what a reader must know first."""

    name: ClassVar[str]
    exit_code: ClassVar[int] = 1

    def facts(self) -> dict[str, Any]:
        """What the summary of a run says about this outcome only."""
        return {}

    def row(self) -> dict[str, Any]:
        """What summaries and tables say about every outcome."""
        return {"complete": isinstance(self, Complete), "outcome": self.name, "remark": str(self)}


@dataclass(frozen=True)
class Complete(Outcome):
    """Everything was computed."""

    name: ClassVar[str] = "complete"
    exit_code: ClassVar[int] = 0

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class Interrupted(Outcome):
    """The run was stopped and can be resumed.

    >>> str(Interrupted(done=3, total=20, unit="cells"))
    'Interrupted after 3 of 20 cells; use --resume to continue.'
    """

    name: ClassVar[str] = "interrupted"
    exit_code: ClassVar[int] = 130

    done: int
    total: int
    unit: str = "cells"

    def __str__(self) -> str:
        return f"Interrupted after {self.done} of {self.total} {self.unit}; use --resume to continue."

    def facts(self) -> dict[str, Any]:
        """How far it came."""
        return {f"{self.unit}_done": self.done, f"{self.unit}_total": self.total}


@dataclass(frozen=True, kw_only=True)
class Incomplete(Interrupted):
    """Some cells of a sweep failed; the others are there.

    >>> str(Incomplete(done=3, total=4, reason="out of memory"))
    '1 of 4 cells failed, the first of them: out of memory. Use --resume to retry.'
    """

    name: ClassVar[str] = "incomplete"
    exit_code: ClassVar[int] = 1

    reason: str

    def __str__(self) -> str:
        failed = f"{self.total - self.done} of {self.total} cells failed, the first of them"
        return f"{failed}: {self.reason.rstrip('.')}. Use --resume to retry."


@dataclass(frozen=True)
class Diverged(Outcome):
    """The functions left all bounds; the results are those of the last round before that."""

    name: ClassVar[str] = "diverged"

    error: DivergedError

    def __str__(self) -> str:
        return f"Diverged: {self.error}"

    def facts(self) -> dict[str, Any]:
        """Where and why."""
        facts = {f"diverged_{name}": getattr(self.error, name) for name in ("samples", "step_size", "penalty", "reason")}
        return {"diverged_agent": str(self.error.agent), **facts}


@dataclass(frozen=True, eq=False, kw_only=True)
class Network:
    """A network to be trained, and the samples that it is measured on."""

    agent: Agent
    graph: Graph
    streams: Sequence[StreamSlice]
    points: Floats
    targets: Any
    measure_every: int
    """Rounds; the first and the last are always measured."""
    settings: Any
    """What a checkpoint must have been made with to be resumed; as JSON can hold it."""
    save_every: int = 25
    """Rounds between checkpoints, against power cuts and kills."""
    part: str = ""
    """Its name, where an experiment trains several."""
    sample: int | None = None
    """Agents, and edges, that are measured, where there are more; None: all."""

    @property
    def rounds(self) -> int:
        """How many rounds there are; at least, if agents share sums: they form a network first, and settle at the end."""
        return max(len(stream) for stream in self.streams)


@dataclass(frozen=True)
class Started:
    """A run has started."""

    experiment: str
    config: Any


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run, or of one part of it. Published at the start of each part and after every step."""

    done: int
    total: int
    unit: str
    part: str = ""
    """Which of several networks."""


@dataclass(frozen=True, eq=False)
class NetworkStarted:
    """A network is about to learn: who takes part, with what settings, and on what it will be measured."""

    network: Network
    rounds_before: int
    """How many rounds an earlier run, which this one resumes, has made."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A round of a network was measured."""

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
    summary: Mapping[str, Any]
    """The experiment's name, how the run ended (with a `remark` if that needs explanation), and the numbers."""
    findings: Findings
    files: Sequence[Path]


Event = Started | Progress | NetworkStarted | Measured | CellFinished | CellFailed | Finished
Observer = Callable[[Event], None]
