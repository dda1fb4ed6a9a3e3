"""The paper's texture experiment: five agents classify small patches of 13 Brodatz images."""

import dataclasses
import math
import time
import timeit
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import Agent, ArrayStream, Doubling, Gaussian, Graph, register, storage
from kernelmesh.checks import Ints
from kernelmesh.experiments import Cell, Experiment, Findings, Network, Session, Trial, settings_of
from kernelmesh.experiments.alone import learn_alone, warm_up
from kernelmesh.experiments.learning import LearningSettings, agent_for
from kernelmesh.experiments.protocols import ProtocolName
from kernelmesh.experiments.settings import Count, Index, NonNegative, Positive
from kernelmesh.experiments.textures.histograms import HISTOGRAMS, Patches, features
from kernelmesh.experiments.textures.images import load
from kernelmesh.numerics.products import product
from kernelmesh.protocols import Tuning
from kernelmesh.report import draw_path
from kernelmesh.schema import one_of, setting
from kernelmesh.streams import StreamSlice, deal_unevenly

__all__ = ["EXPERIMENT", "Config", "prepare"]

PARTITIONS = ("identical", "uneven")
Partition = Annotated[str, one_of(*PARTITIONS)]
SPLITS = ("random", "disjoint")
Split = Annotated[str, one_of(*SPLITS)]
_SAFE = 0.5  # share of what is stable at which c is capped with larger steps than the printed ones
_NEVER = 2**62  # samples after which the penalty would double: it stays as it is


@dataclass(frozen=True, kw_only=True)
class Config(LearningSettings, owner="brodatz"):
    """As printed; the filters, the number of pixels for k-means and the normalization of the histograms are not."""

    agents: Count = 5
    protocol: ProtocolName = "penalty"
    images: str = setting("", doc="a folder with the images; downloaded if not given")
    split: Split = setting(
        "random", doc="random, as in the paper, or disjoint: training and test patches from different halves of each image"
    )
    companion: bool = setting(True, doc="also train with the other split, for comparison")
    samples: Count = setting(10_000, doc="patches in the training set")
    held_out: Count = setting(5_000, doc="patches in the test set")
    partition: Partition = setting(
        "identical",
        doc="what each agent sees: identical (all training samples, in its own order), as in the paper, or uneven (its own "
        "share, with class proportions drawn from Dirichlet(`concentration`))",
    )
    concentration: Positive = setting(0.1, doc="α of the uneven partition; smaller means fewer classes for each agent")
    epochs: Count = setting(10, doc="epochs; each agent sees all its training samples in each")
    textons: Count = setting(256, doc="clusters of filter responses that the histograms count")
    patch: Count = setting(24, doc="pixels along each side of a patch")
    histogram: Annotated[str, one_of(*HISTOGRAMS)] = setting(
        "root", doc=f"how histograms are normalized: {', '.join(HISTOGRAMS)}"
    )
    variance: Positive = setting(0.1, doc="σ² of the Gaussian kernel")
    step_size: Positive = 4.0
    regularization: NonNegative = 1e-5
    averaged_step_size: Positive = 100.0
    batch_size: Count = setting(32, doc="samples per step")
    coupling: Positive = setting(0.02, doc="c, constant")
    measure_every: Index = setting(0, doc="rounds between measurements; 0 means one epoch")

    @property
    def kernel(self) -> Gaussian:
        """κ(x, z) = exp(−‖x − z‖² / (2σ²))."""
        return Gaussian(bandwidth=self.variance**0.5)

    def agent(self, patches: Patches, graph: Graph, classes: int) -> Agent:
        """The settings of every agent."""
        tuning = Tuning(
            step_size=self.initial_step_size,
            coupling=Doubling(start=self.coupling, every=_NEVER),
            limit=math.inf if self.learns_by == "gradient" else _SAFE,
            kernel=self.kernel,
            batches=[patches.points[: self.batch_size]],
            stiffness=graph.stiffness,
            every=self.every or None,
        )
        return agent_for(self, (self.textons, classes), self.kernel, self.protocol(tuning))

    def hands(self, labels: Ints, rng: np.random.Generator) -> list[Ints]:
        """Which training samples each agent sees."""
        if self.partition == "identical":
            return [np.arange(len(labels))] * self.agents
        return deal_unevenly(labels, agents=self.agents, concentration=self.concentration, rng=rng)

    def centralized(self, patches: Patches, classes: int) -> float:
        """The accuracy of one learner with the same rule, all training samples and as many epochs."""
        own = dataclasses.replace(self, agents=1, protocol="local", rule=self.learns_by, every=0)
        stream = ArrayStream(
            patches.points, patches.labels, batch_size=self.batch_size, passes=self.epochs, rng=_rng(self).spawn(1)[0]
        )
        return learn_alone(own.agent(patches, Graph.line(1), classes), stream, patches).accuracy


def run(config: Config, session: Session) -> Findings:
    """Both splits, the wanted one first."""
    other = SPLITS[1 - SPLITS.index(config.split)]
    results = {config.split: _train(config, session)}
    if config.companion and session.complete:
        results[other] = _train(dataclasses.replace(config, split=other), session)
    main = results[config.split]
    summary = {
        "learner": config.learns_by,
        **{name: getattr(config, name) for name in ("seed", "protocol", "agents", "split", "partition")},
        **main.trial.summary(),
        "overlap": main.patches.overlap,
        "svm_accuracy": main.svm,
        "training_seconds": main.trial.seconds,
        "product_seconds": main.product_seconds,
        "training_over_product_seconds": main.trial.seconds / main.product_seconds,
    }
    if main.centralized is not None:
        summary["centralized_accuracy"] = main.centralized
    tables = {"rounds": main.trial.rounds}
    if companion := results.get(other):
        tables[f"rounds_{other}"] = companion.trial.rounds
        summary |= {
            f"{other}_accuracy_mean": companion.trial.last.score_mean,
            f"{other}_model_order_mean": companion.trial.last.order_mean,
            f"{other}_overlap": companion.patches.overlap,
            f"{other}_svm_accuracy": companion.svm,
        }
    return Findings(summary=summary, tables=tables, figures={"figure": _figure(results)}, paragraphs=_paragraphs(results))


# The rows of the table: every rule as it comes, and the most accurate one with a limit on its memory.
_LEARNERS: dict[str, dict[str, Any]] = {
    "gradient": {"learner": "gradient"},
    "averaged": {"learner": "averaged"},
    "second-order": {"learner": "second-order"},
    "second-order-2500": {"learner": "second-order", "max_order": 2500},
}
_SVM = "batch-svm"


def one_learner(settings: tuple[Config, str]) -> Mapping[str, Any]:
    """One pass of one learner with all the samples of a split, or the batch SVM."""
    config, folder = settings
    patches, classes = prepare(config, Path(folder) / config.split, resume=True)
    agent = config.agent(patches, Graph.line(1), classes)
    stream = ArrayStream(patches.points, patches.labels, batch_size=config.batch_size, rng=_rng(config).spawn(1)[0])
    warm_up(agent, patches)
    return dataclasses.asdict(learn_alone(agent, stream, patches))


def batch_svm(settings: tuple[Config, str]) -> Mapping[str, Any]:
    """The batch SVM on the samples of a split."""
    config, folder = settings
    patches, _ = prepare(config, Path(folder) / config.split, resume=True)
    began = time.process_time()
    accuracy, machine = patches.batch_svm(gamma=0.5 / config.variance)
    return {"accuracy": accuracy, "model_order": len(machine.support_), "cpu_seconds": time.process_time() - began}


def table(config: Config, session: Session) -> Findings:
    """Every rule with one learner and one pass, on both splits, next to the batch SVM."""
    folder, cells = str(session.folder), {}
    for split in SPLITS:
        session.prepare(f"{split}: filters and textons")
        (session.folder / split).mkdir(parents=True, exist_ok=True)
        own = dataclasses.replace(config, split=split, agents=1, protocol="local")
        prepare(own, session.folder / split, session.resume)
        cells[split, _SVM] = Cell(batch_svm, (own, folder))
        for name, changes in _LEARNERS.items():
            cells[split, name] = Cell(one_learner, (dataclasses.replace(own, **changes), folder))
    done = session.compute({f"{split}-{name}": job for (split, name), job in cells.items()})
    rows = [
        {"split": split, "learner": name, **done[f"{split}-{name}"]} for split, name in cells if f"{split}-{name}" in done
    ]
    for row in rows:
        printed = done.get(f"{row['split']}-gradient")
        row["cpu_over_gradient"] = row["cpu_seconds"] / printed["cpu_seconds"] if printed else math.nan
    reached = {f"{row['split']}_{row['learner']}_accuracy".replace("-", "_"): row["accuracy"] for row in rows}
    return Findings(
        summary={"seed": config.seed, **reached},
        tables={"table": rows},
        paragraphs=[
            "One learner sees every training sample once. `gradient` is the paper's method. `cpu_seconds` is the CPU time of "
            "learning with one thread, without compilation."
        ],
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Result:
    trial: Trial
    patches: Patches
    svm: float
    product_seconds: float
    centralized: float | None = None


def _train(config: Config, session: Session) -> _Result:
    session.prepare(f"{config.split}: filters and textons")
    folder = session.folder / config.split
    folder.mkdir(parents=True, exist_ok=True)
    patches, classes = prepare(config, folder, session.resume)
    rng = _rng(config)
    graph = Graph.random(config.agents, probability=0.2, rng=rng)
    streams = [
        ArrayStream(patches.points[rows], patches.labels[rows], batch_size=config.batch_size, passes=config.epochs, rng=own)
        for rows, own in zip(config.hands(patches.labels, rng), rng.spawn(config.agents), strict=True)
    ]
    per_epoch = len(streams[0]) // config.epochs
    trial = session.train(
        Network(
            agent=config.agent(patches, graph, classes),
            graph=graph,
            streams=[StreamSlice(stream, 0, len(stream)) for stream in streams],
            points=patches.held_points,
            targets=patches.held_labels,
            measure_every=config.measure_every or per_epoch,
            settings={name: value for name, value in settings_of(config).items() if name != "companion"},
            save_every=per_epoch,
            part=config.split,
        )
    )
    svm, _ = patches.batch_svm(gamma=0.5 / config.variance)
    centralized = config.centralized(patches, classes) if config.partition == "uneven" and session.complete else None
    seconds = _product_seconds(trial, config)
    return _Result(trial=trial, patches=patches, svm=svm, product_seconds=seconds, centralized=centralized)


def _rng(config: Config) -> np.random.Generator:
    """What the network and the orders of the samples are drawn from."""
    return np.random.default_rng([config.seed, 1])


def prepare(config: Config, folder: Path, resume: bool) -> tuple[Patches, int]:
    """The features, computed once and saved beside the run."""
    file = folder / "features.safetensors"
    matters = ("seed", "images", "split", "samples", "held_out", "textons", "patch", "histogram")
    about = {name: getattr(config, name) for name in matters}
    if resume and file.exists():
        arrays, settings = storage.read(file, kind="textures")
        if settings["about"] == about:
            return Patches(**arrays, overlap=settings["overlap"]), settings["classes"]
    images, names = load(Path(config.images) if config.images else None)
    patches = features(
        images,
        split=config.split,
        train=config.samples,
        test=config.held_out,
        textons=config.textons,
        patch=config.patch,
        histogram=config.histogram,
        rng=np.random.default_rng(config.seed),
    )
    about_all = {"about": about, "overlap": patches.overlap, "classes": len(names)}
    storage.write(file, kind="textures", arrays=patches.arrays(), settings=about_all)
    return patches, len(names)


def _product_seconds(trial: Trial, config: Config) -> float:
    """What the one product P @ k of every agent's every step would take on this machine, at the orders of the run.

    The shortest of several times counts: whatever else runs on the machine can only make the ratio look worse.
    """
    orders = np.array([line.order_mean for line in trial.record])
    rounds = np.array([line.round for line in trial.record])
    sizes = np.unique(np.linspace(max(orders.max() / 8, 1), orders.max(), 8).astype(int))
    rng = np.random.default_rng(0)
    times = []
    for size in sizes:
        pair = rng.standard_normal((size, size)), rng.standard_normal((size, config.batch_size))
        times.append(min(timeit.repeat(partial(product, *pair), number=1, repeat=10)))
    order = np.interp(np.arange(1, rounds[-1] + 1), rounds, orders)
    return float(config.agents * np.interp(order, sizes, times).sum())


def _paragraphs(results: dict[str, _Result]) -> list[str]:
    overlaps = ", ".join(f"{split}: {result.patches.overlap:.1%}" for split, result in results.items())
    numbers = ", ".join(f"{split}: {result.trial.last.score_mean:.1%}" for split, result in results.items())
    return [
        "The paper draws training and test patches at random from the same images, so that nearly every test "
        f"patch shares pixels with a training patch. Fraction of test patches that do: {overlaps}.",
        "With the disjoint split, training patches come from the left half of each image, test patches from the right half, "
        f"and textons from the left halves only. Accuracy, mean over agents: {numbers}. The disjoint number is the one to "
        "expect on new images.",
    ]


def _figure(results: dict[str, _Result]) -> Figure:
    figure = Figure(figsize=(12, 4 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), 3, squeeze=False)
    quantities = (
        ("objective", r"global objective $\sum_i E[\ell(f_i(x), y)]$"),
        ("disagreement", r"disagreement $\sum_{(i,j)} \|f_i - f_j\|^2$"),
        ("order_mean", "model order, mean over agents"),
    )
    for row, (split, result) in zip(panels, results.items(), strict=True):
        for axes, (quantity, label) in zip(row, quantities, strict=True):
            draw_path(axes, result.trial.record, quantity, label=label)
            axes.set_ylim(bottom=0)
        last = result.trial.last
        row[1].set_title(
            f"{split} split: accuracy {last.score_mean:.1%}, batch SVM {result.svm:.1%}, overlap {result.patches.overlap:.1%}"
        )
    return figure


_ABOUT = "five agents classify 13 textures, with random and disjoint splits (long); --all: one learner with each rule"
_SWEPT = ("learner", "protocol", "agents", "split")
EXPERIMENT = Experiment(name="brodatz", about=_ABOUT, config=Config, run=run, table=table, trains=True, swept=_SWEPT)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
