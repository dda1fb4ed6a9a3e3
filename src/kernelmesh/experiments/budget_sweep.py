"""Memory, traffic and accuracy over a sweep of budgets, for every protocol, and for every rule with one learner."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import register
from kernelmesh.experiments import Cell, Experiment, Findings, Session, heterogeneous, means
from kernelmesh.experiments.alone import warm_up
from kernelmesh.experiments.mixture import Task
from kernelmesh.experiments.settings import Count
from kernelmesh.report import style_of
from kernelmesh.schema import setting

__all__ = ["EXPERIMENT", "Config"]

# Learner → the setting that is its budget, and its values; the third is the default.
_SWEPT = {
    "gradient": ("parsimony", (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)),
    "averaged": ("averaged_parsimony", (0.015, 0.03, 0.06, 0.12, 0.24, 0.48)),
    "second-order": ("second_order_budget", (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)),
    "landmarks": ("landmarks_novelty", (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)),
}


@dataclass(frozen=True, kw_only=True)
class Config(heterogeneous.Config, owner="budget-sweep"):
    """One class per agent, or another partition."""

    seeds: Count = setting(3, doc="number of seeds to average over")
    measure_every: Count = 4


def one_learner(config: Config) -> Mapping[str, Any]:
    """A learner with all the data: means over several orders of it."""
    task = Task.draw(config)
    warm_up(task.agent(), task)
    found = [dataclasses.asdict(line) for line in task.alone()]
    return {"seed": config.seed, **means(found, ("accuracy", "model_order", "cpu_seconds"))}


def reference(config: Config) -> Mapping[str, Any]:
    """What a batch SVM and the Bayes rule reach."""
    task = Task.draw(config)
    return {"seed": config.seed, "svm": task.svm(), "bayes": task.bayes}


def run(config: Config, session: Session) -> Findings:
    """All protocols at all budgets, then all rules, over the seeds."""
    budgets = {name: _budget(config, name) for name in config.fitting}
    networks = {(name, k): f"{name}-{k:g}" for name, (_, values) in budgets.items() for k in values}
    cells = {
        group: Cell(heterogeneous.cell, _with_budget(config, budgets[name][0], k, protocol=name))
        for (name, k), group in networks.items()
    }
    alone = {(rule, k): f"alone-{rule}-{k:g}" for rule, (_, values) in _SWEPT.items() for k in values}
    single: dict[str, Any] = {"agents": 1, "protocol": "local", "partition": "identical"}
    for (rule, k), group in alone.items():
        cells[group] = Cell(one_learner, _with_budget(config, _SWEPT[rule][0], k, rule=rule, **single))
    cells["reference"] = Cell(reference, dataclasses.replace(config, **single))
    done = session.sweep(cells, range(config.seed, config.seed + config.seeds))
    table = []
    for (name, k), group in networks.items():
        if rows := [row for row in done[group] if row["complete"]]:
            table.append({"protocol": name, "setting": budgets[name][0], "value": k, **means(rows, _NUMBERS)})
    rules = [
        {"learner": rule, "setting": _SWEPT[rule][0], "value": k, **means(rows, ("accuracy", "model_order", "cpu_seconds"))}
        for (rule, k), group in alone.items()
        if (rows := done[group])
    ]
    limits = means(done["reference"], ("svm", "bayes"))
    figures = {"figure": _draw_protocols(table, config)} if table else {}
    return Findings(
        summary={
            **{name: getattr(config, name) for name in ("learner", "partition", "seeds")},
            "svm_accuracy": limits["svm"],
            "bayes_accuracy": limits["bayes"],
        },
        tables={"table": table, "rules": rules},
        figures=figures | ({"rules": _draw_rules(rules, limits)} if rules and done["reference"] else {}),
        paragraphs=_PARAGRAPHS,
        printed=("table", "rules"),
    )


def _budget(config: Config, protocol: str) -> tuple[str, tuple[float, ...]]:
    """The setting that is the budget of networks with a protocol, and its values."""
    rule = dataclasses.replace(config, protocol=protocol, every=0).learns_by
    return _SWEPT.get(rule, _SWEPT["gradient"])


def _with_budget(config: Config, setting: str, value: float, **others: Any) -> Config:
    return dataclasses.replace(config, **{setting: value, **others})


_NUMBERS = ("accuracy_mean", "accuracy_worst", "model_order_mean", "bytes_per_sample", "seconds")
_PARAGRAPHS = (
    "The first table and figure are about networks. The second ones (`rules`) are about one learner with all the "
    "data, which sees each sample once: means over the seeds, and over five orders of the samples of each. "
    "`cpu_seconds` is the CPU time of one such pass with one thread, without compilation.",
)


def _draw_protocols(table: Sequence[Mapping[str, Any]], config: Config) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, name in enumerate(config.fitting):
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
    figure.suptitle(f"budgets from 8 times the default (few points) to a quarter of it (many), partition {config.partition}")
    return figure


def _draw_rules(rules: Sequence[Mapping[str, Any]], limits: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = dict(zip(("model_order", "cpu_seconds"), figure.subplots(1, 2, sharey=True), strict=True))
    for quantity, axes in panels.items():
        for index, rule in enumerate(_SWEPT):
            lines = [line for line in rules if line["learner"] == rule]
            accuracy = [100 * line["accuracy"] for line in lines]
            axes.plot([line[quantity] for line in lines], accuracy, **style_of(index), label=rule)
        for name, label, dash in (("svm", "batch SVM", "--"), ("bayes", "Bayes limit", "-")):
            axes.axhline(100 * limits[name], color="0.4", linestyle=dash, linewidth=1.2, label=label)
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both")
    panels["model_order"].set(xlabel="memory: points kept", ylabel="held-out accuracy, %")
    panels["cpu_seconds"].set(xlabel="CPU seconds for one pass")
    panels["model_order"].legend(fontsize=9)
    figure.suptitle(
        "one learner, one pass, each rule's budget from 8 times its default (few points) to a quarter of it (many)"
    )
    return figure


_ABOUT = "memory, traffic and accuracy over a sweep of budgets, for every protocol and every rule"
EXPERIMENT = Experiment(name="budget-sweep", about=_ABOUT, config=Config, run=run, swept=("protocol",))
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
