"""Online learners under concept drift: a rotating mixture, classes that come and go, labels that are permuted."""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier

from kernelmesh import Averaged, Gradient, InvalidArgument, Komp, Mixture, OnlineKernelClassifier, evaluate
from kernelmesh.streams.drift import DriftingSamples, recurring, relabeled, rotating
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.cells import Cell
from kernelmesh_experiments.report import Findings, style_of
from kernelmesh_experiments.rivals.online import AfterFeatures, RiverClassifier, river, river_installed
from kernelmesh_experiments.settings import Count, Floats, Ints, NonNegative, Positive, Settings, one_of, setting

__all__ = ["CONTENDERS", "EXPERIMENT", "EXPERIMENTS", "STREAMS", "Config", "Contender"]


class Contender(NamedTuple):
    """A learner with the defaults of its library."""

    library: str
    title: str
    """What tables and figures call it."""
    make: Callable[[Config], Any]
    """Gives something new with partial_fit and predict."""


class _Omniscient:
    """Knows what is most likely at each time, and learns nothing."""

    def __init__(self, best: Ints) -> None:
        self.best = best

    def partial_fit(self, X: Floats, y: Ints) -> None:
        """Go on."""
        self.best = self.best[len(X) :]

    def predict(self, X: Floats) -> Ints:
        """The most likely classes."""
        return self.best[: len(X)]


def _nystrom(config: Config) -> Any:
    # all points of the first mini-batch are landmarks; the default kernel is ours in the plane
    features = Nystroem(n_components=config.batch_size, random_state=config.seed)
    return AfterFeatures(features, SGDClassifier(random_state=config.seed))


def _river(title: str, build: Callable[[Config], Any]) -> Contender:
    return Contender("river", f"river {title}", lambda config: RiverClassifier(build(config)))


def _river_knn(config: Config) -> Any:
    neighbors = river("neighbors")
    return neighbors.KNNClassifier(engine=neighbors.SWINN(seed=config.seed))  # the default search, which draws at random


# To add one, add a line; its name becomes part of keys of the summary.
CONTENDERS: dict[str, Contender] = {
    "bayes": Contender("", "Bayes optimal", lambda c: _Omniscient(c.draw().best)),
    "second_order": Contender("kernelmesh", "kernelmesh, second-order", lambda c: OnlineKernelClassifier()),
    "averaged": Contender(
        "kernelmesh", "kernelmesh, averaged", lambda c: OnlineKernelClassifier(learner=Averaged(step_size=100.0))
    ),
    "gradient": Contender(
        "kernelmesh",
        "kernelmesh, gradient",
        lambda c: OnlineKernelClassifier(learner=Gradient(step_size=3.0, compression=Komp(parsimony=0.02))),
    ),
    "sgd": Contender("scikit-learn", "linear SGD", lambda c: SGDClassifier(random_state=c.seed)),
    "nystrom": Contender("scikit-learn", "Nyström + SGD", _nystrom),
    "river_naive_bayes": _river("GaussianNB", lambda c: river("naive_bayes").GaussianNB()),
    "river_softmax": _river(
        "StandardScaler | SoftmaxRegression",
        lambda c: river("preprocessing").StandardScaler() | river("linear_model").SoftmaxRegression(),
    ),
    "river_tree": _river("HoeffdingAdaptiveTree", lambda c: river("tree").HoeffdingAdaptiveTreeClassifier(seed=c.seed)),
    "river_knn": _river("KNN", _river_knn),
    "river_bole": _river(
        "BOLE of HoeffdingTrees",
        lambda c: river("ensemble").BOLEClassifier(river("tree").HoeffdingTreeClassifier(), seed=c.seed),
    ),
    "river_patches": _river("SRP", lambda c: river("ensemble").SRPClassifier(seed=c.seed)),
    "river_forest": _river("ARF", lambda c: river("forest").ARFClassifier(seed=c.seed)),
}

# Likewise.
STREAMS: dict[str, Callable[[Mixture, Config, np.random.Generator], DriftingSamples]] = {
    "rotate": lambda mixture, c, rng: rotating(mixture, c.samples, angle=math.radians(c.degrees), rng=rng),
    "come_and_go": lambda mixture, c, rng: recurring(mixture, c.samples, phases=c.phases, absent=c.absent, rng=rng),
    "permute": lambda mixture, c, rng: relabeled(mixture, c.samples, rng=rng),
}


@dataclass(frozen=True, kw_only=True)
class Config(Settings, owner="drift"):
    """The paper's mixture, drawn from the seed, and what happens to it."""

    stream: Annotated[str, one_of("all", *STREAMS)] = setting("all", doc=f"all, or one of {', '.join(STREAMS)}")
    contender: Annotated[str, one_of("all", *CONTENDERS)] = setting("all", doc=f"all, or one of {', '.join(CONTENDERS)}")
    samples: Count = setting(20_000, doc="samples per stream")
    classes: Count = setting(5, doc="classes in the mixture")
    modes: Count = setting(3, doc="modes per class")
    spread: Positive = setting(0.2, doc="standard deviation of samples around the modes of their class")
    degrees: NonNegative = setting(90.0, doc="rotation of the mixture from the first to the last sample")
    phases: Count = setting(5, doc="number of phases of the stream whose classes come and go")
    absent: Count = setting(2, doc="number of classes missing in each phase")
    batch_size: Count = setting(32, doc="samples that are predicted together, then learned from; 1 is usual in river")
    window: Count = setting(1000, doc="number of samples in the window for errors")
    measure_every: Count = setting(5, doc="mini-batches between measurements")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 2:
            raise InvalidArgument("drift", "classes", "be at least 2", self.classes)
        for name, limit in (("absent", "classes"), ("batch_size", "samples"), ("phases", "samples")):
            if getattr(self, name) >= getattr(self, limit):
                rule = f"be less than {limit}, which is {getattr(self, limit)}"
                raise InvalidArgument("drift", name, rule, getattr(self, name))

    def draw(self) -> DriftingSamples:
        """The stream that the config names, the same for all learners."""
        rng = np.random.default_rng(self.seed)
        mixture = Mixture.draw(classes=self.classes, modes=self.modes, spread=self.spread, rng=rng)
        return STREAMS[self.stream](mixture, self, rng)


def cell(config: Config) -> Mapping[str, Any]:
    """One learner on one stream."""
    stream, contender = config.draw(), CONTENDERS[config.contender]
    options: dict[str, Any] = {"batch_size": config.batch_size, "window": config.window, "classes": range(config.classes)}
    few = slice(4 * config.batch_size)  # compiles and imports before the clock starts
    evaluate(contender.make(config), stream.points[few], stream.labels[few], **options)
    model = contender.make(config)
    began = time.process_time()
    found = evaluate(model, stream.points, stream.labels, measure_every=config.measure_every, **options)
    seconds = time.process_time() - began
    return {
        "stream": config.stream,
        "learner": contender.title,
        "seed": config.seed,
        "error": found.last.error,
        "window_error": found.last.window_error,
        "cpu_seconds": seconds,
        "points": "" if found.last.points is None else found.last.points,
        "kilobytes": len(pickle.dumps(model)) / 1000,
        "path": np.stack([found.column("samples"), found.column("window_error")], axis=1).tolist(),
    }


def run(config: Config, session: Session) -> Findings:
    """Every learner on every stream, once."""
    streams = tuple(STREAMS) if config.stream == "all" else (config.stream,)
    groups = {(stream, name): f"{stream}-{name}" for stream in streams for name in _entrants(config)}
    cells = {
        group: Cell(cell, dataclasses.replace(config, stream=stream, contender=name))
        for (stream, name), group in groups.items()
    }
    done = session.compute(cells)
    found = {key: done[group] for key, group in groups.items() if group in done}
    table = [{name: value for name, value in row.items() if name != "path"} for row in found.values()]
    return Findings(
        summary={
            "seed": config.seed,
            "river": version("river") if river_installed() else _WITHOUT_RIVER,
            **{f"{stream}_{name}_error": row["error"] for (stream, name), row in found.items()},
        },
        tables={"table": table},
        figures={"figure": _figure(found, config)} if found else {},
        paragraphs=_PARAGRAPHS if river_installed() else (*_PARAGRAPHS, f"river is {_WITHOUT_RIVER}."),
    )


def _entrants(config: Config) -> list[str]:
    """The names of those that take part; the Bayes limit always does, so that an error can be judged."""
    if config.contender == "all":
        return [name for name, contender in CONTENDERS.items() if contender.library != "river" or river_installed()]
    if CONTENDERS[config.contender].library == "river" and not river_installed():
        raise InvalidArgument("drift", "contender", "be installed", config.contender, remedy="pip install river")
    return list(dict.fromkeys(("bayes", config.contender)))


_WITHOUT_RIVER = "not installed; its learners are skipped (pip install river)"
_PARAGRAPHS = (
    "Every mini-batch is first predicted, then learned from. `error` is over all samples except the first mini-batch, "
    "`window_error` over the last ones of the stream; the figure shows it along the way. Every learner uses the "
    "defaults of its library. Those of river learn sample by sample; they too predict a mini-batch before they learn "
    "from it, so that all are scored alike. `cpu_seconds` covers predicting and learning, `kilobytes` is the size of "
    "the pickled learner, and `points` is the number of points in a kernel expansion.",
    "rotate: all classes rotate about the origin. come_and_go: in each phase, some classes do not occur. permute: "
    "from the middle on, labels are permuted. Bayes optimal knows the mixture and its changes.",
)
_DASHES = {"": ":", "kernelmesh": "-", "scikit-learn": "-.", "river": "--"}
_TITLES = {"rotate": "classes rotate", "come_and_go": "classes come and go", "permute": "labels are permuted halfway"}
_BAYES: dict[str, Any] = {"color": "0.4", "marker": "", "linewidth": 2.0}


def _figure(found: Mapping[tuple[str, str], Mapping[str, Any]], config: Config) -> Figure:
    streams = list(dict.fromkeys(stream for stream, _ in found))
    figure = Figure(figsize=(max(5 * len(streams) + 1, 8), 6.5), layout="constrained")
    panels = dict(zip(streams, figure.subplots(1, len(streams), sharey=True, squeeze=False)[0], strict=True))
    lines = dict[str, Any]()
    for (stream, name), row in found.items():
        contender = CONTENDERS[name]
        look = style_of(list(CONTENDERS).index(name) - 1) if contender.library else _BAYES
        samples, errors = np.transpose(row["path"])
        dash = {"linestyle": _DASHES[contender.library]}
        lines[contender.title] = panels[stream].plot(samples, 100 * errors, **look | dash, markevery=0.1)[0]
    for stream, axes in panels.items():
        axes.set(title=_TITLES[stream], xlabel="samples", ylim=(0, None))
        axes.grid(alpha=0.3)
    panels[streams[0]].set_ylabel(f"error over the newest {config.window} samples, %")
    figure.suptitle(f"Test, then train: online learners with the defaults of their libraries, seed {config.seed}")
    columns = min(4 if len(streams) > 1 else 2, len(lines))
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=columns, fontsize=9, handlelength=4)
    return figure


_ABOUT = "online learners under concept drift: a rotating mixture, classes that come and go, permuted labels"
EXPERIMENT = Experiment(name="drift", about=_ABOUT, config=Config, run=run, takes="4 min")
EXPERIMENTS = (EXPERIMENT,)
