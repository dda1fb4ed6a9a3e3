"""Diffusion without bias: a dual function on every edge carries what the two ends still owe each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.role import Edges, Heard, Moment
from kernelmesh.maths.compression import Change, compress
from kernelmesh.maths.expansion import Expansion
from kernelmesh.maths.schedules import Constant, Schedule, as_schedule
from kernelmesh.messages import Function, Message

__all__ = ["ExactDiffusion"]


@dataclass(frozen=True, kw_only=True)
class ExactDiffusion:
    """With ā_ij half the Metropolis weight of an edge, ā_ii the rest, and C for compression:

    f_i ← C_ε[Σ_j ā_ij φ_j],  λ_ij ← C_δ[λ_ij + ā_ij (φ_j − φ_i)]   from the functions φ that the neighbours sent, then
    φ_i ← C_ε[(1 − ηλ) f_i − (η/B) Σ_b ℓ'(f_i(x_b), y_b) κ(x_b, ·) + Σ_j λ_ij]   which is sent in the next round.

    Agents that see different data pull in different directions, and plain diffusion settles where pull and averaging balance,
    which is not where a learner with all the data would. The duals λ_ij = −λ_ji add up what was averaged away, until they
    cancel the difference. Both ends of an edge compute them from the same two functions in the same order, so that they stay
    opposite bit for bit, whatever compression does, and sum to zero over the network.

    `budget` is δ; a quarter of the agent's ε is a good choice. What the agent shows is f, what it sends is φ.

    >>> ExactDiffusion(budget=0.05).penalty(0)
    0.0
    """

    budget: Schedule | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", as_schedule("ExactDiffusion", "budget", self.budget))
        if not isinstance(self.budget, Constant):
            # both ends must use the same δ in the same round, and they may have seen different numbers of samples
            raise ValueError(f"ExactDiffusion: budget must be a constant number >= 0, got {self.budget}")

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return Function(function.centres, function.weights) if len(points) else None

    def answer(self, function: Expansion, question: Message) -> Message | None:
        return None

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: Edges) -> tuple[Change, Edges]:
        there = [(said, said.asked, 0.5 * said.weight) for said in heard if isinstance(said.asked, Function)]
        own = 1.0 - sum(weight for _, _, weight in there)
        after = dict(edges)
        for said, theirs, weight in there:
            after[said.neighbour] = self._dual(edges.get(said.neighbour), function, theirs, weight, said.lower)
        nothing = np.empty((0, function.dimension)), np.empty((0, function.outputs))
        change = Change(
            np.concatenate([nothing[0], *(theirs.centres for _, theirs, _ in there)]),
            np.concatenate([nothing[1], *(weight * theirs.weights for _, theirs, weight in there)]),
            own,
        )
        return change, after

    def _dual(self, dual: Expansion | None, ours: Expansion, theirs: Function, weight: float, lower: bool) -> Expansion:
        """λ_ij ← C_δ[λ_ij + ā_ij (φ_j − φ_i)], computed as the end that stands first in the graph sees it."""
        sign = 1.0 if lower else -1.0
        first, second = (ours, theirs) if lower else (theirs, ours)
        centres, weights = [first.centres, second.centres], [-weight * first.weights, weight * second.weights]
        if dual is not None:
            centres.insert(0, dual.centres)
            weights.insert(0, sign * dual.weights)
        kept, fitted, _ = compress(
            ours.kernel, np.concatenate(centres), np.concatenate(weights), cast(Constant, self.budget).value
        )
        return Expansion.trusted(ours.kernel, kept, sign * fitted)

    def correction(self, edges: Edges) -> tuple[Floats, Floats] | None:
        if not edges:
            return None
        return np.concatenate([dual.centres for dual in edges.values()]), np.concatenate(
            [dual.weights for dual in edges.values()]
        )

    def move(self, moment: Moment, heard: Sequence[Heard]) -> Change:
        return Local().move(moment, ())

    def penalty(self, samples: int) -> float:
        return 0.0
