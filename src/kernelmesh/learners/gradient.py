"""The paper's rule: functional stochastic gradient descent with compression."""

import math
from dataclasses import dataclass

from kernelmesh.checks import positive
from kernelmesh.learners.base import Descent, Move
from kernelmesh.numerics.compression import CompressionReport, Model
from kernelmesh.protocols import StepInputs
from kernelmesh.registry import register

__all__ = ["Gradient"]


@register("learner")
@dataclass(frozen=True, kw_only=True)
class Gradient(Descent):
    """f ← C_ε[(1 − ηλ) f − (η/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + the neighbors' contribution].

    The paper's rule, at the cost of one product with the inverse Gram matrix, O(M² B).

    Parameters
    ----------
    step_size : float or Schedule
        η < 1/λ; larger steps learn faster. With `Squared` or `Huber`, keep it below about 2 / κ(x, x).
    compression : Compression
        C_ε; by default `Komp()`, with the budget ε = 0.04 η^{3/2} of the paper.
    regularization : float
        λ, relative to the mean loss.
    radius : float
        The maximum of ‖f‖ (Corollary 1); infinite means no limit.

    Examples
    --------
    >>> Gradient(step_size=3.0).budget_at(0).__round__(4)
    0.2078
    """

    model_kind = Model

    radius: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("Gradient", "radius", self.radius, infinite=True)

    def learn(self, model: Model, inputs: StepInputs, move: Move) -> tuple[Model, CompressionReport]:
        model, report = self.compression.absorb(model, move(inputs), budget=self.budget_at(inputs.samples))
        norm = math.sqrt(model.square_norm)
        return model.scaled(self.radius / norm) if norm > self.radius else model, report
