"""The events that observers of a run receive: progress bars, recordings, live pages and tests all use them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh import Agent, Graph, Measures, Round
from kernelmesh.metrics import AgentMeasures
from kernelmesh.streams import StreamSlice
from kernelmesh_experiments.outcome import Outcome
from kernelmesh_experiments.report import Findings
from kernelmesh_experiments.settings import Floats

__all__ = ["CellFailed", "CellFinished", "Event", "Finished", "Measured", "Network", "NetworkStarted", "Observer"]
__all__ += ["Progress", "Started"]


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
    save_every: int = 0
    """Rounds between checkpoints, against power cuts; 0: only at the end."""
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
    total: int | None
    """None if unknown."""
    unit: str
    part: str = ""
    """Which of several networks, or what is being prepared."""


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
