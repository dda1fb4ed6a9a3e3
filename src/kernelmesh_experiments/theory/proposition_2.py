"""Proposition 2: the disagreement at the samples of minimizers of the penalized objective is at most p*/c."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kernelmesh import ConsensusProtocol, Diverged, Hilbert, InverseTime, Komp, Penalty, simulate
from kernelmesh_experiments.cells import Cell, Results
from kernelmesh_experiments.exact import ProblemConfig
from kernelmesh_experiments.report import panel, style_of
from kernelmesh_experiments.theory.claims import Claim, Config, Summary

__all__ = ["CLAIM"]

_COUPLINGS = (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)
_PROTOCOLS: dict[str, Callable[..., ConsensusProtocol]] = {
    "penalty": Penalty,
    "implicit-penalty": partial(Penalty, implicit=True),
    "hilbert": Hilbert,
}
_LINES = ("minimizer", *_PROTOCOLS)


def cells(config: Config) -> dict[str, Cell]:
    """All penalty protocols over four decades of c, and the exact minimizer."""
    problem = config.separate()
    return {f"violation-{name}-{c:g}": Cell(cell, (problem, name, c)) for name in _LINES for c in _COUPLINGS}


def cell(settings: tuple[ProblemConfig, str, float]) -> Mapping[str, Any]:
    """The violation of one protocol at one c after a long run with falling steps, or that of the exact minimizer."""
    violation = _violation(*settings)
    return {"protocol": settings[1], "coupling": settings[2], "violation": violation, "diverged": math.isnan(violation)}


def _violation(config: ProblemConfig, name: str, coupling: float) -> float:
    """NaN where the protocol diverges, or where c is so large that it would sooner or later."""
    problem = config.problem()
    if name == "minimizer":
        return problem.violation(problem.minimize(coupling)[1])
    eta, batch, half = 2.0, 20, 0.02 * config.passes * config.samples
    steps = InverseTime(scale=eta * half, offset=half)
    agent = problem.agent(_PROTOCOLS[name](coupling=coupling), step_size=steps, compression=Komp(parsimony=0.005))
    batches = [x[:batch] for x in problem.points]
    if coupling > 0.8 * agent.protocol.max_stable_penalty(agent.kernel, batches, eta, problem.graph.stiffness):
        return math.nan
    streams = problem.streams([config.seed, 1], batch_size=batch, passes=config.passes)
    try:
        *_, last = simulate(agent, problem.graph, streams)
    except Diverged:
        return math.nan
    return problem.violation(last.functions)


def summarize(config: Config, done: Results) -> Summary:
    """p*, and the largest violation of each line as a share of the bound."""
    optimum, _ = config.separate().problem().minimize(math.inf)
    rows = [done[name] for name in cells(config) if not done[name]["diverged"]]
    violation = r"$\frac{1}{2}\sum_i \sum_{j \in n_i} E \|f_i(x_i) - f_j(x_i)\|^2$"
    figure, axes = panel("penalty $c$", violation, size=(8, 5.5), logarithmic="xy")
    axes.plot(_COUPLINGS, [optimum / c for c in _COUPLINGS], color="black", linewidth=2, label="the bound $p^*/c$")
    numbers = {"proposition_2_optimum": optimum}
    for index, name in enumerate(_LINES):
        lines = [(row["coupling"], row["violation"]) for row in rows if row["protocol"] == name]
        label = r"exact minimizer of $\psi_c$" if name == "minimizer" else name
        axes.plot([c for c, _ in lines], [value for _, value in lines], **style_of(index), label=label)
        key = "proposition_2_violation_over_bound" if name == "minimizer" else f"proposition_2_{name}_over_bound"
        numbers[key.replace("-", "_")] = max((value * c / optimum for c, value in lines), default=math.nan)
    axes.legend()
    return numbers, figure


CLAIM = Claim(name="proposition-2", cells=cells, summarize=summarize)
