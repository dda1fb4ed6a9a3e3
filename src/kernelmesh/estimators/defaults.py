"""What an estimator takes by default, for each kind of learner.

All values are for kernels with κ(x, x) = 1; `parameters.py` scales them to the actual kernel. Regressors standardize their
targets, so that values in units of the loss apply to targets of any size.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernelmesh.learners import Averaged, Landmarks, Learner, SecondOrder

__all__ = ["Defaults", "defaults_of"]


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The defaults for one kind of learner and of targets."""

    passes: int
    """The maximum number of passes of `fit`."""
    few_rows: int = 0
    """With fewer rows than this, a single learner makes twice as many passes: they cost little."""
    network_passes: int
    """The same in networks, where each agent sees only a part of the rows."""
    width: float = 1.0
    """The bandwidth of the default kernel, in units of √(Σ_j σ_j² / 2), with the standard deviations σ_j of the features."""
    regularization: float | None = None
    """λ, in units of κ(x, x)."""
    step_size: float | None = None
    """η, in units of 1 / κ(x, x)."""
    parsimony: float = 0.0
    """K of the compression budget of learners with a step size."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Other settings of the default learner."""
    streaming: dict[str, Any] = field(default_factory=dict)
    """Those of the default learner of a stream; `fit`, which shuffles rows, forgets nothing."""


def defaults_of(kind: type[Learner], *, classifies: bool) -> Defaults:
    """The defaults for a kind of learner; one of a third party is treated as a form of gradient descent.

    >>> defaults_of(SecondOrder, classifies=True).settings
    {'budget': 0.0075, 'max_order': 2000}
    """
    # width: the starting point for tuning, no single one suits all data sets; λ for classes: 1/C of an SVM with C = 20, for
    # values: less would overfit small, noisy data sets
    width, regularization = (0.7, 0.05) if classifies else (1.0, 0.6)
    summing = partial(Defaults, width=width, regularization=regularization)
    if issubclass(kind, SecondOrder):
        return summing(
            # one pass finds nearly everything; another makes up for samples seen before the dictionary was good
            passes=2,
            few_rows=2000,
            network_passes=2,
            # classes: nats per sample, three times as much costs accuracy on some sets; values: of a squared error of at
            # most ½; two matrices of 2000² numbers are 64 MB
            settings={"budget": 0.0075 if classifies else 0.0025, "max_order": 2000},
            # costs 0.2 points on a stationary stream, and recovers within 512 samples after labels are swapped
            streaming={"half_life": 10_000.0},
        )
    if issubclass(kind, Landmarks):
        return summing(
            # kept samples are linearized again as the model improves, which does what more passes would
            passes=1,
            network_passes=1,
            # a sum of 500² / 2 numbers crosses each edge in each wave
            settings={"novelty": 0.03, "max_order": 500},
            streaming={"half_life": 10_000.0},
        )
    if issubclass(kind, Averaged):
        return Defaults(
            # the average gets as far in one pass as the last iterate in many
            passes=5,
            network_passes=5,
            # classes: 30 to 100 work equally well; values: the slope of the loss grows with the error: steps must be small
            step_size=100.0 if classifies else 1.5,
            # classes: the learner's own; values: smaller steps leave less room
            parsimony=0.06 if classifies else 0.01,
        )
    return Defaults(
        passes=20,
        # each of five agents sees a fifth of the rows and learns about the others'
        network_passes=50,
        # for both losses, about the largest step that is stable on all data sets
        step_size=3.0 if classifies else 1.0,
        # half of the value in the paper's figures, since by default accuracy comes first
        parsimony=0.02,
    )
