"""Where a network could fall behind one learner: features in different units, and many classes with few points.

The rules, fixed before the runs. Units: every feature is multiplied by 10^U(−3, 3), and each of twenty agents sees one class.
The network has its defaults and the features as they are; one learner, a network of one, has all rows behind a
`StandardScaler`. Classes: letters, dealt like in `uneven`, with at most 200 points; one learner has as many. One learner's
score is the mean over three orders of the rows. What counts is how far the worst agent is behind it, over seeds 0, 1 and 2.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import sets
from cases import Line
from kernelmesh import Graph
from kernelmesh.checks import Ints
from uneven import AGENTS, ORDERS, SEEDS, alone, dealt, mesh, scores, spread

SETS = ("digits", "segment", "penbased", "satimage")
_DEGREE, _ALLOWED = 4, 1.0
_LETTERS, _ORDER = "letter", 200


def by_class(labels: np.ndarray, rng: np.random.Generator) -> Ints:
    """An agent for each row: agent i sees class i mod C only."""
    owners = np.empty(len(labels), dtype=np.int64)
    names = np.unique(labels)
    for number, name in enumerate(names):
        rows = rng.permutation(np.flatnonzero(labels == name))
        agents = range(number, AGENTS, len(names))
        for agent, mine in zip(agents, np.array_split(rows, len(agents)), strict=True):
            owners[mine] = agent
    return owners


def in_units(name: str) -> Line:
    """One set with features in different units."""
    one, worst, mean = [], [], []
    for seed in SEEDS:
        plain, rng = sets.load(name, seed=seed), np.random.default_rng(seed)
        units = 10.0 ** rng.uniform(-3.0, 3.0, size=plain.X.shape[1])
        data = plain._replace(X=plain.X * units, held_X=plain.held_X * units)
        scaler = StandardScaler().fit(data.X)
        one.append(alone(data._replace(X=scaler.transform(data.X), held_X=scaler.transform(data.held_X)), rng))
        graph = Graph.small_world(AGENTS, nearest=_DEGREE, rewiring=0.3, rng=rng)
        found = scores(mesh(data, graph, by_class(data.y, rng)), data)
        worst.append(one[-1] - found.min())
        mean.append(one[-1] - found.mean())
    shown = f"{spread(worst)} behind {spread(one)} (at most {max(worst):.2f}; mean agent {spread(mean)})"
    reached = bool(np.mean(worst) <= _ALLOWED)
    return Line(f"{name} in different units, one class per agent: worst agent", shown, f"≤ {_ALLOWED:g} point", reached)


def letters() -> Line:
    """26 classes and 200 points."""
    one, worst, mean, orders = [], [], [], []
    for seed in SEEDS:
        data, rng = sets.load(_LETTERS, seed=seed), np.random.default_rng(seed)
        model = mesh(
            data, Graph.small_world(AGENTS, nearest=_DEGREE, rewiring=0.3, rng=rng), dealt(data.y, rng), max_order=_ORDER
        )
        runs = [_one(data, rng) for _ in range(ORDERS)]
        found = scores(model, data)
        one.append(float(np.mean(runs)))
        orders.append(float(np.var(runs, ddof=1)))
        worst.append(one[-1] - found.min())
        mean.append(one[-1] - found.mean())
    noise = 2.0 * float(np.sqrt(np.mean(orders)))
    shown = f"{spread(worst)} behind {spread(one)} (at most {max(worst):.2f}; mean agent {spread(mean)})"
    target = f"≤ {noise:.2f}, twice the deviation of one learner between orders of the rows"
    return Line(f"{_LETTERS}, 26 classes, {_ORDER} points: worst agent", shown, target, bool(np.mean(worst) <= noise))


def _one(data: sets.Data, rng: np.random.Generator) -> float:
    """The score of one learner for one order of the rows."""
    order = rng.permutation(len(data.y))
    shuffled = data._replace(X=data.X[order], y=data.y[order])
    model = mesh(shuffled, Graph.line(1), np.zeros(len(order), dtype=np.int64), max_order=_ORDER)
    return float(scores(model, data)[0])


def scales() -> list[Line]:
    """Twenty agents, estimators with their defaults, one pass: how far the worst agent is behind one learner, in points."""
    lines = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant columns
        for name in (*SETS, _LETTERS):
            lines.append(letters() if name == _LETTERS else in_units(name))
            print(*lines[-1][:3], file=sys.stderr, flush=True)
    return lines
