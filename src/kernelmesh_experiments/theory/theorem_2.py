"""Theorem 2: the minimizers of the penalized objective agree in the Hilbert norm as c grows."""

from collections.abc import Mapping
from typing import Any

from kernelmesh import InverseTime, Komp, Penalty, simulate
from kernelmesh.metrics import disagreement
from kernelmesh_experiments.cells import Cell, Results
from kernelmesh_experiments.report import panel, style_of
from kernelmesh_experiments.theory.claims import Claim, Config, Summary

__all__ = ["CLAIM", "agreement"]

_COUPLINGS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def cells(config: Config) -> dict[str, Cell]:
    """The minimizer and a run for each c."""
    return {f"agreement-{c:g}": Cell(agreement, (config, c)) for c in _COUPLINGS}


def agreement(settings: tuple[Config, float]) -> Mapping[str, Any]:
    """Σ‖f_i − f_j‖² of the exact minimizer of ψ_c, and of live runs of the implicit penalty, as c grows."""
    config, coupling = settings
    separate = config.separate(samples=30)
    problem = separate.problem()
    _, functions = problem.minimize(coupling)
    steps = InverseTime(scale=2.0 * 2000, offset=2000.0)
    agent = problem.agent(Penalty(coupling=coupling, implicit=True), step_size=steps, compression=Komp(parsimony=0.01))
    *_, last = simulate(agent, problem.graph, problem.streams([config.seed, 4], batch_size=10, passes=separate.passes))
    return {
        "coupling": coupling,
        "minimizer": disagreement(functions, problem.graph),
        "penalty": disagreement(last.functions, problem.graph),
    }


def summarize(config: Config, done: Results) -> Summary:
    """The disagreement of the minimizer at the smallest c and at the largest."""
    runs = [done[name] for name in cells(config)]
    figure, axes = panel("penalty $c$", r"disagreement $\sum_{(i,j)} \|f_i - f_j\|^2$", logarithmic="xy")
    for index, (line, label) in enumerate(
        (("minimizer", r"exact minimizer of $\psi_c$"), ("penalty", "implicit penalty, live"))
    ):
        axes.plot(_COUPLINGS, [run[line] for run in runs], **style_of(index), label=label)
    axes.set_title("Theorem 2: consensus in the Hilbert norm as c grows")
    axes.legend()
    ends = [run["minimizer"] for run in (runs[0], runs[-1])]
    return {"theorem_2_disagreement_smallest_c": ends[0], "theorem_2_disagreement_largest_c": ends[1]}, figure


CLAIM = Claim(name="theorem-2", cells=cells, summarize=summarize)
