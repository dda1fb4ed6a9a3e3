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
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.learners import Learner
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.protocols import ConsensusProtocol
from kernelmesh.runtimes.membership import Membership, Tls, agent_name, endpoint, member_number, patience
from kernelmesh.schema import at_least, flag, one_of, path, setting, texts
from kernelmesh.streams import StreamKind

__all__ = ["SECTIONS", "AgentSection", "CheckpointSection", "ModelSection", "NeighborsSection", "StreamSection"]

_DEFAULT = {field.name: field.default for kind in (Agent, Membership) for field in dataclasses.fields(kind)}


def _targets(owner: str, argument: str, value: Any) -> tuple[str, ...]:
    return texts(owner, argument, [value] if isinstance(value, str) else value)


@dataclass(frozen=True, kw_only=True)
class AgentSection:
    """The identity of the agent and its mode of operation."""

    name: str = setting(check=agent_name, example='"north"', doc="1 to 64 letters, digits, dots, dashes or underscores")
    mesh: str = setting(
        _DEFAULT["mesh"], check=agent_name, doc="the same for all agents that learn together; other meshes are ignored"
    )
    number: int | None = setting(
        None,
        check=member_number,
        example="0",
        unset="needed with the protocol Relay",
        doc="a whole number ≥ 0 that no other agent of the mesh has",
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
        _DEFAULT["patience"],
        check=patience,
        doc="how slow replies may be, in seconds: a query expires after twice as long, at least 2 s; not in lock step, and "
        "not with Relay",
    )
    at_end: str = setting(
        "stay", check=one_of("stay", "leave"), doc='when the stream ends: "stay" and keep answering, or "leave"'
    )
    log: str = setting("info", check=one_of("debug", "info", "warning", "error"), doc="debug, info, warning or error")
    insecure: bool = setting(_DEFAULT["insecure"], check=flag, doc="true allows listening on a real network without TLS")
    max_bytes: int = setting(_DEFAULT["max_bytes"], check=at_least(1024), doc="the largest accepted message, in bytes")
    max_bytes_per_second: float | None = setting(
        None,
        check=positive,
        example="20000",
        unset="no limit",
        doc="how much the agent may send its neighbors, with the protocol Relay and not in lock step",
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
    kernel: Kernel = setting(
        role="kernel",
        example='{ kind = "Gaussian", bandwidth = 1.0 }',
        doc="the kernel, which determines how far the influence of a sample reaches",
    )
    loss: Loss = setting(
        role="loss", example='{ kind = "Logistic" }', doc="the loss function, for classification or regression"
    )
    learner: Learner | None = setting(
        None,
        role="learner",
        example='{ kind = "Landmarks" }',
        unset="Landmarks; SecondOrder without neighbors",
        doc="how samples change the model: Landmarks with Relay, Averaged or Gradient with other protocols, "
        "SecondOrder for an agent without neighbors; with its settings, such as max_order",
    )
    protocol: ConsensusProtocol | None = setting(
        None,
        role="protocol",
        example='{ kind = "Relay" }',
        unset="Relay with the learner Landmarks, otherwise Diffusion; Local without neighbors",
        doc="the consensus protocol",
    )
    explosion: float = setting(
        _DEFAULT["explosion"],
        check=partial(positive, infinite=True),
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
