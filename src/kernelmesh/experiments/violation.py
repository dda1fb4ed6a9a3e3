"""Proposition 2: the disagreement at the samples of agents that minimize the penalized objective, against the bound p*/c."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from kernelmesh import ConsensusProtocol, Diverged, Hilbert, InverseTime, Penalty, register, simulate
from kernelmesh.experiments import Cell, Experiment, Findings, Session
from kernelmesh.experiments.exact import ProblemConfig
from kernelmesh.experiments.settings import Count, Positive
from kernelmesh.report import panel, style_of
from kernelmesh.schema import setting

__all__ = ["EXPERIMENT", "Config", "bounded", "cells", "draw", "over_bound"]

COUPLINGS = (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)
_PROTOCOLS: dict[str, Callable[..., ConsensusProtocol]] = {
    "penalty": Penalty,
    "implicit-penalty": partial(Penalty, implicit=True),
    "hilbert": Hilbert,
}
LINES = ("minimizer", *_PROTOCOLS)


@dataclass(frozen=True, kw_only=True)
class Config(ProblemConfig, owner="violation"):
    """A problem small enough to be solved exactly: every agent has some samples for ever, two of three classes each."""

    step_size: Positive = setting(2.0, doc="initial η; it decreases as a / (b + t)")
    batch_size: Count = setting(20, doc="samples per step")


def cell(settings: tuple[Config, str, float]) -> Mapping[str, Any]:
    """The violation of one protocol at one c after a long run with falling steps, or that of the exact minimizer."""
    violation = _violation(*settings)
    return {"protocol": settings[1], "coupling": settings[2], "violation": violation, "diverged": math.isnan(violation)}


def _violation(config: Config, name: str, coupling: float) -> float:
    """NaN where the protocol diverges, or where c is so large that it would sooner or later."""
    problem = config.problem()
    if name == "minimizer":
        return problem.violation(problem.minimize(coupling)[1])
    half = 0.02 * config.passes * config.samples
    steps = InverseTime(scale=config.step_size * half, offset=half)
    agent = problem.agent(_PROTOCOLS[name](coupling=coupling), step_size=steps, parsimony=0.005)
    batches = [x[: config.batch_size] for x in problem.points]
    if coupling > 0.8 * agent.protocol.max_stable_penalty(agent.kernel, batches, config.step_size, problem.graph.stiffness):
        return math.nan
    streams = problem.streams([config.seed, 1], batch_size=config.batch_size, passes=config.passes)
    try:
        *_, last = simulate(agent, problem.graph, streams)
    except Diverged:
        return math.nan
    return problem.violation(last.functions)


def cells(config: Config) -> dict[str, Cell]:
    """All penalty protocols over four decades of c, and the exact minimizer."""
    return {f"{name}-{c:g}": Cell(cell, (config, name, c)) for name in LINES for c in COUPLINGS}


def bounded(config: Config, rows: Iterable[Mapping[str, Any]]) -> tuple[float, list[dict[str, Any]]]:
    """p*, and the rows with the bound p*/c."""
    optimum, _ = config.problem().minimize(math.inf)
    return optimum, [{**row, "bound": optimum / row["coupling"]} for row in rows]


def over_bound(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """The largest violation of one line, as a share of the bound."""
    found = (row["violation"] / row["bound"] for row in rows if row["protocol"] == name and not row["diverged"])
    return max(found, default=math.nan)


def run(config: Config, session: Session) -> Findings:
    """Every line, and the bound."""
    optimum, table = bounded(config, session.compute(cells(config)).values())
    shares = {f"{name.replace('-', '_')}_violation_over_bound": over_bound(table, name) for name in LINES}
    return Findings(
        summary={"seed": config.seed, "optimum": optimum, **shares},
        tables={"table": table},
        figures={"figure": draw(table, optimum)},
        paragraphs=_PARAGRAPHS,
    )


_PARAGRAPHS = (
    "Proposition 2 bounds the disagreement of the minimizer of the penalized objective by p*/c, where p* is the best "
    "objective of agents that agree. Here, the minimizer is computed exactly. The protocols are stochastic: their "
    "last functions scatter around a limit by an amount that decreases with the step size, and only "
    "the minimizer moves both ends of an edge.",
    "`penalty` and `hilbert` are omitted for c above 0.8 times their stability limit.",
)


def draw(table: Sequence[Mapping[str, Any]], optimum: float) -> Figure:
    """Violations against c, with the bound."""
    violation = r"$\frac{1}{2}\sum_i \sum_{j \in n_i} E \|f_i(x_i) - f_j(x_i)\|^2$"
    figure, axes = panel("penalty $c$", violation, size=(8, 5.5), logarithmic="xy")
    axes.plot(COUPLINGS, [optimum / c for c in COUPLINGS], color="black", linewidth=2, label="the bound $p^*/c$")
    for index, name in enumerate(LINES):
        lines = [line for line in table if line["protocol"] == name and not line["diverged"]]
        label = r"exact minimizer of $\psi_c$" if name == "minimizer" else name
        axes.plot([line["coupling"] for line in lines], [line["violation"] for line in lines], **style_of(index), label=label)
    axes.legend()
    return figure


EXPERIMENT = Experiment(
    name="violation", about="Proposition 2: disagreement at the samples against p*/c", config=Config, run=run
)
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
