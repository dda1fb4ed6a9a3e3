"""One file per figure or claim: a config and `run(config, watch)` → Report."""

from kernelmesh.experiments import gmm_logistic
from kernelmesh.experiments.role import Experiment, Progress, Watch

__all__ = ["EXPERIMENTS", "Experiment", "Progress", "Watch"]

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (gmm_logistic.EXPERIMENT,)}
