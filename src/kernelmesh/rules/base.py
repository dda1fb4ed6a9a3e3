"""The interface of learning rules."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from numpy.typing import NDArray

from kernelmesh.checks import positive
from kernelmesh.consensus import StepInputs
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.compression import Compression, CompressionReport, Model, Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.losses import CurvedLoss, Loss

__all__ = ["Move", "Rule", "check_curved", "check_rule"]

Move = Callable[[StepInputs], Update]
"""The gradient step with what the neighbors said in it: `Consensus.move`."""


@runtime_checkable
class Rule(Protocol):
    """A learning rule: how an agent's function changes when samples arrive.

    The base class of all learning rules. A rule defines `learn`; everything else has a default here
    that suits rules which keep one function and its dictionary. `kernelmesh.testing.check_rule` checks a rule,
    and `register("rule")` makes it available in files and on the command line.

    Attributes
    ----------
    takes_step_size : bool
        Whether the rule needs a step size and a compression from the agent.
    listens : bool
        Whether a step can use neighbors' messages.
    usual_regularization : float
        The default λ.
    model_kind : type of Model, optional
        The kind of model that it keeps, by which states of other rules are recognized; None if there is no such check.
    budget_exponent : float
        q in the budget ε = K η^q, for rules with a step size; in files, K is `parsimony`.

    Examples
    --------
    >>> from kernelmesh import Gradient
    >>> isinstance(Gradient(), Rule)
    True
    """

    takes_step_size: ClassVar[bool] = True
    listens: ClassVar[bool] = True
    usual_regularization: ClassVar[float] = 1e-6
    model_kind: ClassVar[type[Model] | None] = None
    budget_exponent: ClassVar[float] = 1.5

    def check(self, owner: str, loss: Loss, regularization: float) -> None:
        """Reject settings of the agent that do not work with this rule."""
        return

    def start(self, function: Expansion, compression: Compression | None, regularization: float) -> Model:
        """A model with `function` (for a new agent, the zero function)."""
        assert compression is not None
        return compression.start(function)

    def absorb(self, model: Model, update: Update, compression: Compression | None, *, samples: int) -> Model:
        """Average with the neighbors in a round without samples."""
        assert compression is not None
        return compression.absorb(model, update, samples=samples)[0]

    def learn(
        self, model: Model, inputs: StepInputs, move: Move, compression: Compression | None
    ) -> tuple[Model, CompressionReport]:
        """Learn from a mini-batch; takes ownership of the model's workspace."""

    def shown(self, model: Model) -> Expansion | None:
        """The learned function, if not `model.function`."""
        return None

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> Model:
        """Restore a stored model from its function and its own `arrays`, which are validated."""
        return model


def check_curved(owner: str, rule: Rule, loss: Loss, regularization: float) -> None:
    """Reject a loss that second-order rules cannot use."""
    if not isinstance(loss, CurvedLoss):
        needed = f"have curvature and implicit_step with the rule {type(rule).__name__}"
        remedy = "derive it from ClassTargets or ValueTargets and define curvature, or choose the rule Averaged()"
        raise InvalidArgument(owner, "loss", needed, loss, remedy=remedy)
    positive(owner, "regularization", regularization)


def check_rule(owner: str, rule: object) -> Rule:
    """Reject anything that is not a learning rule."""
    if not isinstance(rule, Rule) or isinstance(rule, type):
        raise InvalidArgument(owner, "rule", "be a learning rule", rule, remedy="for example Gradient() or SecondOrder()")
    return rule
