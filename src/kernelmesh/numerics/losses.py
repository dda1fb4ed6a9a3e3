"""Loss functions ℓ(z, y) of the outputs z = f(x) and a target y, with their derivatives.

`value(z, y)` returns one number per row, `slope(z, y)` the derivative by each output (a subgradient at a kink).
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, class_labels, matrix, positive
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics import compiled
from kernelmesh.registry import register

__all__ = ["ClassTargets", "CurvedLoss", "Hinge", "Huber", "Logistic", "Loss", "Squared", "SquaredHinge", "ValueTargets"]
__all__ += ["check_loss", "curvature_root"]


@runtime_checkable
class Loss(Protocol):
    """A loss function ℓ(z, y), convex in z.

    The interface of losses. `kernelmesh.testing.check_loss` checks a loss, and `register("loss")`
    makes it available in files and on the command line.

    Attributes
    ----------
    classifies : bool
        Whether targets are class numbers (otherwise values).

    Examples
    --------
    >>> isinstance(Huber(threshold=0.5), Loss), Hinge().classifies
    (True, True)
    """

    @property
    def classifies(self) -> bool:
        """Whether targets are class numbers (otherwise values)."""

    def check(self, owner: str, y: Any, *, rows: int, outputs: int) -> NDArray[Any]:
        """Return the targets in the form that `value` and `slope` take, or raise an error."""

    def value(self, z: Floats, y: Any) -> Floats:
        """ℓ(z_i, y_i) for each row."""

    def slope(self, z: Floats, y: Any) -> Floats:
        """∂ℓ(z_i, y_i) / ∂z for each row."""

    def value_and_slope(self, z: Floats, y: Any) -> tuple[Floats, Floats]:
        """The value and the slope, which every step needs."""


@runtime_checkable
class CurvedLoss(Loss, Protocol):
    """A loss with curvature, which second-order learning needs; all built-in losses have it."""

    def curvature(self, z: Floats, y: Any) -> Floats:
        """One number h ≥ 0 per row in place of ∂²ℓ / ∂z²: the model is ℓ(z') ≈ ℓ(z) + ℓ'(z' − z) + h/2 ‖z' − z‖²."""

    def implicit_step(self, start: Floats, covariance: Floats, y: Any, *, iterations: int) -> tuple[Floats, Floats]:
        """a = ℓ'(z) at z = z₀ − T a, and z, nearly: the minimum of Σ ℓ(z, y) + ½ (z − z₀)ᵀ T⁻¹ (z − z₀), T = `covariance`."""


# Outputs that move less than this have been found.
_SETTLED = 1e-3


class _Defaults:
    """Default implementations for losses."""

    most_curved = math.inf
    """The largest curvature of any sample."""
    typical_curvature = 1.0
    """About that of most samples when learning is done."""
    refines = True
    """Whether an implicit step gains from more than one iteration: not where its bound is exact, nor at kinks."""

    def value_and_slope(self: Loss, z: Floats, y: Any) -> tuple[Floats, Floats]:
        return self.value(z, y), self.slope(z, y)

    def curvature_bound(self: Any, z: Floats, y: Any) -> Floats:
        """A number for each row that ∂²ℓ / ∂z² never exceeds; at kinks, which have none, one that suits a step from z."""
        return cast(Floats, self.curvature(z, y))

    def implicit_step(self: Any, start: Floats, covariance: Floats, y: Any, *, iterations: int) -> tuple[Floats, Floats]:
        """By majorize-minimize iterations: with h ≥ ℓ'', a ← (I + h T)⁻¹ [ℓ'(z) + h (z₀ − z)], z ← z₀ − T a."""
        root = curvature_root(self, "curvature_bound", start, y)
        lower = compiled.newton.factorize(covariance, root)
        force = there = start
        for _ in range(iterations if self.refines else 1):
            force, there, moved = compiled.newton.refine(lower, root, covariance, start, there, self.slope(there, y))
            if moved < _SETTLED:
                break
        return force, there


class ClassTargets(_Defaults):
    """The base class of losses whose targets are class numbers 0 … C − 1, with one output per class."""

    classifies = True

    def check(self, owner: str, y: Any, *, rows: int, outputs: int) -> Ints:
        return class_labels(owner, "y", y, classes=outputs, rows=rows)


class ValueTargets(_Defaults):
    """The base class of losses whose targets are real numbers, one per output; a vector is taken as one output."""

    classifies = False

    def check(self, owner: str, y: Any, *, rows: int, outputs: int) -> Floats:
        array = np.asarray(y)
        return matrix(owner, "y", array[:, None] if array.ndim == 1 else array, rows=rows, columns=outputs)


@register("loss")
@dataclass(frozen=True, kw_only=True)
class Logistic(ClassTargets):
    """ℓ(z, y) = log Σ_d exp(z_d) − z_y: the negative log likelihood of the softmax.

    Examples
    --------
    >>> Logistic().slope(np.array([[0.0, 0.0]]), np.array([1]))
    array([[ 0.5, -0.5]])
    """

    most_curved = 0.5
    typical_curvature = 0.1

    def value(self, z: Floats, y: Ints) -> Floats:
        return self.value_and_slope(z, y)[0]

    def slope(self, z: Floats, y: Ints) -> Floats:
        return self.value_and_slope(z, y)[1]

    def value_and_slope(self, z: Floats, y: Ints) -> tuple[Floats, Floats]:
        values, slopes = np.empty(len(z)), np.empty(z.shape)
        compiled.losses.softmax(z, y, values, slopes)
        return values, slopes

    def curvature(self, z: Floats, y: Ints) -> Floats:
        """‖H‖² / tr H of the Hessian H = diag(p) − p pᵀ: exact for two classes and where all classes are equally likely."""
        # where the model is sure of itself the loss is flat; some curvature remains, so that every sample is remembered
        return compiled.losses.softmax_curvature(z, 1e-3)

    def implicit_step(self, start: Floats, covariance: Floats, y: Ints, *, iterations: int) -> tuple[Floats, Floats]:
        return compiled.newton.implicit_softmax(start, covariance, y, iterations, _SETTLED)

    def probabilities(self, z: Floats) -> Floats:
        """P(y = d | x) = exp(z_d) / Σ_d' exp(z_d')."""
        slopes = self.slope(z, np.zeros(len(z), dtype=np.int64))
        slopes[:, 0] += 1.0
        return slopes


def _push(z: Floats, y: Ints, rivals: Ints, force: Floats) -> Floats:
    """The slope of a function of z_r − z_y: up for the rival, down for the right class."""
    rows = np.arange(len(y))
    out = np.zeros_like(z)
    out[rows, rivals] = force
    out[rows, y] = -force
    return out


@register("loss")
@dataclass(frozen=True, kw_only=True)
class Hinge(ClassTargets):
    """ℓ(z, y) = max(0, 1 + z_r − z_y) with the strongest rival r = argmax_{d ≠ y} z_d (Crammer and Singer).

    At the kink 1 + z_r = z_y, the slope is 0; of equal rivals, the first is used.

    Examples
    --------
    >>> Hinge().slope(np.array([[0.0, 0.0, 0.0]]), np.array([0]))
    array([[-1.,  1.,  0.]])
    """

    most_curved = 2.0

    refines = False

    def value(self, z: Floats, y: Ints) -> Floats:
        margin, _ = compiled.losses.margins(z, y)
        return np.asarray(np.maximum(margin, 0.0))

    def slope(self, z: Floats, y: Ints) -> Floats:
        margin, rivals = compiled.losses.margins(z, y)
        return _push(z, y, rivals, (margin > 0.0).astype(np.float64))

    def curvature(self, z: Floats, y: Ints) -> Floats:
        """‖ℓ'‖²: a kink has no second derivative; the squared slope stands for it, as in online Newton steps."""
        margin, _ = compiled.losses.margins(z, y)
        return np.where(margin > 0.0, 2.0, 0.0)


@register("loss")
@dataclass(frozen=True, kw_only=True)
class SquaredHinge(ClassTargets):
    """ℓ(z, y) = max(0, 1 + z_r − z_y)², r = argmax_{d ≠ y} z_d: the hinge without a kink at the margin.

    Examples
    --------
    >>> SquaredHinge().slope(np.array([[0.0, 0.0]]), np.array([0]))
    array([[-2.,  2.]])
    """

    most_curved = 4.0

    def value(self, z: Floats, y: Ints) -> Floats:
        margin, _ = compiled.losses.margins(z, y)
        return np.asarray(np.maximum(margin, 0.0) ** 2)

    def slope(self, z: Floats, y: Ints) -> Floats:
        margin, rivals = compiled.losses.margins(z, y)
        return _push(z, y, rivals, 2.0 * np.maximum(margin, 0.0))

    def curvature(self, z: Floats, y: Ints) -> Floats:
        """4 where the margin is violated: the largest eigenvalue of the Hessian, 2 (e_r − e_y)(e_r − e_y)ᵀ."""
        margin, _ = compiled.losses.margins(z, y)
        return np.where(margin > 0.0, 4.0, 0.0)

    def curvature_bound(self, z: Floats, y: Ints) -> Floats:
        return np.full(len(z), 4.0)


@register("loss")
@dataclass(frozen=True, kw_only=True)
class Squared(ValueTargets):
    """ℓ(z, y) = ½ ‖z − y‖² over one or several outputs.

    Examples
    --------
    >>> Squared().slope(np.array([[3.0]]), np.array([[1.0]]))
    array([[2.]])
    """

    most_curved = 1.0

    refines = False

    def value(self, z: Floats, y: Floats) -> Floats:
        return np.asarray(0.5 * ((z - y) ** 2).sum(axis=1))

    def slope(self, z: Floats, y: Floats) -> Floats:
        return z - y

    def curvature(self, z: Floats, y: Floats) -> Floats:
        return np.ones(len(z))


@register("loss")
@dataclass(frozen=True, kw_only=True)
class Huber(ValueTargets):
    """ℓ(z, y) = Σ over outputs of ½ r² where |r| ≤ δ, else δ |r| − ½ δ², r = z − y: robust to outliers.

    Parameters
    ----------
    threshold : float
        The threshold δ > 0.

    Examples
    --------
    >>> Huber(threshold=1.0).slope(np.array([[9.0]]), np.array([[1.0]]))
    array([[1.]])
    """

    most_curved = 1.0

    threshold: float = 1.0

    def __post_init__(self) -> None:
        positive("Huber", "threshold", self.threshold)

    def value(self, z: Floats, y: Floats) -> Floats:
        far = np.abs(z - y)
        near = np.minimum(far, self.threshold)
        return np.asarray((near * (far - 0.5 * near)).sum(axis=1))

    def slope(self, z: Floats, y: Floats) -> Floats:
        return np.clip(z - y, -self.threshold, self.threshold)

    def curvature(self, z: Floats, y: Floats) -> Floats:
        """min(1, δ / |r|), the mean over the outputs: the curvature of a parabola that touches the loss at r and −r."""
        far = np.abs(z - y)
        return np.asarray((self.threshold / np.maximum(far, self.threshold)).mean(axis=1))

    def curvature_bound(self, z: Floats, y: Floats) -> Floats:
        return np.ones(len(z))


def curvature_root(loss: Loss, method: str, z: Floats, y: Any) -> Floats:
    """√h of a loss, by the given method; rejects anything but one number ≥ 0 per row."""
    h = np.asarray(getattr(loss, method)(z, y), dtype=np.float64)
    rule = f"return one finite number >= 0 for each of {len(z)} rows"
    if h.shape != (len(z),):
        raise InvalidArgument(type(loss).__name__, method, rule, Verbatim(f"shape {h.shape}"))
    # outputs that are not finite have no curvature, and that is not the fault of the loss
    if not (np.minimum.reduce(h) >= 0.0 and np.maximum.reduce(h) < np.inf) and np.isfinite(z).all():
        raise InvalidArgument(type(loss).__name__, method, rule, Verbatim(f"values from {h.min():g} to {h.max():g}"))
    return np.sqrt(h)


def check_loss(owner: str, loss: object) -> Loss:
    """Reject anything that is not a loss."""
    if not isinstance(loss, Loss) or isinstance(loss, type):
        raise InvalidArgument(owner, "loss", "be a loss", loss, remedy="for example Logistic() or Squared()")
    return loss
