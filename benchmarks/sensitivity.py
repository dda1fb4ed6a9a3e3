"""What halving or doubling each of the estimators' defaults costs, on the sets of `defaults`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import sets
from cases import Line
from defaults import one_pass, standardized
from kernelmesh import OnlineKernelClassifier, OnlineKernelRegressor, SecondOrder
from kernelmesh.estimators import defaults as tables

_ROWS = 2000  # of a set that has more for training, which bounds the time
_SPLITS, _OF_FEW = 6, 8  # of a set into rows for training and others; sets with fewer rows have more, where they tell little
_BATCH = 32
_FACTORS = {0.5: "halved", 2.0: "doubled"}
# Points that may be lost: of accuracy in percent, of R² in hundredths.
_ALLOWED = {True: 1.0, False: 2.0}
_VARIED = ("width", "regularization", "budget", "novelty", "max_order", "half_life", "passes", "batch_size")


class Scores(NamedTuple):
    """Held-out accuracy in percent, or R² in hundredths, as means over the splits."""

    one_pass: float
    fit: float

    def __str__(self) -> str:
        return f"{self.one_pass:.2f} in one pass and {self.fit:.2f} after fit"


class Loss(NamedTuple):
    """What a changed default costs in one place."""

    points: float
    where: str


def sensitivity() -> list[Line]:
    """Held-out accuracy in points, and R² in hundredths, that halving or doubling one default costs where it costs most.

    Every default of the second-order rule is changed alone, on the sets of `defaults` that were looked at while the defaults
    were chosen (at most 2000 rows of each for training, six splits, up to eight of sets with fewer rows), in one pass of
    partial_fit and in fit. Differences of half a point are within the noise.
    """
    names = (*sets.DEVELOPMENT, *sets.SEEN)
    found: dict[str, dict[tuple[str, float], Scores]] = {}
    for name, scores in zip(names, sets.each(_of_set, names), strict=True):
        found[name] = scores
        costs = {varied: max(_costs(varied, name, scores)) for varied in _VARIED}
        told = ", ".join(f"{varied} {cost.points:.2f}" for varied, cost in costs.items())
        print(f"  {name} ({len(found)} of {len(names)}) has {scores['', 1.0]}; changes cost at most: {told}", flush=True)
    return [line for varied in _VARIED for line in _lines(varied, found)]


def _of_set(name: str) -> dict[tuple[str, float], Scores]:
    """The scores on a set with the defaults, and with each of them changed."""
    first = _some(name, 0)
    splits = min(max(_SPLITS, 2 * _ROWS // len(first.X)), _OF_FEW)
    data = [first, *(_some(name, split) for split in range(1, splits))]
    changes = [("", 1.0), *((varied, factor) for varied in _VARIED for factor in _FACTORS)]
    return {change: _scores(data, *change) for change in changes}


def _some(name: str, split: int) -> sets.Data:
    found = standardized(name, seed=split)
    return found._replace(X=found.X[:_ROWS], y=found.y[:_ROWS])


def _lines(varied: str, found: dict[str, dict[tuple[str, float], Scores]]) -> list[Line]:
    """One line for classes and one for values."""
    lines = []
    for classifies, allowed in _ALLOWED.items():
        each = [
            loss
            for name, scores in found.items()
            if sets.classifies(name) == classifies
            for loss in _costs(varied, name, scores)
        ]
        worst, best = max(each), min(each)
        unit = "points of accuracy" if classifies else "hundredths of R²"
        shown = f"costs at most {worst.points:.2f} ({worst.where}), gains at most {-best.points:.2f} ({best.where})"
        kind = "classes" if classifies else "values"
        what = f"{varied}, {kind}: {_value(varied, classifies)}"
        lines.append(Line(what, f"{shown}, {unit}", f"costs ≤ {allowed:g}", worst.points <= allowed))
    return lines


def _costs(varied: str, name: str, scores: dict[tuple[str, float], Scores]) -> list[Loss]:
    """What changes of a default cost on a set."""
    return [
        Loss(was - now, f"{name}, {how.replace('_', ' ')}, {word}")
        for factor, word in _FACTORS.items()
        for how, was, now in zip(Scores._fields, scores["", 1.0], scores[varied, factor], strict=True)
        if not math.isnan(now)
    ]


def _value(varied: str, classifies: bool) -> str:
    value = _BATCH if varied == "batch_size" else getattr(tables.defaults_of(SecondOrder), varied)
    if isinstance(value, tables.ByTargets):
        value = value.classes if classifies else value.values
    return f"{value:g}"


def _scores(data: list[sets.Data], varied: str, factor: float) -> Scores:
    """Both scores on a set, with one of the defaults changed by a factor."""
    batch = int(_BATCH * factor) if varied == "batch_size" else _BATCH
    with mock.patch.object(tables, "_SECOND_ORDER", _changed(varied, factor)):
        each = [_both(part, batch, streams=varied != "passes", fits=varied != "half_life") for part in data]
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


def _both(data: sets.Data, batch: int, *, streams: bool, fits: bool) -> tuple[float, float]:
    """The score of one pass and that of fit; NaN where the changed default has no part in it."""
    kind = OnlineKernelClassifier if data.classifies else OnlineKernelRegressor
    once = fitted = math.nan
    if streams:
        once = one_pass(kind(batch_size=batch), data.X, data.y, batch=batch).score(data.held_X, data.held_y)
    if fits:
        fitted = kind(batch_size=batch, random_state=0).fit(data.X, data.y).score(data.held_X, data.held_y)
    return once, fitted
