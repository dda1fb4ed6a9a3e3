"""Proposition 2: how far agents that minimise the penalised objective disagree at their own points, against p*/c."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

from kernelmesh.agent import Agent, Diverged
from kernelmesh.checks import Floats, Ints, positive, whole
from kernelmesh.consensus import Consensus, Hilbert, Penalty, Proximal, Symmetric
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.role import Experiment, Watch
from kernelmesh.maths.compression import Komp
from kernelmesh.maths.expansion import Expansion
from kernelmesh.maths.graphs import Graph
from kernelmesh.maths.kernels import Gaussian
from kernelmesh.maths.losses import Logistic
from kernelmesh.maths.schedules import InverseTime
from kernelmesh.report import Report, style_of
from kernelmesh.runtimes import simulate
from kernelmesh.streams import ArrayStream, Mixture

__all__ = ["EXPERIMENT", "Config", "Problem"]

_COUPLINGS = (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)
_PROTOCOLS: dict[str, Callable[..., Consensus]] = {
    "penalty": Penalty,
    "proximal": Proximal,
    "symmetric": Symmetric,
    "hilbert": Hilbert,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A problem small enough to be solved exactly: every agent has some samples for ever, two of three classes each."""

    owner: ClassVar[str] = "violation"

    seed: int = 0
    agents: int = 6
    samples: int = 60  # of each agent
    passes: int = 400
    bandwidth: float = 0.6
    regularization: float = 1e-3
    step_size: float = 2.0  # at the start; it falls as a / (b + t)
    batch_size: int = 20

    def __post_init__(self) -> None:
        whole(self.owner, "seed", self.seed, least=0)
        for argument in ("agents", "samples", "passes", "batch_size"):
            whole(self.owner, argument, getattr(self, argument), least=1)
        for argument in ("bandwidth", "regularization", "step_size"):
            positive(self.owner, argument, getattr(self, argument))


@dataclass(frozen=True, eq=False)
class Problem:
    """The samples of every agent, the network, and the minimisers of the penalised objective ψ_c and of its limit."""

    config: Config
    points: tuple[Floats, ...]
    labels: tuple[Ints, ...]
    graph: Graph

    classes: ClassVar[int] = 3

    @classmethod
    def draw(cls, config: Config) -> Problem:
        """Everything random, from the seed."""
        rng = np.random.default_rng(config.seed)
        mixture = Mixture.draw(classes=cls.classes, rng=rng)
        points, labels = [], []
        for agent in range(config.agents):
            x, y = mixture.sample(4 * config.samples, rng=rng)
            seen = np.flatnonzero(y != agent % cls.classes)[: config.samples]
            points.append(x[seen])
            labels.append(y[seen])
        graph = Graph.random(config.agents, probability=0.3, rng=rng)
        return cls(config, tuple(points), tuple(labels), graph)

    @property
    def kernel(self) -> Gaussian:
        """The kernel of every agent."""
        return Gaussian(bandwidth=self.config.bandwidth)

    def violation(self, functions: Sequence[Expansion]) -> float:
        """½ Σ_i Σ_j∈n_i E‖f_i(x_i) − f_j(x_i)‖²."""
        total = 0.0
        for i, around in enumerate(self.graph.neighbours):
            here = functions[i](self.points[i])
            total += sum(float(((here - functions[j](self.points[i])) ** 2).sum(axis=1).mean()) for j in around)
        return 0.5 * total

    def minimise(self, coupling: float) -> tuple[float, list[Expansion]]:
        """The minimum of ψ_c, and the functions that attain it; an infinite c gives p* and one function for all.

        By the representer theorem every function is a combination of kernels at all samples; with K = L Lᵀ and f = L θ the
        norm of f is that of θ, which makes the problem well conditioned.
        """
        everywhere = np.concatenate(self.points)
        n, agents = len(everywhere), len(self.graph)
        gram = self.kernel(everywhere, everywhere) + 1e-10 * np.eye(n)
        root = np.linalg.cholesky(gram)
        ends = np.cumsum([0, *(len(x) for x in self.points)])
        spans = [slice(a, b) for a, b in pairwise(ends)]
        together = coupling == math.inf
        shape = (1 if together else agents, n, self.classes)
        loss, weight = Logistic(), self.config.regularization

        def objective(flat: Floats) -> tuple[float, Floats]:
            theta = flat.reshape(shape)
            values = root @ theta
            push = np.zeros_like(values)
            cost = 0.0
            for i, span in enumerate(spans):
                own = 0 if together else i
                z = values[own, span]
                cost += float(loss.value(z, self.labels[i]).mean()) + 0.5 * weight * float((theta[own] ** 2).sum())
                push[own, span] += loss.slope(z, self.labels[i]) / len(z)
                for j in () if together else self.graph.neighbours[i]:
                    gap = z - values[j, span]
                    cost += 0.5 * coupling * float((gap**2).sum()) / len(z)
                    push[i, span] += coupling * gap / len(z)
                    push[j, span] -= coupling * gap / len(z)
            slope = root.T @ push + weight * (agents if together else 1) * theta
            return cost, slope.ravel()

        options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-14, "gtol": 1e-9}
        found = minimize(objective, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options=options)
        weights = np.linalg.solve(root.T, found.x.reshape(shape))
        return float(found.fun), [
            Expansion(self.kernel, everywhere, w) for w in np.repeat(weights, agents // shape[0], 0)
        ]


def cell(settings: tuple[Config, str, float]) -> Mapping[str, Any]:
    """The violation of one protocol at one c after a long run with falling steps, or that of the exact minimiser."""
    config, name, coupling = settings
    problem = Problem.draw(config)
    if name == "minimiser":
        _, functions = problem.minimise(coupling)
        return {"protocol": name, "coupling": coupling, "violation": problem.violation(functions), "diverged": False}
    half = 0.02 * config.passes * config.samples
    steps = InverseTime(scale=config.step_size * half, offset=half)
    agent = Agent(
        dimension=2,
        outputs=problem.classes,
        kernel=problem.kernel,
        loss=Logistic(),
        step_size=steps,
        regularization=config.regularization,
        compression=Komp.parsimonious(steps, parsimony=0.005),
        consensus=_PROTOCOLS[name](coupling=coupling),
    )
    bound = getattr(agent.consensus, "most", None)
    everywhere = np.concatenate(problem.points)
    if bound and coupling > 0.8 * bound(agent.kernel, everywhere, config.step_size, problem.graph.stiffness):
        return {"protocol": name, "coupling": coupling, "violation": math.nan, "diverged": True}
    streams = [
        ArrayStream(x, y, batch_size=config.batch_size, passes=config.passes, rng=own)
        for x, y, own in zip(
            problem.points,
            problem.labels,
            np.random.default_rng([config.seed, 1]).spawn(len(problem.points)),
            strict=True,
        )
    ]
    try:
        *_, last = simulate(agent, problem.graph, streams)
    except Diverged:
        return {"protocol": name, "coupling": coupling, "violation": math.nan, "diverged": True}
    violation = problem.violation(last.functions)
    return {"protocol": name, "coupling": coupling, "violation": violation, "diverged": False}


def run(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """All penalty protocols over four decades of c, the exact minimiser, and the bound."""
    began = time.perf_counter()
    jobs: dict[str, tuple[Any, Any]] = {
        f"{name}-{coupling:g}": (cell, (config, name, coupling))
        for name in ("minimiser", *_PROTOCOLS)
        for coupling in _COUPLINGS
    }
    done = run_cells(jobs, watch=watch, folder=folder, resume=resume)
    optimum, _ = Problem.draw(config).minimise(math.inf)
    table = [{**line, "bound": optimum / line["coupling"]} for line in done.values()]
    missing = len(jobs) - len(done)
    remark = f"Interrupted: {missing} of {len(jobs)} cells are missing; --resume goes on." if missing else ""
    shares = {
        f"{name}: largest violation / (p*/c)": max(
            (row["violation"] / row["bound"] for row in table if row["protocol"] == name and not row["diverged"]),
            default=math.nan,
        )
        for name in ("minimiser", *_PROTOCOLS)
    }
    summary = {
        "experiment": config.owner,
        "seed": config.seed,
        "complete": not remark,
        "remark": remark,
        "p*": optimum,
        **shares,
        "seconds": time.perf_counter() - began,
    }
    figures = {"figure": _figure(table, optimum)}
    return Report(
        config.owner, dataclasses.asdict(config), summary, {"table": table}, figures, remark, _NOTES, ("table",)
    )


_NOTES = (
    "Proposition 2 bounds the disagreement of the minimiser of the penalised objective by p*/c, p* being the best objective "
    "of agents that agree. The minimiser is computed exactly here. The protocols are stochastic: their last functions "
    "scatter around a limit by an amount that falls with the step size, and only `symmetric` and the minimiser move both "
    "ends of an edge.",
    "`penalty` and `hilbert` are left out where c is above 0.8 times the bound up to which they are stable.",
)


def _figure(table: Sequence[Mapping[str, Any]], optimum: float) -> Figure:
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(_COUPLINGS, [optimum / c for c in _COUPLINGS], color="black", linewidth=2, label="the bound $p^*/c$")
    for place, name in enumerate(("minimiser", *_PROTOCOLS)):
        lines = [line for line in table if line["protocol"] == name and not line["diverged"]]
        told = r"exact minimiser of $\psi_c$" if name == "minimiser" else name
        axes.plot(
            [line["coupling"] for line in lines], [line["violation"] for line in lines], **style_of(place), label=told
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("penalty $c$")
    axes.set_ylabel(r"$\frac{1}{2}\sum_i \sum_{j \in n_i} E \|f_i(x_i) - f_j(x_i)\|^2$")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


EXPERIMENT = Experiment("violation", "Proposition 2: disagreement at the samples against p*/c", Config, run)
