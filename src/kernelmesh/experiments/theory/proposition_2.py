"""Proposition 2: minimizers of the penalized objective disagree by at most p*/c at their samples."""

from kernelmesh.experiments import Cell, violation
from kernelmesh.experiments.cells import Results
from kernelmesh.experiments.theory.claims import Claim, Config, Summary

__all__ = ["CLAIM"]


def cells(config: Config) -> dict[str, Cell]:
    """Those of the experiment `violation`."""
    return {f"violation-{name}": cell for name, cell in violation.cells(violation.Config(seed=config.seed)).items()}


def summarize(config: Config, done: Results) -> Summary:
    """The largest violation of the exact minimizer, as a share of the bound."""
    optimum, rows = violation.bounded(violation.Config(seed=config.seed), [done[name] for name in cells(config)])
    share = violation.over_bound(rows, "minimizer")
    return {"proposition_2_violation_over_bound": share}, violation.draw(rows, optimum)


CLAIM = Claim(name="proposition-2", cells=cells, summarize=summarize)
