"""The paper's rule: functional stochastic gradient descent with compression."""

from dataclasses import dataclass

from kernelmesh.consensus import StepInputs
from kernelmesh.numerics.compression import Compression, CompressionReport, Model
from kernelmesh.registry import register
from kernelmesh.rules.base import Move, Rule

__all__ = ["Gradient"]


@register("rule")
@dataclass(frozen=True, kw_only=True)
class Gradient(Rule):
    """f ← C_ε[(1 − ηλ) f − (η/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + the neighbors' contribution].

    The paper's rule, at the cost of one product with the inverse Gram matrix, O(M² B). The step size η is the agent's
    `step_size`, the compression C_ε its `compression`, and λ its `regularization`, which is relative to the mean loss.

    Examples
    --------
    >>> Gradient()
    Gradient()
    """

    model_kind = Model

    def learn(
        self, model: Model, inputs: StepInputs, move: Move, compression: Compression | None
    ) -> tuple[Model, CompressionReport]:
        assert compression is not None
        return compression.absorb(model, move(inputs), samples=inputs.samples)
