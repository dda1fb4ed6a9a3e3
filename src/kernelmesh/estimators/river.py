"""river estimators: the single learners with `learn_one`, `predict_one` and their mini-batch variants.

Rows are dictionaries. An unseen feature becomes a new column, which is 0 in all earlier rows, and an unseen class
becomes a new output, which is 0 everywhere. Both are exact: zero-padded points have the same distances
and inner products.
"""

import copy
import math
import numbers
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument, MissingExtra
from kernelmesh.estimators.agents import OnlineKernelClassifier, OnlineKernelRegressor
from kernelmesh.learners import Learner
from kernelmesh.numerics.function import padded
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Logistic, Loss
from kernelmesh.numerics.schedules import Schedule

try:
    from river import base
except ModuleNotFoundError as error:
    raise MissingExtra("The river estimators", "river") from error

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KernelClassifier", "KernelRegressor"]

_HELD = 32
"""The number of targets that determine their offset and scale, before a regressor learns from them."""
_PARAMETERS = ("kernel", "loss", "learner", "regularization", "budget", "max_order", "half_life", "step_size", "parsimony")


class _Columns:
    """The column of each feature, in order of appearance."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def table(self, owner: str, x: Mapping[Any, Any]) -> tuple[Floats, list[Hashable]]:
        """One row, and its new features, whose columns come last."""
        new = sorted((name for name in x if name not in self._places), key=repr)  # regardless of the order within the row
        places = self._with(new)
        row = np.zeros((1, len(places)))
        for name, value in x.items():
            row[0, places[name]] = _number(owner, name, value)
        return row, new

    def table_of_many(self, owner: str, X: Any) -> tuple[Floats, list[Hashable]]:
        """The same for the rows of a data frame."""
        if not hasattr(X, "columns") or not hasattr(X, "iloc"):
            raise InvalidArgument(owner, "X", "be a data frame, one column per feature", X)
        names = list(X.columns)
        if len(set(names)) < len(names):
            raise InvalidArgument(owner, "X", "have a different name for each column", names)
        new = sorted((name for name in names if name not in self._places), key=repr)
        places = self._with(new)
        rows = np.zeros((len(X), len(places)))
        for at, name in enumerate(names):
            column = X.iloc[:, at].to_numpy()
            if column.dtype.kind not in "fiub" or not np.isfinite(column).all():
                for value in column:
                    _number(owner, name, value)
            rows[:, places[name]] = column
        return rows, new

    def add(self, new: Iterable[Hashable]) -> None:
        """Add these features."""
        self._places = self._with(new)

    def _with(self, new: Iterable[Hashable]) -> dict[Hashable, int]:
        places = dict(self._places) if new else self._places
        for name in new:
            places[name] = len(places)
        return places


def _number(owner: str, name: Hashable, value: Any) -> float:
    """A feature's value, or an error with a remedy."""
    if not isinstance(value, numbers.Real | np.bool_):
        remedy = "encode it with river's preprocessing.OneHotEncoder, or drop it with compose.SelectType(numbers.Number)"
        raise InvalidArgument(owner, f"x[{name!r}]", "be a number", value, remedy=remedy)
    if not math.isfinite(value):
        remedy = "omit a missing feature from the row, which makes it 0, or impute it with preprocessing.StatImputer"
        raise InvalidArgument(owner, f"x[{name!r}]", "be finite", value, remedy=remedy)
    return float(value)


class _Face(base.Estimator):
    """The base class of both learners: parameters and growing columns."""

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        rule: str | Learner | None = None,
        regularization: float | None = None,
        budget: float | Schedule | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        step_size: float | Schedule | None = None,
        parsimony: float | None = None,
        batch_size: int = 1,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.learner = rule
        self.regularization = regularization
        self.budget = budget
        self.max_order = max_order
        self.half_life = half_life
        self.step_size = step_size
        self.parsimony = parsimony
        self.batch_size = batch_size
        self._columns = _Columns()
        self._learner: Any = None

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*_PARAMETERS, "batch_size")}

    @property
    def model_order(self) -> int:
        """The number of points in the dictionary."""
        return 0 if self._learner is None else int(self._learner.model_order_)

    def _know(self, new: list[Hashable]) -> None:
        """Add columns for these features, or raise an error if the kernel does not allow it."""
        if self._learner is not None and new:
            self._learner._widen(features=len(self._columns) + len(new), outputs=self._learner._agent.outputs)
        self._columns.add(new)

    def _ready(self, points: Floats) -> Any:
        """The learner for points that may have new features."""
        learner = self._learner
        if points.shape[1] > learner.n_features_in_:
            learner = copy.copy(learner)._widen(features=points.shape[1], outputs=learner._agent.outputs)
        return learner


class KernelClassifier(_Face, base.MiniBatchClassifier):
    """`OnlineKernelClassifier` for river: features and classes may appear at any time.

    It learns exactly the same model as `OnlineKernelClassifier.partial_fit` from the same rows. Features missing from a row
    are 0. Put `preprocessing.StandardScaler()` before it, unless features have standard deviations of about 1.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian, whose bandwidth is chosen together with λ from the first 128, 256, 512 and 1024
        rows.
    loss : Loss, optional
        The loss ℓ, with class targets; by default Logistic(), which provides probabilities.
    rule : str or Learner, optional
        The learning rule; by default "second-order".
    regularization : float, optional
        The regularization λ, as in `OnlineKernelClassifier`.
    budget : float or Schedule, optional
        The compression budget ε: larger means fewer points and a coarser function.
    max_order : int, optional
        The maximum number of points, by default 2000 with the second-order rule.
    half_life : float, optional
        The number of samples after which the influence of old data has halved, by default 10,000 with the second-order rule.
    step_size : float or Schedule, optional
        The step size η; not with the second-order rule.
    parsimony : float, optional
        The constant K of the budget; not with the second-order rule.
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

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        rule: str | Learner | None = None,
        regularization: float | None = None,
        budget: float | Schedule | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        step_size: float | Schedule | None = None,
        parsimony: float | None = None,
        batch_size: int = 1,
    ) -> None:
        super().__init__(
            kernel,
            loss,
            rule=rule,
            regularization=regularization,
            budget=budget,
            max_order=max_order,
            half_life=half_life,
            step_size=step_size,
            parsimony=parsimony,
            batch_size=batch_size,
        )
        self._labels: dict[Hashable, int] = {}

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn from one row.

        Parameters
        ----------
        x : dict
            Features by name.
        y : bool, str or int
            Its class.
        """
        self._learn(*self._columns.table(type(self).__name__, x), [y])

    def learn_many(self, X: "pd.DataFrame", y: "pd.Series") -> None:
        """Learn from the rows of a data frame once, in order.

        Parameters
        ----------
        X : DataFrame
            One column per feature.
        y : Series
            Classes.
        """
        self._learn(*self._columns.table_of_many(type(self).__name__, X), list(y))

    def _learn(self, points: Floats, new: list[Hashable], classes: list[Any]) -> None:
        owner = type(self).__name__
        _check_rows(owner, points, classes)
        for label in classes:
            if label is None or label != label:
                raise InvalidArgument(owner, "y", "be a class", label)
        self._know(new)
        starts = [0]  # a row with a new class starts a mini-batch: before it, the class is unknown
        seen = set(self._labels)
        for at, label in enumerate(classes):
            if label not in seen and at:
                starts.append(at)
            seen.add(label)
        for start, end in zip(starts, [*starts[1:], len(classes)], strict=True):
            self._learn_known(points[start:end], classes[start:end])

    def _learn_known(self, points: Floats, classes: list[Any]) -> None:
        """Learn from rows, only the first of which may have a new class."""
        labels = dict(self._labels)
        for label in classes[:1]:
            labels.setdefault(label, len(labels))
        outputs = max(2, len(labels))  # the second class is still to come
        codes = np.array([labels[label] for label in classes], dtype=np.int64)
        if not len(points):
            return
        if self._learner is None:
            learner = OnlineKernelClassifier(**self._settings)
            self._learner = learner.partial_fit(points, codes, classes=np.arange(outputs))
            self._labels = labels
            return
        self._learner._widen(features=points.shape[1], outputs=outputs)
        self._learner.classes_ = np.arange(outputs)
        self._labels = labels
        self._learner.partial_fit(points, codes)

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability P(y | x) of every class seen so far.

        Parameters
        ----------
        x : dict
            Features by name.
        **kwargs : Any
            Ignored; river's pipelines may pass some.

        Returns
        -------
        dict
            Probabilities by class; empty before anything was learned.
        """
        points, _ = self._columns.table(type(self).__name__, x)
        return dict(zip(self._labels, self._probabilities(points)[0].tolist(), strict=True))

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> Any:
        """The most likely class.

        Parameters
        ----------
        x : dict
            Features by name.
        **kwargs : Any
            Ignored; river's pipelines may pass some.

        Returns
        -------
        bool, str, int or None
            A class; None before anything was learned.
        """
        points, _ = self._columns.table(type(self).__name__, x)
        return self._classes(points)[0]

    def predict_proba_many(self, X: "pd.DataFrame") -> "pd.DataFrame":
        """The probability P(y | x) of every class seen so far, for the rows of a data frame.

        Parameters
        ----------
        X : DataFrame
            One column per feature.

        Returns
        -------
        DataFrame
            One column per class, with the index of X.
        """
        import pandas as pd

        points, _ = self._columns.table_of_many(type(self).__name__, X)
        return pd.DataFrame(self._probabilities(points), index=X.index, columns=list(self._labels))

    def predict_many(self, X: "pd.DataFrame") -> "pd.Series":
        """The most likely classes for the rows of a data frame.

        Parameters
        ----------
        X : DataFrame
            One column per feature.

        Returns
        -------
        Series
            Classes, with the index of X.
        """
        import pandas as pd

        points, _ = self._columns.table_of_many(type(self).__name__, X)
        return pd.Series(self._classes(points), index=X.index, dtype=None if self._labels else object)

    def _probabilities(self, points: Floats) -> Floats:
        if not isinstance(Logistic() if self.loss is None else self.loss, Logistic):
            raise NotImplementedError(f"probabilities need the logistic loss, got {self.loss}")
        if len(self._labels) < 2:
            return np.ones((len(points), len(self._labels)))
        return np.asarray(self._ready(points).predict_proba(points))

    def _classes(self, points: Floats) -> list[Any]:
        known = list(self._labels)
        if len(known) < 2:
            return (known or [None]) * len(points)
        return [known[code] for code in self._ready(points).predict(points)]


class KernelRegressor(_Face, base.MiniBatchRegressor):
    """`OnlineKernelRegressor` for river: features may appear at any time.

    The first 32 rows are held back to determine the offset and scale of the targets; until then, it predicts their
    mean. After that, it learns exactly the same model as `OnlineKernelRegressor.partial_fit` from the same rows. Features
    missing from a row are 0. Put `preprocessing.StandardScaler()` before it, unless features have standard deviations
    of about 1.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian, whose bandwidth is chosen together with λ from the first 128, 256, 512 and 1024
        rows.
    loss : Loss, optional
        The loss ℓ, with value targets; by default Squared().
    rule : str or Learner, optional
        The learning rule; by default "second-order".
    regularization : float, optional
        The regularization λ, as in `OnlineKernelRegressor`.
    budget : float or Schedule, optional
        The compression budget ε: larger means fewer points and a coarser function.
    max_order : int, optional
        The maximum number of points, by default 2000 with the second-order rule.
    half_life : float, optional
        The number of samples after which the influence of old data has halved, by default 10,000 with the second-order rule.
    step_size : float or Schedule, optional
        The step size η; not with the second-order rule.
    parsimony : float, optional
        The constant K of the budget; not with the second-order rule.
    batch_size : int
        Rows per mini-batch of `learn_many`. By default 1, which is equivalent to calling `learn_one` in a loop; 32, the
        default of `OnlineKernelRegressor`, is several times as fast.

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

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        rule: str | Learner | None = None,
        regularization: float | None = None,
        budget: float | Schedule | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        step_size: float | Schedule | None = None,
        parsimony: float | None = None,
        batch_size: int = 1,
    ) -> None:
        super().__init__(
            kernel,
            loss,
            rule=rule,
            regularization=regularization,
            budget=budget,
            max_order=max_order,
            half_life=half_life,
            step_size=step_size,
            parsimony=parsimony,
            batch_size=batch_size,
        )
        self._held: list[tuple[Floats, float]] = []

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn from one row.

        Parameters
        ----------
        x : dict
            Features by name.
        y : float
            Its value.
        """
        self._learn(*self._columns.table(type(self).__name__, x), [y])

    def learn_many(self, X: "pd.DataFrame", y: "pd.Series") -> None:
        """Learn from the rows of a data frame once, in order.

        Parameters
        ----------
        X : DataFrame
            One column per feature.
        y : Series
            Values.
        """
        self._learn(*self._columns.table_of_many(type(self).__name__, X), list(y))

    def _learn(self, points: Floats, new: list[Hashable], targets: list[Any]) -> None:
        values = np.array([_value(type(self).__name__, target) for target in targets])
        _check_rows(type(self).__name__, points, targets)
        self._know(new)
        if self._learner is None:
            points, values = self._begin(points, values)
        if not len(points):
            return
        self._learner.partial_fit(points, values)

    def _begin(self, points: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Hold rows back until there are enough, then learn from them; returns the remaining rows."""
        taken = min(_HELD - len(self._held), len(points))
        held = [*self._held, *zip(points[:taken], values[:taken].tolist(), strict=True)]
        if len(held) < _HELD:
            self._held = held
            return points[:0], values[:0]
        first = np.concatenate([padded(row[None], points.shape[1]) for row, _ in held])
        learner = OnlineKernelRegressor(**self._settings)
        self._learner = learner.partial_fit(first, np.array([value for _, value in held]))
        self._held = []
        return points[taken:], values[taken:]

    def predict_one(self, x: dict[Any, Any]) -> float:
        """The value f(x).

        Parameters
        ----------
        x : dict
            Features by name.

        Returns
        -------
        float
            In the units of the targets; 0 before anything was learned.
        """
        points, _ = self._columns.table(type(self).__name__, x)
        return float(self._values(points)[0])

    def predict_many(self, X: "pd.DataFrame") -> "pd.Series":
        """The values f(x) for the rows of a data frame.

        Parameters
        ----------
        X : DataFrame
            One column per feature.

        Returns
        -------
        Series
            Values, with the index of X.
        """
        import pandas as pd

        points, _ = self._columns.table_of_many(type(self).__name__, X)
        return pd.Series(self._values(points), index=X.index)

    def _values(self, points: Floats) -> Floats:
        if self._learner is None:
            return np.full(len(points), np.mean([value for _, value in self._held]) if self._held else 0.0)
        return np.asarray(self._ready(points).predict(points))


def _value(owner: str, target: Any) -> float:
    if not isinstance(target, numbers.Real | np.bool_) or not math.isfinite(target):
        raise InvalidArgument(owner, "y", "be a finite number", target)
    return float(target)


def _check_rows(owner: str, points: Floats, targets: list[Any]) -> None:
    if len(points) != len(targets):
        raise InvalidArgument(owner, "y", f"have {len(points)} rows", len(targets))
