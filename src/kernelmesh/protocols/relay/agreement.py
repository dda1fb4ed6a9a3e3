"""What a network agrees on before it learns: the scales of the features, then the width of the kernel and λ.

Each is decided by the root from sums over the first samples of all members, and travels down with the list of points.
"""

from __future__ import annotations

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.numerics.basis import Basis
from kernelmesh.numerics.kernels import Kernel, Weighted
from kernelmesh.numerics.sums import Sums
from kernelmesh.protocols.relay.point_list import PointList
from kernelmesh.protocols.relay.settings import Settings

__all__ = ["CANDIDATES", "POINTS", "SCALED", "TUNED", "candidates", "scaled", "standardized", "tuned"]

SCALED, TUNED = 1, 2
"""The stages of a list of points: the scales of the features are agreed on, and so are the width and λ."""
POINTS = 128
"""The number of points, the first ones of the list, over which candidates are compared."""
# Widths and λ that are compared, as multiples of the given ones.
_WIDTHS, _STRENGTHS = (0.125, 0.25, 0.5, 1.0, 2.0), (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)
CANDIDATES = 2 * len(_WIDTHS)
"""The number of sums in which they are compared: two halves of the samples for each width."""


def scaled(kernel: Kernel, scales: Floats) -> Kernel:
    """The kernel of features divided by their scales."""
    return Weighted(kernel, weights=tuple(1.0 / scales)) if scales.size else kernel


def standardized(settings: Settings, points: PointList, total: Sums, root: int) -> PointList:
    """The list with the standard deviations of the features over all samples as scales; 1 where a feature is constant.

    If widths will be compared, the points must be close enough for the narrowest.
    """
    mean = total.features[0] / total.samples
    variance = total.features[1] / total.samples - mean**2
    scales = np.where(variance > 1e-12 * mean**2, np.sqrt(np.maximum(variance, 0.0)), 1.0)
    narrowest = _WIDTHS[0] if settings.stages >= TUNED else 1.0
    return PointList.of(points.roots, points.points, narrowest * scales, root, stage=SCALED)


def candidates(settings: Settings, points: PointList) -> list[Basis]:
    """A basis of the first points of the list for each width, to be tried on two halves of the samples."""
    scales = points.scales / _WIDTHS[0]
    return [Basis.over(scaled(settings.kernel, width * scales), points.points[:POINTS]) for width in _WIDTHS]


def tuned(settings: Settings, points: PointList, trials: tuple[Sums, ...], root: int) -> PointList:
    """The list with the width and the λ that predict best, from sums over two halves of the samples for each width.

    Weights from one half are judged by their squared errors on the other, Σ ‖t‖² − 2 tr wᵀβ + tr wᵀΘw, where the first
    term is the same for all.
    """
    found = {}
    for width, halves in zip(_WIDTHS, zip(trials[::2], trials[1::2], strict=True), strict=True):
        for strength in _STRENGTHS:
            found[width, strength] = _error(halves, strength * settings.regularization / settings.typical_curvature)
    width, strength = min(found, key=lambda each: found[each])
    scales = width / _WIDTHS[0] * points.scales
    empty = Basis.over(scaled(settings.kernel, scales), points.points[:0])
    novel = points.points[np.sort(empty.novel(points.points, novelty=settings.novelty, room=settings.max_order))]
    return PointList.of(np.full(len(novel), root), novel, scales, root, stage=TUNED, strength=strength)


def _error(halves: tuple[Sums, Sums], regularization: float) -> float:
    """The squared errors on each half with the weights from the other, but for a constant."""
    error = 0.0
    for here, there in (halves, halves[::-1]):
        weights = here.solve(regularization)[: there.order]  # where the other half has no points, it has only zeros
        target, square = there.weights[: len(weights)], there.square()[: len(weights), : len(weights)]
        error += float(np.vdot(weights, square @ weights) - 2.0 * np.vdot(weights, target))
    return error
