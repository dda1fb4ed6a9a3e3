"""The paper's penalty with the consensus term solved implicitly: stable for any penalty."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelmesh.consensus.base import POINTS_FOR_VALUES, Coupled, EdgeMemories, Heard, StepInputs
from kernelmesh.consensus.penalty import disagreement
from kernelmesh.numerics.compression import Update
from kernelmesh.registry import register

__all__ = ["Proximal"]


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class Proximal(Coupled):
    """f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·) with g = argmin ½‖g − f‖² + (ηc/2B) Σ_b Σ_j (g(x_b) − f_j(x_b))².

    With n neighbors and their disagreement G = n f(X) − Σ_j f_j(X), the minimizer is g = f + Σ_b κ(x_b, ·) a_b with
    a = −(ηc/B) (I + (ηcn/B) K_XX)⁻¹ G, and g(X) = f(X) + K_XX a. To first order in ηc this is `Penalty`; for c → ∞, g agrees
    with the neighbors' mean at the points.

    Parameters
    ----------
    coupling : float or Schedule
        The penalty c.

    Examples
    --------
    >>> Proximal(coupling=100.0).penalty(0)
    100.0
    """

    exchange = POINTS_FOR_VALUES

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        batch, shrink = len(inputs.points), inputs.shrink
        gap, neighbors = disagreement(inputs, heard)
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
