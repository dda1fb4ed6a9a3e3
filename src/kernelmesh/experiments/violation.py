"""Proposition 2: how far agents that minimize the penalized objective disagree at their own points, against p*/c."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from kernelmesh.agent import Agent
from kernelmesh.checks import integer, positive
from kernelmesh.consensus import Consensus, Explicit, Hilbert, Penalty, Proximal, Symmetric
from kernelmesh.errors import Diverged
from kernelmesh.experiments.base import Experiment, Watch
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.exact import Problem
from kernelmesh.numerics.compression import Komp
from kernelmesh.numerics.losses import Logistic
from kernelmesh.numerics.schedules import InverseTime
from kernelmesh.report import Report, style_of
from kernelmesh.runtimes import simulate
from kernelmesh.streams import ArrayStream

__all__ = ["COUPLINGS", "EXPERIMENT", "LINES", "Config", "cell", "draw"]

COUPLINGS = (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)
_PROTOCOLS: dict[str, Callable[..., Consensus]] = {
    "penalty": Penalty,
    "proximal": Proximal,
    "symmetric": Symmetric,
    "hilbert": Hilbert,
}
LINES = ("minimizer", *_PROTOCOLS)


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
        integer(self.owner, "seed", self.seed, minimum=0)
        for argument in ("agents", "samples", "passes", "batch_size"):
            integer(self.owner, argument, getattr(self, argument), minimum=1)
        for argument in ("bandwidth", "regularization", "step_size"):
            positive(self.owner, argument, getattr(self, argument))

    def problem(self) -> Problem:
        """The samples and the network."""
        return Problem.draw(
            seed=self.seed,
            agents=self.agents,
            samples=self.samples,
            bandwidth=self.bandwidth,
            regularization=self.regularization,
        )


def cell(settings: tuple[Config, str, float]) -> Mapping[str, Any]:
    """The violation of one protocol at one c after a long run with falling steps, or that of the exact minimizer."""
    config, name, coupling = settings
    problem = config.problem()
    if name == "minimizer":
        _, functions = problem.minimize(coupling)
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
    batches = [x[: config.batch_size] for x in problem.points]
    if isinstance(agent.consensus, Explicit) and coupling > 0.8 * agent.consensus.most(
        agent.kernel, batches, config.step_size, problem.graph.stiffness
    ):
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
    """All penalty protocols over four decades of c, the exact minimizer, and the bound."""
    began = time.perf_counter()
    jobs: dict[str, tuple[Any, Any]] = {
        f"{name}-{coupling:g}": (cell, (config, name, coupling)) for name in LINES for coupling in COUPLINGS
    }
    done = run_cells(jobs, watch=watch, folder=folder, resume=resume)
    optimum, _ = config.problem().minimize(math.inf)
    table = [{**line, "bound": optimum / line["coupling"]} for line in done.values()]
    missing = len(jobs) - len(done)
    remark = f"Interrupted: {missing} of {len(jobs)} cells are missing; --resume goes on." if missing else ""
    shares = {
        f"{name}: largest violation / (p*/c)": max(
            (row["violation"] / row["bound"] for row in table if row["protocol"] == name and not row["diverged"]),
            default=math.nan,
        )
        for name in LINES
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
    figures = {"figure": draw(table, optimum)}
    return Report(
        config.owner, dataclasses.asdict(config), summary, {"table": table}, figures, remark, _NOTES, ("table",)
    )


_NOTES = (
    "Proposition 2 bounds the disagreement of the minimizer of the penalized objective by p*/c, p* being the best objective "
    "of agents that agree. The minimizer is computed exactly here. The protocols are stochastic: their last functions "
    "scatter around a limit by an amount that falls with the step size, and only `symmetric` and the minimizer move both "
    "ends of an edge.",
    "`penalty` and `hilbert` are left out where c is above 0.8 times the bound up to which they are stable.",
)


def draw(table: Sequence[Mapping[str, Any]], optimum: float) -> Figure:
    """Violations against c, with the bound."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(COUPLINGS, [optimum / c for c in COUPLINGS], color="black", linewidth=2, label="the bound $p^*/c$")
    for place, name in enumerate(LINES):
        lines = [line for line in table if line["protocol"] == name and not line["diverged"]]
        told = r"exact minimizer of $\psi_c$" if name == "minimizer" else name
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
