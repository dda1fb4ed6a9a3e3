"""Real data, dealt out unevenly to twenty agents: what they learn in one pass, next to one learner that has it all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.preprocessing import LabelEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from cases import Line, at_most
from kernelmesh import (
    Agent,
    ArrayStream,
    Averaged,
    Consensus,
    Diffusion,
    ExactDiffusion,
    Gaussian,
    Graph,
    Komp,
    Landmarks,
    Local,
    Logistic,
    Rule,
    SharedDictionary,
    SharedDiffusion,
    SharedStatistics,
    simulate,
)
from kernelmesh.checks import Floats, Ints
from kernelmesh.streams import deal_unevenly
from sets import load

_AGENTS, _BATCH, _CONCENTRATION = 20, 16, 0.1
_PROBABILITY = 0.2  # of an edge each way, as in the paper: about seven neighbors
_SETS = ("penbased", "letter")


class Task(NamedTuple):
    """A set, who sees which rows of it, and who talks to whom."""

    points: Floats
    labels: Ints
    held_points: Floats
    held_labels: Ints
    rows: list[Ints]
    graph: Graph

    @property
    def outputs(self) -> int:
        return int(self.labels.max()) + 1


class Reached(NamedTuple):
    """Accuracies in percent, and numbers sent per sample."""

    mean: float
    worst: float
    floats: float
    order: float


def task(name: str, seed: int) -> Task:
    data = load(name, seed=seed)
    scaler, encoder = StandardScaler().fit(data.X), LabelEncoder().fit(data.y)
    labels = encoder.transform(data.y)
    rng = np.random.default_rng(seed)
    graph = Graph.random(_AGENTS, probability=_PROBABILITY, rng=rng)
    rows = deal_unevenly(labels, agents=_AGENTS, concentration=_CONCENTRATION, rng=rng)
    held = scaler.transform(data.held_X), encoder.transform(data.held_y)
    return Task(scaler.transform(data.X), labels, *held, rows, graph)


def reached(task: Task, graph: Graph, rows: list[Ints], rule: Rule, consensus: Consensus, **rates: object) -> Reached:
    agent = Agent(
        dimension=task.points.shape[1],
        outputs=task.outputs,
        kernel=Gaussian(bandwidth=np.sqrt(task.points.shape[1] / 2)),
        loss=Logistic(),
        rule=rule,
        consensus=consensus,
        **rates,
    )
    streams = [ArrayStream(task.points[mine], task.labels[mine], batch_size=_BATCH) for mine in rows]
    *_, last = simulate(agent, graph, streams)
    right = [100.0 * (f(task.held_points).argmax(axis=1) == task.held_labels).mean() for f in last.functions]
    floats = last.floats_sent.sum() / sum(last.samples)
    return Reached(float(np.mean(right)), min(right), float(floats), float(np.mean([f.order for f in last.functions])))


def uneven() -> list[Line]:
    """Twenty agents, classes dealt by Dirichlet(0.1), mini-batches of 16, one pass: accuracy in %, seeds 0 to 2."""
    lines = []
    large = {"step_size": 30.0, "compression": Komp.averaging(30.0, max_order=200)}
    points = {"step_size": 30.0, "compression": SharedDictionary(max_order=200)}
    whole = {"regularization": _AGENTS * Landmarks.usual_regularization}
    exact = ExactDiffusion(budget=0.015 * 30.0**0.5)
    for name in _SETS:
        found: dict[str, list[Reached]] = {}
        for seed in range(3):
            drawn = task(name, seed)
            everything = [np.random.default_rng(seed).permutation(np.concatenate(drawn.rows))]
            with threadpool_limits(1):
                for what, graph, rows, rule, consensus, rates in (
                    ("one learner", Graph.line(1), everything, Landmarks(), Local(), whole),
                    ("alone", drawn.graph, drawn.rows, Landmarks(), Local(), {}),
                    ("shared statistics", drawn.graph, drawn.rows, Landmarks(), SharedStatistics(), {}),
                    ("shared statistics, every=4", drawn.graph, drawn.rows, Landmarks(), SharedStatistics(every=4), {}),
                    ("averaged, shared diffusion", drawn.graph, drawn.rows, Averaged(), SharedDiffusion(), points),
                    (
                        "averaged, shared diffusion, every=4",
                        drawn.graph,
                        drawn.rows,
                        Averaged(),
                        SharedDiffusion(every=4),
                        points,
                    ),
                    ("averaged, diffusion", drawn.graph, drawn.rows, Averaged(), Diffusion(), large),
                    ("averaged, exact diffusion", drawn.graph, drawn.rows, Averaged(), exact, large),
                ):
                    found.setdefault(what, []).append(reached(drawn, graph, rows, rule, consensus, **rates))
        means = {what: Reached(*np.mean(runs, axis=0)) for what, runs in found.items()}
        best = means["one learner"].mean
        for what, r in means.items():
            shown = f"{r.mean:.1f} (worst {r.worst:.1f}), {r.order:.0f} points, {r.floats:.0f} floats/sample"
            lines.append(Line(f"{name}: {what}", shown))
        shared = means["shared statistics"]
        lines.append(at_most(f"{name}: shared statistics, mean behind one learner", best - shared.mean, 3.0, " points"))
        lines.append(
            at_most(f"{name}: shared statistics, worst agent behind one learner", best - shared.worst, 5.0, " points")
        )
    return lines
