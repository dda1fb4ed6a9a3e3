"""The sections of an agent's TOML file: every setting is one field here, or in a registered kind that a field names."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelmesh.agent import Agent
from kernelmesh.checks import non_negative, positive
from kernelmesh.consensus import Consensus
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics.compression import Compression
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.schedules import Schedule
from kernelmesh.rules import Rule
from kernelmesh.runtimes.membership import Membership, Tls, agent_name, endpoint, patience
from kernelmesh.schema import at_least, flag, one_of, path, setting, texts
from kernelmesh.screening import Screening
from kernelmesh.streams import StreamKind

__all__ = ["SECTIONS", "AgentSection", "CheckpointSection", "ModelSection", "NeighborsSection", "StreamSection"]
__all__ += ["usual_replay", "usual_screening"]

_AGENT = {field.name: field.default for field in dataclasses.fields(Agent)}
_positive_or_infinite = partial(positive, infinite=True)
_MEMBERSHIP = {field.name: field.default for field in dataclasses.fields(Membership)}


USUAL_REPLAY = 256
"""Rows of its own stream that an agent keeps where its file does not say."""


def usual_replay(consensus: Consensus, *, lock_step: bool, alone: bool) -> int:
    """How many samples an agent keeps to replay unless told otherwise."""
    return USUAL_REPLAY if consensus.replays and consensus.relays and not (lock_step or alone) else 0


def usual_screening(consensus: Consensus, *, alone: bool) -> Screening | None:
    """What `mesh init` writes: where only values are exchanged, agents with different data are of no use to each other."""
    return Screening() if consensus.exchange.replies and consensus.exchange.question is None and not alone else None


def _targets(owner: str, argument: str, value: Any) -> tuple[str, ...]:
    return texts(owner, argument, [value] if isinstance(value, str) else value)


@dataclass(frozen=True, kw_only=True)
class AgentSection:
    """Who the agent is and how it takes part."""

    name: str = setting(check=agent_name, example='"north"', doc="1 to 64 letters, digits, dots, dashes or underscores")
    mesh: str = setting(
        _MEMBERSHIP["mesh"], check=agent_name, doc="the same for all agents that learn together; others are not heard"
    )
    listen: str = setting(
        check=endpoint,
        example='"tcp/127.0.0.1:7450"',
        doc="where this agent can be reached: tcp/HOST:PORT, with TLS tls/HOST:PORT",
    )
    mode: str = setting(
        "free",
        check=one_of("free", "lock-step"),
        doc='"free": each agent at its own pace; "lock-step": every round waits for all neighbors',
    )
    patience: float = setting(
        _MEMBERSHIP["patience"],
        check=patience,
        doc="how slow answers may be, in seconds: a question is given up after twice as long, at least 2 s; not in lock step",
    )
    at_end: str = setting(
        "stay", check=one_of("stay", "leave"), doc='when the stream has ended: "stay" and continue to answer, or "leave"'
    )
    log: str = setting("info", check=one_of("debug", "info", "warning", "error"), doc="debug, info, warning or error")
    insecure: bool = setting(_MEMBERSHIP["insecure"], check=flag, doc="true: listen on a real network without TLS")
    max_bytes: int = setting(_MEMBERSHIP["max_bytes"], check=at_least(1024), doc="the largest message that is read, in bytes")

    quarantine: Path | None = setting(
        None,
        check=path,
        example='"quarantine.txt"',
        unset='"quarantine.txt" beside this file',
        doc="a file of agents' names, one per line, that are not listened to; read again while running",
    )
    max_points: int | None = setting(
        None,
        check=at_least(1),
        example="500",
        unset="the model's max_order, or 4 times batch_size if that is more",
        doc="the most points in a function or question of a neighbor, and that all neighbors together add to one step",
    )


@dataclass(frozen=True, kw_only=True)
class NeighborsSection:
    """NAME = ADDRESS for each neighbor, or NAME = "" for one that connects to this agent; both ends must name each other."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The same for all agents."""

    dimension: int = setting(check=at_least(1), example="2", doc="numbers in a point")
    outputs: int = setting(check=at_least(1), example="5", doc="classes, or numbers to predict")
    rule: Rule | None = setting(
        None,
        role="rule",
        example='{ kind = "Averaged" }',
        unset="Gradient, as in the paper",
        doc="how the function moves when samples arrive; SecondOrder, for an agent without neighbors, and Landmarks take no "
        "step_size and no compression; max_order of SecondOrder is 2000 unless given",
    )
    regularization: float | None = setting(
        None,
        check=non_negative,
        example="1e-6",
        unset="1e-6, with SecondOrder 0.1, with Landmarks 0.005",
        doc="λ, which keeps the function small",
    )
    step_size: Schedule | float = setting(
        role="schedule",
        example="3.0",
        unset="left out with SecondOrder and Landmarks",
        doc="η, a number or a schedule: larger learns faster; with Squared or Huber keep it below about 2 / κ(x, x)",
    )
    kernel: Kernel = setting(
        role="kernel", example='{ kind = "Gaussian", bandwidth = 1.0 }', doc="how far the influence of a sample reaches"
    )
    loss: Loss = setting(role="loss", example='{ kind = "Logistic" }', doc="what is learned: classes or numbers")
    compression: Compression = setting(
        role="compression",
        example='{ kind = "Komp", budget = 0.2 }',
        unset="left out with SecondOrder and Landmarks",
        doc="a smaller budget gives a finer model of more points; parsimony = K is short for the budget K η^1.5, "
        "or K η^0.5 with the rule Averaged (`Komp.averaging`), for which 0.06 is a good K; max_order is 500 unless given",
    )
    consensus: Consensus | None = setting(
        None,
        role="consensus",
        example='{ kind = "Diffusion" }',
        unset="SharedStatistics with Landmarks, SharedDiffusion with a SharedDictionary, ExactDiffusion with a quarter of a "
        "constant budget, Diffusion without one, Local without neighbors",
        doc="how agents come to agree",
    )
    radius: float = setting(_AGENT["radius"], check=_positive_or_infinite, doc="the largest norm that the function may have")
    explosion: float = setting(
        _AGENT["explosion"],
        check=_positive_or_infinite,
        doc="a mini-batch this many times worse than predicting 0 means that the agent has diverged",
    )
    replay: int | None = setting(
        None,
        check=at_least(0),
        example="256",
        unset=f"{USUAL_REPLAY} with Diffusion and ExactDiffusion when running freely with neighbors, else 0",
        doc="samples of its own that the agent keeps, also in its checkpoint, and learns from while its stream has ended or "
        "pauses and others learn; 0: none",
    )
    screening: Screening | None = setting(
        None,
        role="screening",
        example='{ kind = "Screening" }',
        unset="none: everybody is believed; `kernelmesh mesh init` writes it where functions or statistics are exchanged",
        doc="what neighbors say is bounded, and tested on the agent's own samples before it counts; see bad-members.md",
    )


@dataclass(frozen=True, kw_only=True)
class StreamSection:
    """Where samples come from and what they mean."""

    kind: StreamKind = setting(role="stream", example='"file"', doc="the kind of stream, which has settings of its own")
    points: tuple[str, ...] = setting(check=texts, example='["x1", "x2"]', doc="the columns that are the point")
    targets: tuple[str, ...] = setting(
        check=_targets, example='"label"', doc="the column of the class, or a list of columns, one for each output"
    )
    classes: tuple[str, ...] = setting(
        (), check=texts, example='["ok", "fault"]', doc="the names of the classes in the data; without it they are 0, 1, …"
    )
    batch_size: int = setting(32, check=at_least(1), doc="samples per step")
    rate: float = setting(0.0, check=non_negative, doc="samples per second at most; 0: no limit")


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    """What an agent resumes from when it is started again."""

    folder: Path = setting(check=path, example='"state/north"', doc="a folder of its own for each agent")
    every: int = setting(100, check=at_least(1), doc="rounds between two checkpoints")

    def __post_init__(self) -> None:
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise InvalidArgument("checkpoint", "folder", "be a folder", Verbatim(f"the file {str(self.folder)!r}"))


SECTIONS: Mapping[str, type[Any]] = {
    "": AgentSection,
    "neighbors": NeighborsSection,
    "model": ModelSection,
    "stream": StreamSection,
    "checkpoint": CheckpointSection,
    "tls": Tls,
}
"""The tables of a file in their order; "" is the top of the file, before the first table."""
