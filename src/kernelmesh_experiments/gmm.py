"""The paper's mixture experiments: one network, its sample paths, and one agent's decision regions."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.cells import Cell
from kernelmesh_experiments.kinds import CAPPED
from kernelmesh_experiments.mixture import LossName, MixtureConfig, Task
from kernelmesh_experiments.outcome import Diverged
from kernelmesh_experiments.report import Findings, draw_decision_regions, draw_path, draw_samples
from kernelmesh_experiments.trial import Trial, learn

__all__ = ["EXPERIMENTS", "HINGE", "LOGISTIC", "HingeConfig", "LogisticConfig", "findings"]

SEEDS = 20


def run(config: MixtureConfig, session: Session) -> Findings:
    """One network."""
    task = Task.draw(config)
    return findings(task, session.train(task.network()))


def findings(task: Task, trial: Trial) -> Findings:
    """What one network learned, next to the Bayes limit of its data."""
    config = task.config
    setup = {
        "learner": config.learns_by,
        **{name: getattr(config, name) for name in ("seed", "protocol", "partition", "agents")},
    }
    return Findings(
        summary={**setup, **trial.summary(), "bayes_accuracy": task.bayes, "training_seconds": trial.seconds},
        tables={"rounds": trial.rounds},
        figures={"figure": _draw_paths(task, trial), "data": _draw_data(task)},
        paragraphs=_paragraphs(config),
    )


def cell(config: MixtureConfig) -> Mapping[str, Any]:
    """One seed: how far the network and a learner with all the data stay below the Bayes limit."""
    task = Task.draw(config)
    trial = learn(task.network(), only_ends=True)
    central = task.centralized()
    return {
        "seed": config.seed,
        **trial.row(),
        "bayes_accuracy": task.bayes,
        "centralized_accuracy": central,
        "gap": task.bayes - trial.last.score_mean,
        "centralized_gap": task.bayes - central,
    }


def _in_band(config: MixtureConfig) -> list[int]:
    """The first five seeds whose draws are as separable as the paper's must have been, by their Bayes accuracy alone."""
    limits = ((seed, Task.draw(dataclasses.replace(config, seed=seed)).bayes) for seed in range(1000))
    return list(islice((seed for seed, bayes in limits if 0.955 <= bayes <= 0.97), 5))


_PRINTED = {"logistic": 0.952, "hinge": 0.957}
"""The accuracies in the paper."""


def table(config: MixtureConfig, session: Session) -> Findings:
    """Twenty unselected seeds, and the draws on which the printed accuracy is possible."""
    seeds = range(config.seed, config.seed + SEEDS)
    similar = _in_band(config)
    names = {seed: f"seed-{seed}" for seed in seeds} | {s: f"similar-{s}" for s in similar if s not in seeds}
    done = session.compute({name: Cell(cell, dataclasses.replace(config, seed=s)) for s, name in names.items()})
    unselected = [done[names[seed]] for seed in seeds if names[seed] in done]
    alike = [row for row in done.values() if row["seed"] in similar]
    summary: dict[str, Any] = {"learner": config.learns_by, "protocol": config.protocol, "seeds": len(unselected)}
    if unselected:

        def median(name: str) -> float:
            return float(np.median([row[name] for row in unselected]))

        summary |= {
            "median_model_order": median("model_order_mean"),
            "median_gap": median("gap"),
            "median_centralized_gap": median("centralized_gap"),
            "median_accuracy": median("accuracy_mean"),
            "diverged": sum(not row["complete"] for row in unselected),
        }
    if alike:
        summary |= {
            "similar_seeds": " ".join(str(row["seed"]) for row in alike),
            "similar_accuracy": float(np.mean([row["accuracy_mean"] for row in alike])),
            "printed_accuracy": _PRINTED[config.loss],
        }
    texts = [*_paragraphs(config), _SIMILAR]
    return Findings(summary=summary, tables={"table": list(done.values())}, paragraphs=texts)


_SIMILAR = (
    "`similar_seeds` are the first seeds whose draws have a Bayes accuracy of 95.5 to 97 %, as the paper's must have had."
)


def _paragraphs(config: MixtureConfig) -> list[str]:
    printed = config.reading == "printed"
    used = "0.2 as a variance (--reading printed)" if printed else "0.2 as a standard deviation"
    texts = [
        "The paper gives the spread of the mixture as a variance of 0.2, but then no draw is as separable as its accuracies "
        f"imply; with 0.2 as a standard deviation, they are typical. This run uses {used}.",
        "The accuracy depends on the draw of the mixture: compare it with the Bayes limit of the same draw, not with "
        "numbers from other draws.",
    ]
    seen = {"identical": 5, "two-class": config.agents + 1, "one-class": config.agents}[config.partition]
    if seen < 5:
        texts.append(f"With so few agents, {5 - seen} of the five classes are not seen by any agent, so none can learn them.")
    if config.protocol in ("penalty", CAPPED, "hilbert"):
        cap = f"c is therefore capped at {min(config.penalty_limit, 0.5):g} times that limit."
        if config.penalty_limit == float("inf") and config.protocol != CAPPED:
            cap = "This run has no cap (penalty_limit = inf), as in the paper."
        texts.append(
            "The paper's schedule, c = 0.01 doubling every 200 samples, makes the paper's update diverge once c exceeds the "
            f"stability limit derived in docs/consensus.md. {cap}"
        )
    return texts


def _draw_data(task: Task) -> Figure:
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    draw_samples(axes, task.points, task.labels)
    axes.set_title("the training samples")
    return figure


def _draw_paths(task: Task, trial: Trial) -> Figure:
    config, record, functions = task.config, trial.record, trial.newest.functions
    figure = Figure(figsize=(11, 8), layout="constrained")
    (objective, disagreement), (order, regions) = figure.subplots(2, 2)
    draw_path(objective, record, "objective", label=r"global objective $\sum_i E[\ell(f_i(x), y)]$")
    objective.set_ylim(bottom=0)
    draw_path(disagreement, record, "disagreement", label=r"disagreement $\sum_{(i,j)} \|f_i - f_j\|^2$")
    draw_path(order, record, "order_mean", label="model order, mean over agents")
    order.set_ylim(bottom=0)
    shown = len(functions) - 1
    draw_decision_regions(regions, functions[shown], task.held_points, task.held_labels)
    regions.set_title(f"agent {shown} (dashed: 90 % sure, dotted: 50 %)", fontsize="medium")
    figure.suptitle(
        ("DIVERGED: " if isinstance(trial.outcome, Diverged) else "")
        + f"{config.agents} agents, {config.learns_by}, {config.protocol}, seed {config.seed}: "
        f"accuracy {trial.last.score_mean:.1%} (worst agent {trial.last.score_worst:.1%}), Bayes limit {task.bayes:.1%}"
    )
    return figure


@dataclass(frozen=True, kw_only=True)
class LogisticConfig(MixtureConfig, owner="gmm-logistic"):
    """As printed, but c stays below the bound at which agents drive each other apart."""


@dataclass(frozen=True, kw_only=True)
class HingeConfig(MixtureConfig, owner="gmm-hinge"):
    """The same with the other loss."""

    loss: LossName = "hinge"


def _experiment(name: str, about: str, config: type[MixtureConfig]) -> Experiment:
    return Experiment(
        name=name, about=about, config=config, run=run, table=table, trains=True, takes="10 s", table_takes="2 min"
    )


LOGISTIC = _experiment("gmm-logistic", "20 agents, logistic regression on a Gaussian mixture in the plane", LogisticConfig)
HINGE = _experiment("gmm-hinge", "20 agents, a multi-class support vector machine on the same mixture", HingeConfig)
EXPERIMENTS = (LOGISTIC, HINGE)
