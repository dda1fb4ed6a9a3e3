"""All learners and other methods in one table, on the mixture and the textures: accuracy, memory, traffic, CPU time."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from kernelmesh import ConsensusProtocol, Diffusion, Gaussian, Gradient, Graph, Local, Penalty, Relay, simulate
from kernelmesh.metrics import accuracies
from kernelmesh_experiments import brodatz
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.cells import Cell
from kernelmesh_experiments.kinds import learners
from kernelmesh_experiments.learning import LearningSettings
from kernelmesh_experiments.mixture import MixtureConfig, Task
from kernelmesh_experiments.report import Findings
from kernelmesh_experiments.rivals.base import Data, Record, Score
from kernelmesh_experiments.rivals.centralized import kernel_logistic, remove_smallest, svm
from kernelmesh_experiments.rivals.d4l import d4l
from kernelmesh_experiments.rivals.figures import draw_bars, draw_paths
from kernelmesh_experiments.rivals.linear import dgd, fourier, nystrom
from kernelmesh_experiments.settings import Count, Positive, Settings, one_of, setting

__all__ = ["EXPERIMENT", "EXPERIMENTS", "Config"]

TASKS = ("mixture", "textures")
_CHECKPOINTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of all samples; every method is measured at its end, too
_TUNED_ON = 5000  # training samples at most, a fifth of them held out


@dataclass(frozen=True, kw_only=True)
class Config(Settings, owner="baselines"):
    """Settings that all methods share; each gets as many random features or landmarks as ours needs floats, or more."""

    task: Annotated[str, one_of(*TASKS)] = setting("mixture", doc=f"{' or '.join(TASKS)}; `--all` has both")
    images: str = setting("", doc="a folder with the images; downloaded if not given")
    samples: Count = setting(5000, doc="training samples of the mixture")
    texture_samples: Count = setting(10_000, doc="training samples of the textures")
    epochs: Count = setting(1, doc="epochs on the textures")
    mixture_agents: Count = setting(20, doc="agents of networks on the mixture")
    texture_agents: Count = setting(5, doc="agents of networks on the textures")
    penalty: Positive = setting(0.08, doc="c of `penalty` on the mixture; on the textures it is 0.02, as in the paper")

    def data(self, task: str, folder: Path) -> Data:
        """The samples and the network of a task, the same for every method."""
        shared: dict[str, Any] = {"batch_size": 32, "seed": self.seed}
        if task == "mixture":
            drawn = Task.draw(MixtureConfig(seed=self.seed, samples=self.samples, agents=self.mixture_agents))
            shared |= {**drawn.arrays(), "classes": drawn.mixture.classes, "checkpoints": _checkpoints(self.samples)}
            return Data(**shared, graph=drawn.graph, bandwidth=0.6, epochs=1)
        samples, agents = self.texture_samples, self.texture_agents
        held_out = max(samples // 2, 1)
        textures = brodatz.Config(seed=self.seed, images=self.images, samples=samples, held_out=held_out, agents=agents)
        patches, classes = brodatz.prepare(textures, folder, resume=True)
        graph = Graph.random(agents, probability=0.2, rng=np.random.default_rng([self.seed, 1]))
        shared |= {**patches.arrays(), "classes": classes, "checkpoints": _checkpoints(samples * self.epochs)}
        return Data(**shared, graph=graph, bandwidth=0.1**0.5, epochs=self.epochs)


def _checkpoints(samples: int) -> tuple[int, ...]:
    return tuple(int(samples * share) for share in _CHECKPOINTS)


class Method(NamedTuple):
    """A method by the name that tables have for it."""

    title: str
    solve: Callable[..., Score]
    grid: Mapping[str, Sequence[float]] = {}
    """The values of its setting among which tuning chooses; without any, it runs as it is."""
    network: bool = False
    """Whether agents learn together, instead of one learner in one place."""

    @property
    def tried(self) -> str:
        """The grid as text."""
        return "; ".join(f"{name}: {', '.join(f'{value:g}' for value in values)}" for name, values in self.grid.items())

    def at_end(self, chosen: str) -> bool:
        """Whether a choice, as text, is the first or the last value of the grid: a wider one might have a better value."""
        ends = {f"{name}: {value:g}" for name, values in self.grid.items() for value in (values[0], values[-1])}
        return chosen in ends

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
    for now in simulate(agent, graph, data.streams(len(graph))):
        judge = partial(accuracies, now.functions, data.held_points, data.held_labels)
        record.take(max(now.samples), judge, _mean_order(now.functions))
    stored = float(np.mean([f.points.size + f.weights.size for f in now.functions]))
    traffic = float(now.bytes_sent.sum()) / sum(now.samples)
    return record.finish(max(now.samples), judge, points=_mean_order(now.functions), stored=stored, traffic=traffic)


def _mean_order(functions: Sequence[Any]) -> float:
    return float(np.mean([f.order for f in functions]))


class _Sizes(NamedTuple):
    """What suits a task: settings of ours, and budgets of rivals."""

    learning: LearningSettings
    order: int
    width: int
    atoms: int
    coupling: float
    averaged_coupling: float


def _sizes(task: str, config: Config) -> _Sizes:
    if task == "mixture":
        return _Sizes(LearningSettings(), 18, 100, 64, config.penalty, config.penalty / 10)
    return _Sizes(brodatz.Config(protocol="local"), 4500, 2000, 256, 0.02, 0.02)


# Wide enough that the best value lies inside; where it does not, the report says so.
_STEPS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # of methods with bounded features
_LINEAR_STEPS = (0.03, 0.125, 0.5, 2.0, 8.0, 32.0)
_PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # C of the SVM
_RIDGES = (1e-7, 1e-6, 1e-5, 1e-4)  # λ of kernel logistic regression


def methods(task: str, config: Config) -> dict[str, Method]:
    """The methods of a task by flat names; those with all the data first. Ours run with their defaults, rivals are tuned."""
    size = _sizes(task, config)
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
    out["penalty"] = ours("kernelmesh, penalty (the paper)", learning, Penalty(coupling=size.coupling))
    out["averaged_penalty"] = ours("kernelmesh, averaged, penalty", averaged, Penalty(coupling=size.averaged_coupling))
    if task == "mixture":  # exchanging functions of thousands of points is not what they are for
        for prefix, settings in (("", learning), ("averaged_", averaged)):
            title = f"kernelmesh, {prefix.replace('_', ', ')}"
            out[f"{prefix}diffusion"] = ours(f"{title}diffusion", settings, Diffusion())
        out["relay"] = ours("kernelmesh, relay sums", dataclasses.replace(learning, learner="landmarks"), Relay())
    return out


def cell(settings: tuple[Config, str, str, str]) -> Mapping[str, Any]:
    """One method on one task: tuned, then run with everything compiled."""
    config, task, name, folder = settings
    data, method = config.data(task, Path(folder)), methods(task, config)[name]
    chosen = method.tune(data)
    if not method.grid:  # tuning has compiled everything
        few = slice(512)
        method.solve(dataclasses.replace(data, points=data.points[few], labels=data.labels[few], epochs=1, checkpoints=()))
    found = dataclasses.asdict(method.solve(data, **chosen))
    tuned = "; ".join(f"{name}: {value:g}" for name, value in chosen.items())
    return {"task": task, "method": method.title, **found, "tuned": tuned}


def run(config: Config, session: Session) -> Findings:
    """Every method on one task."""
    return _compare(config, session, (config.task,))


def table(config: Config, session: Session) -> Findings:
    """Every method on every task."""
    return _compare(config, session, TASKS)


def _compare(config: Config, session: Session, tasks: Sequence[str]) -> Findings:
    """Every method, each alone on one core."""
    if "textures" in tasks:
        session.prepare("filters and textons")
        config.data("textures", session.folder)  # once, before the others need it
    known = {task: methods(task, config) for task in tasks}
    names = {f"{task}_{name}": (task, name) for task in tasks for name in known[task]}
    folder = str(session.folder)
    done = session.compute({key: Cell(cell, (config, task, name, folder)) for key, (task, name) in names.items()})
    table = [{name: value for name, value in row.items() if name != "path"} for row in done.values()]
    columns = ("samples", "accuracy_mean", "points", "cpu_seconds")
    paths = [
        {"task": row["task"], "method": row["method"], **dict(zip(columns, line, strict=True))}
        for row in done.values()
        for line in row["path"]
    ]
    grids = [
        {
            "task": task,
            "method": method.title,
            "tried": method.tried,
            "chosen": (chosen := done[f"{task}_{name}"]["tuned"]),
            "at_end": method.at_end(chosen),
        }
        for task, name in names.values()
        if (method := known[task][name]).grid and f"{task}_{name}" in done
    ]
    reached = {f"{key}_accuracy": row["accuracy_mean"] for key, row in done.items()}
    figures = {}
    for task in tasks:
        found = [line for line in table if line["task"] == task]
        along = [line for line in paths if line["task"] == task]
        networks = {method.title for method in known[task].values() if method.network}
        figures[task] = draw_bars(found, task)
        figures[f"{task}-paths"] = draw_paths(along, task, networks)
    return Findings(
        summary={"seed": config.seed, **reached},
        tables={"table": table, "grids": grids, "paths": paths},
        figures=figures,
        paragraphs=_PARAGRAPHS,
        printed=("table", "grids"),
    )


_PARAGRAPHS = (
    "Methods that keep all the data, or see all of it in one place, bound what the others can reach. `points` counts "
    "the points, landmarks, features or atoms that one agent keeps; `stored_floats` is what it needs for predictions.",
    "All other methods are implemented from their published descriptions and make as many passes as ours. Their "
    f"setting is chosen from the grid in the table `grids`, by the accuracy on a fifth of (at most {_TUNED_ON}) "
    "training samples; the test samples are not used for that. If `at_end` is true, the grid may have been too "
    "narrow. Their traffic is 8 bytes per number.",
    "Ours are not tuned: `POLK, centralized` and `penalty` use the paper's settings, the other learners their defaults. "
    "Only `POLK, tuned step` is tuned, among step sizes with the paper's budget.",
    "`cpu_seconds` is the CPU time of learning, for the whole network, with one thread and without compilation, "
    "tuning and tests.",
)

EXPERIMENT = Experiment(
    name="baselines",
    about="all learners and other methods on the mixture in one table; --all also on the textures, whose images it needs",
    config=Config,
    run=run,
    table=table,
    takes="3 min",
    table_takes="30 min",
)
EXPERIMENTS = (EXPERIMENT,)
