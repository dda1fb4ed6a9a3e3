"""The laws of losses."""

from typing import Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.numerics.losses import CurvedLoss, Loss
from kernelmesh.testing.laws import require, require_close, require_role, require_round_trip

__all__ = ["check_loss"]

_STEP = 1e-6


def check_loss(loss: Loss, *, outputs: int = 3, rows: int = 40, rng: np.random.Generator | None = None) -> None:
    """Check that a loss is convex, and that its slope is the derivative of its value, or a subgradient at a kink.

    For a loss with curvature, also check that the curvature is at least 0, and that an implicit step goes where it
    claims to, and downhill unless the loss declares with `refines` that its steps are not refined.

    Parameters
    ----------
    loss : Loss
        The loss to check.
    outputs : int
        The length of z: the number of classes, or of values to predict.
    rows : int
        The number of random places to check.
    rng : numpy.random.Generator, optional
        The generator that draws them.

    Raises
    ------
    AssertionError
        Says which law is broken, and how.

    Examples
    --------
    >>> from kernelmesh import Huber
    >>> check_loss(Huber(threshold=0.7))
    """
    owner = repr(loss)
    require_role(loss, Loss, owner)
    rng = np.random.default_rng(0) if rng is None else rng
    z, far = 2.0 * rng.standard_normal((2, rows, outputs))
    y = _targets(loss, rows, outputs, rng)
    before = z.copy()
    value, slope = loss.value_and_slope(z, y)
    for name, array, shape in (("values", value, (rows,)), ("slopes", slope, (rows, outputs))):
        law = f"must return {name} of shape {shape} for {rows} rows and {outputs} outputs"
        require(array.shape == shape, owner, law, array.shape)
        require(array.dtype == np.float64, owner, f"must return {name} in float64", array.dtype)
    require_close(value, loss.value(z, y), owner, "must return the same values from value_and_slope as from value")
    require_close(slope, loss.slope(z, y), owner, "must return the same slopes from value_and_slope as from slope")
    require(bool((z == before).all()), owner, "must not modify its outputs z", "numbers that changed")
    _check_convex(loss, owner, z, far, y)
    _check_slope(loss, owner, z, y)
    if isinstance(loss, CurvedLoss):
        _check_curvature(loss, owner, z, y, rng)
    huge = 1e3 * np.sign(z)
    finite = all(np.isfinite(array).all() for array in loss.value_and_slope(huge, y))
    require(finite, owner, "must be finite for outputs of ±1000", "values or slopes that are not")
    require_round_trip("loss", loss, owner)


def _targets(loss: Loss, rows: int, outputs: int, rng: np.random.Generator) -> Any:
    """Random targets, after verifying that `check` accepts them and rejects wrong ones."""
    owner = repr(loss)
    good: Any = rng.integers(outputs, size=rows) if loss.classifies else rng.standard_normal((rows, outputs))
    wrong: Any = good + outputs if loss.classifies else np.full_like(good, np.nan)
    try:
        loss.check("check_loss", wrong, rows=rows, outputs=outputs)
    except ValueError:
        return loss.check("check_loss", good, rows=rows, outputs=outputs)
    what = f"class numbers beyond {outputs - 1}" if loss.classifies else "targets that are not finite"
    raise AssertionError(f"{owner}: check must reject {what}, got no error")


def _check_convex(loss: Loss, owner: str, z: Floats, far: Floats, y: Any) -> None:
    ends = loss.value(z, y), loss.value(far, y)
    for share in (0.25, 0.5, 0.75):
        chord = (1 - share) * ends[0] + share * ends[1]
        inside = loss.value((1 - share) * z + share * far, y)
        law = "must be convex: between two places, at most the value on the chord"
        require_close(np.maximum(inside, chord), chord, owner, law, relative=1e-9, absolute=1e-9)


def _check_slope(loss: Loss, owner: str, z: Floats, y: Any) -> None:
    """A subgradient of a convex function lies between its slopes on either side, which differ at a kink."""
    value, slope = loss.value_and_slope(z, y)
    slack = 1e-4 * (1 + np.abs(slope).max())
    for output in range(z.shape[1]):
        moved = np.zeros_like(z)
        moved[:, output] = _STEP
        left = (value - loss.value(z - moved, y)) / _STEP - slack
        right = (loss.value(z + moved, y) - value) / _STEP + slack
        outside = (slope[:, output] < left) | (slope[:, output] > right)
        row = int(np.argmax(outside))
        found = f"{slope[row, output]:.6g} where it is {left[row]:.6g} to {right[row]:.6g}, output {output}"
        require(not outside.any(), owner, "must have a slope that is the derivative of its value", found)


def _check_curvature(loss: CurvedLoss, owner: str, z: Floats, y: Any, rng: np.random.Generator) -> None:
    rows, curvature = len(z), loss.curvature(z, y)
    require(curvature.shape == (rows,), owner, f"must return curvatures of shape {(rows,)} for {rows} rows", curvature.shape)
    good = np.isfinite(curvature).all() and bool((curvature >= 0).all())
    require(bool(good), owner, "must have curvatures that are finite and at least 0", curvature.min())
    root = rng.standard_normal((rows, 3)) / 2
    covariance = root @ root.T
    for iterations in (1, 100):
        force, there = loss.implicit_step(z, covariance, y, iterations=iterations)
        law = f"must return slopes and outputs of shape {z.shape} from implicit_step"
        require(force.shape == there.shape == z.shape, owner, law, f"{force.shape} and {there.shape}")
        law = "must step to z = z₀ − T a in implicit_step"
        require_close(there, z - covariance @ force, owner, law, absolute=1e-6 * (1 + float(np.abs(z).max())))
    none, here = loss.implicit_step(z, np.zeros_like(covariance), y, iterations=5)
    require_close(here, z, owner, "must not move in implicit_step if T = 0", absolute=1e-12)
    require_close(none, loss.slope(z, y), owner, "must return its slope from implicit_step if T = 0", absolute=1e-9)
    if not getattr(loss, "refines", True):
        return  # at a kink, one step may overshoot
    moved = float(loss.value(there, y).sum() + 0.5 * np.sum(force * (covariance @ force)))
    stayed = float(loss.value(z, y).sum())
    found = f"{moved:.6g} after {stayed:.6g}"
    require(moved <= stayed * (1 + 1e-9), owner, "must lower ℓ(z) + ½ aᵀ T a with implicit_step", found)
