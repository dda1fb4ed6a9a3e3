"""What an estimator takes by default, for each kind of learner.

All values are for kernels with κ(x, x) = 1; `parameters.py` scales them to the actual kernel. Regressors standardize their
targets, so that values in units of the loss apply to targets of any size.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from kernelmesh.learners import Averaged, Landmarks, Learner, SecondOrder

__all__ = ["Defaults", "defaults_of"]


class ByTargets(NamedTuple):
    """A value for classifiers and one for regressors."""

    classes: float
    values: float

    def of(self, classifies: bool) -> float:
        """The one for these targets."""
        return self.classes if classifies else self.values


_STANDARD = ByTargets(classes=1.0, values=1.0)


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The defaults of an estimator; None where the learner's own default applies."""

    passes: int
    """The maximum number of passes of `fit`."""
    few_rows: int = 0
    """With fewer rows than this, a single learner makes twice as many passes: they cost little."""
    network_passes: int
    """The same in networks, where each agent sees only a part of the rows."""
    width: ByTargets = _STANDARD
    """The bandwidth of the default kernel, in units of √(Σ_j σ_j² / 2), with the standard deviations σ_j of the features."""
    step_size: ByTargets | None = None
    """η."""
    parsimony: ByTargets | None = None
    """K of the compression budget."""
    regularization: ByTargets | None = None
    """λ."""
    budget: ByTargets | None = None
    """ε of `SecondOrder`."""
    novelty: float | None = None
    """ν."""
    max_order: int | None = None
    """The maximum number of points."""
    half_life: float = math.inf
    """The number of samples of a stream after which old data counts half; `fit`, which shuffles rows, forgets nothing."""


_GRADIENT = Defaults(
    passes=20,
    # each of five agents sees a fifth of the rows and learns about the others'
    network_passes=50,
    # for both losses, about the largest step that is stable on all data sets
    step_size=ByTargets(classes=3.0, values=1.0),
    # half of the value in the paper's figures, since by default accuracy comes first
    parsimony=ByTargets(classes=0.02, values=0.02),
)

_AVERAGED = Defaults(
    # the average gets as far in one pass as the last iterate in many
    passes=5,
    network_passes=5,
    # classes: 30 to 100 work equally well; values: the slope of the loss grows with the error, so steps must be small
    step_size=ByTargets(classes=100.0, values=1.5),
    # classes: the learner's own; values: smaller steps leave less room
    parsimony=ByTargets(classes=0.06, values=0.01),
)

_SECOND_ORDER = Defaults(
    # one pass finds nearly everything; another makes up for samples seen before the dictionary was good
    passes=2,
    few_rows=2000,
    network_passes=2,
    # the starting point for tuning both; no single width suits all data sets
    width=ByTargets(classes=0.7, values=1.0),
    # classes: 1/C of an SVM with C = 20; values: less would overfit small, noisy data sets
    regularization=ByTargets(classes=0.05, values=0.6),
    # classes: nats per sample, three times as much costs accuracy on some sets; values: of a squared error of at most ½
    budget=ByTargets(classes=0.0075, values=0.0025),
    # two matrices of 2000² numbers are 64 MB
    max_order=2000,
    # costs 0.2 points on a stationary stream, and recovers within 512 samples after labels are swapped
    half_life=10_000.0,
)

_LANDMARKS = Defaults(
    # kept samples are linearized again as the model improves, which does what more passes would
    passes=1,
    network_passes=1,
    width=ByTargets(classes=0.7, values=1.0),
    # λ belongs to the network: n agents learn what one learner would
    regularization=ByTargets(classes=0.05, values=0.6),
    novelty=0.03,
    # a sum of 500² / 2 numbers crosses each edge in each wave
    max_order=500,
    half_life=10_000.0,
)


def defaults_of(kind: type[Learner]) -> Defaults:
    """The defaults for a kind of learner; one of a third party is treated as a form of gradient descent.

    >>> defaults_of(SecondOrder).max_order
    2000
    """
    tables = {SecondOrder: _SECOND_ORDER, Averaged: _AVERAGED, Landmarks: _LANDMARKS}
    return next((table for learner, table in tables.items() if issubclass(kind, learner)), _GRADIENT)
