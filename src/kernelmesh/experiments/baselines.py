"""Every rival in one table, on the mixture and on the textures: accuracy, memory, traffic, time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from kernelmesh.agent import Agent
from kernelmesh.checks import integer, positive
from kernelmesh.consensus import Consensus, Diffusion, ExactDiffusion, Local, Penalty
from kernelmesh.errors import InvalidArgument
from kernelmesh.experiments import brodatz
from kernelmesh.experiments.base import Experiment, Watch
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.mixture import MixtureConfig, Task
from kernelmesh.experiments.rivals.base import Data, Outcome
from kernelmesh.experiments.rivals.batch import kernel_logistic, svm
from kernelmesh.experiments.rivals.budgeted import remove_smallest
from kernelmesh.experiments.rivals.d4l import d4l
from kernelmesh.experiments.rivals.linear import dgd, fourier, nystrom
from kernelmesh.metrics import accuracies
from kernelmesh.numerics.compression import Komp
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic
from kernelmesh.report import COLORS, Report
from kernelmesh.runtimes import simulate

__all__ = ["EXPERIMENT", "Config"]

TASKS = ("both", "mixture", "textures")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings that all methods share; each gets as many random features or landmarks as ours needs floats, or more."""

    owner: ClassVar[str] = "baselines"

    seed: int = 0
    task: str = "both"
    images: str = ""
    samples: int = 5000  # of the mixture
    texture_samples: int = 10_000
    epochs: int = 1  # on the textures
    mixture_agents: int = 20
    texture_agents: int = 5
    penalty: float = 0.08  # of `penalty` on the mixture; on the textures the printed 0.02

    def __post_init__(self) -> None:
        integer(self.owner, "seed", self.seed, minimum=0)
        for argument in ("samples", "texture_samples", "epochs", "mixture_agents", "texture_agents"):
            integer(self.owner, argument, getattr(self, argument), minimum=1)
        positive(self.owner, "penalty", self.penalty)
        if self.task not in TASKS:
            raise InvalidArgument(self.owner, "task", f"be one of {', '.join(TASKS)}", self.task)

    def data(self, task: str, folder: Path) -> Data:
        """The samples and the network of a task, the same for every method."""
        if task == "mixture":
            drawn = Task.draw(MixtureConfig(seed=self.seed, samples=self.samples, agents=self.mixture_agents))
            return Data(
                points=drawn.points,
                labels=drawn.labels,
                held_points=drawn.held_points,
                held_labels=drawn.held_labels,
                classes=drawn.mixture.classes,
                graph=drawn.graph,
                bandwidth=0.6,
                batch_size=32,
                epochs=1,
                seed=self.seed,
            )
        textures = brodatz.Config(
            seed=self.seed,
            images=self.images,
            samples=self.texture_samples,
            held_out=max(self.texture_samples // 2, 1),
            agents=self.texture_agents,
        )
        patches, classes = brodatz.prepare(textures, folder, resume=True)
        return Data(
            points=patches.points,
            labels=patches.labels,
            held_points=patches.held_points,
            held_labels=patches.held_labels,
            classes=classes,
            graph=Graph.random(self.texture_agents, probability=0.2, rng=np.random.default_rng([self.seed, 1])),
            bandwidth=0.1**0.5,
            batch_size=32,
            epochs=self.epochs,
            seed=self.seed,
        )


def _ours(data: Data, consensus: Consensus, *, step: float, regularization: float, alone: bool = False) -> Outcome:
    agent = Agent(
        dimension=data.points.shape[1],
        outputs=data.classes,
        kernel=Gaussian(bandwidth=data.bandwidth),
        loss=Logistic(),
        step_size=step,
        regularization=regularization,
        compression=Komp.parsimonious(step),
        consensus=consensus,
    )
    graph = Graph.line(1) if alone else data.graph
    *_, last = simulate(agent, graph, data.streams(len(graph)))
    scores = accuracies(last.functions, data.held_points, data.held_labels)
    stored = float(np.mean([f.centers.size + f.weights.size for f in last.functions]))
    traffic = float(last.bytes_sent.sum()) / sum(last.samples)
    return Outcome(float(scores.mean()), float(scores.min()), stored, traffic)


def methods(task: str, config: Config) -> dict[str, Callable[[Data], Outcome]]:
    """The methods of a task by name; those with all the data first."""
    step, regularization, order = (3.0, 1e-6, 18) if task == "mixture" else (4.0, 1e-5, 4500)
    coupling = config.penalty if task == "mixture" else 0.02
    width = 100 if task == "mixture" else 2000

    def ours(consensus: Consensus, *, alone: bool = False) -> Callable[[Data], Outcome]:
        return lambda data: _ours(data, consensus, step=step, regularization=regularization, alone=alone)

    out: dict[str, Callable[[Data], Outcome]] = {
        "batch kernel SVM": svm,
        "kernel logistic regression, full": kernel_logistic,
        "POLK, centralized": ours(Local(), alone=True),
        "Nyström + SGD, centralized": lambda data: nystrom(data, width=width, step=step),
        "budgeted SGD, remove smallest": lambda data: remove_smallest(
            data, order=order, step=step, regularization=regularization
        ),
        "no cooperation": ours(Local()),
        "linear logistic regression, DGD": lambda data: dgd(data, step=0.5 if task == "mixture" else 4.0),
        "random Fourier features, diffusion": lambda data: fourier(data, width=width, step=step),
        "D4L": lambda data: d4l(data, atoms=64 if task == "mixture" else 256, step=0.5),
        "kernelmesh, penalty (the paper)": ours(Penalty(coupling=coupling)),
    }
    if task == "mixture":  # exchanging functions of thousands of points is not what they are for
        budget = 0.01 * step**1.5
        out["kernelmesh, diffusion"] = ours(Diffusion())
        out["kernelmesh, exact diffusion"] = ours(ExactDiffusion(budget=budget))
    return out


def cell(settings: tuple[Config, str, str, str]) -> Mapping[str, Any]:
    """One method on one task."""
    config, task, name, folder = settings
    data = config.data(task, Path(folder))
    if task == "mixture":  # compile before the clock starts
        few = dataclasses.replace(data, points=data.points[:64], labels=data.labels[:64], epochs=1)
        if name != "D4L":
            methods(task, config)[name](few)
    began = time.perf_counter()
    outcome = methods(task, config)[name](data)
    return {"task": task, "method": name, **dataclasses.asdict(outcome), "seconds": time.perf_counter() - began}


def run(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """Every method on every task, each alone on one core."""
    began = time.perf_counter()
    tasks = TASKS[1:] if config.task == "both" else (config.task,)
    if "textures" in tasks:
        config.data("textures", folder)  # once, before the others need it
    jobs: dict[str, tuple[Any, Any]] = {
        f"{task}-{number}": (cell, (config, task, name, str(folder)))
        for task in tasks
        for number, name in enumerate(methods(task, config))
    }
    done = run_cells(jobs, watch=watch, folder=folder, resume=resume)
    missing = len(jobs) - len(done)
    remark = f"Interrupted: {missing} of {len(jobs)} methods are missing; --resume goes on." if missing else ""
    table = list(done.values())
    summary = {
        "experiment": config.owner,
        "seed": config.seed,
        "complete": not remark,
        "remark": remark,
        **{f"{line['task']}: {line['method']}": line["accuracy_mean"] for line in table},
        "seconds": time.perf_counter() - began,
    }
    figures = {task: _figure([line for line in table if line["task"] == task], task) for task in tasks}
    settings = dataclasses.asdict(config)
    return Report(config.owner, settings, summary, {"table": table}, figures, remark, _NOTES, ("table",))


_NOTES = (
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
    left.set_xlabel("held-out accuracy of the worst agent, %")
    right.set_xlabel("floats that one agent stores")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="x")
    figure.suptitle(task)
    return figure


EXPERIMENT = Experiment("baselines", "every rival on the mixture and on the textures, in one table", Config, run)
