"""Theorem 1: with a constant step size η, agents come within a radius of the minimizer that shrinks with √η."""

import math

import numpy as np

from kernelmesh_experiments.cells import Cell, Results
from kernelmesh_experiments.report import panel, style_of
from kernelmesh_experiments.theory.claims import Claim, Config, Summary
from kernelmesh_experiments.theory.convergence import convergence_cells

__all__ = ["CLAIM", "radii"]

_STEPS = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)


def cells(config: Config) -> dict[str, Cell]:
    """A run for each step size."""
    return convergence_cells(config, _STEPS)


def radii(config: Config, done: Results) -> tuple[list[float], list[float]]:
    """The smallest distance in the second half of each run, against (√η/λ) [KV + √(K²V² + λσ²)]."""
    radius, bound = [], []
    kv = config.parsimony * config.agents
    for step, run in zip(_STEPS, (done[name] for name in cells(config)), strict=True):
        path = np.array(run["path"])
        radius.append(float(path[path[:, 0] >= 0.5 * path[-1, 0], 1].min()))
        root = math.sqrt(kv**2 + config.regularization * run["noise"])
        bound.append(math.sqrt(step) / config.regularization * (kv + root))
    return radius, bound


def summarize(config: Config, done: Results) -> Summary:
    """The exponent of the radius in η, of which the theorem says 1/2, and the largest share of the bound."""
    radius, bound = radii(config, done)
    exponent = float(np.polyfit(np.log(_STEPS), np.log(radius), 1)[0])
    figure, axes = panel(r"$\sqrt{\eta}$", r"$\liminf \|f_t - f^*\|$, all agents", logarithmic="xy")
    roots = np.sqrt(_STEPS)
    axes.plot(roots, radius, **style_of(0), label=f"measured, exponent in η: {exponent:.2f}")
    axes.plot(roots, bound, color="black", linewidth=2, label="the bound of Theorem 1")
    axes.set_title(r"Theorem 1: the radius shrinks with $\sqrt{\eta}$")
    axes.legend()
    numbers = {
        "theorem_1_exponent": exponent,
        "theorem_1_exponent_expected": 0.5,
        "theorem_1_radius_over_bound": float(max(np.array(radius) / np.array(bound))),
    }
    return numbers, figure


CLAIM = Claim(name="theorem-1", cells=cells, summarize=summarize)
