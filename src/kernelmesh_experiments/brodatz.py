"""The paper's texture experiment: five agents classify small patches of 13 Brodatz images."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import Agent, ArrayStream, Doubling, Gaussian, Graph, Tuning, storage
from kernelmesh.streams import StreamSlice
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.events import Network
from kernelmesh_experiments.kinds import ProtocolName
from kernelmesh_experiments.learning import LearningSettings
from kernelmesh_experiments.report import Findings, draw_path
from kernelmesh_experiments.settings import Count, Index, Positive, one_of, setting, settings_of
from kernelmesh_experiments.textures.features import Patches, features
from kernelmesh_experiments.textures.images import load
from kernelmesh_experiments.trial import Trial

__all__ = ["EXPERIMENTS", "Config", "prepare"]

Split = Annotated[str, one_of("random", "disjoint")]
_NEVER = 2**62  # samples after which the penalty would double: it stays as it is


@dataclass(frozen=True, kw_only=True)
class Config(LearningSettings, owner="brodatz"):
    """As printed; the filters, the number of pixels for k-means and the normalization of the histograms are not."""

    usual: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "gradient": {"step_size": 4.0, "regularization": 1e-5},
        "averaged": {"step_size": 100.0, "regularization": 1e-5},
    }

    agents: Count = 5
    protocol: ProtocolName = "penalty"
    images: str = setting("", doc="a folder with the images; downloaded if not given")
    split: Split = setting(
        "random", doc="random, as in the paper, or disjoint: training and test patches from different halves of each image"
    )
    samples: Count = setting(10_000, doc="patches in the training set")
    held_out: Count = setting(5_000, doc="patches in the test set")
    epochs: Count = setting(1, doc="epochs; each agent sees all its training samples in each")
    textons: Count = setting(256, doc="clusters of filter responses that the histograms count")
    patch: Count = setting(24, doc="pixels along each side of a patch")
    variance: Positive = setting(0.1, doc="σ² of the Gaussian kernel")
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
            limit=math.inf if self.learns_by == "gradient" else 0.5,  # larger steps than the printed ones need a cap
            kernel=self.kernel,
            batches=[patches.points[: self.batch_size]],
            stiffness=graph.stiffness,
            every=self.every or None,
        )
        return self.make_agent((self.textons, classes), self.kernel, self.make_protocol(tuning))


def run(config: Config, session: Session) -> Findings:
    """One network on one split, next to a batch SVM."""
    patches, classes = prepare(config, session.folder, session.resume)
    rng = np.random.default_rng([config.seed, 1])
    graph = Graph.random(config.agents, probability=0.2, rng=rng)
    streams = [
        ArrayStream(patches.points, patches.labels, batch_size=config.batch_size, passes=config.epochs, rng=own)
        for own in rng.spawn(config.agents)
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
            settings=settings_of(config),
            save_every=per_epoch,
        )
    )
    references = session.compare(lambda _: {"svm_accuracy": patches.batch_svm(gamma=0.5 / config.variance)})
    summary = {
        "learner": config.learns_by,
        **{name: getattr(config, name) for name in ("seed", "protocol", "agents", "split")},
        **trial.summary(),
        "overlap": patches.overlap,
        **references,
        "training_seconds": trial.seconds,
    }
    svm = "".join(f"batch SVM {accuracy:.1%}, " for accuracy in references.values())
    figures = {"figure": _figure(trial, f"{config.split} split: {svm}overlap {patches.overlap:.1%}")}
    return Findings(summary=summary, tables={"rounds": trial.rounds}, figures=figures, paragraphs=_PARAGRAPHS)


def prepare(config: Config, folder: Path, resume: bool) -> tuple[Patches, int]:
    """The features, computed once and saved beside the run."""
    file = folder / "features.safetensors"
    matters = ("seed", "images", "split", "samples", "held_out", "textons", "patch")
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
        rng=np.random.default_rng(config.seed),
    )
    about_all = {"about": about, "overlap": patches.overlap, "classes": len(names)}
    storage.write(file, kind="textures", arrays=patches.arrays(), settings=about_all)
    return patches, len(names)


def table(config: Config, session: Session) -> Findings:
    """As in the paper, with ten times as many epochs."""
    return run(dataclasses.replace(config, epochs=10 * config.epochs), session)


_PARAGRAPHS = (
    "The paper draws training and test patches at random from the same images, so that nearly every test patch shares pixels "
    "with a training patch: `overlap` is the fraction of those that do.",
    "With the disjoint split, training patches come from the left half of each image, test patches from the right half, "
    "and textons from the left halves only. That accuracy is the one to expect on new images.",
)


def _figure(trial: Trial, title: str) -> Figure:
    figure = Figure(figsize=(12, 4), layout="constrained")
    quantities = {
        "objective": r"global objective $\sum_i E[\ell(f_i(x), y)]$",
        "disagreement": r"disagreement $\sum_{(i,j)} \|f_i - f_j\|^2$",
        "order_mean": "model order, mean over agents",
    }
    for axes, (quantity, label) in zip(figure.subplots(1, 3), quantities.items(), strict=True):
        draw_path(axes, trial.record, quantity, label=label)
        axes.set_ylim(bottom=0)
    figure.suptitle(f"accuracy {trial.last.score_mean:.1%}; {title}")
    return figure


EXPERIMENTS = (
    Experiment(
        name="brodatz",
        about="five agents classify patches of 13 textures, --all in ten epochs; needs the images, see --images",
        config=Config,
        run=run,
        table=table,
        trains=True,
        takes="2 min, 20 min with --all",
    ),
)
