"""The paper's support vector machine on the same mixture of Gaussians."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kernelmesh.experiments import gmm
from kernelmesh.experiments.mixture import MixtureConfig
from kernelmesh.experiments.role import Experiment

__all__ = ["EXPERIMENT", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig):
    """As printed, with a protocol that is stable."""

    owner: ClassVar[str] = "gmm-hinge"

    loss: str = "hinge"


EXPERIMENT = Experiment(
    "gmm-hinge", "20 agents, a multi-class support vector machine on the same mixture", Config, gmm.run
)
