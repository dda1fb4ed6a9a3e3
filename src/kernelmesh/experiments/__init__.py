"""One file per figure or claim: a config and `run(config, watch, folder, resume)` → Report."""

from kernelmesh.experiments import (
    baselines,
    brodatz,
    dial,
    gmm_hinge,
    gmm_logistic,
    heterogeneous,
    slabs,
    theory,
    violation,
)
from kernelmesh.experiments.base import Experiment, Progress, Watch

__all__ = ["EXPERIMENTS", "Experiment", "Progress", "Watch"]

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (gmm_logistic, gmm_hinge, brodatz, heterogeneous, slabs, dial, violation, theory, baselines)
}
