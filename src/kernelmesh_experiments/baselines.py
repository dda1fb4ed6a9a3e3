"""All learners and other methods in one table, on the mixture and the textures: accuracy, memory, traffic, CPU time."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import ConsensusProtocol, Diffusion, Gaussian, Gradient, Graph, Local, Penalty, Relay, simulate
from kernelmesh.metrics import accuracies
from kernelmesh_experiments import brodatz
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.cells import Cell
from kernelmesh_experiments.kinds import learners
from kernelmesh_experiments.learning import LearningSettings
from kernelmesh_experiments.mixture import MixtureConfig, Task
from kernelmesh_experiments.report import COLORS, Findings
from kernelmesh_experiments.rivals.base import Data, Record, Score
from kernelmesh_experiments.rivals.centralized import kernel_logistic, remove_smallest, svm
from kernelmesh_experiments.rivals.d4l import d4l
from kernelmesh_experiments.rivals.linear import dgd, fourier, nystrom
from kernelmesh_experiments.settings import Count, Positive, Settings, one_of, setting

__all__ = ["EXPERIMENTS", "Config"]

_TUNED_ON = 5000  # training samples at most, a fifth of them held out


@dataclass(frozen=True, kw_only=True)
class Config(Settings, owner="baselines"):
    """Settings that all methods share; each gets as many random features or landmarks as ours needs floats, or more."""

    task: Annotated[str, one_of("mixture", "textures")] = setting("mixture", doc="mixture or textures")
    images: str = setting("", doc="a folder with the images; downloaded if not given")
    samples: Count = setting(5000, doc="training samples of the mixture")
    texture_samples: Count = setting(10_000, doc="training samples of the textures")
    epochs: Count = setting(1, doc="epochs on the textures")
    mixture_agents: Count = setting(20, doc="agents of networks on the mixture")
    texture_agents: Count = setting(5, doc="agents of networks on the textures")
    penalty: Positive = setting(0.08, doc="c of `penalty` on the mixture; on the textures it is 0.02, as in the paper")

    def data(self, folder: Path) -> Data:
        """The samples and the network, the same for every method."""
        shared: dict[str, Any] = {"batch_size": 32, "seed": self.seed}
        if self.task == "mixture":
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
    solve: Callable[..., Score]
    grid: Mapping[str, Sequence[float]] = {}
    """The values of its setting among which tuning chooses; without any, it runs as it is."""
    network: bool = False
    """Whether agents learn together, instead of one learner in one place."""

    def tuning(self, chosen: Mapping[str, float]) -> dict[str, Any]:
        """What was chosen among what; at an end of the grid, a wider one might have a better value."""
        grid = {name: ", ".join(f"{value:g}" for value in values) for name, values in self.grid.items()}
        at_end = any(chosen[name] in (values[0], values[-1]) for name, values in self.grid.items())
        return {
            "tuned": "; ".join(f"{name}: {value:g}" for name, value in chosen.items()),
            "tried": "; ".join(f"{name}: {values}" for name, values in grid.items()),
            "at_end": at_end,
        }

    def tune(self, data: Data) -> dict[str, float]:
        """The value of its setting that is most accurate on a validation split of the training samples."""
        chosen = {}
        for name, values in self.grid.items():
            split = data.validation(_TUNED_ON)
            scores = {value: self.solve(split, **{name: value}).accuracy_mean for value in values}
            chosen[name] = max(scores, key=scores.__getitem__)
        return chosen


def _ours(
    data: Data, settings: LearningSettings, protocol: ConsensusProtocol, *, alone: bool = False, step: float | None = None
) -> Score:
    """A network of ours; another step size leaves the budget of gradient steps as it is."""
    if step is not None:
        learner = settings.make_learner()
        assert isinstance(learner, Gradient)
        settings = dataclasses.replace(settings, step_size=step, parsimony=learner.budget_at(0) / step**1.5)
    record, graph = Record(data), Graph.line(1) if alone else data.graph
    agent = settings.make_agent((data.points.shape[1], data.classes), Gaussian(bandwidth=data.bandwidth), protocol)
    *_, now = simulate(agent, graph, data.streams(len(graph)))
    judge = partial(accuracies, now.functions, data.held_points, data.held_labels)
    stored = float(np.mean([f.points.size + f.weights.size for f in now.functions]))
    traffic = float(now.bytes_sent.sum()) / sum(now.samples)
    return record.finish(judge, points=float(np.mean(now.orders)), stored=stored, traffic=traffic)


class _Sizes(NamedTuple):
    """What suits a task: settings of ours, and budgets of rivals."""

    learning: LearningSettings
    order: int
    width: int
    atoms: int
    couplings: tuple[float, float]
    """c of `penalty` with gradient steps, and with averaged ones."""


def _sizes(config: Config) -> _Sizes:
    if config.task == "mixture":
        return _Sizes(LearningSettings(), 18, 100, 64, (config.penalty, config.penalty / 10))
    return _Sizes(brodatz.Config(protocol="local"), 4500, 2000, 256, (0.02, 0.02))


# Wide enough that the best value lies inside; where it does not, the report says so.
_STEPS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # of methods with bounded features
_LINEAR_STEPS = (0.03, 0.125, 0.5, 2.0, 8.0, 32.0)
_PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # C of the SVM
_RIDGES = (1e-7, 1e-6, 1e-5, 1e-4)  # λ of kernel logistic regression


def methods(config: Config) -> dict[str, Method]:
    """The methods by flat names; those with all the data first. Ours run with their defaults, rivals are tuned."""
    size = _sizes(config)
    learning, averaged = size.learning, dataclasses.replace(size.learning, learner="averaged")
    gradient = learning.make_learner()
    alone = {
        name: partial(_ours, settings=dataclasses.replace(learning, learner=name), protocol=Local(), alone=True)
        for name in learners()
    }
    steps = tuple(gradient.step_size_at(0) * factor for factor in (1, 4, 16, 64))
    budgeted = partial(remove_smallest, order=size.order, regularization=gradient.regularization)
    out = {
        "svm": Method("batch kernel SVM", svm, {"c": _PENALTIES}),
        "kernel_logistic": Method("kernel logistic regression, full", kernel_logistic, {"regularization": _RIDGES}),
        "nystrom": Method("Nyström + SGD, centralized", partial(nystrom, width=size.width), {"step": _STEPS}),
        "budgeted": Method("budgeted SGD, remove smallest", budgeted, {"step": _STEPS}),
        "polk": Method("POLK, centralized", alone["gradient"]),
        "polk_tuned": Method("POLK, centralized, tuned step", alone["gradient"], {"step": steps}),
    }
    for name, solve in alone.items():
        if name != "gradient":  # which is POLK
            out[name.replace("-", "_")] = Method(f"kernelmesh, {name}, one learner", solve)
    random = partial(fourier, width=size.width)
    out |= {
        "linear": Method("linear logistic regression, DGD", dgd, {"step": _LINEAR_STEPS}, network=True),
        "fourier": Method("random Fourier features, diffusion", random, {"step": _STEPS}, network=True),
        "d4l": Method("D4L", partial(d4l, atoms=size.atoms), {"step": (0.25, 0.5, 1.0)}, network=True),
    }

    def ours(title: str, settings: LearningSettings, protocol: ConsensusProtocol) -> Method:
        return Method(title, partial(_ours, settings=settings, protocol=protocol), network=True)

    out["local"] = ours("no cooperation", learning, Local())
    out["penalty"] = ours("kernelmesh, penalty (the paper)", learning, Penalty(coupling=size.couplings[0]))
    out["averaged_penalty"] = ours("kernelmesh, averaged, penalty", averaged, Penalty(coupling=size.couplings[1]))
    if config.task == "mixture":  # exchanging functions of thousands of points is not what they are for
        for prefix, settings in (("", learning), ("averaged_", averaged)):
            title = f"kernelmesh, {prefix.replace('_', ', ')}"
            out[f"{prefix}diffusion"] = ours(f"{title}diffusion", settings, Diffusion())
        out["relay"] = ours("kernelmesh, relay sums", dataclasses.replace(learning, learner="landmarks"), Relay())
    return out


def cell(settings: tuple[Config, str, str]) -> Mapping[str, Any]:
    """One method: tuned, then run with everything compiled."""
    config, name, folder = settings
    data, method = config.data(Path(folder)), methods(config)[name]
    chosen = method.tune(data)
    if not method.grid:  # tuning has compiled everything
        few = slice(512)
        method.solve(dataclasses.replace(data, points=data.points[few], labels=data.labels[few], epochs=1))
    found = dataclasses.asdict(method.solve(data, **chosen))
    return {"task": config.task, "method": method.title, **found, **method.tuning(chosen)}


def run(config: Config, session: Session) -> Findings:
    """Every method, each alone on one core."""
    task = config.task
    if task == "textures":
        config.data(session.folder)  # once, before the others need it
    names, folder = methods(config), str(session.folder)
    done = session.compute({f"{task}_{name}": Cell(cell, (config, name, folder)) for name in names})
    table = list(done.values())
    reached = {f"{key}_accuracy": row["accuracy_mean"] for key, row in done.items()}
    summary = {"seed": config.seed, "task": task, **reached}
    return Findings(summary=summary, tables={"table": table}, figures={task: _draw(table)}, paragraphs=_PARAGRAPHS)


_PARAGRAPHS = (
    "`points` counts the points, landmarks, features or atoms that one agent keeps, `stored_floats` what it needs for "
    "predictions; `cpu_seconds` is the CPU time of learning, for the whole network, with one thread.",
    f"Ours are not tuned, except `tuned step`. The others have the best setting of those `tried`, on at most {_TUNED_ON} "
    "training samples; if `at_end` is true, more should be tried. Their traffic is 8 bytes per number.",
)


def _draw(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy and memory of every method, ours in a color of their own."""
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
    return figure


EXPERIMENTS = (
    Experiment(
        name="baselines",
        about="all learners and other methods in one table; on the textures with --set task=textures, which needs the images",
        config=Config,
        run=run,
        takes="3 min",
    ),
)
