"""The smartwatches of ten people learn to recognize seven exercises together, without sharing any labels.

Users as agents. Each person does seven shoulder exercises with a watch that measures acceleration and rotation at 50 Hz. Rows
are two-second windows: the means and standard deviations of the six axes. Eight people are agents in a ring; the two others
are the test set, in rotation. People move differently, so what one watch learns alone is less useful for others.
The recordings are from Burns et al. (2018), as included in the package seglearn.

Measured by `python examples/wearables.py` (accuracy on the two others, of the mean and of the worst watch):

                                 mean  worst watch
    alone                       63.5%        50.3%
    network                     79.4%        79.4%
    one learner, all samples    79.9%        79.9%

Every watch of the network comes close to a learner with all samples.
"""

# %% What is compared: watches alone, watches that share sums, and one learner with all samples.
from __future__ import annotations

import io
import pickle
from typing import Any

import matplotlib as mpl
import numpy as np

from kernelmesh import KernelMeshClassifier, Landmarks, Local, OnlineKernelClassifier
from wheels import Wheel, arguments

mpl.use("Agg")
import matplotlib.pyplot as plt

WHEEL = Wheel(
    "seglearn",
    "1.2.5",
    "https://files.pythonhosted.org/packages/8e/1d/786c3ff9c0452d0a6461a97ae248478319473777bf074ad1738d4749f2ac/seglearn-1.2.5-py3-none-any.whl",
    "ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd",
)
SAMPLES = 100
"""Two seconds."""


# %% The data: a pickled dictionary of arrays, read without running any other code in the pickle.
class _ArraysOnly(pickle.Unpickler):
    _ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
        (f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is no array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def recorded(given: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of features, the exercise of each, and who did it."""
    with WHEEL.open(given) as wheel:
        file = io.BytesIO(wheel.read("seglearn/data/watch_dataset.npy"))
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    data = _ArraysOnly(file, encoding="latin1").load().item()
    X, y, who = [], [], []
    for series, exercise, person in zip(data["X"], data["y"], data["subject"], strict=True):
        windows = np.asarray(series)[: len(series) // SAMPLES * SAMPLES].reshape(-1, SAMPLES, 6)
        X.append(np.concatenate([windows.mean(axis=1), windows.std(axis=1)], axis=1))
        y += [data["y_labels"][int(exercise)]] * len(windows)
        who += [int(person)] * len(windows)
    return np.concatenate(X), np.array(y), np.array(who)


# %% Learn from eight people, and test on the two others.
def compare(X: np.ndarray, y: np.ndarray, who: np.ndarray, left_out: list[int]) -> dict[str, list[float]]:
    """The accuracy of every watch on the held-out people, by method."""
    test = np.isin(who, left_out)
    X = (X - X[~test].mean(axis=0)) / X[~test].std(axis=0)
    watches = [int(person) for person in np.unique(who[~test])]
    ring = list(zip(watches, [*watches[1:], watches[0]], strict=True))
    found = {}
    alone = {"protocol": Local(), "learner": Landmarks(regularization=0.05, novelty=0.03, max_order=200)}
    for name, settings in {"alone": alone, "network": {"max_order": 200}}.items():
        mesh = KernelMeshClassifier(graph=ring, random_state=0, **settings)
        mesh.fit(X[~test], y[~test], agents=who[~test])
        found[name] = [mesh.score(X[test], y[test], agent=watch) for watch in watches]
    everything = OnlineKernelClassifier(random_state=0).fit(X[~test], y[~test])
    found["one learner, all samples"] = [everything.score(X[test], y[test])]
    return found


def main() -> None:
    told = arguments(__doc__, rows="only N rows of each person, drawn at random", out="runs/wearables.png")
    X, y, who = recorded(told.data)
    if told.rows:
        rng = np.random.default_rng(0)
        some = [rng.permutation(np.flatnonzero(who == person))[: told.rows] for person in np.unique(who)]
        X, y, who = (table[np.concatenate(some)] for table in (X, y, who))
    people = [int(person) for person in np.unique(who)]
    print(f"{len(X)} rows of {len(people)} people, {len(np.unique(y))} exercises")
    folds = [compare(X, y, who, people[start : start + 2]) for start in range(0, len(people), 2)]
    found = {name: np.array([fold[name] for fold in folds]) for name in folds[0]}
    print(f"{'':26} {'mean':>6} {'worst watch':>12}")
    for name, scores in found.items():
        print(f"{name:26} {scores.mean():6.1%} {scores.min(axis=1).mean():12.1%}")
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for shift, (name, scores) in zip((-0.22, 0.0, 0.22), found.items(), strict=True):
        places = np.arange(len(scores)) + shift
        for place, of_fold in zip(places, scores, strict=True):
            axes.plot([place, place], [of_fold.min(), of_fold.max()], color="lightgray", zorder=0)
        axes.plot(np.repeat(places, scores.shape[1]), scores.ravel(), "o", markersize=4, alpha=0.7, label=name)
    tested = [f"{people[start]} and {people[start + 1]}" for start in range(0, len(people), 2)]
    axes.set_xticks(range(len(tested)), tested)
    axes.set(xlabel="held-out people", ylabel="accuracy", title="Every watch on held-out people")
    figure.legend(loc="outside lower center", ncols=3)
    told.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(told.out, dpi=120)
    print(f"See {told.out}.")


# %% Run it.
if __name__ == "__main__":
    main()
