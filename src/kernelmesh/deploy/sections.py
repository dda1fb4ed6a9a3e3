"""The sections of an agent's TOML file: every setting is a field here, or of a registered kind that a field names."""

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
from kernelmesh.runtimes.membership import Membership, Tls, agent_name, endpoint, member_number, patience
from kernelmesh.schema import at_least, flag, one_of, path, setting, texts
from kernelmesh.streams import StreamKind

__all__ = ["SECTIONS", "AgentSection", "CheckpointSection", "ModelSection", "NeighborsSection", "StreamSection"]

_AGENT = {field.name: field.default for field in dataclasses.fields(Agent)}
_positive_or_infinite = partial(positive, infinite=True)
_MEMBERSHIP = {field.name: field.default for field in dataclasses.fields(Membership)}


def _targets(owner: str, argument: str, value: Any) -> tuple[str, ...]:
    return texts(owner, argument, [value] if isinstance(value, str) else value)


@dataclass(frozen=True, kw_only=True)
class AgentSection:
    """The identity of the agent and its mode of operation."""

    name: str = setting(check=agent_name, example='"north"', doc="1 to 64 letters, digits, dots, dashes or underscores")
    mesh: str = setting(
        _MEMBERSHIP["mesh"], check=agent_name, doc="the same for all agents that learn together; other meshes are ignored"
    )
    number: int | None = setting(
        None,
        check=member_number,
        example="0",
        unset="needed with the consensus Relay",
        doc="a whole number that no other agent of the mesh has, from 0 on",
    )
    listen: str = setting(
        check=endpoint,
        example='"tcp/127.0.0.1:7450"',
        doc="the address this agent listens on: tcp/HOST:PORT, or tls/HOST:PORT with TLS",
    )
    mode: str = setting(
        "free",
        check=one_of("free", "lock-step"),
        doc='"free": each agent at its own pace; "lock-step": every round waits for all neighbors',
    )
    patience: float = setting(
        _MEMBERSHIP["patience"],
        check=patience,
        doc="how slow replies may be, in seconds: a query expires after twice as long, at least 2 s; not in lock step, and "
        "not with Relay",
    )
    at_end: str = setting(
        "stay", check=one_of("stay", "leave"), doc='when the stream ends: "stay" and keep answering, or "leave"'
    )
    log: str = setting("info", check=one_of("debug", "info", "warning", "error"), doc="debug, info, warning or error")
    insecure: bool = setting(_MEMBERSHIP["insecure"], check=flag, doc="true allows listening on a real network without TLS")
    max_bytes: int = setting(_MEMBERSHIP["max_bytes"], check=at_least(1024), doc="the largest accepted message, in bytes")
    max_bytes_per_second: float | None = setting(
        None,
        check=positive,
        example="20000",
        unset="no limit",
        doc="how much the agent may send its neighbors, with the consensus Relay and not in lock step",
    )
    quarantine: Path | None = setting(
        None,
        check=path,
        example='"quarantine.txt"',
        unset='"quarantine.txt" next to this file',
        doc="a file with the names of quarantined agents, one per line; it is watched while the agent runs",
    )
    max_points: int | None = setting(
        None,
        check=at_least(1),
        example="500",
        unset="the model's max_order, or 4 times batch_size if that is larger",
        doc="the maximum number of points in a neighbor's message, and from all neighbors together in one step",
    )


@dataclass(frozen=True, kw_only=True)
class NeighborsSection:
    """NAME = ADDRESS for each neighbor, or NAME = "" if it connects to this agent; both ends must list each other."""


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The model; the same for all agents."""

    dimension: int = setting(check=at_least(1), example="2", doc="number of features")
    outputs: int = setting(check=at_least(1), example="5", doc="number of classes, or of values to predict")
    rule: Rule | None = setting(
        None,
        role="rule",
        example='{ kind = "Landmarks" }',
        unset="Gradient, as in the paper",
        doc="the learning rule; Landmarks and SecondOrder (for an agent without neighbors, with a max_order of 2000) take no "
        "step_size and no compression",
    )
    regularization: float | None = setting(
        None,
        check=non_negative,
        example="1e-6",
        unset="1e-6, with Landmarks and SecondOrder 0.1",
        doc="λ, the strength of the regularization",
    )
    step_size: Schedule | float = setting(
        role="schedule",
        example="3.0",
        unset="omitted with Landmarks and SecondOrder",
        doc="η, a number or a schedule; larger steps learn faster; with Squared or Huber, keep it below about 2 / κ(x, x)",
    )
    kernel: Kernel = setting(
        role="kernel",
        example='{ kind = "Gaussian", bandwidth = 1.0 }',
        doc="the kernel, which determines how far the influence of a sample reaches",
    )
    loss: Loss = setting(
        role="loss", example='{ kind = "Logistic" }', doc="the loss function, for classification or regression"
    )
    compression: Compression = setting(
        role="compression",
        example='{ kind = "Komp", budget = 0.2 }',
        unset="omitted with Landmarks and SecondOrder",
        doc="a smaller budget gives a finer model with more points; parsimony = K is short for the budget K η^1.5, "
        "or K η^0.5 with the rule Averaged (`Komp.averaging`), for which 0.06 is a good K; max_order defaults to 500",
    )
    consensus: Consensus | None = setting(
        None,
        role="consensus",
        example='{ kind = "Relay" }',
        unset="Relay with the rule Landmarks, otherwise Diffusion; Local without neighbors",
        doc="the consensus protocol",
    )
    radius: float = setting(_AGENT["radius"], check=_positive_or_infinite, doc="the maximum norm of the function")
    explosion: float = setting(
        _AGENT["explosion"],
        check=_positive_or_infinite,
        doc="an agent counts as diverged if its loss on a mini-batch is this many times that of predicting 0",
    )


@dataclass(frozen=True, kw_only=True)
class StreamSection:
    """The source of the samples, and the meaning of their columns."""

    kind: StreamKind = setting(role="stream", example='"file"', doc="the kind of stream, which has its own settings")
    points: tuple[str, ...] = setting(check=texts, example='["x1", "x2"]', doc="the feature columns")
    targets: tuple[str, ...] = setting(
        check=_targets, example='"label"', doc="the class column, or a list of columns, one for each output"
    )
    classes: tuple[str, ...] = setting(
        (), check=texts, example='["ok", "fault"]', doc="the class names in the data; if omitted, classes are 0, 1, …"
    )
    batch_size: int = setting(32, check=at_least(1), doc="samples per step")
    rate: float = setting(0.0, check=non_negative, doc="maximum samples per second; 0 means no limit")


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    """Checkpoints, from which an agent resumes after a restart."""

    folder: Path = setting(check=path, example='"state/north"', doc="a separate folder for each agent")
    every: int = setting(100, check=at_least(1), doc="steps between checkpoints")

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
"""The tables of a file in order; "" is the top of the file, before the first table."""
