"""What halving or doubling each of the estimators' defaults costs, on the sets of `defaults`."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import sets
from cases import Line
from defaults import one_pass, standardized
from kernelmesh import OnlineKernelClassifier, OnlineKernelRegressor, ScaleWarning, SecondOrder
from kernelmesh.estimators import defaults as tables

_SPLITS = (0, 1)
_ROWS = 2000  # of a set that has more for training, which bounds the time
_BATCH = 32
_FACTORS = {0.5: "halved", 2.0: "doubled"}
# Points that may be lost: of accuracy in percent, of R² in hundredths.
_ALLOWED = {True: 1.0, False: 2.0}
_VARIED = ("width", "regularization", "budget", "novelty", "max_order", "half_life", "passes", "batch_size")


class Scores(NamedTuple):
    """Held-out accuracy in percent, or R² in hundredths, as means over the splits."""

    one_pass: float
    fit: float


class Loss(NamedTuple):
    """What a changed default costs in one place."""

    points: float
    where: str


def sensitivity() -> list[Line]:
    """Held-out accuracy in points, and R² in hundredths, that halving or doubling one default costs where it costs most.

    Every default of the second-order rule is changed alone, on all sets of `defaults` (at most 2000 rows of each for
    training, two splits), in one pass of partial_fit and in fit. Differences of half a point are within the noise of
    small sets.
    """
    names = (*sets.DEVELOPMENT, *sets.JUDGED)
    data = {(name, split): _some(name, split) for name in names for split in _SPLITS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScaleWarning)  # fewer rows leave a column constant here and there
        usual = {name: _scores(data, name) for name in names}
        return [line for varied in _VARIED for line in _varied(varied, data, usual)]


def _some(name: str, split: int) -> sets.Data:
    found = standardized(name, seed=split)
    return found._replace(X=found.X[:_ROWS], y=found.y[:_ROWS])


def _varied(varied: str, data: dict[tuple[str, int], sets.Data], usual: dict[str, Scores]) -> list[Line]:
    """One line for classes and one for values."""
    lost: dict[bool, list[Loss]] = {True: [], False: []}
    for factor, word in _FACTORS.items():
        for name, before in usual.items():
            after = _scores(data, name, varied, factor)
            for how, was, now in zip(("one pass", "fit"), before, after, strict=True):
                lost[data[name, 0].classifies].append(Loss(was - now, f"{name}, {how}, {word}"))
    lines = []
    for classifies, each in lost.items():
        worst, allowed = max(each), _ALLOWED[classifies]
        best = min(each)
        unit = "points of accuracy" if classifies else "hundredths of R²"
        shown = f"costs at most {worst.points:.2f} ({worst.where}), gains at most {-best.points:.2f} ({best.where})"
        kind = "classes" if classifies else "values"
        what = f"{varied}, {kind}: {_value(varied, classifies)}"
        lines.append(Line(what, f"{shown}, {unit}", f"costs ≤ {allowed:g}", worst.points <= allowed))
    return lines


def _value(varied: str, classifies: bool) -> str:
    value = _BATCH if varied == "batch_size" else getattr(tables.defaults_of(SecondOrder), varied)
    if isinstance(value, tables.ByTargets):
        value = value.classes if classifies else value.values
    return f"{value:g}"


def _scores(data: dict[tuple[str, int], sets.Data], name: str, varied: str = "", factor: float = 1.0) -> Scores:
    """Both scores on a set, with one of the defaults changed by a factor."""
    batch = int(_BATCH * factor) if varied == "batch_size" else _BATCH
    with mock.patch.object(tables, "_SECOND_ORDER", _changed(varied, factor)):
        each = [_both(data[name, split], batch) for split in _SPLITS]
    return Scores(*(100.0 * np.mean(each, axis=0)).tolist())


def _changed(varied: str, factor: float) -> tables.Defaults:
    usual = tables.defaults_of(SecondOrder)
    if varied in ("", "batch_size"):
        return usual
    value: Any = getattr(usual, varied)
    if isinstance(value, tables.ByTargets):
        value = tables.ByTargets(*(factor * each for each in value))
    else:
        value = type(value)(factor * value)
    return dataclasses.replace(usual, **{varied: value})


def _both(data: sets.Data, batch: int) -> tuple[float, float]:
    kind = OnlineKernelClassifier if data.classifies else OnlineKernelRegressor
    model = one_pass(kind(batch_size=batch), data.X, data.y, batch=batch)
    fitted = kind(batch_size=batch, random_state=0).fit(data.X, data.y)
    return model.score(data.held_X, data.held_y), fitted.score(data.held_X, data.held_y)
