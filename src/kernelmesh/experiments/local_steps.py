"""Exchanging less often: the worst agent's accuracy against traffic when agents exchange only in every k-th round."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import register
from kernelmesh.experiments import Cell, Experiment, Findings, Session, heterogeneous, means
from kernelmesh.experiments.mixture import MixtureConfig
from kernelmesh.experiments.protocols import protocols, takes_every
from kernelmesh.experiments.settings import Count
from kernelmesh.report import panel, style_of
from kernelmesh.schema import setting

__all__ = ["EXPERIMENT", "Config"]

_EVERY = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Config(heterogeneous.Config, owner="local-steps"):
    """One class per agent, or another partition; `protocol` and `every` are what is swept."""

    seeds: Count = setting(3, doc="number of seeds to average over")


def cell(config: MixtureConfig) -> Mapping[str, Any]:
    """What a network reached, and its CPU time without compilation."""
    heterogeneous.cell(dataclasses.replace(config, samples=10 * config.batch_size, passes=1))
    began = time.process_time()
    found = heterogeneous.cell(config)
    return {**found, "every": config.every, "cpu_seconds": time.process_time() - began}


def run(config: Config, session: Session) -> Findings:
    """Every protocol that exchanges functions, with every k, over the seeds."""
    groups = {(name, k): f"{name}-{k}" for name in protocols() if takes_every(name) and config.suits(name) for k in _EVERY}
    cells = {
        group: Cell(cell, dataclasses.replace(config, protocol=name, every=k)) for (name, k), group in groups.items()
    } | {"reference": Cell(heterogeneous.reference, config)}
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    table = [
        {"protocol": name, "every": k, **means(complete, _NUMBERS), "diverged": len(rows) - len(complete)}
        for (name, k), group in groups.items()
        if (rows := done[group]) and (complete := [row for row in rows if row["complete"]])
    ]
    limits = means(done["reference"], ("centralized", "svm", "bayes"))
    worst = {f"{row['protocol']}_{row['every']}_accuracy_worst".replace("-", "_"): row["accuracy_worst"] for row in table}
    return Findings(
        summary={
            **{name: getattr(config, name) for name in ("rule", "partition", "seeds")},
            **{f"{name}_accuracy": value for name, value in limits.items()},
            **worst,
        },
        tables={"table": table, "cells": [row for group in groups.values() for row in done[group]]},
        figures={"figure": _figure(table, limits, config)} if table and done["reference"] else {},
        paragraphs=_PARAGRAPHS,
    )


_NUMBERS = ("accuracy_mean", "accuracy_worst", "model_order_mean", "floats_per_sample", "bytes_per_sample", "cpu_seconds")
_PARAGRAPHS = (
    "Means over the seeds; `every` is k. `accuracy_worst` is that of the worst agent of each run. `floats_per_sample` "
    "and `bytes_per_sample` are the totals sent by all agents over all edges, divided by the number of samples that "
    "all agents learned from. `cpu_seconds` is the CPU time of the whole network with one thread, without "
    "compilation.",
)


def _figure(table: Sequence[Mapping[str, Any]], limits: Mapping[str, float], config: Config) -> Figure:
    figure, axes = panel("floats sent per sample", "held-out accuracy of the worst agent, %", logarithmic="x")
    for index, name in enumerate(dict.fromkeys(row["protocol"] for row in table)):
        rows = [row for row in table if row["protocol"] == name]
        floats, worst = [row["floats_per_sample"] for row in rows], [100 * row["accuracy_worst"] for row in rows]
        axes.plot(floats, worst, **style_of(index), label=name)
        for row, x, y in zip(rows, floats, worst, strict=True):
            axes.annotate(f"k={row['every']}", (x, y), xytext=(4, -11), textcoords="offset points", fontsize=8)
    for name, label, dash in (("centralized", "one learner with all the data", "--"), ("bayes", "Bayes limit", "-")):
        axes.axhline(100 * limits[name], color="0.4", linestyle=dash, linewidth=1.2, label=label)
    axes.legend(fontsize=9)
    axes.margins(x=0.08)  # room for the last k
    axes.set_title(
        f"Exchanges in every k-th round: partition {config.partition}, {config.rule}, means over {config.seeds} seeds"
    )
    return figure


_ABOUT = "exchanging only in every k-th round: accuracy of the worst agent against traffic"
EXPERIMENT = Experiment(name="local-steps", about=_ABOUT, config=Config, run=run, swept=("protocol", "every"))
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
