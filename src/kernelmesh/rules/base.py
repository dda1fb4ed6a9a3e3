"""The interface of learning rules."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, positive
from kernelmesh.consensus import StepInputs
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.compression import Compression, CompressionReport, Model, Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.losses import CurvedLoss, Loss

__all__ = ["Move", "Rule", "Told", "check_curved", "check_rule"]

Move = Callable[[StepInputs], Update]
"""The gradient step with what the neighbors said in it: `Consensus.move`."""


class Told(NamedTuple):
    """A neighbor's statistics, to be added to the agent's own."""

    weight: float
    """The factor by which they are multiplied."""
    place: Ints
    """The index of each of their points among the agent's; points that the agent lacks have larger ones and are ignored."""
    weights: Floats
    """β."""
    moments: Floats
    """Θ."""


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
    gathers : bool
        Whether the model's function is a `Statistics`, which protocols that exchange statistics need.
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
    gathers: ClassVar[bool] = False
    stacks: ClassVar[bool] = False
    """Whether a step is the protocol's move, compressed, and nothing else: then agents can be advanced as one tensor."""
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

    def current(self, model: Model) -> Expansion:
        """The function that the next step starts from."""
        return model.function

    def absorb(self, model: Model, update: Update, compression: Compression | None, *, samples: int) -> Model:
        """Apply an update from the neighbors, without learning from samples."""
        assert compression is not None
        return compression.absorb(model, update, samples=samples)[0]

    def combine(self, model: Model, update: Update, compression: Compression | None, *, samples: int) -> Model:
        """Average with the neighbors: the first of two stages of some protocols, and a whole round without samples of others.

        `update` may be empty.
        """
        return model if update.is_identity else self.absorb(model, update, compression, samples=samples)

    def learn(
        self, model: Model, inputs: StepInputs, move: Move, compression: Compression | None
    ) -> tuple[Model, CompressionReport]:
        """Learn from a mini-batch; takes ownership of the model's workspace."""

    def shown(self, model: Model, combined: Expansion | None) -> Expansion | None:
        """The learned function, if not `model.function`; `combined` is the result of the protocol's first stage, if any."""
        return combined

    def opinion(self, model: Model, said: Sequence[Told]) -> Expansion | None:
        """The functions with each neighbor's statistics added, over the model's points; None if one is invalid.

        Their outputs stand side by side.
        """
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
