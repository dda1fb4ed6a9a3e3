"""Memory, bytes and accuracy against each other: the parsimony constant K swept for every protocol."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import register
from kernelmesh.experiments import Cell, Experiment, Findings, Session, heterogeneous, means
from kernelmesh.experiments.protocols import protocols
from kernelmesh.experiments.settings import Count
from kernelmesh.report import style_of

__all__ = ["EXPERIMENT", "Config"]

_SWEPT = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)


@dataclass(frozen=True, kw_only=True)
class Config(heterogeneous.Config, owner="budget-sweep"):
    """One class per agent, or another partition; duals get a quarter of each budget."""

    seeds: Count = 3
    measure_every: Count = 4


def run(config: Config, session: Session) -> Findings:
    """All protocols at all K, over the seeds."""
    groups = {(name, k): f"{name}-{k:g}" for name in protocols() for k in _SWEPT}
    cells = {
        group: Cell(heterogeneous.cell, dataclasses.replace(config, protocol=name, parsimony=k, dual_parsimony=k / 4))
        for (name, k), group in groups.items()
    }
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    table = []
    for (name, k), group in groups.items():
        if rows := [row for row in done[group] if row["complete"]]:
            table.append({"protocol": name, "parsimony": k, **means(rows, _NUMBERS)})
    return Findings(
        summary={"partition": config.partition, "seeds": config.seeds},
        tables={"table": table},
        figures={"figure": _figure(table, config)} if table else {},
    )


_NUMBERS = ("accuracy_mean", "accuracy_worst", "model_order_mean", "bytes_per_sample", "seconds")


def _figure(table: Sequence[Mapping[str, Any]], config: Config) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, name in enumerate(protocols()):
        lines = [line for line in table if line["protocol"] == name]
        accuracy = [100 * line["accuracy_worst"] for line in lines]
        left.plot([line["model_order_mean"] for line in lines], accuracy, **style_of(index), label=name)
        if name != "local":
            right.plot([line["bytes_per_sample"] for line in lines], accuracy, **style_of(index), label=name)
    left.set(xlabel="memory: model order, mean over agents", ylabel="held-out accuracy of the worst agent, %")
    right.set(xlabel="traffic: bytes sent per sample")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both")
    left.set_xlim(left=0.7)  # less than a point on average is nothing
    left.legend(fontsize=9)
    figure.suptitle(f"K from {_SWEPT[-1]:g} (few points) to {_SWEPT[0]:g} (many), partition {config.partition}")
    return figure


EXPERIMENT = Experiment(
    name="budget-sweep", about="memory, bytes and accuracy as K is swept, for every protocol", config=Config, run=run
)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
