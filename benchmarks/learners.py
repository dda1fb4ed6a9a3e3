"""The learner of sums by itself: next to `SecondOrder`, and with more or fewer kept rows when labels are wrong.

The rule, fixed before the runs: seeds 0 to 2, the estimators with their defaults, one pass. One learner of sums is a network
of one with features as they are; `SecondOrder` sees standardized features. For wrong labels, rows are dealt like in `uneven`,
and a fifth of the training labels is drawn anew.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import sets
from cases import Line
from kernelmesh import Graph, Landmarks, OnlineKernelClassifier, OnlineKernelRegressor
from uneven import AGENTS, SEEDS, dealt, mesh, scores, spread

SETS = ("digits", "satimage", "penbased", "segment", "diabetes", "friedman1")
NOISY_SETS, NOISE, KEPT, DEGREE = ("satimage", "penbased", "segment"), 0.2, (0, 64, 512), 4


def alone(name: str) -> Line:
    """Score, points and CPU time of both learners on one set."""
    found: dict[str, list[tuple[float, float, float]]] = {"SecondOrder": [], "Landmarks": []}
    for seed in SEEDS:
        data = sets.load(name, seed=seed)
        scaler = StandardScaler().fit(data.X)
        began = time.process_time()
        if data.classifies:
            one = OnlineKernelClassifier().partial_fit(scaler.transform(data.X), data.y, classes=np.unique(data.y))
        else:
            one = OnlineKernelRegressor().partial_fit(scaler.transform(data.X), data.y)
        seconds = time.process_time() - began
        found["SecondOrder"].append(
            (100.0 * one.score(scaler.transform(data.held_X), data.held_y), one.model_order_, seconds)
        )
        began = time.process_time()
        sums = mesh(data, Graph.line(1), np.zeros(len(data.y), dtype=np.int64))
        seconds = time.process_time() - began
        found["Landmarks"].append((float(scores(sums, data)[0]), float(sums.model_order_.max()), seconds))
    shown = []
    for learner, runs in found.items():
        _, points, seconds = np.mean(runs, axis=0)
        shown.append(f"{learner} {spread([run[0] for run in runs])} with {points:.0f} points in {seconds:.2f} s")
    return Line(f"{name}, one learner", "; ".join(shown))


def kept(name: str) -> Line:
    """The worst agent by the number of kept rows, with right and with wrong labels."""
    found: dict[tuple[float, int], list[float]] = {(noise, keep): [] for noise in (0.0, NOISE) for keep in KEPT}
    for seed in SEEDS:
        data, rng = sets.load(name, seed=seed), np.random.default_rng(seed)
        owners, graph = dealt(data.y, rng), Graph.small_world(AGENTS, nearest=DEGREE, rewiring=0.3, rng=rng)
        wrong = rng.random(len(data.y)) < NOISE
        labels = np.where(wrong, rng.choice(np.unique(data.y), len(data.y)), data.y)
        for noise, keep in found:
            learner = Landmarks(novelty=0.03, max_order=500, keep=keep)
            seen = data._replace(y=labels if noise else data.y)
            found[noise, keep].append(float(scores(mesh(seen, graph, owners, learner=learner), data).min()))
    texts = [f"{noise:.0%} wrong, {keep} kept: {spread(values)}" for (noise, keep), values in found.items()]
    return Line(f"{name}, worst agent", "; ".join(texts))


def learners() -> list[Line]:
    """The learner of sums next to `SecondOrder`, and kept rows when a fifth of the labels is wrong."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant columns
        return [*(alone(name) for name in SETS), *(kept(name) for name in NOISY_SETS)]
