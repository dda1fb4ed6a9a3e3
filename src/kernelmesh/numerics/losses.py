"""Losses: how wrong the outputs z = f(x) are for a target y, and in which direction.

`value(z, y)` gives one number per row, `slope(z, y)` the derivative by each output (a subgradient where there is a kink).
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, class_labels, matrix, positive
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics import compiled
from kernelmesh.registry import register

__all__ = ["ClassTargets", "Hinge", "Huber", "Logistic", "Loss", "Squared", "SquaredHinge", "ValueTargets", "check_loss"]


@runtime_checkable
class Loss(Protocol):
    """ℓ(z, y), convex in z.

    The role that every loss plays. `kernelmesh.testing.check_loss` checks that it is a good one, and `register("loss")`
    makes it known to files and to the command line.

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
        """Give the targets back in the form that `value` and `slope` take, or refuse them."""

    def value(self, z: Floats, y: Any) -> Floats:
        """ℓ(z_i, y_i) for each row."""

    def slope(self, z: Floats, y: Any) -> Floats:
        """∂ℓ(z_i, y_i) / ∂z for each row."""

    def value_and_slope(self, z: Floats, y: Any) -> tuple[Floats, Floats]:
        """Both at once, which every step needs."""


class _Both:
    """`value_and_slope` for losses whose value and slope have nothing in common."""

    def value_and_slope(self: Loss, z: Floats, y: Any) -> tuple[Floats, Floats]:
        return self.value(z, y), self.slope(z, y)


class ClassTargets(_Both):
    """What losses share whose targets are class numbers 0 … C − 1, one output per class."""

    classifies = True

    def check(self, owner: str, y: Any, *, rows: int, outputs: int) -> Ints:
        return class_labels(owner, "y", y, classes=outputs, rows=rows)


class ValueTargets(_Both):
    """What losses share whose targets are real numbers, one per output; a vector is taken as one output."""

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

    def value(self, z: Floats, y: Ints) -> Floats:
        return self.value_and_slope(z, y)[0]

    def slope(self, z: Floats, y: Ints) -> Floats:
        return self.value_and_slope(z, y)[1]

    def value_and_slope(self, z: Floats, y: Ints) -> tuple[Floats, Floats]:
        values, slopes = np.empty(len(z)), np.empty(z.shape)
        compiled.losses.softmax(z, y, values, slopes)
        return values, slopes

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

    At the kink 1 + z_r = z_y the slope is 0; among equal rivals the first one is moved.

    Examples
    --------
    >>> Hinge().slope(np.array([[0.0, 0.0, 0.0]]), np.array([0]))
    array([[-1.,  1.,  0.]])
    """

    def value(self, z: Floats, y: Ints) -> Floats:
        margin, _ = compiled.losses.margins(z, y)
        return np.asarray(np.maximum(margin, 0.0))

    def slope(self, z: Floats, y: Ints) -> Floats:
        margin, rivals = compiled.losses.margins(z, y)
        return _push(z, y, rivals, (margin > 0.0).astype(np.float64))


@register("loss")
@dataclass(frozen=True, kw_only=True)
class SquaredHinge(ClassTargets):
    """ℓ(z, y) = max(0, 1 + z_r − z_y)², r = argmax_{d ≠ y} z_d: the hinge without a kink at the margin.

    Examples
    --------
    >>> SquaredHinge().slope(np.array([[0.0, 0.0]]), np.array([0]))
    array([[-2.,  2.]])
    """

    def value(self, z: Floats, y: Ints) -> Floats:
        margin, _ = compiled.losses.margins(z, y)
        return np.asarray(np.maximum(margin, 0.0) ** 2)

    def slope(self, z: Floats, y: Ints) -> Floats:
        margin, rivals = compiled.losses.margins(z, y)
        return _push(z, y, rivals, 2.0 * np.maximum(margin, 0.0))


@register("loss")
@dataclass(frozen=True, kw_only=True)
class Squared(ValueTargets):
    """ℓ(z, y) = ½ ‖z − y‖² over one or several outputs.

    Examples
    --------
    >>> Squared().slope(np.array([[3.0]]), np.array([[1.0]]))
    array([[2.]])
    """

    def value(self, z: Floats, y: Floats) -> Floats:
        return np.asarray(0.5 * ((z - y) ** 2).sum(axis=1))

    def slope(self, z: Floats, y: Floats) -> Floats:
        return z - y


@register("loss")
@dataclass(frozen=True, kw_only=True)
class Huber(ValueTargets):
    """ℓ(z, y) = Σ over outputs of ½ r² where |r| ≤ δ, else δ |r| − ½ δ², r = z − y: outliers pull with bounded force.

    Parameters
    ----------
    threshold : float
        δ > 0.

    Examples
    --------
    >>> Huber(threshold=1.0).slope(np.array([[9.0]]), np.array([[1.0]]))
    array([[1.]])
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        positive("Huber", "threshold", self.threshold)

    def value(self, z: Floats, y: Floats) -> Floats:
        far = np.abs(z - y)
        near = np.minimum(far, self.threshold)
        return np.asarray((near * (far - 0.5 * near)).sum(axis=1))

    def slope(self, z: Floats, y: Floats) -> Floats:
        return np.clip(z - y, -self.threshold, self.threshold)


def check_loss(owner: str, loss: object) -> Loss:
    """Refuse what does not play the role of a loss."""
    if not isinstance(loss, Loss) or isinstance(loss, type):
        raise InvalidArgument(owner, "loss", "be a loss", loss, remedy="for example Logistic() or Squared()")
    return loss
