"""The numbers that size an estimator's defaults, one table for each learning rule.

All are for kernels with κ(x, x) = 1; `parameters.py` scales them to the kernel at hand. Regressors standardize their targets,
so that numbers in the unit of the loss hold for targets of any size.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kernelmesh.rules import Averaged, Landmarks, Rule, SecondOrder

__all__ = ["TOLERANCE", "ByTargets", "Defaults", "defaults_of"]


class ByTargets(NamedTuple):
    """A number for estimators that learn classes, and one for those that learn values."""

    classes: float
    values: float


_STANDARD = ByTargets(classes=1.0, values=1.0)


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What an estimator takes where its user says nothing; None where the rule has no use for it."""

    passes: int
    """Passes that `fit` makes at most."""
    few_rows: int = 0
    """Over fewer rows than this, a single learner makes twice as many: they cost little."""
    network_passes: int
    """The same in networks, where each agent sees only a part of the rows."""
    width: ByTargets = _STANDARD
    """The bandwidth of the default kernel, in units of √(Σ_j σ_j² / 2), with the standard deviations σ_j of the features."""
    suits: bool = False
    """Whether a single learner then suits that bandwidth, and λ, to the first rows."""
    step_size: ByTargets | None = None
    """η."""
    parsimony: ByTargets | None = None
    """K of the compression budget."""
    regularization: ByTargets | None = None
    """λ; None is that of the rule itself."""
    sums: bool = False
    """Whether λ weighs against the sum of all losses, to which each pass adds, rather than against their mean."""
    budget: ByTargets | None = None
    """ε of a rule with its own way to remove points."""
    novelty: float | None = None
    """ν."""
    max_order: int | None = None
    """The largest number of points; None means that only the budget limits it."""
    half_life: float | None = None
    """Samples of a stream after which what was learned weighs half; `fit`, whose rows are shuffled, forgets nothing."""


_GRADIENT = Defaults(
    passes=20,
    # each of five agents sees a fifth of the rows, but hears of the others'
    network_passes=50,
    # for both losses about the largest step that is stable on all sets
    step_size=ByTargets(classes=3.0, values=1.0),
    # half of what the paper's figures have, since a user who sets nothing wants accuracy first
    parsimony=ByTargets(classes=0.02, values=0.02),
)

_AVERAGED = Defaults(
    # the average goes as far in one pass as the last step does in many
    passes=5,
    network_passes=5,
    # classes: 30 to 100 do equally well; values: the slope of their losses grows with the error, and no step can be large
    step_size=ByTargets(classes=100.0, values=1.5),
    # classes: that of `Komp.averaging`; values: smaller steps leave less room
    parsimony=ByTargets(classes=0.06, values=0.01),
)

_SECOND_ORDER = Defaults(
    # one pass finds nearly all there is; another makes up for what came before the dictionary was good
    passes=2,
    few_rows=2000,
    network_passes=2,
    # where the choice of both begins; without it, no width serves all sets
    width=ByTargets(classes=0.7, values=1.0),
    suits=True,
    # classes: 1/C of an SVM with C = 20; values: below that, small sets with much noise are overfitted
    regularization=ByTargets(classes=0.05, values=0.6),
    sums=True,
    # classes: nats for each sample, three times of which costs some sets points; values: of a squared error of at most ½
    budget=ByTargets(classes=0.0075, values=0.0025),
    # anything from a quarter to four times of it does as well
    novelty=0.01,
    # two matrices of 2000² numbers are 64 MB
    max_order=2000,
    # costs a stream that does not change 0.2 points, and after labels have swapped 512 samples are enough to follow
    half_life=10_000.0,
)

_LANDMARKS = Defaults(
    passes=2,
    network_passes=2,
    width=ByTargets(classes=0.7, values=1.0),
    # of each agent: as many agents weigh as many times as much
    regularization=ByTargets(classes=0.005, values=0.1),
    sums=True,
    # two matrices of 500² numbers for each agent, and half of one over each edge in an exchange
    max_order=500,
    half_life=10_000.0,
)

TOLERANCE = 1e-3
"""`tol`: `fit` ends when a pass has not lowered the mean loss by more than this share of it."""


def defaults_of(kind: type[Rule]) -> Defaults:
    """The defaults for a kind of rule; one of somebody else is taken for a kind of gradient descent.

    >>> defaults_of(SecondOrder).max_order
    2000
    """
    tables = {SecondOrder: _SECOND_ORDER, Averaged: _AVERAGED, Landmarks: _LANDMARKS}
    return next((table for rule, table in tables.items() if issubclass(kind, rule)), _GRADIENT)
