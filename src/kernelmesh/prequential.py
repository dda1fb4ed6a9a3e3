"""Prequential (test-then-train) evaluation: every mini-batch is first predicted and scored, then learned from."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, integer
from kernelmesh.errors import InvalidArgument, KernelMeshError, Verbatim

__all__ = ["Evaluation", "Record", "evaluate"]

Batches = Iterator[tuple[Any, NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The scores and costs of a model up to some sample of its stream; NaN if nothing has been scored yet."""

    samples: int
    """The number of samples that the model has learned from, including the first mini-batch, which is not scored."""
    score: float
    """Over all scored samples: accuracy, or R² for values; larger is better."""
    window_score: float
    """The same over the latest `window` of them."""
    error: float
    """Over all scored samples: the fraction of wrong labels, or the mean squared error; smaller is better."""
    window_error: float
    predict_seconds: float
    """The time spent predicting so far."""
    learn_seconds: float
    points: int | None
    """The number of points that the model keeps (`model_order_`, summed over the agents of a network), if available."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes
    ----------
    records : tuple of Record
        One per measured mini-batch, in order, with the fields `samples`, `score`, `window_score`, `error`, `window_error`,
        `predict_seconds`, `learn_seconds` and `points`; there is at least one.
    classifies : bool
        Whether the score is accuracy and the error the fraction of wrong labels; otherwise they are R² and the mean squared
        error.
    window : int
        The number of latest samples over which `window_score` and `window_error` are computed.
    complete : bool
        Whether the whole stream was evaluated; False after Ctrl-C.

    Examples
    --------
    >>> from kernelmesh import OnlineKernelRegressor, evaluate
    >>> X = np.random.default_rng(0).uniform(-2, 2, (2000, 1))
    >>> found = evaluate(OnlineKernelRegressor(), X, np.sin(3 * X[:, 0]), window=500)
    >>> found.last.samples, bool(found.last.window_error < found.last.error < 0.1)
    (2000, True)
    >>> found.column("samples")[:3]
    array([ 64,  96, 128])
    >>> found  # doctest: +ELLIPSIS
    Evaluation(samples=2000, r2=..., window_r2=..., records=62, complete=True)
    """

    records: tuple[Record, ...]
    classifies: bool
    window: int
    complete: bool

    def __repr__(self) -> str:
        name, last = "accuracy" if self.classifies else "r2", self.last
        scores = f"{name}={last.score:.4g}, window_{name}={last.window_score:.4g}"
        return f"Evaluation(samples={last.samples}, {scores}, records={len(self.records)}, complete={self.complete})"

    @property
    def last(self) -> Record:
        """The last record, with the totals over the stream."""
        return self.records[-1]

    def column(self, name: str) -> NDArray[Any]:
        """One field of all records, as an array."""
        known = [field.name for field in dataclasses.fields(Record)]
        if name not in known:
            raise InvalidArgument("Evaluation", "name", f"be one of {', '.join(known)}", name)
        return np.array([getattr(record, name) for record in self.records])

    def rows(self) -> list[dict[str, Any]]:
        """The records as rows of a table, for `csv.DictWriter` or `pandas.DataFrame`."""
        return [dataclasses.asdict(record) for record in self.records]


def evaluate(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    batch_size: int = 32,
    window: int = 1000,
    classes: Any = None,
    measure_every: int = 1,
    progress: Callable[[Record], None] | None = None,
) -> Evaluation:
    """Evaluate a model on a stream: for each mini-batch, score predict(X) against y, then call partial_fit(X, y).

    Every sample is predicted by a model that has learned from all earlier mini-batches; the first mini-batch is not scored.
    The model is trained in place. It is a classifier if its `partial_fit` takes `classes`, or if `classes` are given.

    Parameters
    ----------
    model : estimator
        Any object with `partial_fit` and `predict`; of a `Pipeline`, its last step, with X transformed beforehand.
    X : array-like or sparse matrix of shape (rows, features), or iterable of pairs
        Points in the order of the stream; or an iterable of at least two mini-batches (X, y), such as an `ArrayStream`.
    y : array-like of shape (rows,) or (rows, outputs), optional
        Their labels or values; omitted if X yields mini-batches.
    batch_size, window, measure_every : int
        Rows per mini-batch, if X is an array; latest samples that windowed scores are over; mini-batches between records.
    classes : array-like, optional
        All labels that can occur; by default those in y, or those that the model already knows.
    progress : callable, optional
        Called with every record as soon as it is available.

    Returns
    -------
    Evaluation
        The records; after Ctrl-C, those so far, with `complete` False.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).standard_normal((1000, 2))
    >>> found = evaluate(SGDClassifier(random_state=0), X, np.where(X[:, 0] > X[:, 1], "below", "above"))
    >>> found.classifies, len(found.records), bool(found.last.score > 0.9)
    (True, 31, True)
    """
    integer("evaluate", "window", window, minimum=1)
    integer("evaluate", "measure_every", measure_every, minimum=1)
    batches = _batches(X, y, batch_size)
    tally = _Tally(model=_Model.of(model, y, classes), window=window)
    records, complete = _follow(tally, batches, measure_every, progress or (lambda _: None))
    return Evaluation(records=tuple(records), classifies=tally.model.classifies, window=window, complete=complete)


def _follow(tally: _Tally, batches: Batches, every: int, report: Callable[[Record], None]) -> tuple[list[Record], bool]:
    """The records of a stream, or up to Ctrl-C; and whether the stream was completed."""
    records, complete = list[Record](), False
    with contextlib.suppress(KeyboardInterrupt):  # the tally is consistent
        for number, (points, targets) in enumerate(batches):
            tally = tally.after(points, targets)
            if number and number % every == 0:
                records.append(tally.record())
                report(records[-1])
        complete = True
    if complete and not tally.total.rows:
        found = Verbatim("none" if tally.samples == 0 else f"one mini-batch of {tally.samples} rows")
        rule, remedy = "yield at least two mini-batches", "the first is not scored; an exhausted iterator yields none"
        raise InvalidArgument("evaluate", "X", rule, found, remedy=remedy)
    if not records or records[-1].samples < tally.samples:
        records.append(tally.record())
        report(records[-1])
    return records, complete


def _batches(X: Any, y: Any, batch_size: int) -> Batches:
    """The mini-batches of arrays, checked before the first one is used; or those that X yields."""
    integer("evaluate", "batch_size", batch_size, minimum=1)
    if isinstance(X, str | bytes):
        raise InvalidArgument("evaluate", "X", "be rows of features, or an iterable of pairs (X, y)", X)
    if y is None:
        if hasattr(X, "shape") or not isinstance(X, Iterable):
            raise InvalidArgument("evaluate", "y", "be given unless X is an iterable of pairs (X, y)", None)
        return _pairs(X)
    table = X if hasattr(X, "shape") else _array("X", X)
    table = table.tocsr() if hasattr(table, "tocsr") else table  # not every sparse format supports row slicing
    rows, targets = table.shape[0] if table.shape else 0, _array("y", y)
    if targets.shape[:1] != (rows,):
        remedy = "transpose it: one row per sample" if targets.shape[1:] == (rows,) else ""
        raise InvalidArgument("evaluate", "y", f"have {rows} rows", Verbatim(f"shape {targets.shape}"), remedy=remedy)
    if rows <= batch_size:
        rule = f"have more rows than the first mini-batch of {batch_size}, which is not scored"
        raise InvalidArgument("evaluate", "X", rule, Verbatim(f"{rows} rows"), remedy="lower batch_size")
    by_position = getattr(table, "iloc", table)  # data frames may have any index
    starts = range(0, rows, batch_size)
    return ((by_position[start : start + batch_size], targets[start : start + batch_size]) for start in starts)


def _pairs(pairs: Iterable[Any]) -> Batches:
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgument("evaluate", "X", "yield pairs (X, y) if y is omitted", pair)
        points, targets = pair[0], _array("y", pair[1])
        shape = points.shape if hasattr(points, "shape") else _array("X", points).shape
        if not targets.shape or targets.shape[:1] != shape[:1]:
            found = Verbatim(f"shapes {shape} and {targets.shape}")
            raise InvalidArgument("evaluate", "X", "yield as many targets as points", found)
        if len(targets):
            yield points, targets


def _array(argument: str, value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        remedy = "give every row the same number of values"
        raise InvalidArgument("evaluate", argument, "be an array", value, remedy=remedy) from None


class _Model(NamedTuple):
    """A model with how to call it and how to score its predictions."""

    estimator: Any
    classifies: bool
    first: dict[str, Any]
    """Extra arguments of the first call of partial_fit."""

    @classmethod
    def of(cls, estimator: Any, y: Any, classes: Any) -> _Model:
        if isinstance(estimator, type):
            name = estimator.__name__
            raise InvalidArgument("evaluate", "model", "be an object", Verbatim(f"the class {name}"), remedy=f"pass {name}()")
        if not all(callable(getattr(estimator, name, None)) for name in ("partial_fit", "predict")):
            found, remedy = Verbatim(f"an object of type {type(estimator).__name__}"), ""
            if hasattr(estimator, "named_steps"):
                remedy = "transform X beforehand, for example with a StandardScaler, and pass the last step of the pipeline"
            raise InvalidArgument("evaluate", "model", "have partial_fit and predict", found, remedy=remedy)
        takes = "classes" in inspect.signature(estimator.partial_fit).parameters
        if classes is None and takes and not hasattr(estimator, "classes_"):
            if y is None:
                remedy = "list all labels that can occur"
                raise InvalidArgument("evaluate", "classes", "be given if y is omitted", None, remedy=remedy)
            classes = np.unique(np.asarray(y))
        return cls(estimator, takes or classes is not None, {"classes": classes} if takes and classes is not None else {})

    def learn(self, points: Any, targets: NDArray[Any], *, first: bool) -> None:
        """Train on a mini-batch."""
        try:
            self.estimator.partial_fit(points, targets, **(self.first if first else {}))
        except (TypeError, ValueError) as error:
            text = next((value for value in np.ravel(np.asarray(points, dtype=object)) if isinstance(value, str)), None)
            if isinstance(error, KernelMeshError) or text is None:
                raise
            remedy = "encode text as numbers, for example with an OrdinalEncoder"
            raise InvalidArgument("evaluate", "X", "contain numbers for this model", text, remedy=remedy) from error

    def check(self, targets: NDArray[Any]) -> None:
        """Reject targets that cannot be scored."""
        if self.classifies and targets.ndim != 1:
            rule, found, remedy = "have one label per row for a classifier", f"shape {targets.shape}", ""
        elif not self.classifies and targets.dtype.kind not in "fiub":
            rule, found = "contain real numbers for a regressor", f"dtype {targets.dtype}"
            remedy = "pass classes if the model is a classifier"
        else:
            return
        raise InvalidArgument("evaluate", "y", rule, Verbatim(found), remedy=remedy)

    def losses(self, predicted: Any, targets: NDArray[Any]) -> tuple[Floats, Floats]:
        """1 for each wrong label, or squared errors, rows × outputs; and the targets in the same form if they are numbers."""
        found = np.asarray(predicted)
        if found.size != targets.size:
            rule = f"predict {targets.size} values for targets of shape {targets.shape}"
            raise InvalidArgument("evaluate", "model", rule, Verbatim(f"shape {found.shape}"))
        if self.classifies:
            wrong = np.asarray(found.reshape(targets.shape) != targets, dtype=np.float64)[:, None]
            return wrong, np.zeros_like(wrong)
        goal = targets.astype(np.float64).reshape(len(targets), -1)
        return np.square(found.reshape(goal.shape) - goal), goal


class _Sums(NamedTuple):
    """The sums behind the scores, per output: Σ loss, and the mean of the targets with Σ (y − mean)²."""

    rows: int
    losses: Floats
    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, losses: Floats, targets: Floats) -> _Sums:
        mean = targets.mean(axis=0)
        return cls(len(losses), losses.sum(axis=0), mean, np.square(targets - mean).sum(axis=0))

    def plus(self, other: _Sums) -> _Sums:
        """The sums over both sets of rows; means are merged, since Σ y² − n mean² would cancel."""
        rows, gap = self.rows + other.rows, other.mean - self.mean
        spread = self.spread + other.spread + gap**2 * (self.rows * other.rows / rows)
        return _Sums(rows, self.losses + other.losses, self.mean + gap * (other.rows / rows), spread)

    def scores(self, classifies: bool) -> tuple[float, float]:
        """The score, accuracy or R² = 1 − Σ (f(x) − y)² / Σ (y − mean)² averaged over the outputs; and the mean loss."""
        error = float(self.losses.mean()) / self.rows if self.rows else math.nan
        if classifies:
            return 1.0 - error, error
        unexplained = np.divide(self.losses, self.spread, out=np.full_like(self.spread, np.nan), where=self.spread > 0)
        return 1.0 - float(unexplained.mean()), error


_NOTHING = _Sums(0, np.zeros(1), np.zeros(1), np.zeros(1))


@dataclass(frozen=True, kw_only=True)
class _Tally:
    """Everything measured so far, as an immutable value, so that Ctrl-C always leaves it consistent."""

    model: _Model
    window: int
    samples: int = 0
    total: _Sums = _NOTHING
    recent: tuple[Floats, Floats] | None = None
    """Losses and targets of the latest rows."""
    predict_seconds: float = 0.0
    learn_seconds: float = 0.0

    def after(self, points: Any, targets: NDArray[Any]) -> _Tally:
        """Test, then train."""
        model, total, recent, first = self.model, self.total, self.recent, self.samples == 0
        model.check(targets)
        began = time.perf_counter()
        predicted = None if first else model.estimator.predict(points)
        tested = time.perf_counter()
        model.learn(points, targets, first=first)
        learned = time.perf_counter()
        if not first:
            new = model.losses(predicted, targets)
            total = total.plus(_Sums.of(*new))
            old = new if recent is None else tuple(np.concatenate(pair) for pair in zip(recent, new, strict=True))
            recent = (old[0][-self.window :], old[1][-self.window :])
        return dataclasses.replace(
            self,
            samples=self.samples + len(targets),
            total=total,
            recent=recent,
            predict_seconds=self.predict_seconds + tested - began,
            learn_seconds=self.learn_seconds + learned - tested,
        )

    def record(self) -> Record:
        """The current record."""
        score, error = self.total.scores(self.model.classifies)
        recent = _NOTHING if self.recent is None else _Sums.of(*self.recent)
        window_score, window_error = recent.scores(self.model.classifies)
        points = getattr(self.model.estimator, "model_order_", None)
        return Record(
            samples=self.samples,
            score=score,
            window_score=window_score,
            error=error,
            window_error=window_error,
            predict_seconds=self.predict_seconds,
            learn_seconds=self.learn_seconds,
            points=None if points is None else int(np.sum(points)),
        )
