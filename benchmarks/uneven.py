"""Real data, dealt out as it comes to twenty agents: what each of them knows after one pass, next to one learner.

The rule, fixed before the run: a set is split, dealt and given three networks by each of the seeds 0, 1 and 2. Of every
class, each agent has a share drawn from Dirichlet(0.1), so that agents have very different numbers of rows, and some have
none; values are dealt like classes, by the tenth of all targets that they fall into. The estimators have their defaults, see
the features as they are, and learn from all rows in one call of `partial_fit`. One learner is a network of one that sees the
same rows, in three orders; its score is their mean. What counts is how far the worst agent is behind it, as a mean over the
seeds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from threadpoolctl import threadpool_limits

import sets
from cases import Line
from kernelmesh import Graph, KernelMeshClassifier, KernelMeshRegressor
from kernelmesh.checks import Floats, Ints

AGENTS, CONCENTRATION = 20, 0.1
SEEDS, ORDERS = range(3), 3
DEGREES = (2, 4, 8)
SETS = ("digits", "wine", "breast cancer", "satimage", "penbased", "segment", "diabetes", "friedman1", "friedman2")


def dealt(targets: np.ndarray, rng: np.random.Generator) -> Ints:
    """An agent for each row."""
    classes = targets
    if targets.dtype.kind == "f":
        classes = np.searchsorted(np.quantile(targets, np.arange(0.1, 1.0, 0.1)), targets)
    owners = np.empty(len(targets), dtype=np.int64)
    for one in np.unique(classes):
        rows = np.flatnonzero(classes == one)
        shares = np.cumsum(rng.dirichlet(np.full(AGENTS, CONCENTRATION)))[:-1]
        for agent, mine in enumerate(np.split(rng.permutation(rows), (shares * len(rows)).astype(int))):
            owners[mine] = agent
    return owners


def mesh(data: sets.Data, graph: Graph, owners: Ints, **settings: object) -> KernelMeshClassifier | KernelMeshRegressor:
    """A network that has seen all rows once."""
    if data.classifies:
        return KernelMeshClassifier(graph=graph, **settings).partial_fit(
            data.X, data.y, agents=owners, classes=np.unique(data.y)
        )
    return KernelMeshRegressor(graph=graph, **settings).partial_fit(data.X, data.y, agents=owners)


def alone(data: sets.Data, rng: np.random.Generator, **settings: object) -> float:
    """The score of one learner: the mean over several orders of the rows."""
    reached = []
    for _ in range(ORDERS):
        order = rng.permutation(len(data.y))
        shuffled = data._replace(X=data.X[order], y=data.y[order])
        reached += scores(mesh(shuffled, Graph.line(1), np.zeros(len(order), dtype=np.int64), **settings), data).tolist()
    return float(np.mean(reached))


def scores(model: KernelMeshClassifier | KernelMeshRegressor, data: sets.Data) -> Floats:
    """Of every agent on the held-out rows: accuracy in percent, or R² in hundredths."""
    score = accuracy_score if data.classifies else r2_score
    return np.array([100.0 * score(data.held_y, model.predict(data.held_X, agent=agent)) for agent in model.agents_])


def spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2f}"


def compared(name: str) -> list[Line]:
    """One learner, and networks of every degree."""
    limit, unit = (0.3, "points") if sets.classifies(name) else (1.0, "hundredths of R²")
    one, found, rows = [], {degree: [] for degree in DEGREES}, []
    for seed in SEEDS:
        data = sets.load(name, seed=seed)
        rng = np.random.default_rng(seed)
        owners = dealt(data.y, rng)
        rows.append(np.bincount(owners, minlength=AGENTS))
        one.append(alone(data, rng))
        for degree in DEGREES:
            model = mesh(data, Graph.small_world(AGENTS, nearest=degree, rewiring=0.3, rng=rng), owners)
            floats, order = model.floats_sent_.sum() / len(owners), model.model_order_.max()
            found[degree].append((scores(model, data), floats, order))
    lines = [Line(f"{name}: one learner", f"{spread(one)}; agents have {np.min(rows)} to {np.max(rows)} rows")]
    for degree, runs in found.items():
        gaps = [best - reached.min() for best, (reached, *_) in zip(one, runs, strict=True)]
        means = [best - reached.mean() for best, (reached, *_) in zip(one, runs, strict=True)]
        shown = f"{spread(gaps)} (at most {max(gaps):.2f}; mean agent {spread(means)}), "
        shown += f"{np.mean([r[2] for r in runs]):.0f} points, {np.mean([r[1] for r in runs]):.0f} floats/sample"
        lines.append(
            Line(f"{name}, degree {degree}: worst agent behind", shown, f"≤ {limit:g} {unit}", bool(np.mean(gaps) <= limit))
        )
    return lines


def uneven() -> list[Line]:
    """Estimators with their defaults, twenty agents, one pass; accuracy in %, R² in hundredths."""
    lines = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant columns
        for name in SETS:
            lines += compared(name)
            print(
                *(f"{line.what}: {line.shown}" for line in lines[-1 - len(DEGREES) :]), sep="\n", file=sys.stderr, flush=True
            )
    return lines
