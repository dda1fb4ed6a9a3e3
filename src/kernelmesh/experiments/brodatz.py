"""The paper's textures: five agents learn to tell 13 Brodatz images apart by small patches of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure
from sklearn.svm import SVC

from kernelmesh import storage
from kernelmesh.agent import Agent
from kernelmesh.checks import integer, non_negative, positive
from kernelmesh.consensus import Consensus, Diffusion, ExactDiffusion, Local, Penalty, Proximal, Symmetric
from kernelmesh.errors import InvalidArgument
from kernelmesh.experiments.base import Experiment, Progress, Watch
from kernelmesh.experiments.textures.histograms import HISTOGRAMS, Patches, features
from kernelmesh.experiments.textures.images import load
from kernelmesh.experiments.trial import Trial, learn
from kernelmesh.numerics.compression import Komp
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic
from kernelmesh.numerics.products import product
from kernelmesh.report import Report, draw_path
from kernelmesh.streams import ArrayStream, StreamSlice

__all__ = ["EXPERIMENT", "Config", "prepare"]

SPLITS = ("random", "disjoint")
PROTOCOLS = ("penalty", "local", "proximal", "symmetric", "diffusion", "exact-diffusion")


@dataclass(frozen=True, kw_only=True)
class Config:
    """As printed; the filters, the number of pixels for k-means and the normalization of the histograms are not."""

    owner: ClassVar[str] = "brodatz"

    seed: int = 0
    agents: int = 5
    protocol: str = "penalty"
    images: str = ""  # a folder; without one the images are fetched
    split: str = "random"  # as printed; `disjoint` trains and tests on different halves of each image
    companion: bool = True  # train with the other split, too, so that both numbers stand together
    samples: int = 10_000
    held_out: int = 5_000
    epochs: int = 10  # each agent sees all training samples in each, in an order of its own
    textons: int = 256
    patch: int = 24
    histogram: str = "root"
    variance: float = 0.1  # of the Gaussian kernel, σ²
    step_size: float = 4.0
    parsimony: float = 0.04
    regularization: float = 1e-5
    batch_size: int = 32
    coupling: float = 0.02
    measure_every: int = 0  # rounds; 0: once per epoch

    def __post_init__(self) -> None:
        integer(self.owner, "seed", self.seed, minimum=0)
        for argument in ("agents", "samples", "held_out", "epochs", "textons", "patch", "batch_size"):
            integer(self.owner, argument, getattr(self, argument), minimum=1)
        integer(self.owner, "measure_every", self.measure_every, minimum=0)
        for argument in ("variance", "step_size"):
            positive(self.owner, argument, getattr(self, argument))
        for argument in ("parsimony", "regularization", "coupling"):
            non_negative(self.owner, argument, getattr(self, argument))
        for argument, known in (("split", SPLITS), ("histogram", HISTOGRAMS), ("protocol", PROTOCOLS)):
            if getattr(self, argument) not in known:
                raise InvalidArgument(self.owner, argument, f"be one of {', '.join(known)}", getattr(self, argument))

    @property
    def kernel(self) -> Gaussian:
        """κ(x, z) = exp(−‖x − z‖² / (2σ²))."""
        return Gaussian(bandwidth=self.variance**0.5)

    def consensus(self) -> Consensus:
        """The protocol by its name."""
        budget = self.parsimony * self.step_size**1.5 / 4
        protocols: dict[str, Consensus] = {
            "penalty": Penalty(coupling=self.coupling),
            "local": Local(),
            "proximal": Proximal(coupling=self.coupling),
            "symmetric": Symmetric(coupling=self.coupling),
            "diffusion": Diffusion(),
            "exact-diffusion": ExactDiffusion(budget=budget),
        }
        return protocols[self.protocol]

    def agent(self, classes: int) -> Agent:
        """The settings of every agent."""
        return Agent(
            dimension=self.textons,
            outputs=classes,
            kernel=self.kernel,
            loss=Logistic(),
            step_size=self.step_size,
            regularization=self.regularization,
            compression=Komp.parsimonious(self.step_size, parsimony=self.parsimony),
            consensus=self.consensus(),
        )


def run(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """Both splits, the wanted one first."""
    began = time.perf_counter()
    other = SPLITS[1 - SPLITS.index(config.split)]
    splits = [config.split, other] if config.companion else [config.split]
    results: dict[str, _Result] = {}
    for split in splits:
        place = folder / split
        place.mkdir(parents=True, exist_ok=True)
        results[split] = _train(dataclasses.replace(config, split=split), watch, place, resume)
        if results[split].trial.remark:
            break
    main = results[config.split]
    trial, patches = main.trial, main.patches
    remark = next((result.trial.remark for result in results.values() if result.trial.remark), "")
    summary = {
        "experiment": config.owner,
        "seed": config.seed,
        "protocol": config.protocol,
        "agents": config.agents,
        "split": config.split,
        **trial.summary(),
        "complete": not remark,
        "remark": remark,
        "overlap": patches.overlap,
        "svm_accuracy": main.svm,
        "training_seconds": trial.seconds,
        "product_seconds": main.product_seconds,
        "training_seconds / product_seconds": trial.seconds / main.product_seconds,
    }
    if other in results:
        companion = results[other]
        summary |= {
            f"{other}_accuracy_mean": companion.trial.last.score_mean,
            f"{other}_model_order_mean": companion.trial.last.order_mean,
            f"{other}_overlap": companion.patches.overlap,
            f"{other}_svm_accuracy": companion.svm,
        }
    summary["seconds"] = time.perf_counter() - began
    tables = {"rounds": trial.rounds}
    if other in results:
        tables[f"rounds_{other}"] = results[other].trial.rounds
    return Report(
        config.owner, dataclasses.asdict(config), summary, tables, {"figure": _figure(results)}, remark, _notes(results)
    )


@dataclass(frozen=True, eq=False)
class _Result:
    trial: Trial
    patches: Patches
    svm: float
    product_seconds: float


def _train(config: Config, watch: Watch, folder: Path, resume: bool) -> _Result:
    watch(Progress(0, 1, told=f"{config.split}: filters and textons"))
    patches, classes = prepare(config, folder, resume)
    rng = np.random.default_rng([config.seed, 1])
    graph = Graph.random(config.agents, probability=0.2, rng=rng)
    streams = [
        ArrayStream(patches.points, patches.labels, batch_size=config.batch_size, passes=config.epochs, rng=own)
        for own in rng.spawn(config.agents)
    ]
    agent = config.agent(classes)
    per_epoch = len(streams[0]) // config.epochs

    def tell(progress: Progress) -> None:
        watch(dataclasses.replace(progress, told=f"{config.split}: {progress.told}" if progress.told else ""))

    trial = learn(
        agent,
        graph,
        [StreamSlice(stream, 0, len(stream)) for stream in streams],
        points=patches.held_points,
        targets=patches.held_labels,
        watch=tell,
        measure_every=config.measure_every or per_epoch,
        settings={name: value for name, value in dataclasses.asdict(config).items() if name != "companion"},
        folder=folder,
        keep_every=per_epoch,
        resume=resume,
    )
    machine = SVC(C=10.0, gamma=0.5 / config.variance).fit(patches.points, patches.labels)
    svm = float(machine.score(patches.held_points, patches.held_labels))
    return _Result(trial, patches, svm, _product_seconds(trial, config))


def prepare(config: Config, folder: Path, resume: bool) -> tuple[Patches, int]:
    """The features, computed once and kept beside the run."""
    kept = folder / "features.safetensors"
    about = {
        name: getattr(config, name)
        for name in ("seed", "images", "split", "samples", "held_out", "textons", "patch", "histogram")
    }
    if resume and kept.exists():
        arrays, settings = storage.read(kept, kind="textures")
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
    arrays = {name: getattr(patches, name) for name in ("points", "labels", "held_points", "held_labels")}
    about_all = {"about": about, "overlap": patches.overlap, "classes": len(names)}
    storage.write(kept, kind="textures", arrays=arrays, settings=about_all)
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
        left, right = rng.standard_normal((size, size)), rng.standard_normal((size, config.batch_size))
        product(left, right)
        spent = []
        for _ in range(9):
            start = time.perf_counter()
            product(left, right)
            spent.append(time.perf_counter() - start)
        times.append(min(spent))
    every = np.arange(1, rounds[-1] + 1)
    order = np.interp(every, rounds, orders)
    return float(config.agents * np.interp(order, sizes, times).sum())


def _notes(results: dict[str, _Result]) -> list[str]:
    overlaps = ", ".join(f"{split}: {result.patches.overlap:.1%}" for split, result in results.items())
    numbers = ", ".join(f"{split}: {result.trial.last.score_mean:.1%}" for split, result in results.items())
    return [
        "The printed protocol draws training and test patches at random from the same images, so that nearly every test "
        f"patch shares pixels with a training patch. Share of test patches that do: {overlaps}.",
        "With the disjoint split, training patches come from the left half of each image, test patches from the right half, "
        f"and textons from the left halves only. Accuracy, mean over agents: {numbers}. The disjoint number is the one to "
        "expect on new images.",
    ]


def _figure(results: dict[str, _Result]) -> Figure:
    figure = Figure(figsize=(12, 4 * len(results)), layout="constrained")
    panels = figure.subplots(len(results), 3, squeeze=False)
    quantities: Sequence[tuple[str, str]] = (
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
            f"{split} split: accuracy {last.score_mean:.1%}, batch SVM {result.svm:.1%}, "
            f"overlap {result.patches.overlap:.1%}"
        )
    return figure


EXPERIMENT = Experiment(
    "brodatz", "five agents tell 13 textures apart; random and disjoint split side by side (long)", Config, run
)
