"""The paper's penalty with its consensus term solved implicitly: stable however large the penalty is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kernelmesh.consensus.base import Heard, StepInputs
from kernelmesh.consensus.coupled import Coupled, PointsForValues
from kernelmesh.consensus.penalty import disagreement
from kernelmesh.numerics.compression import Update

__all__ = ["Proximal"]


@dataclass(frozen=True, kw_only=True)
class Proximal(PointsForValues, Coupled):
    """f̃ = (1 − ηλ) g − (η/B) Σ_b ℓ'(g(x_b), y_b) κ(x_b, ·) with g = argmin ½‖g − f‖² + (ηc/2B) Σ_b Σ_j (g(x_b) − f_j(x_b))².

    With n neighbors and their disagreement G = n f(X) − Σ_j f_j(X), the minimizer is g = f + Σ_b κ(x_b, ·) a_b with
    a = −(ηc/B) (I + (ηcn/B) K_XX)⁻¹ G, and g(X) = f(X) + K_XX a. To first order in ηc this is `Penalty`; for c → ∞, g
    agrees with the neighbors' mean at the points. The same messages as `Penalty`: points go out, values come back.

    >>> Proximal(coupling=100.0).penalty(0)
    100.0
    """

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        batch, shrink = len(moment.points), 1.0 - moment.step_size * moment.regularization
        gap, neighbors = disagreement(moment, heard)
        strength = moment.step_size * self.penalty(moment.samples) / batch
        pulled = np.zeros_like(gap)
        here = moment.here
        if neighbors and strength:
            gram = moment.function.kernel(moment.points, moment.points)
            # divided by the strength, so that nothing overflows however large it is
            system = gram * neighbors
            system[np.diag_indices(batch)] += 1.0 / strength
            pulled = -cho_solve(cho_factor(system, lower=True), gap)
            here = here + gram @ pulled
        push = moment.loss.slope(here, moment.targets)
        return Update(moment.points, shrink * pulled - moment.step_size / batch * push, shrink, moment.cross)
