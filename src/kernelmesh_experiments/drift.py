"""Online learners under concept drift: a rotating mixture, classes that come and go, labels that are permuted."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier

from kernelmesh import Averaged, Gradient, InvalidArgument, Komp, Learner, Mixture, OnlineKernelClassifier, evaluate
from kernelmesh.streams.drift import DriftingSamples, recurring, relabeled, rotating
from kernelmesh_experiments.base import Experiment, Session
from kernelmesh_experiments.cells import Cell
from kernelmesh_experiments.report import Findings, style_of
from kernelmesh_experiments.rivals.online import AfterFeatures, RiverClassifier, river, river_installed
from kernelmesh_experiments.settings import Count, Floats, Ints, Settings, setting

__all__ = ["CONTENDERS", "EXPERIMENTS", "STREAMS", "Config", "Contender"]


_CLASSES = 5  # of the paper's mixture


class Contender(NamedTuple):
    """A learner with the defaults of its library."""

    library: str
    title: str
    """What tables and figures call it."""
    make: Callable[[Config, DriftingSamples], Any]
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


def _nystrom(config: Config, _: DriftingSamples) -> Any:
    # all points of the first mini-batch are landmarks; the default kernel is ours in the plane
    features = Nystroem(n_components=config.batch_size, random_state=config.seed)
    return AfterFeatures(features, SGDClassifier(random_state=config.seed))


def _ours(name: str, learner: Learner | None) -> Contender:
    return Contender("kernelmesh", f"kernelmesh, {name}", lambda *_: OnlineKernelClassifier(learner=learner))


def _river(title: str, build: Callable[[Config], Any]) -> Contender:
    return Contender("river", f"river {title}", lambda config, _: RiverClassifier(build(config)))


def _river_knn(config: Config) -> Any:
    neighbors = river("neighbors")
    return neighbors.KNNClassifier(engine=neighbors.SWINN(seed=config.seed))  # the default search, which draws at random


# To add one, add a line; its name becomes part of keys of the summary.
CONTENDERS: dict[str, Contender] = {
    "bayes": Contender("", "Bayes optimal", lambda _, stream: _Omniscient(stream.best)),
    "second_order": _ours("second-order", None),
    "averaged": _ours("averaged", Averaged(step_size=100.0)),
    "gradient": _ours("gradient", Gradient(step_size=3.0, compression=Komp(parsimony=0.02))),
    "sgd": Contender("scikit-learn", "linear SGD", lambda c, _: SGDClassifier(random_state=c.seed)),
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
    "rotate": lambda mixture, c, rng: rotating(mixture, c.samples, angle=math.radians(90), rng=rng),
    "come_and_go": lambda mixture, c, rng: recurring(mixture, c.samples, phases=5, absent=2, rng=rng),
    "permute": lambda mixture, c, rng: relabeled(mixture, c.samples, rng=rng),
}


@dataclass(frozen=True, kw_only=True)
class Config(Settings, owner="drift"):
    """The paper's mixture, drawn from the seed, and what happens to it."""

    samples: Count = setting(20_000, doc="samples per stream")
    batch_size: Count = setting(32, doc="samples that are predicted together, then learned from; 1 is usual in river")
    window: Count = setting(1000, doc="number of samples in the window for errors")
    measure_every: Count = setting(5, doc="mini-batches between measurements")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size >= self.samples:
            raise InvalidArgument("drift", "batch_size", f"be less than the {self.samples} samples", self.batch_size)

    def draw(self, stream: str) -> DriftingSamples:
        """A stream by name, the same for all learners."""
        rng = np.random.default_rng(self.seed)
        mixture = Mixture.draw(classes=_CLASSES, rng=rng)
        return STREAMS[stream](mixture, self, rng)


def cell(settings: tuple[Config, str, str]) -> Mapping[str, Any]:
    """One learner on one stream."""
    config, name, contender = settings[0], settings[1], CONTENDERS[settings[2]]
    stream = config.draw(name)
    options: dict[str, Any] = {"batch_size": config.batch_size, "window": config.window, "classes": range(_CLASSES)}
    few = slice(4 * config.batch_size)  # compiles and imports before the clock starts
    evaluate(contender.make(config, stream), stream.points[few], stream.labels[few], **options)
    model = contender.make(config, stream)
    began = time.process_time()
    found = evaluate(model, stream.points, stream.labels, measure_every=config.measure_every, **options)
    seconds = time.process_time() - began
    return {
        "stream": name,
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
    entrants = [name for name, contender in CONTENDERS.items() if contender.library != "river" or river_installed()]
    groups = {(stream, name): f"{stream}-{name}" for stream in STREAMS for name in entrants}
    cells = {group: Cell(cell, (config, *key)) for key, group in groups.items()}
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


_WITHOUT_RIVER = "not installed; its learners are skipped (pip install river)"
_PARAGRAPHS = (
    "Every mini-batch is first predicted, then learned from, by learners with the defaults of their libraries. `error` is "
    "over all samples but the first mini-batch, `window_error` over the last ones; `cpu_seconds` covers both steps, "
    "`kilobytes` is the size of the pickled learner. `Bayes optimal` knows the mixture and its changes.",
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
EXPERIMENTS = (Experiment(name="drift", about=_ABOUT, config=Config, run=run, takes="4 min"),)
