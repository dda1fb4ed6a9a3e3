"""The interface of learners."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from numpy.typing import NDArray

from kernelmesh.checks import non_negative
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import Message, SentFunction, Values
from kernelmesh.numerics.compression import Compression, CompressionReport, Komp, Model, Update
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.losses import CurvedLoss, Loss
from kernelmesh.numerics.schedules import Schedule, check_schedule, value_at
from kernelmesh.protocols import StepInputs

__all__ = ["Descent", "Learner", "Move", "check_curved", "check_learner"]

Move = Callable[[StepInputs], Update]
"""The gradient step with what the neighbors said in it: `ConsensusProtocol.move`."""


@runtime_checkable
class Learner(Protocol):
    """How samples change an agent's model.

    The base class of all learners, which own all settings of learning. A learner defines `start` and `learn`; everything else
    has a default here. `kernelmesh.testing.check_learner` checks a learner, and `register("learner")` makes it available in
    files and on the command line.

    Attributes
    ----------
    hears : tuple of types
        The messages from which it can learn; a protocol of other messages is rejected.
    model_kind : type of Model, optional
        The kind of model that it keeps, by which states of other learners are recognized; None if there is no such check.
    regularization : float
        λ.

    Examples
    --------
    >>> from kernelmesh import Gradient
    >>> isinstance(Gradient(step_size=0.5), Learner)
    True
    """

    hears: ClassVar[tuple[type[Message], ...]] = ()
    model_kind: ClassVar[type[Model] | None] = None
    sums_losses: ClassVar[bool] = True
    """Whether λ is relative to the sum of all losses rather than to their mean."""
    regularization: float

    def check(self, owner: str, loss: Loss) -> None:
        """Reject a loss that this learner cannot use."""
        return

    def step_size_at(self, samples: int) -> float:
        """η after this many samples; 0 for a learner that has none."""
        return 0.0

    def start(self, function: Function) -> Model:
        """A model with `function` (for a new agent, the zero function)."""

    def absorb(self, model: Model, update: Update, *, samples: int) -> Model:
        """Average with the neighbors in a round without samples; only for learners that hear functions."""
        return model

    def learn(self, model: Model, inputs: StepInputs, move: Move) -> tuple[Model, CompressionReport]:
        """The model after a mini-batch."""

    def shown(self, model: Model) -> Function | None:
        """The learned function, if not `model.function`."""
        return None

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> Model:
        """Restore a stored model from its function and its own `arrays`, which are validated."""
        return model


@dataclass(frozen=True, kw_only=True)
class Descent(Learner, Protocol):
    """The base class of learners that take gradient steps and compress the function after each.

    Attributes
    ----------
    budget_exponent, usual_parsimony : float
        q, and the default K, in the budget ε = K η^q.
    """

    hears: ClassVar[tuple[type[Message], ...]] = (Values, SentFunction)
    sums_losses: ClassVar[bool] = False
    budget_exponent: ClassVar[float] = 1.5
    usual_parsimony: ClassVar[float] = 0.04

    step_size: Schedule | float
    compression: Compression = field(default_factory=Komp)
    regularization: float = 1e-6

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_schedule(owner, "step_size", self.step_size)
        if not isinstance(self.compression, Compression) or isinstance(self.compression, type):
            remedy = "for example Komp(budget=0.1)"
            raise InvalidArgument(owner, "compression", "be a compression", self.compression, remedy=remedy)
        non_negative(owner, "regularization", self.regularization)
        for samples in (0, 10**18):  # schedules that rise without bound are found at once
            self.step_size_at(samples)

    def step_size_at(self, samples: int) -> float:
        """η after this many samples; rejects η ≥ 1/λ, for which shrinking would overshoot."""
        owner, eta = type(self).__name__, value_at(self.step_size, samples)
        if not 0.0 <= eta < math.inf:
            raise InvalidArgument(owner, "step_size", f"be finite and >= 0 at sample {samples:g}", eta)
        if eta * self.regularization >= 1.0:
            limit = 1.0 / self.regularization
            raise InvalidArgument(owner, "step_size", f"be < 1/regularization = {limit:g} at sample {samples:g}", eta)
        return eta

    def budget_at(self, samples: int) -> float:
        """ε after this many samples."""
        unit = self.step_size_at(samples) ** self.budget_exponent
        return self.compression.budget_at(samples, unit=unit, parsimony=self.usual_parsimony)

    def start(self, function: Function) -> Model:
        return self.compression.start(function)

    def absorb(self, model: Model, update: Update, *, samples: int) -> Model:
        return self.compression.absorb(model, update, budget=self.budget_at(samples))[0]


def check_curved(learner: Learner, owner: str, loss: Loss) -> None:
    """Reject a loss that second-order learners cannot use."""
    if not isinstance(loss, CurvedLoss):
        needed = f"have curvature and implicit_step with the learner {type(learner).__name__}"
        remedy = "derive it from ClassTargets or ValueTargets and define curvature, or choose the learner Averaged()"
        raise InvalidArgument(owner, "loss", needed, loss, remedy=remedy)


def check_learner(owner: str, learner: object) -> Learner:
    """Reject anything that is not a learner."""
    if not isinstance(learner, Learner) or isinstance(learner, type):
        remedy = "for example SecondOrder() or Gradient(step_size=0.5)"
        raise InvalidArgument(owner, "learner", "be a learner", learner, remedy=remedy)
    return learner
