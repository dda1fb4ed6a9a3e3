"""Every rival in one table, on the mixture and on the textures: accuracy, memory, traffic, time."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import Consensus, Diffusion, ExactDiffusion, Gaussian, Graph, Local, Penalty, register, simulate
from kernelmesh.experiments import Cell, Experiment, Findings, Session, brodatz
from kernelmesh.experiments.learning import Rates, parsimonious_agent
from kernelmesh.experiments.mixture import MixtureConfig, Task
from kernelmesh.experiments.rivals.base import Data, Score
from kernelmesh.experiments.rivals.centralized import kernel_logistic, remove_smallest, svm
from kernelmesh.experiments.rivals.d4l import d4l
from kernelmesh.experiments.rivals.linear import dgd, fourier, nystrom
from kernelmesh.experiments.settings import Count, Positive, Settings
from kernelmesh.metrics import accuracies
from kernelmesh.report import COLORS
from kernelmesh.schema import one_of

__all__ = ["EXPERIMENT", "Config"]

TASKS = ("both", "mixture", "textures")


@dataclass(frozen=True, kw_only=True)
class Config(Settings, owner="baselines"):
    """Settings that all methods share; each gets as many random features or landmarks as ours needs floats, or more."""

    task: Annotated[str, one_of(*TASKS)] = "both"
    images: str = ""
    samples: Count = 5000  # of the mixture
    texture_samples: Count = 10_000
    epochs: Count = 1  # on the textures
    mixture_agents: Count = 20
    texture_agents: Count = 5
    penalty: Positive = 0.08  # of `penalty` on the mixture; on the textures the printed 0.02

    def data(self, task: str, folder: Path) -> Data:
        """The samples and the network of a task, the same for every method."""
        shared: dict[str, Any] = {"batch_size": 32, "seed": self.seed}
        if task == "mixture":
            drawn = Task.draw(MixtureConfig(seed=self.seed, samples=self.samples, agents=self.mixture_agents))
            shared |= {**drawn.arrays(), "classes": drawn.mixture.classes}
            return Data(**shared, graph=drawn.graph, bandwidth=0.6, epochs=1)
        samples, agents = self.texture_samples, self.texture_agents
        held_out = max(samples // 2, 1)
        textures = brodatz.Config(seed=self.seed, images=self.images, samples=samples, held_out=held_out, agents=agents)
        patches, classes = brodatz.prepare(textures, folder, resume=True)
        graph = Graph.random(agents, probability=0.2, rng=np.random.default_rng([self.seed, 1]))
        shared |= {**patches.arrays(), "classes": classes}
        return Data(**shared, graph=graph, bandwidth=0.1**0.5, epochs=self.epochs)


class Method(NamedTuple):
    """A method by the name that tables have for it."""

    title: str
    solve: Callable[[Data], Score]


def _ours(data: Data, consensus: Consensus, *, step: float, regularization: float, alone: bool = False) -> Score:
    rates = Rates(step_size=step, parsimony=0.04, regularization=regularization)
    shape, kernel = (data.points.shape[1], data.classes), Gaussian(bandwidth=data.bandwidth)
    agent = parsimonious_agent(shape, kernel, rates, consensus)
    graph = Graph.line(1) if alone else data.graph
    *_, last = simulate(agent, graph, data.streams(len(graph)))
    scores = accuracies(last.functions, data.held_points, data.held_labels)
    stored = float(np.mean([f.centers.size + f.weights.size for f in last.functions]))
    return Score.of(scores, stored=stored, traffic=float(last.bytes_sent.sum()) / sum(last.samples))


def methods(task: str, config: Config) -> dict[str, Method]:
    """The methods of a task by flat names; those with all the data first."""
    if task == "mixture":
        step, regularization, order, width, linear_step, atoms, coupling = 3.0, 1e-6, 18, 100, 0.5, 64, config.penalty
    else:
        step, regularization, order, width, linear_step, atoms, coupling = 4.0, 1e-5, 4500, 2000, 4.0, 256, 0.02
    budgeted = partial(remove_smallest, order=order, step=step, regularization=regularization)

    def ours(title: str, consensus: Consensus, *, alone: bool = False) -> Method:
        return Method(title, partial(_ours, consensus=consensus, step=step, regularization=regularization, alone=alone))

    out = {
        "svm": Method("batch kernel SVM", svm),
        "kernel_logistic": Method("kernel logistic regression, full", kernel_logistic),
        "polk": ours("POLK, centralized", Local(), alone=True),
        "nystrom": Method("Nyström + SGD, centralized", partial(nystrom, width=width, step=step)),
        "budgeted": Method("budgeted SGD, remove smallest", budgeted),
        "local": ours("no cooperation", Local()),
        "linear": Method("linear logistic regression, DGD", partial(dgd, step=linear_step)),
        "fourier": Method("random Fourier features, diffusion", partial(fourier, width=width, step=step)),
        "d4l": Method("D4L", partial(d4l, atoms=atoms, step=0.5)),
        "penalty": ours("kernelmesh, penalty (the paper)", Penalty(coupling=coupling)),
    }
    if task == "mixture":  # exchanging functions of thousands of points is not what they are for
        out["diffusion"] = ours("kernelmesh, diffusion", Diffusion())
        out["exact_diffusion"] = ours("kernelmesh, exact diffusion", ExactDiffusion(budget=0.01 * step**1.5))
    return out


def cell(settings: tuple[Config, str, str, str]) -> Mapping[str, Any]:
    """One method on one task."""
    config, task, name, folder = settings
    data, method = config.data(task, Path(folder)), methods(task, config)[name]
    if task == "mixture" and name != "d4l":  # compile before the clock starts
        method.solve(dataclasses.replace(data, points=data.points[:64], labels=data.labels[:64], epochs=1))
    began = time.perf_counter()
    score = method.solve(data)
    seconds = time.perf_counter() - began
    return {"task": task, "method": method.title, **dataclasses.asdict(score), "seconds": seconds}


def run(config: Config, session: Session) -> Findings:
    """Every method on every task, each alone on one core."""
    tasks = TASKS[1:] if config.task == "both" else (config.task,)
    if "textures" in tasks:
        session.prepare("filters and textons")
        config.data("textures", session.folder)  # once, before the others need it
    names = {f"{task}_{name}": (task, name) for task in tasks for name in methods(task, config)}
    folder = str(session.folder)
    done = session.compute({key: Cell(cell, (config, task, name, folder)) for key, (task, name) in names.items()})
    table = list(done.values())
    reached = {f"{key}_accuracy": row["accuracy_mean"] for key, row in done.items()}
    return Findings(
        summary={"seed": config.seed, **reached},
        tables={"table": table},
        figures={task: _figure([row for row in table if row["task"] == task], task) for task in tasks},
        paragraphs=_PARAGRAPHS,
    )


_PARAGRAPHS = (
    "Methods that keep all the data, or see all of it in one place, bound what the others can reach. `stored_floats` is what "
    "one agent needs for predicting. Seconds are for the whole network on one core.",
    "Each rival is written from its published description and makes as many passes as ours.",
)


def _figure(lines: Sequence[Mapping[str, Any]], task: str) -> Figure:
    figure = Figure(figsize=(11, 0.45 * len(lines) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [line["method"] for line in lines]
    colors = [COLORS[0] if "kernelmesh" in name else COLORS[1] for name in names]
    left.barh(names, [100 * line["accuracy_worst"] for line in lines], color=colors)
    right.barh(names, [line["stored_floats"] for line in lines], color=colors)
    right.set_xscale("log")
    left.invert_yaxis()
    left.set(xlabel="held-out accuracy of the worst agent, %")
    right.set(xlabel="floats that one agent stores")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="x")
    figure.suptitle(task)
    return figure


EXPERIMENT = Experiment(
    name="baselines", about="every rival on the mixture and on the textures, in one table", config=Config, run=run
)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
