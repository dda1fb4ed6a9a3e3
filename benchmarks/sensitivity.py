"""What halving or doubling each of the estimators' defaults costs, on the sets of `defaults`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import sets
from cases import Line
from defaults import one_pass, standardized
from kernelmesh import Agent, OnlineKernelClassifier, OnlineKernelRegressor, SecondOrder
from kernelmesh.estimators import choice
from kernelmesh.estimators import defaults as tables
from kernelmesh.estimators.parameters import TOLERANCE

_ROWS = 2000  # of a set that has more for training, which bounds the time
# Random splits of a set into rows for training and others: for most defaults, for those that hardly ever change a score, and
# where these leave doubts.
_SPLITS, _FEW, _MANY = 2, 1, 8
_FACTORS = {0.5: "halved", 2.0: "doubled"}
# Points that may be lost: of accuracy in percent, of R² in hundredths.
_ALLOWED = {True: 1.0, False: 2.0}
_PARAMETERS = {"batch_size": 32, "tol": TOLERANCE}  # of the constructors; the other defaults stand in a table
_ONLY_FIT = ("passes", "tol")
_ONLY_STREAMS = ("half_life",)
_HARDLY = ("width", "regularization", "max_order", "half_life", "tol")  # the first two are chosen by the rows anyway
_VARIED = ("width", "regularization", "budget", "max_order", "half_life", "passes", "batch_size", "tol")
_LARGE = "letter"  # with all its rows: the only set whose dictionary reaches max_order
_OF_MANY_ROWS = ("max_order", "half_life")


class Loss(NamedTuple):
    """What a changed default costs in one place: the mean over the splits, and its standard error."""

    points: float
    error: float
    splits: int
    where: str

    def __str__(self) -> str:
        return f"{self.points:.2f}{f' ± {self.error:.2f}' if self.splits > 1 else ''} ({self.where}, splits: {self.splits})"


def sensitivity() -> list[Line]:
    """Held-out accuracy in points, and R² in hundredths, that halving or doubling one default costs where it costs most.

    Every default of `SecondOrder` is changed alone, on the sets of `defaults` that were looked at while the defaults
    were chosen (at most 2000 rows of each for training), in one pass of partial_fit and in fit. Costs are means over two
    splits of a set, or over eight where the first ones show more than half of what is allowed, ± their standard errors.
    Defaults that hardly ever change a score have one split to begin with. The last lines have all rows of letter.
    """
    names = (*sets.DEVELOPMENT, *sets.SEEN)
    found: dict[bool, dict[str, list[Loss]]] = {classifies: {each: [] for each in _VARIED} for classifies in _ALLOWED}
    for number, (name, costs) in enumerate(zip(names, sets.each(_of_set, names), strict=True), start=1):
        for varied, losses in costs.items():
            found[sets.classifies(name)][varied] += losses
        told = "; ".join(f"{varied} {max(losses)}" for varied, losses in costs.items())
        print(f"  {name} ({number} of {len(names)}): changes cost at most: {told}", flush=True)
    lines = [_line(varied, found[classifies][varied], classifies) for varied in _VARIED for classifies in _ALLOWED]
    large = zip(_OF_MANY_ROWS, sets.each(_of_many_rows, _OF_MANY_ROWS), strict=True)
    return lines + [_line(varied, losses, True, rows=f", all rows of {_LARGE}") for varied, losses in large]


def _line(varied: str, losses: list[Loss], classifies: bool, *, rows: str = "") -> Line:
    worst, best, allowed = max(losses), min(losses), _ALLOWED[classifies]
    gain = best._replace(points=0.0 - best.points)
    unit = "points of accuracy" if classifies else "hundredths of R²"
    what = f"{varied}, {'classes' if classifies else 'values'}{rows}: {_value(varied, classifies):g}"
    shown = f"costs at most {worst}, gains at most {gain}, {unit}"
    return Line(what, shown, f"costs ≤ {allowed:g}", bool(worst.points <= allowed))


def _of_set(name: str) -> dict[str, list[Loss]]:
    """What changes of each default cost on a set."""
    changes = [(varied, factor) for varied in _VARIED for factor in _FACTORS if _matters(varied, factor)]
    costs: dict[tuple[str, float], list[np.ndarray]] = {change: [] for change in changes}
    for split in range(_MANY):
        due = [change for change in changes if split < _splits(change[0], costs[change], _ALLOWED[sets.classifies(name)])]
        if due:
            with remembered_trials():
                data = standardized(name, seed=split)
                data = data._replace(X=data.X[:_ROWS], y=data.y[:_ROWS])
                usual = _scores(data, "", 1.0)
                for change in due:
                    costs[change].append(usual - _scores(data, *change))
    found: dict[str, list[Loss]] = {varied: [] for varied in _VARIED}
    for (varied, factor), each in costs.items():
        found[varied] += _losses(np.array(each), name, _FACTORS[factor])
    return found


def _matters(varied: str, factor: float) -> bool:
    """Whether a change can matter: there are no more points than rows."""
    return varied != "max_order" or factor * _value(varied, True) < _ROWS


def _splits(varied: str, costs: list[np.ndarray], allowed: float) -> int:
    """How many splits a change is to have: more where the first ones show more than half of what is allowed."""
    first = _FEW if varied in _HARDLY else _SPLITS
    return _MANY if len(costs) >= first and np.nanmax(np.mean(costs[:first], axis=0)) > allowed / 2 else first


@contextmanager
def remembered_trials() -> Iterator[None]:
    """Within it, no candidate for width and λ learns the same rows twice: most changes leave them as they are."""
    tried = choice._tried
    known: dict[Any, choice.Candidate] = {}

    def remembered(agent: Agent, points: np.ndarray, targets: np.ndarray) -> choice.Candidate:
        key = agent, points.tobytes(), targets.tobytes()
        if key not in known:
            known[key] = tried(agent, points, targets)
        found = known[key]
        return found._replace(state=None if found.state is None else found.state.copy())

    with mock.patch.object(choice, "_tried", remembered):
        yield


def _of_many_rows(varied: str) -> list[Loss]:
    """What changes of a default cost on a large set with all its rows."""
    data = standardized(_LARGE)
    usual = _scores(data, "", 1.0)
    each = [(word, usual - _scores(data, varied, factor)) for factor, word in _FACTORS.items()]
    return [loss for word, cost in each for loss in _losses(cost[None], _LARGE, word)]


def _losses(costs: np.ndarray, name: str, word: str) -> list[Loss]:
    """From the costs in one pass and in fit, in a row for each split."""
    splits = len(costs)
    return [
        Loss(float(mean), float(error), splits, f"{name}, {how}, {word}")
        for how, mean, error in zip(("one pass", "fit"), costs.mean(axis=0), _errors(costs), strict=True)
        if not math.isnan(mean)
    ]


def _errors(costs: np.ndarray) -> np.ndarray:
    """The standard errors of the means over the splits; a single one has none."""
    return costs.std(axis=0, ddof=1) / math.sqrt(len(costs)) if len(costs) > 1 else np.zeros(costs.shape[1])


def _value(varied: str, classifies: bool) -> float:
    if varied in _PARAMETERS:
        return _PARAMETERS[varied]
    value = getattr(tables.defaults_of(SecondOrder), varied)
    if isinstance(value, tables.ByTargets):
        value = value.classes if classifies else value.values
    return float(value)


def _scores(data: sets.Data, varied: str, factor: float) -> np.ndarray:
    """100 × the score of one pass and that of fit, with one default changed; NaN where it has no part in it."""
    kind = OnlineKernelClassifier if data.classifies else OnlineKernelRegressor
    value = _PARAMETERS.get(varied)
    given: dict[str, Any] = {} if value is None else {varied: type(value)(factor * value)}
    once = fitted = math.nan
    with mock.patch.object(tables, "_SECOND_ORDER", _changed(varied, factor)):
        if varied not in _ONLY_FIT:
            model = one_pass(kind(**given), data.X, data.y, batch=given.get("batch_size", _PARAMETERS["batch_size"]))
            once = model.score(data.held_X, data.held_y)
        if varied not in _ONLY_STREAMS:
            fitted = kind(random_state=0, **given).fit(data.X, data.y).score(data.held_X, data.held_y)
    return 100.0 * np.array([once, fitted])


def _changed(varied: str, factor: float) -> tables.Defaults:
    """The table of defaults with one of them changed, if it stands there."""
    usual = tables.defaults_of(SecondOrder)
    if not varied or varied in _PARAMETERS:
        return usual
    value: Any = getattr(usual, varied)
    if isinstance(value, tables.ByTargets):
        value = tables.ByTargets(*(factor * each for each in value))
    else:
        value = type(value)(factor * value)
    return dataclasses.replace(usual, **{varied: value})
