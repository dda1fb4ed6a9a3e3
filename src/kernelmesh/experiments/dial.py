"""The dial between memory, bytes and accuracy: the parsimony constant K swept for every protocol."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from kernelmesh.checks import integer
from kernelmesh.experiments.base import Experiment, Watch
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.heterogeneous import cell as one_cell
from kernelmesh.experiments.mixture import MixtureConfig
from kernelmesh.experiments.protocols import PROTOCOLS
from kernelmesh.report import Report, style_of

__all__ = ["EXPERIMENT", "Config"]

_SWEPT = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig):
    """One class per agent, or another partition; duals get a quarter of each budget."""

    owner: ClassVar[str] = "dial"

    protocol: str = "exact-diffusion"
    partition: str = "one-class"
    penalty_limit: float = 0.5
    seeds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        integer(self.owner, "seeds", self.seeds, minimum=1)


def cell(config: Config) -> Mapping[str, Any]:
    """What one protocol reaches at one K."""
    return {**one_cell(config), "parsimony": config.parsimony}


def run(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """All protocols at all K, over the seeds."""
    began = time.perf_counter()
    jobs: dict[str, tuple[Any, Any]] = {
        f"{name}-{k:g}-{seed}": (
            cell,
            dataclasses.replace(config, seed=seed, protocol=name, parsimony=k, dual_parsimony=k / 4),
        )
        for seed in range(config.seed, config.seed + config.seeds)
        for k in _SWEPT
        for name in PROTOCOLS
    }
    done = run_cells(jobs, watch=watch, folder=folder, resume=resume)
    table = []
    numbers = ("accuracy_mean", "accuracy_worst", "model_order_mean", "bytes_per_sample", "seconds")
    for name in PROTOCOLS:
        for k in _SWEPT:
            lines = [v for v in done.values() if v["protocol"] == name and v["parsimony"] == k and v["complete"]]
            if lines:
                means = {number: float(np.mean([line[number] for line in lines])) for number in numbers}
                table.append({"protocol": name, "parsimony": k, **means})
    missing = len(jobs) - len(done)
    remark = f"Interrupted: {missing} of {len(jobs)} cells are missing; --resume goes on." if missing else ""
    summary = {
        "experiment": config.owner,
        "partition": config.partition,
        "seeds": config.seeds,
        "complete": not remark,
        "remark": remark,
        "seconds": time.perf_counter() - began,
    }
    figures = {"figure": _figure(table, config)} if table else {}
    return Report(config.owner, config.settings(), summary, {"table": table}, figures, remark, (), ("table",))


def _figure(table: Sequence[Mapping[str, Any]], config: Config) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, name in enumerate(PROTOCOLS):
        lines = [line for line in table if line["protocol"] == name]
        accuracy = [100 * line["accuracy_worst"] for line in lines]
        left.plot([line["model_order_mean"] for line in lines], accuracy, **style_of(place), label=name)
        if name != "local":
            right.plot([line["bytes_per_sample"] for line in lines], accuracy, **style_of(place), label=name)
    left.set_xlabel("memory: model order, mean over agents")
    right.set_xlabel("traffic: bytes sent per sample")
    left.set_ylabel("held-out accuracy of the worst agent, %")
    for axes in (left, right):
        axes.set_xscale("log")
    left.set_xlim(left=0.7)  # less than a point on average is nothing
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    left.legend(fontsize=9)
    figure.suptitle(f"K from {_SWEPT[-1]:g} (few points) to {_SWEPT[0]:g} (many), partition {config.partition}")
    return figure


EXPERIMENT = Experiment("dial", "memory, bytes and accuracy as K is swept, for every protocol", Config, run)
