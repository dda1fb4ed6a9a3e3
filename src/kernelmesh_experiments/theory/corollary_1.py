"""Corollary 1: with decreasing steps and budgets, all agents converge to the minimizer."""

import numpy as np

from kernelmesh_experiments.cells import Cell, Results
from kernelmesh_experiments.report import COLORS, panel
from kernelmesh_experiments.theory.claims import Claim, Config, Summary
from kernelmesh_experiments.theory.convergence import convergence_cells

__all__ = ["CLAIM"]


def cells(config: Config) -> dict[str, Cell]:
    """The run with falling steps."""
    return convergence_cells(config, (0.0,))


def summarize(config: Config, done: Results) -> Summary:
    """The distance from the minimizer after 1 % of the run and at its end."""
    (name,) = cells(config)
    path = np.array(done[name]["path"])
    figure, axes = panel("samples per agent", r"$\|f_t - f^*\|$, all agents", logarithmic="xy")
    axes.plot(path[:, 0], path[:, 1], color=COLORS[0], label=r"$\eta_t = a/(b+t)$, $\epsilon_t = \eta_t^2$")
    late = path[path[:, 0] > 2000]
    if len(late):
        guide = late[0, 1] * np.sqrt(late[0, 0] / late[:, 0])
        axes.plot(late[:, 0], guide, color="black", linestyle=":", label=r"$t^{-1/2}$, for comparison")
    axes.set_title("Corollary 1: convergence with decreasing steps")
    axes.legend()
    early = np.searchsorted(path[:, 0], 0.01 * path[-1, 0])
    numbers = {"corollary_1_distance_early": float(path[early, 1]), "corollary_1_distance_end": float(path[-1, 1])}
    return numbers, figure


CLAIM = Claim(name="corollary-1", cells=cells, summarize=summarize)
