"""Claims of the paper, and their shared settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure

from kernelmesh.experiments import Cell
from kernelmesh.experiments.cells import Results
from kernelmesh.experiments.exact import ProblemConfig
from kernelmesh.experiments.settings import Count, Positive
from kernelmesh.schema import setting

__all__ = ["Claim", "Config", "Summary"]


@dataclass(frozen=True, kw_only=True)
class Config(ProblemConfig, owner="theory"):
    """All agents draw from the same few samples for the convergence runs, so that the minimizer is known exactly."""

    shared: ClassVar[bool] = True

    agents: Count = 4
    passes: Count = 1500
    regularization: Positive = 0.02
    coupling: Positive = setting(0.05, doc="c")
    parsimony: Positive = setting(0.04, doc="K of the budget, ε = K η^1.5")
    batch_size: Count = setting(4, doc="samples per step")
    stream: Count = setting(50_000, doc="samples per agent in the run that monitors the model order")


Summary = tuple[dict[str, Any], Figure]
"""Numbers by flat names, and the figure with the bound drawn in."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The cells that a claim needs (claims may share some), and what follows from them."""

    name: str
    """Also that of the figure."""
    cells: Callable[[Config], dict[str, Cell]]
    summarize: Callable[[Config, Results], Summary]
