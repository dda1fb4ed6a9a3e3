"""Agents that see different data: every protocol with three ways of splitting the classes."""

import dataclasses
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import UnstablePenalty, register
from kernelmesh.experiments import Cell, Experiment, Findings, Session, gmm, learn, means
from kernelmesh.experiments.mixture import PARTITIONS, MixtureConfig, Partition, Task
from kernelmesh.experiments.protocols import ProtocolName, protocols, takes_every
from kernelmesh.experiments.settings import Count, PositiveOrInf
from kernelmesh.report import COLORS
from kernelmesh.schema import setting

__all__ = ["EXPERIMENT", "Config", "cell"]


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
    return {**where, **trial.row(), "seconds": trial.seconds}


def reference(config: Config) -> Mapping[str, Any]:
    """What learners with all the data reach on one draw.

    `same_rule` has the rule `config.learner`, as the protocols that exchange functions do; `centralized` has the rule of
    `config.protocol`, which is another one where sums are shared.
    """
    task, alike = Task.draw(config), Task.draw(dataclasses.replace(config, protocol="local", every=0))
    central = task.centralized()
    same_rule = central if alike.config.learns_by == config.learns_by else alike.centralized()
    return {"seed": config.seed, "centralized": central, "same_rule": same_rule, "svm": task.svm(), "bayes": task.bayes}


_PRINTED = ("identical", "penalty as printed")
# `every` and `bits` of relays that send less
_SPARSE = {("one-class", f"relay, every {k}, {bits} bits"): (k, bits) for k, bits in ((8, 16), (16, 32), (16, 16))}
_SPARSEST = ("one-class", "relay, every 16, 16 bits")
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
    """The whole table: seeds × protocols × partitions, and what must be reached."""
    groups = _groups(config)
    names = {group: _SHORT.get(group, "-".join(group)) for group in groups}
    cells = {"reference": Cell(reference, config)} | {names[group]: Cell(cell, groups[group]) for group in groups}
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    references = means(done["reference"], ("centralized", "same_rule", "svm", "bayes"))
    found = {group: done[names[group]] for group in groups if done[names[group]]}
    rows = [{"partition": group[0], "protocol": group[1], **_mean(lines)} for group, lines in found.items()]
    as_described = dataclasses.replace(config, seed=0) == Config()
    goals = _goals(rows, references) if as_described and session.complete else []
    return Findings(
        summary={
            "learner": config.learner,
            "seeds": config.seeds,
            "centralized_accuracy": references["centralized"],
            "same_rule_accuracy": references["same_rule"],
            "svm_accuracy": references["svm"],
            "bayes_accuracy": references["bayes"],
            "goals_met": all(goal["met"] for goal in goals) if goals else None,
            **{goal["goal"]: goal["reached"] for goal in goals},
            **{f"{goal['goal']}_limit": goal["limit"] for goal in goals},
        },
        tables={"table": rows, "goals": goals, "cells": [line for lines in found.values() for line in lines]},
        figures={"figure": _figure(rows, references)} if done["reference"] and rows else {},
        paragraphs=_PARAGRAPHS,
    )


_PARAGRAPHS = (
    "Means over the seeds. `worst` is the worst agent of each run. `floats_per_sample` and `bytes_per_sample` are the "
    "totals sent by all agents over all edges, divided by the number of samples that all agents learned from. The "
    "targets are checked only for the settings they were chosen for.",
)

_COSTS = ("model_order_mean", "disagreement", "floats_per_sample", "bytes_per_sample", "seconds")


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of every number over the seeds; runs that diverged count as such and not in the means."""
    complete = [row for row in rows if row["complete"]]
    return {**means(complete, ("accuracy_mean", "accuracy_worst", *_COSTS)), "diverged": len(rows) - len(complete)}


def _goals(table: Sequence[Mapping[str, Any]], reference: Mapping[str, float]) -> list[dict[str, Any]]:
    """What must be reached, what was, and whether it is enough; means over the seeds."""
    rows = {(line["partition"], line["protocol"]): line for line in table}
    similar, penalty = rows["identical", "hilbert"], rows["identical", "penalty"]
    relay, sparse = rows["one-class", "relay"], rows[_SPARSEST]
    central = reference["centralized"]

    def ratio(row: Mapping[str, Any], to: Mapping[str, Any], name: str) -> float:
        return float(row[name] / to[name])

    goals: tuple[tuple[str, float, str, float], ...] = (
        ("identical_hilbert_floats_over_penalty", ratio(similar, penalty, "floats_per_sample"), "<=", 0.5),
        ("identical_hilbert_accuracy_mean", similar["accuracy_mean"], ">=", penalty["accuracy_mean"]),
        ("one_class_relay_accuracy_worst", relay["accuracy_worst"], ">=", central - 0.001),
        ("one_class_relay_floats_per_sample", relay["floats_per_sample"], "<=", 50),
        ("one_class_sparse_relay_accuracy_worst", sparse["accuracy_worst"], ">=", central - 0.002),
        ("one_class_sparse_relay_floats_per_sample", sparse["floats_per_sample"], "<=", 10),
        ("one_class_sparse_relay_bytes_per_sample", sparse["bytes_per_sample"], "<=", 20),
    )
    holds = {"<=": operator.le, ">=": operator.ge}
    return [
        {"goal": name, "reached": reached, "sense": sense, "limit": limit, "met": bool(holds[sense](reached, limit))}
        for name, reached, sense, limit in goals
    ]


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
EXPERIMENT = Experiment(name="heterogeneous", about=_ABOUT, config=Config, run=run, table=table, trains=True, swept=_SWEPT)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
