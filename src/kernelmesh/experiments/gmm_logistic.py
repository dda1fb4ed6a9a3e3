"""The paper's first experiment: 20 agents learn a multi-class logistic regression on a mixture of Gaussians."""

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

    owner: ClassVar[str] = "gmm-logistic"


def sweep(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """Twenty seeds against what the paper prints: 0.952 accuracy."""
    return gmm.sweep_against(0.952, (16, 20), 0.015, config, watch, folder, resume)


EXPERIMENT = Experiment(
    "gmm-logistic", "20 agents, logistic regression on a mixture of Gaussians in the plane", Config, gmm.run, sweep
)
