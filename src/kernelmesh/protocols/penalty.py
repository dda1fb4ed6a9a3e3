"""The paper's protocol (Algorithm 1): a penalty on disagreement with the neighbors at the agent's own points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import Points, Values
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.protocols.base import Coupled, Heard, StepInputs
from kernelmesh.registry import register

__all__ = ["Penalty"]


@register("protocol")
@dataclass(frozen=True, kw_only=True)
class Penalty(Coupled):
    """f̃ = (1 − ηλ) f − (η/B) Σ_b [ℓ'(f(x_b), y_b) + c Σ_j (f(x_b) − f_j(x_b))] κ(x_b, ·).

    This step is explicit: with μ the largest eigenvalue of the network's Laplacian and τ the largest of K_XX / B over the
    agents, disagreement is certain to shrink only while η c μ τ < 2.

    With `implicit`, the penalty is solved for first, which is stable for any c:

    f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·) with g = argmin ½‖g − f‖² + (ηc/2B) Σ_b Σ_j (g(x_b) − f_j(x_b))².

    With n neighbors and their disagreement G = n f(X) − Σ_j f_j(X), the minimizer is g = f + Σ_b κ(x_b, ·) a_b with
    a = −(ηc/B) (I + (ηcn/B) K_XX)⁻¹ G, and g(X) = f(X) + K_XX a. To first order in ηc both steps are the same; for c → ∞, g
    agrees with the neighbors' mean at the points.

    Parameters
    ----------
    coupling : float or Schedule
        The penalty c.
    implicit : bool
        Whether to solve for the penalty instead of taking an explicit step.

    Examples
    --------
    >>> from kernelmesh import Doubling
    >>> Penalty(coupling=Doubling(start=0.01, every=200)).penalty(400)
    0.04
    >>> Penalty(coupling=100.0, implicit=True).penalty(0)
    100.0
    """

    question = Points
    reply = Values

    implicit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.implicit, bool):
            raise InvalidArgument("Penalty", "implicit", "be True or False", self.implicit)

    def move(self, inputs: StepInputs, heard: Sequence[Heard]) -> Update:
        gap, neighbors = _disagreement(inputs, heard)
        if self.implicit:
            return self._implicit(inputs, gap, neighbors)
        push = gap
        if neighbors:
            push *= self.penalty(inputs.samples)
        push += inputs.slope
        push *= -inputs.step_size / len(inputs.points)
        return Update(inputs.points, push, inputs.shrink, inputs.cross)

    def _implicit(self, inputs: StepInputs, gap: Floats, neighbors: int) -> Update:
        batch, shrink = len(inputs.points), inputs.shrink
        strength = inputs.step_size * self.penalty(inputs.samples) / batch
        pulled = np.zeros_like(gap)
        here = inputs.here
        if neighbors and strength:
            from scipy.linalg import cho_factor, cho_solve  # takes long, and not every agent needs it

            gram = inputs.function.kernel(inputs.points, inputs.points)
            # divided by the strength, so that nothing overflows however large it is
            system = gram * neighbors
            system[np.diag_indices(batch)] += 1.0 / strength
            pulled = -cho_solve(cho_factor(system, lower=True), gap)
            here = here + gram @ pulled
        push = inputs.loss.slope(here, inputs.targets)
        return Update(inputs.points, shrink * pulled - inputs.step_size / batch * push, shrink, inputs.cross)

    def max_stable_penalty(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        if self.implicit:
            return math.inf
        top = max(float(np.linalg.eigvalsh(kernel(some, some))[-1]) / len(some) for some in batches)
        return 2.0 / (step_size * stiffness * top) if step_size * stiffness * top > 0 else math.inf


def _disagreement(inputs: StepInputs, heard: Sequence[Heard]) -> tuple[Floats, int]:
    """Σ_j (f(x_b) − f_j(x_b)) over the neighbors that replied, and their number."""
    answers: list[Any] = [said.reply for said in heard if said.reply is not None]
    gap = len(answers) * inputs.here
    for there in answers:
        gap -= there.values
    return gap, len(answers)
