"""Agents that each see one class: alone, with the paper's update, and with relay sums."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kernelmesh import InvalidArgument
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.kinds import ProtocolName, takes_every
from kernelmesh_experiments.mixture import CLASSES, MixtureConfig, Partition, Task
from kernelmesh_experiments.report import Findings, draw_decision_regions, draw_samples, style_of
from kernelmesh_experiments.settings import Count
from kernelmesh_experiments.trial import Trial

__all__ = ["EXPERIMENTS", "Config"]

_NETWORKS = {"alone": ("local", "alone"), "paper": ("capped-penalty", "the paper's update"), "relay": ("relay", "relay sums")}
"""Protocol and title of each network, by the name of its part."""


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig, owner="one-class"):
    """Agents i, i + 5, … see class i alone; three networks learn from the same streams."""

    protocol: ProtocolName = "relay"
    partition: Partition = "one-class"
    passes: Count = 1
    measure_every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agents < CLASSES:
            raise InvalidArgument(self.owner, "agents", f"be at least {CLASSES}, so that every class is seen", self.agents)


def run(config: Config, session: Session) -> Findings:
    """Train the three networks, and a batch SVM with all the samples for comparison."""
    for name in ("protocol", "partition", "learner"):
        if getattr(config, name) != getattr(Config, name):
            raise InvalidArgument("one-class", name, "be omitted: the experiment chooses it", getattr(config, name))
    trials: dict[str, Trial] = {}
    task = Task.draw(config)
    for part, (protocol, _) in _NETWORKS.items():
        if session.complete:
            every = config.every if takes_every(protocol) else 0
            task = Task.draw(dataclasses.replace(config, protocol=protocol, every=every))
            trials[part] = session.train(dataclasses.replace(task.network(), part=part))
    references = session.compare(lambda _: {"svm_accuracy": task.svm()})
    summary = {"seed": config.seed, "agents": config.agents, **references, "bayes_accuracy": task.bayes}
    for part, trial in trials.items():
        last = trial.last
        summary |= {f"{part}_accuracy_mean": last.score_mean, f"{part}_accuracy_worst": last.score_worst}
        summary[f"{part}_bytes_per_sample"] = last.bytes_per_sample
    rows = [{"network": part, **line} for part, trial in trials.items() for line in trial.rounds]
    figures = {"figure": _figure(task, trials, references)} if trials else {}
    return Findings(summary=summary, tables={"rounds": rows}, figures=figures, paragraphs=_PARAGRAPHS)


_PARAGRAPHS = (
    "Every agent sees samples of only one class. Alone, it always predicts that class, and the same happens with the "
    "paper's update, which makes neighbors agree only where their own samples are. With relay sums, every "
    "agent has the sums of all agents' samples, and learns all classes. The batch SVM has all samples at once.",
)


def _figure(task: Task, trials: Mapping[str, Trial], references: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(12, 7), layout="constrained")
    grid = figure.add_gridspec(2, 4, height_ratios=(1.0, 1.1))
    agent = min(7, len(task.streams) - 1)  # whose regions show much of the plane
    own = task.streams[agent].stream
    first = figure.add_subplot(grid[0, 0])
    draw_samples(first, own.points, own.targets, legend=False)
    first.set_title(f"what agent {agent} sees", fontsize="medium")
    for column, (part, trial) in enumerate(trials.items(), start=1):
        axes = figure.add_subplot(grid[0, column], sharex=first, sharey=first)
        draw_decision_regions(axes, trial.newest.functions[agent], task.held_points, task.held_labels)
        axes.set_title(f"{_NETWORKS[part][1]}: {100 * trial.last.score_mean:.0f} % accuracy", fontsize="medium")
    _draw_curves(figure.add_subplot(grid[1, :]), trials, references)
    figure.suptitle(f"{task.config.agents} agents, each seeing one of {task.mixture.classes} classes")
    return figure


def _draw_curves(axes: Axes, trials: Mapping[str, Trial], references: Mapping[str, float]) -> None:
    for index, (part, trial) in enumerate(trials.items()):
        curves = [(line.samples, 100 * line.score_mean, 100 * line.score_worst) for line in trial.record]
        samples, mean, worst = zip(*curves, strict=True)
        line = axes.plot(samples, mean, **style_of(index), markevery=4, label=_NETWORKS[part][1])
        axes.plot(samples, worst, color=line[0].get_color(), linestyle=":", linewidth=1.0)
    for svm in references.values():
        axes.axhline(100 * svm, color="black", linewidth=1.0, linestyle="--", label="batch SVM on all samples")
    axes.set(xlabel="samples seen by each agent", ylabel="held-out accuracy, % (dotted: worst agent)", ylim=(0, 100))
    axes.legend(loc="center right")


_ABOUT = "agents that each see one class of five: alone, with the paper's update, and with relay sums"
EXPERIMENTS = (Experiment(name="one-class", about=_ABOUT, config=Config, run=run, trains=True, takes="10 s"),)
