"""The paper's guarantees on live runs, each with its bound drawn in."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from kernelmesh.agent import Agent
from kernelmesh.checks import Floats, integer, positive
from kernelmesh.consensus import Penalty, Proximal, Symmetric
from kernelmesh.experiments import violation
from kernelmesh.experiments.base import Experiment, Watch
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.exact import Problem
from kernelmesh.metrics import disagreement, projection_gap
from kernelmesh.numerics.compression import Komp
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic
from kernelmesh.numerics.schedules import InverseTime, Schedule
from kernelmesh.report import COLORS, Report, style_of
from kernelmesh.runtimes import simulate
from kernelmesh.streams import ArrayStream, Mixture

__all__ = ["EXPERIMENT", "Config"]

_STEPS = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)
_COUPLINGS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
_PARSIMONIES = (0.02, 0.04, 0.08)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All agents draw from the same few samples for the convergence runs, so that the minimizer is known exactly."""

    owner: ClassVar[str] = "theory"

    seed: int = 0
    agents: int = 4
    samples: int = 60
    passes: int = 1500
    bandwidth: float = 0.6
    regularization: float = 0.02
    coupling: float = 0.05
    parsimony: float = 0.04
    batch_size: int = 4
    stream: int = 50_000  # samples of each agent in the run that watches the model order

    def __post_init__(self) -> None:
        integer(self.owner, "seed", self.seed, minimum=0)
        for argument in ("agents", "samples", "passes", "batch_size", "stream"):
            integer(self.owner, argument, getattr(self, argument), minimum=1)
        for argument in ("bandwidth", "regularization", "coupling", "parsimony"):
            positive(self.owner, argument, getattr(self, argument))

    def problem(self) -> Problem:
        """The shared samples and the network."""
        return Problem.draw(
            seed=self.seed,
            agents=self.agents,
            samples=self.samples,
            bandwidth=self.bandwidth,
            regularization=self.regularization,
            shared=True,
        )


def _agent(config: Config, step_size: Schedule | float, compression: Komp) -> Agent:
    return Agent(
        dimension=2,
        outputs=Problem.classes,
        kernel=Gaussian(bandwidth=config.bandwidth),
        loss=Logistic(),
        step_size=step_size,
        regularization=config.regularization,
        compression=compression,
        consensus=Penalty(coupling=config.coupling),
    )


def _minimizer(problem: Problem) -> Expansion:
    """All agents have the same samples, so whatever c is, all minimize where one of them alone would."""
    alone = Problem(problem.kernel, problem.regularization, problem.points[:1], problem.labels[:1], Graph.line(1))
    return alone.minimize(math.inf)[1][0]


def converge(settings: tuple[Config, float]) -> Mapping[str, Any]:
    """‖f_t − f*‖ over all agents: with a constant step size, or (0) with one that falls as a / (b + t) and ε = η²."""
    config, step = settings
    problem = config.problem()
    best = _minimizer(problem)
    falling = InverseTime(scale=1000.0, offset=1000.0)
    if step:
        agent = _agent(config, step, Komp.parsimonious(step, parsimony=config.parsimony))
    else:
        agent = dataclasses.replace(_agent(config, falling, Komp.vanishing(falling)), radius=2.0 * best.norm())
    streams = [
        ArrayStream(problem.points[0], problem.labels[0], batch_size=config.batch_size, passes=config.passes, rng=own)
        for own in np.random.default_rng([config.seed, 2]).spawn(config.agents)
    ]
    path: list[list[float]] = []
    noise, rounds = 0.0, len(streams[0])
    wanted = set(np.unique(np.geomspace(1, rounds, 60).astype(int)).tolist()) | set(range(rounds // 2, rounds + 1, 25))
    for now in simulate(agent, problem.graph, streams):
        if now.number in wanted:
            distance = math.sqrt(sum(f.distance(best) ** 2 for f in now.functions))
            order = float(np.mean([f.order for f in now.functions]))
            path.append([now.samples[0], distance, order])
            noise = max(noise, _noise(config, problem, now.functions))
    return {"step": step, "path": path, "noise": noise}


def _noise(config: Config, problem: Problem, functions: Sequence[Expansion]) -> float:
    """E‖∇̂‖² of one mini-batch, stacked over the agents: the σ² of the theory, at most B times smaller than for one sample."""
    total = 0.0
    x, y = problem.points[0], problem.labels[0]
    gram = problem.kernel(x, x)
    values = [f(x) for f in functions]
    for i, f in enumerate(functions):
        push = Logistic().slope(values[i], y)
        for j in problem.graph.neighbors[i]:
            push = push + config.coupling * (values[i] - values[j])
        mean = push / len(x)
        square = float((mean * (gram @ mean)).sum())
        spread = float((push**2).sum(axis=1).mean()) - square  # κ(x, x) = 1
        total += square + spread / config.batch_size + config.regularization**2 * f.inner(f)
    return total


def order(settings: tuple[Config, float]) -> Mapping[str, Any]:
    """Model order over a long stream with constant steps, its bound, and Proposition 1 in every round."""
    config, parsimony = settings
    rng = np.random.default_rng([config.seed, 3])
    mixture = Mixture.draw(rng=rng)
    graph = Graph.random(config.agents, probability=0.3, rng=rng)
    eta = 3.0
    agent = Agent(
        dimension=2,
        outputs=mixture.classes,
        kernel=Gaussian(bandwidth=config.bandwidth),
        loss=Logistic(),
        step_size=eta,
        regularization=1e-6,
        compression=Komp.parsimonious(eta, parsimony=parsimony),
        consensus=Proximal(coupling=config.coupling),
    )
    streams = [ArrayStream(*mixture.sample(config.stream, rng=rng)) for _ in range(config.agents)]
    path, gaps = [], []
    for now in simulate(agent, graph, streams):
        gap, bound = projection_gap(now)
        gaps.append([now.samples[0], gap, bound])
        if now.number % 20 == 0 or now.number == 1:
            path.append([now.samples[0], float(max(f.order for f in now.functions))])
    # a sample whose feature lies within ε / (η L) of the dictionary's span never makes it grow, L = √2 for this loss
    reach = parsimony * math.sqrt(eta) / math.sqrt(2)
    seen = np.concatenate([np.asarray(stream.points) for stream in streams])
    return {"parsimony": parsimony, "path": path, "gaps": gaps, "bound": _packing(seen, config.bandwidth, reach)}


def _packing(points: Floats, bandwidth: float, reach: float) -> int:
    """How many points can be chosen one after the other, each farther than `reach` from those before in feature space.

    On a grid so fine that two points in one cell are within reach: every cell counts once, which can only count too many.
    """
    # ‖κ(x) − κ(z)‖² = 2 − 2 exp(−‖x − z‖²/2d²) ≤ reach²
    distance = bandwidth * math.sqrt(-2.0 * math.log1p(-0.5 * reach**2))
    cells = np.floor(points / (distance / math.sqrt(points.shape[1]))).astype(np.int64)
    return len(np.unique(cells, axis=0))


def agreement(settings: tuple[Config, float]) -> Mapping[str, Any]:
    """Theorem 2: Σ‖f_i − f_j‖² of the exact minimizer of ψ_c, and of live runs of symmetric, as c grows."""
    config, coupling = settings
    problem = dataclasses.replace(violation.Config(seed=config.seed), samples=30).problem()
    _, functions = problem.minimize(coupling)
    steps = InverseTime(scale=2.0 * 2000, offset=2000.0)
    agent = Agent(
        dimension=2,
        outputs=Problem.classes,
        kernel=problem.kernel,
        loss=Logistic(),
        step_size=steps,
        regularization=problem.regularization,
        compression=Komp.parsimonious(steps, parsimony=0.01),
        consensus=Symmetric(coupling=coupling),
    )
    own = np.random.default_rng([config.seed, 4]).spawn(len(problem.graph))
    data = zip(problem.points, problem.labels, own, strict=True)
    *_, last = simulate(
        agent, problem.graph, [ArrayStream(x, y, batch_size=10, passes=400, rng=rng) for x, y, rng in data]
    )
    return {
        "coupling": coupling,
        "minimizer": disagreement(functions, problem.graph),
        "symmetric": disagreement(last.functions, problem.graph),
    }


def run(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """Everything, on all cores."""
    began = time.perf_counter()
    jobs: dict[str, tuple[Any, Any]] = {f"converge-{step:g}": (converge, (config, step)) for step in (0.0, *_STEPS)}
    jobs |= {f"order-{k:g}": (order, (config, k)) for k in _PARSIMONIES}
    jobs |= {f"agreement-{c:g}": (agreement, (config, c)) for c in _COUPLINGS}
    small = violation.Config(seed=config.seed)
    jobs |= {
        f"violation-{name}-{c:g}": (violation.cell, (small, name, c))
        for name in violation.LINES
        for c in violation.COUPLINGS
    }
    done = run_cells(jobs, watch=watch, folder=folder, resume=resume)
    missing = len(jobs) - len(done)
    remark = f"Interrupted: {missing} of {len(jobs)} cells are missing; --resume goes on." if missing else ""
    summary: dict[str, Any] = {
        "experiment": config.owner,
        "seed": config.seed,
        "complete": not remark,
        "remark": remark,
    }
    figures: dict[str, Figure] = {}
    if not missing:
        orders = [done[f"order-{k:g}"] for k in _PARSIMONIES]
        radii = _radii(config, done)
        gaps = np.array(orders[1]["gaps"])
        falling = np.array(done["converge-0"]["path"])
        optimum, _ = small.problem().minimize(math.inf)
        rows = [
            {**line, "bound": optimum / line["coupling"]}
            for name, line in done.items()
            if name.startswith("violation-")
        ]
        kept = [row for row in rows if row["protocol"] == "minimizer"]
        ends = [done[f"agreement-{c:g}"] for c in _COUPLINGS]
        summary |= {
            "proposition 1: largest gap / bound": float((gaps[:, 1] / gaps[:, 2]).max()),
            "proposition 1: rounds checked": len(gaps),
            "model order: largest": max(point[1] for line in orders for point in line["path"]),
            "model order: bound at K = 0.04": orders[1]["bound"],
            "corollary 1: distance after 1 % of the run": _at(falling, 0.01),
            "corollary 1: distance at the end": float(falling[-1, 1]),
            "theorem 1: exponent of the radius in the step size (1/2 expected)": radii["exponent"],
            "theorem 1: largest radius / bound": float(max(np.array(radii["radius"]) / np.array(radii["bound"]))),
            "proposition 2: largest violation / bound": max(row["violation"] / row["bound"] for row in kept),
            "theorem 2: disagreement at the least c": ends[0]["minimizer"],
            "theorem 2: disagreement at the largest c": ends[-1]["minimizer"],
        }
        figures = {
            "proposition-1": _draw_gaps(gaps),
            "model-order": _draw_orders(orders),
            "corollary-1": _draw_falling(falling),
            "theorem-1": _draw_radii(radii),
            "proposition-2": violation.draw(rows, optimum),
            "theorem-2": _draw_agreement(ends),
        }
    summary["seconds"] = time.perf_counter() - began
    return Report(config.owner, dataclasses.asdict(config), summary, {}, figures, remark, _NOTES)


_NOTES = (
    "All agents draw from the same 60 samples in the convergence runs: then the minimizer of the penalized objective is the "
    "same function for all of them, whatever c is, and can be computed exactly. For agents with different samples the "
    "printed update is not the gradient of the penalized objective (it moves only one end of each edge), and theorems about "
    "that gradient do not apply to it.",
    "The bound on the model order counts cells of a grid over the samples within which features are indistinguishable at the "
    "budget. It is finite, which is what the theorem says, and very loose.",
    "The bound of Theorem 1 uses the largest gradient noise that was seen in the run.",
)


def _at(path: Floats, share: float) -> float:
    return float(path[np.searchsorted(path[:, 0], share * path[-1, 0]), 1])


def _radii(config: Config, done: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The smallest distance in the second half of each run, against (√η/λ) [KV + √(K²V² + λσ²)]."""
    radius, bound = [], []
    for step in _STEPS:
        path = np.array(done[f"converge-{step:g}"]["path"])
        late = path[path[:, 0] >= 0.5 * path[-1, 0], 1]
        radius.append(float(late.min()))
        kv, noise = config.parsimony * config.agents, done[f"converge-{step:g}"]["noise"]
        root = math.sqrt(kv**2 + config.regularization * noise)
        bound.append(math.sqrt(step) / config.regularization * (kv + root))
    exponent = float(np.polyfit(np.log(_STEPS), np.log(radius), 1)[0])
    return {"step": list(_STEPS), "radius": radius, "bound": bound, "exponent": exponent}


def _panel(x: str, y: str, *, logarithmic: str = "") -> tuple[Figure, Any]:
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if "x" in logarithmic:
        axes.set_xscale("log")
    if "y" in logarithmic:
        axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    return figure, axes


def _line(place: int) -> dict[str, Any]:
    return {**style_of(place), "marker": ""}


def _draw_gaps(gaps: Floats) -> Figure:
    figure, axes = _panel("samples per agent", "norm in the Hilbert space", logarithmic="y")
    axes.plot(
        gaps[:, 0], np.maximum(gaps[:, 1], 1e-6), color=COLORS[0], linewidth=0.6, label="projected − plain gradient"
    )
    axes.plot(gaps[:, 0], gaps[:, 2], color="black", linewidth=2, label=r"the bound $\epsilon V / \eta$")
    axes.set_title("Proposition 1")
    axes.legend()
    return figure


def _draw_orders(orders: Sequence[Mapping[str, Any]]) -> Figure:
    figure, axes = _panel("samples per agent", "model order, largest of all agents", logarithmic="y")
    for place, line in enumerate(orders):
        path = np.array(line["path"])
        axes.plot(path[:, 0], path[:, 1], **_line(place), label=f"K = {line['parsimony']:g}")
        axes.axhline(
            line["bound"], **{**_line(place), "linewidth": 0.8}, alpha=0.6, label=f"its bound: {line['bound']}"
        )
    axes.set_title("Finite model order under constant steps")
    axes.legend(fontsize=8)
    return figure


def _draw_falling(path: Floats) -> Figure:
    figure, axes = _panel("samples per agent", r"$\|f_t - f^*\|$, all agents", logarithmic="xy")
    axes.plot(path[:, 0], path[:, 1], color=COLORS[0], label=r"$\eta_t = a/(b+t)$, $\epsilon_t = \eta_t^2$")
    late = path[path[:, 0] > 2000]
    if len(late):
        guide = late[0, 1] * np.sqrt(late[0, 0] / late[:, 0])
        axes.plot(late[:, 0], guide, color="black", linestyle=":", label=r"$t^{-1/2}$, for comparison")
    axes.set_title("Corollary 1: convergence with falling steps")
    axes.legend()
    return figure


def _draw_radii(radii: Mapping[str, Any]) -> Figure:
    figure, axes = _panel(r"$\sqrt{\eta}$", r"$\liminf \|f_t - f^*\|$, all agents", logarithmic="xy")
    roots = np.sqrt(radii["step"])
    axes.plot(roots, radii["radius"], **style_of(0), label=f"measured, exponent in η: {radii['exponent']:.2f}")
    axes.plot(roots, radii["bound"], color="black", linewidth=2, label="the bound of Theorem 1")
    axes.set_title(r"Theorem 1: the radius shrinks with $\sqrt{\eta}$")
    axes.legend()
    return figure


def _draw_agreement(ends: Sequence[Mapping[str, Any]]) -> Figure:
    figure, axes = _panel("penalty $c$", r"disagreement $\sum_{(i,j)} \|f_i - f_j\|^2$", logarithmic="xy")
    c = [line["coupling"] for line in ends]
    axes.plot(c, [line["minimizer"] for line in ends], **style_of(0), label=r"exact minimizer of $\psi_c$")
    axes.plot(c, [line["symmetric"] for line in ends], **style_of(1), label="symmetric, live")
    axes.set_title("Theorem 2: consensus in the Hilbert norm as c grows")
    axes.legend()
    return figure


EXPERIMENT = Experiment("theory", "the paper's guarantees on live runs, each with its bound", Config, run)
