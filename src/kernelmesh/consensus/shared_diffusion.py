"""Exact diffusion over a dictionary that all agents share: only weights are sent, and duals need no compression."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.consensus.base import NUMBERED_WEIGHTS, EdgeMemories, Heard, StepInputs
from kernelmesh.consensus.edge_duals import EdgeDuals
from kernelmesh.consensus.numbered import Completed
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.landmarks import inverse, united
from kernelmesh.numerics.products import product
from kernelmesh.registry import register

__all__ = ["SharedDiffusion"]

# A neighbor counts as gone after this many exchanges without a message.
_SILENT = 8


@register("consensus")
@dataclass(frozen=True, kw_only=True)
class SharedDiffusion(EdgeDuals):
    """Like `ExactDiffusion`, with the projection Π_Z in place of compression, Z a dictionary that the agents come to share:

    f_i ← Π_Z[Σ_j ā_ij φ_j],  λ_ij ← λ_ij + ā_ij (φ_j − φ_i)   from the functions φ that the neighbors sent, then
    φ_i ← Π_Z[(1 − ηλ) f_i − (η/B) Σ_b ℓ'(f_i(x_b), y_b) κ(x_b, ·) + Σ_j λ_ij]   which is sent in the next round.

    For agents with the compression `SharedDictionary`. Once all have the same points, functions and duals are M × C arrays,
    and an exchange sums such arrays and sends M C numbers over each edge, each way. Duals λ_ij = −λ_ji are opposite bit for
    bit. While points still change, a dual is over the points of both ends, and its part over other points is projected
    onto those, identically at both ends.

    `every` = k, ā_ij, and the handling of lost messages and of ends restored from an older state are as with
    `ExactDiffusion`, with one exception: if the duals of only some edges act, because the others have not completed their
    exchanges, an agent uses that fraction of η, so that learning and its counterweight act together. Edges that have
    been silent for eight exchanges no longer count.

    Parameters
    ----------
    every : int
        k: agents exchange in every k-th round; the same for all agents.

    Examples
    --------
    >>> SharedDiffusion(every=4).exchanges(8)
    True
    """

    exchange = NUMBERED_WEIGHTS
    stacks = True

    @property
    def patience(self) -> int:
        return _SILENT * self.every

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        alive = [edge.acts > self.patience for edge in edges.values() if edge.acts]
        if all(alive):
            return super().move(inputs, heard, edges)
        part = sum(alive) / len(alive)
        return super().move(replace(inputs, slope=part * inputs.slope), heard, edges)

    def renewed(self, exchange: Completed, kernel: Kernel, weight: float, is_first: bool) -> Expansion:
        first, second = (exchange.ours, exchange.theirs) if is_first else (exchange.theirs, exchange.ours)
        centers, (place,) = united(first.centers, second.centers)
        weights = np.zeros((len(centers), first.weights.shape[1]))
        weights[: len(first.centers)] = -weight * first.weights
        compiled.symmetric.add_rows(weights, place, second.weights, weight)
        if exchange.before is not None:
            before = _over(centers, exchange.before)
            weights += before if is_first else -before
        return Expansion.trusted(kernel, centers, weights if is_first else -weights)


def _over(centers: Floats, function: Expansion) -> Floats:
    """The weights of a function over other points; its part over points not among these is projected onto them."""
    if np.array_equal(centers, function.centers):
        return function.weights
    everything, (place,) = united(centers, function.centers)
    weights = np.zeros((len(everything), function.outputs))
    compiled.symmetric.add_rows(weights, place, function.weights, 1.0)
    gone = everything[len(centers) :]
    if not len(gone):
        return weights
    cross = product(function.kernel(centers, gone), weights[len(centers) :])
    return np.asarray(weights[: len(centers)] + product(inverse(function.kernel, centers), cross))
