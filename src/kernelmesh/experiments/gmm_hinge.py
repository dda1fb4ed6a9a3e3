"""The paper's support vector machine on the same mixture of Gaussians."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kernelmesh.experiments import gmm
from kernelmesh.experiments.base import Experiment, Watch
from kernelmesh.experiments.mixture import MixtureConfig
from kernelmesh.report import Report

__all__ = ["EXPERIMENT", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig):
    """As printed, but c stays below the bound at which agents drive each other apart."""

    owner: ClassVar[str] = "gmm-hinge"

    loss: str = "hinge"


def sweep(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """Twenty seeds against what the paper prints: 0.957 accuracy."""
    return gmm.sweep_against(0.957, (18, 24), 0.016, config, watch, folder, resume)


EXPERIMENT = Experiment(
    "gmm-hinge", "20 agents, a multi-class support vector machine on the same mixture", Config, gmm.run, sweep
)
