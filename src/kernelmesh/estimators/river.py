"""river estimators: the single learners with `learn_one`, `predict_one` and their mini-batch variants.

Rows are dictionaries. An unseen feature becomes a new column, which is 0 in all earlier rows, and an unseen class
becomes a new output, which is 0 everywhere. Both are exact: zero-padded points have the same distances
and inner products.
"""

import math
import numbers
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument, MissingExtra
from kernelmesh.estimators.public import OnlineKernelClassifier, OnlineKernelRegressor
from kernelmesh.learners import Learner
from kernelmesh.numerics.function import padded
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Logistic, Loss

try:
    from river import base
except ModuleNotFoundError as error:
    raise MissingExtra("The river estimators", "river") from error

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KernelClassifier", "KernelRegressor"]

_NOTHING: Mapping[Hashable, int] = MappingProxyType({})


class _Face(base.Estimator):
    """Parameters, and columns that grow; a subclass says how targets are learned and predicted."""

    _model: Any = None
    _columns: Mapping[Hashable, int] = _NOTHING
    """The column of each feature, in order of appearance."""

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        learner: Learner | None = None,
        regularization: float | None = None,
        budget: float | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        batch_size: int = 1,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.learner = learner
        self.regularization = regularization
        self.budget = budget
        self.max_order = max_order
        self.half_life = half_life
        self.batch_size = batch_size

    @abstractmethod
    def _learn(self, points: Floats, columns: Mapping[Hashable, int], targets: list[Any]) -> None:
        """Learn from valid rows with these columns, some of which may be new."""

    @abstractmethod
    def _predict(self, points: Floats) -> Sequence[Any] | Floats:
        """What is predicted for valid rows."""

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn from one row, its features by name, and its target."""
        self._learn(*self._row(x), [y])

    def learn_many(self, X: "pd.DataFrame", y: "pd.Series") -> None:
        """Learn from the rows of a data frame once, in order."""
        self._learn(*self._rows(X), list(y))

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> Any:
        """The most likely class, None before any was seen; or the value f(x), 0 before any was seen."""
        return self._predict(self._row(x)[0])[0]

    def predict_many(self, X: "pd.DataFrame") -> "pd.Series":
        """The same for the rows of a data frame, with its index."""
        import pandas as pd

        return pd.Series(self._predict(self._rows(X)[0]), index=X.index)

    @property
    def model_order(self) -> int:
        """The number of points in the dictionary."""
        return 0 if self._model is None else int(self._model.model_order_)

    def _row(self, x: Mapping[Any, Any]) -> tuple[Floats, Mapping[Hashable, int]]:
        """One row as a matrix, and its columns, of which new ones come last."""
        columns = self._columns if x.keys() <= self._columns.keys() else self._columns_with(x)
        row = [0.0] * len(columns)
        for name, value in x.items():
            known = type(value) is float and math.isfinite(value)
            row[columns[name]] = value if known else _number(type(self).__name__, name, value)
        return np.array([row]), columns

    def _rows(self, X: Any) -> tuple[Floats, Mapping[Hashable, int]]:
        """The same for the rows of a data frame."""
        owner = type(self).__name__
        if not hasattr(X, "columns") or not hasattr(X, "iloc"):
            raise InvalidArgument(owner, "X", "be a data frame, one column per feature", X)
        names = list(X.columns)
        if len(set(names)) < len(names):
            raise InvalidArgument(owner, "X", "have a different name for each column", names)
        columns = self._columns_with(names)
        rows = np.zeros((len(X), len(columns)))
        for at, name in enumerate(names):
            column = X.iloc[:, at].to_numpy()
            if column.dtype.kind not in "fiub" or not np.isfinite(column).all():
                for value in column:
                    _number(owner, name, value)
            rows[:, columns[name]] = column
        return rows, columns

    def _columns_with(self, names: Iterable[Any]) -> Mapping[Hashable, int]:
        new = sorted((name for name in names if name not in self._columns), key=repr)  # regardless of the order within x
        return {**self._columns, **{name: len(self._columns) + i for i, name in enumerate(new)}}

    def _know(self, columns: Mapping[Hashable, int]) -> None:
        """Take over new columns, unless the kernel does not allow them."""
        if len(columns) > len(self._columns):
            if self._model is not None:
                self._model._widen(features=len(columns), outputs=self._model.agent_.outputs)
            self._columns = columns

    def _outputs(self, points: Floats) -> Floats:
        """f(x) for rows that may have new features."""
        return np.asarray(self._model._widened_to(points.shape[1]).evaluate(points))


class KernelClassifier(_Face, base.MiniBatchClassifier):
    """`OnlineKernelClassifier` for river: features and classes may appear at any time.

    It learns exactly the same model as `OnlineKernelClassifier.partial_fit` from the same rows. Features missing from a row
    are 0. Put `preprocessing.StandardScaler()` before it, unless features have standard deviations of about 1.

    Parameters
    ----------
    kernel, loss, learner, regularization, budget, max_order, half_life : optional
        As in `OnlineKernelClassifier`. With the default loss, it predicts probabilities.
    batch_size : int
        Rows per mini-batch of `learn_many`. By default 1, which is equivalent to calling `learn_one` in a loop; 32, the
        default of `OnlineKernelClassifier`, is several times as fast.

    Attributes
    ----------
    model_order : int
        The number of points in the dictionary.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> model = preprocessing.StandardScaler() | KernelClassifier()
    >>> accuracy = evaluate.progressive_val_score(datasets.Phishing().take(300), model, metrics.Accuracy())
    >>> bool(accuracy.get() > 0.8)
    True
    """

    _codes: Mapping[Hashable, int] = _NOTHING
    """The output of each class, in order of appearance."""

    @property
    def _multiclass(self) -> bool:
        return True

    def _learn(self, points: Floats, columns: Mapping[Hashable, int], targets: list[Any]) -> None:
        _check_rows(type(self).__name__, points, targets)
        for label in targets:
            if label is None or label != label:
                raise InvalidArgument(type(self).__name__, "y", "be a class", label)
        self._know(columns)
        start, seen = 0, set(self._codes)
        for at, label in enumerate(targets):  # a row with a new class starts a mini-batch: before it, the class is unknown
            if label not in seen:
                seen.add(label)
                self._learn_known(points[start:at], targets[start:at])
                start = at
        self._learn_known(points[start:], targets[start:])

    def _learn_known(self, points: Floats, labels: list[Any]) -> None:
        """Learn from rows, only the first of which may have a new class."""
        if not labels:
            return
        codes = self._codes if labels[0] in self._codes else {**self._codes, labels[0]: len(self._codes)}
        targets, outputs = np.array([codes[label] for label in labels]), max(2, len(codes))  # the second is still to come
        if self._model is None:
            settings = {name: getattr(self, name) for name in self._get_params()}
            self._model = OnlineKernelClassifier(**settings).partial_fit(points, targets, classes=np.arange(outputs))
            self._codes = codes
            return
        if outputs > self._model.agent_.outputs:
            self._model._widen(features=points.shape[1], outputs=outputs)
            self._model.classes_ = np.arange(outputs)
        self._codes = codes
        self._model._learn_more(points, targets)

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability P(y | x) of every class seen so far; only with the logistic loss."""
        return dict(zip(self._codes, self._probabilities(self._row(x)[0])[0].tolist(), strict=True))

    def predict_proba_many(self, X: "pd.DataFrame") -> "pd.DataFrame":
        """The same for the rows of a data frame: one column per class, with its index."""
        import pandas as pd

        return pd.DataFrame(self._probabilities(self._rows(X)[0]), index=X.index, columns=list(self._codes))

    def _probabilities(self, points: Floats) -> Floats:
        if not isinstance(self.loss, Logistic | None):
            raise NotImplementedError(f"probabilities need the logistic loss, got {self.loss}")
        if len(self._codes) < 2:
            return np.ones((len(points), len(self._codes)))
        return Logistic().probabilities(self._outputs(points))

    def _predict(self, points: Floats) -> list[Any]:
        known = list(self._codes)
        if len(known) < 2:
            return (known or [None]) * len(points)
        return [known[code] for code in self._outputs(points).argmax(axis=1)]


class KernelRegressor(_Face, base.MiniBatchRegressor):
    """`OnlineKernelRegressor` for river: features may appear at any time.

    The first 32 rows are held back to determine the offset and scale of the targets; until then, it predicts their
    mean. After that, it learns exactly the same model as `OnlineKernelRegressor.partial_fit` from the same rows.

    Parameters
    ----------
    kernel, loss, learner, regularization, budget, max_order, half_life : optional
        As in `OnlineKernelRegressor`.
    batch_size : int
        As in `KernelClassifier`.

    Attributes
    ----------
    model_order : int
        The number of points in the dictionary.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> model = preprocessing.StandardScaler() | KernelRegressor()
    >>> error = evaluate.progressive_val_score(datasets.TrumpApproval().take(300), model, metrics.MAE())
    >>> bool(error.get() < 1.5)  # percentage points; a linear regression has 3.2
    True
    """

    _held: tuple[tuple[Floats, float], ...] = ()
    """The first rows and their targets, while they are too few."""

    def _learn(self, points: Floats, columns: Mapping[Hashable, int], targets: list[Any]) -> None:
        owner = type(self).__name__
        for target in targets:
            if not isinstance(target, numbers.Real | np.bool_) or not math.isfinite(target):
                raise InvalidArgument(owner, "y", "be a finite number", target)
        _check_rows(owner, points, targets)
        self._know(columns)
        values = np.array(targets, dtype=np.float64)
        if self._model is None:
            taken = min(32 - len(self._held), len(points))
            held = (*self._held, *zip(points[:taken], values[:taken].tolist(), strict=True))
            if len(held) < 32:
                self._held = held
                return
            first = np.concatenate([padded(row[None], points.shape[1]) for row, _ in held])
            settings = {name: getattr(self, name) for name in self._get_params()}
            self._model = OnlineKernelRegressor(**settings).partial_fit(first, np.array([value for _, value in held]))
            self._held = ()
            points, values = points[taken:], values[taken:]
        if len(points):
            self._model._learn_more(points, self._model._targets(values))

    def _predict(self, points: Floats) -> Floats:
        if self._model is None:
            return np.full(len(points), np.mean([value for _, value in self._held]) if self._held else 0.0)
        model = self._model
        return np.asarray(self._outputs(points)[:, 0] * model.target_scale_[0] + model.target_offset_[0])


def _number(owner: str, name: Hashable, value: Any) -> float:
    """A feature's value, or an error with a remedy."""
    if not isinstance(value, numbers.Real | np.bool_):
        remedy = "encode it with river's preprocessing.OneHotEncoder, or drop it with compose.SelectType(numbers.Number)"
        raise InvalidArgument(owner, f"x[{name!r}]", "be a number", value, remedy=remedy)
    if not math.isfinite(value):
        remedy = "omit a missing feature from the row, which makes it 0, or impute it with preprocessing.StatImputer"
        raise InvalidArgument(owner, f"x[{name!r}]", "be finite", value, remedy=remedy)
    return float(value)


def _check_rows(owner: str, points: Floats, targets: list[Any]) -> None:
    if len(points) != len(targets):
        raise InvalidArgument(owner, "y", f"have {len(points)} rows", len(targets))
