"""The paper's first experiment: 20 agents learn a multi-class logistic regression on a mixture of Gaussians."""

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

    owner: ClassVar[str] = "gmm-logistic"


EXPERIMENT = Experiment(
    "gmm-logistic", "20 agents, logistic regression on a mixture of Gaussians in the plane", Config, gmm.run
)
