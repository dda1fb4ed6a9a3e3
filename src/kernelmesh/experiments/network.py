"""A network to train, and the samples to measure it on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelmesh import Agent, Graph
from kernelmesh.checks import Floats
from kernelmesh.streams import StreamSlice

__all__ = ["Network"]


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
        """How many rounds there are; at least, if agents share sums."""
        return max(len(stream) for stream in self.streams)

    @property
    def is_open_ended(self) -> bool:
        """Whether there may be more rounds: agents that share sums form a network first, and settle at the end."""
        return self.agent.protocol.shares
