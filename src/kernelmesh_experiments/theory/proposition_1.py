"""Proposition 1: compression changes the gradient by at most ε V / η in every round."""

import numpy as np

from kernelmesh_experiments.cells import Results
from kernelmesh_experiments.report import COLORS, panel
from kernelmesh_experiments.theory.claims import Claim, Config, Summary
from kernelmesh_experiments.theory.model_order import order_cell

__all__ = ["CLAIM"]


def summarize(config: Config, done: Results) -> Summary:
    """The largest share of the bound, and in how many rounds it was looked for."""
    (name,) = order_cell(config)
    samples, gap, bound = np.array(done[name]["gaps"]).T
    figure, axes = panel("samples per agent", "norm in the Hilbert space", logarithmic="y")
    axes.plot(samples, np.maximum(gap, 1e-6), color=COLORS[0], linewidth=0.6, label="projected − plain gradient")
    axes.plot(samples, bound, color="black", linewidth=2, label=r"the bound $\epsilon V / \eta$")
    axes.set_title("Proposition 1")
    axes.legend()
    return {"proposition_1_gap_over_bound": float((gap / bound).max()), "proposition_1_rounds": len(gap)}, figure


CLAIM = Claim(name="proposition-1", cells=order_cell, summarize=summarize)
