"""Agents that see different data: every protocol with three ways of splitting the classes."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import UnstablePenalty
from kernelmesh_experiments import gmm
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.cells import Cell, means
from kernelmesh_experiments.kinds import ProtocolName, protocols, takes_every
from kernelmesh_experiments.mixture import PARTITIONS, MixtureConfig, Partition, Task
from kernelmesh_experiments.report import COLORS, Findings
from kernelmesh_experiments.settings import Count, PositiveOrInf, setting
from kernelmesh_experiments.trial import learn

__all__ = ["EXPERIMENT", "EXPERIMENTS", "Config", "cell"]


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig, owner="heterogeneous"):
    """One cell of the table, by default the hardest with the best protocol; `seeds` is for the whole table."""

    protocol: ProtocolName = "relay"
    partition: Partition = "one-class"
    passes: Count = 1
    penalty_limit: PositiveOrInf = 0.5
    seeds: Count = setting(10, doc="number of seeds of the full table (`--all`)")
    measure_every: Count = 8


def run(config: Config, session: Session) -> Findings:
    """One cell, next to a learner with all the data, a batch SVM and the Bayes limit."""
    task = Task.draw(config)
    found = gmm.findings(task, session.train(task.network()))
    extra = {"centralized_accuracy": task.centralized(), "svm_accuracy": task.svm()}
    return dataclasses.replace(found, summary={**found.summary, **extra})


def cell(config: MixtureConfig) -> Mapping[str, Any]:
    """One cell of the table: what the network reached."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstablePenalty)  # the printed schedule is there to show it
        trial = learn(Task.draw(config).network(), only_ends=True)
    where = {"partition": config.partition, "learner": config.learns_by, "protocol": config.protocol, "seed": config.seed}
    return {**where, **trial.row()}


def reference(config: Config) -> Mapping[str, Any]:
    """What learners with all the data reach on one draw.

    `same_learner` is `config.learner`, as with the protocols that exchange functions; `centralized` is that of
    `config.protocol`, which is another one where sums are shared.
    """
    task, alike = Task.draw(config), Task.draw(dataclasses.replace(config, protocol="local", every=0))
    central = task.centralized()
    same_learner = central if alike.config.learns_by == config.learns_by else alike.centralized()
    return {"seed": config.seed, "centralized": central, "same_learner": same_learner, "svm": task.svm(), "bayes": task.bayes}


_PRINTED = ("identical", "penalty as printed")
# `every` and `bits` of relays that send less
_SPARSE = {("one-class", f"relay, every {k}, {bits} bits"): (k, bits) for k, bits in ((8, 16), (16, 32), (16, 16))}
_SHORT = {_PRINTED: "printed"} | {group: f"relay-{k}-{bits}" for group, (k, bits) in _SPARSE.items()}


def _groups(config: Config) -> dict[tuple[str, str], Config]:
    """The rows of the table, each with the settings of its first seed."""
    rows = {
        (partition, name): dataclasses.replace(
            config, partition=partition, protocol=name, every=config.every if takes_every(name) else 0
        )
        for partition in PARTITIONS
        for name in config.fitting
    }
    if config.suits("relay"):
        one = dataclasses.replace(config, partition="one-class", protocol="relay")
        rows |= {group: dataclasses.replace(one, every=k, bits=bits) for group, (k, bits) in _SPARSE.items()}
    if config.learner == "gradient":
        rows[_PRINTED] = dataclasses.replace(
            config, partition="identical", protocol="penalty", penalty_limit=math.inf, every=0
        )
    return rows


def table(config: Config, session: Session) -> Findings:
    """The whole table: seeds × protocols × partitions."""
    groups = _groups(config)
    names = {group: _SHORT.get(group, "-".join(group)) for group in groups}
    cells = {"reference": Cell(reference, config)} | {names[group]: Cell(cell, groups[group]) for group in groups}
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    references = means(done["reference"], ("centralized", "same_learner", "svm", "bayes"))
    found = {group: done[names[group]] for group in groups if done[names[group]]}
    rows = [{"partition": group[0], "protocol": group[1], **_mean(lines)} for group, lines in found.items()]
    return Findings(
        summary={
            "learner": config.learner,
            "seeds": config.seeds,
            "centralized_accuracy": references["centralized"],
            "same_learner_accuracy": references["same_learner"],
            "svm_accuracy": references["svm"],
            "bayes_accuracy": references["bayes"],
        },
        tables={"table": rows, "cells": [line for lines in found.values() for line in lines]},
        figures={"figure": _figure(rows, references)} if done["reference"] and rows else {},
        paragraphs=_PARAGRAPHS,
    )


_PARAGRAPHS = (
    "Means over the seeds. `worst` is the worst agent of each run. `floats_per_sample` and `bytes_per_sample` are the "
    "totals sent by all agents over all edges, divided by the number of samples that all agents learned from.",
)

_COSTS = ("model_order_mean", "disagreement", "floats_per_sample", "bytes_per_sample", "seconds")


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of every number over the seeds; runs that diverged count as such and not in the means."""
    complete = [row for row in rows if row["complete"]]
    return {**means(complete, ("accuracy_mean", "accuracy_worst", *_COSTS)), "diverged": len(rows) - len(complete)}


_REFERENCES = {"centralized": "one learner with all the data", "svm": "batch SVM", "bayes": "Bayes limit"}


def _figure(table: Sequence[Mapping[str, Any]], reference: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(12, 7), layout="constrained")
    panels = figure.subplots(2, len(PARTITIONS), sharex=True, sharey="row")
    index = {name: i for i, name in enumerate(protocols())}
    for column, partition in enumerate(PARTITIONS):
        lines = [line for line in table if line["partition"] == partition and line["protocol"] in index]
        at = [index[line["protocol"]] for line in lines]
        top, bottom = panels[0][column], panels[1][column]
        for (name, label), color, dash in zip(_REFERENCES.items(), COLORS[1:], (":", "--", "-"), strict=False):
            top.axhline(100 * reference[name], color=color, linestyle=dash, linewidth=1.2, label=label)
        top.plot(at, [100 * line["accuracy_mean"] for line in lines], "o", color=COLORS[0], label="mean over agents")
        worst = [100 * line["accuracy_worst"] for line in lines]
        top.plot(at, worst, "v", color=COLORS[5], fillstyle="none", label="worst agent")
        top.set_title({"identical": "all classes", "two-class": "two classes each", "one-class": "one class each"}[partition])
        top.grid(alpha=0.3)
        bottom.bar(at, [line["bytes_per_sample"] for line in lines], color=COLORS[4])
        for x, line in zip(at, lines, strict=True):
            order = f"M={line['model_order_mean']:.0f}"
            bottom.annotate(order, (x, line["bytes_per_sample"]), ha="center", va="bottom", fontsize=8)
        bottom.set_xticks(range(len(protocols())), protocols(), rotation=40, ha="right")
        bottom.grid(alpha=0.3, axis="y")
    panels[0][0].set_ylabel("held-out accuracy, %")
    panels[1][0].set_ylabel("bytes sent per sample")
    panels[0][0].legend(loc="lower left", fontsize=8)
    return figure


_ABOUT = "agents that each see one, two or all classes; --all compares all protocols"
_SWEPT = ("protocol", "partition")
EXPERIMENT = Experiment(
    name="heterogeneous",
    about=_ABOUT,
    config=Config,
    run=run,
    table=table,
    trains=True,
    swept=_SWEPT,
    takes="10 s",
    table_takes="5 min",
)
EXPERIMENTS = (EXPERIMENT,)
