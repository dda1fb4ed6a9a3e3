"""Targets: labels of any kind, or one or several numbers."""

from collections.abc import Hashable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from kernelmesh import Logistic, Squared
from kernelmesh.checks import Floats, Ints, matrix
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.estimators.base import Estimator

__all__ = ["Classification", "Regression"]


class Classification(ClassifierMixin, Estimator):
    """Targets are labels of any kind."""

    _classifies = True
    _default_loss = Logistic()

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Floats, NDArray[Any]]:
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, order="C")
        return X, y

    def _observe(self, y: NDArray[Any], *, complete: bool) -> int:
        if complete:
            check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            found = Verbatim(f"1 class, {classes[0]}")
            raise InvalidArgument(type(self).__name__, "y", "contain at least 2 classes", found)
        self.classes_ = classes
        return len(classes)

    def _targets(self, y: NDArray[Any]) -> Ints:
        codes: Ints = self.classes_.searchsorted(y)
        codes[codes == len(self.classes_)] = 0
        unknown = self.classes_[codes] != y
        if unknown.any():
            rule = f"contain only the classes {self.classes_.tolist()}"
            raise InvalidArgument(type(self).__name__, "y", rule, y[unknown][0])
        return codes

    def partial_fit(self, X: Any, y: Any, classes: Any = None, agents: Any = None) -> Self:
        """Learn from these rows once, in order. An error leaves the estimator unchanged.

        Parameters that only affect further learning may change between calls: `budget`, `max_order`, `half_life`,
        `batch_size`, the settings of `learner` except its kind, and λ where it is relative to the mean loss. Changes to other
        parameters raise an error; call `fit` to start over with them.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Points.
        y : array-like of shape (rows,)
            Labels.
        classes : array-like, optional
            All labels that can occur; required in the first call.
        agents : array-like of shape (rows,), optional
            Networks only: the name of the agent that sees each row. By default, agents take turns.

        Returns
        -------
        Self
            The estimator.
        """
        known = None if classes is None and hasattr(self, "states_") else self._known_classes(classes)
        return self._partial_fit(X, y, agents, known)

    def _known_classes(self, classes: Any) -> NDArray[Any]:
        """The classes, which the first call of partial_fit must list and later calls may repeat."""
        owner = type(self).__name__
        if classes is None:
            raise InvalidArgument(owner, "classes", "be given in the first call to partial_fit", None)
        known = np.unique(classes)
        if hasattr(self, "states_"):
            if not np.array_equal(known, self.classes_):
                raise InvalidArgument(owner, "classes", f"remain {self.classes_.tolist()}", classes)
        elif len(known) < 2:
            raise InvalidArgument(owner, "classes", "list at least 2 classes", classes)
        return known

    def decision_function(self, X: Any, *, agent: Hashable | None = None) -> Floats:
        """The outputs f(x), one column per class; with two classes, their difference.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Points.
        agent : Hashable, optional
            Networks only: the agent whose function to use, here and below; by default the average of all.

        Returns
        -------
        ndarray of shape (rows,) or (rows, classes)
            Larger means more likely.
        """
        outputs = self._outputs(X, agent)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any, *, agent: Hashable | None = None) -> NDArray[Any]:
        """The class with the largest output for each row of `X`."""
        outputs = self._outputs(X, agent)
        labels: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, agent: Hashable | None = None) -> float:
        """The accuracy: the fraction of rows, with optional weights, whose label is predicted correctly."""
        return float(accuracy_score(y, self.predict(X, agent=agent), sample_weight=sample_weight))

    @property
    def predict_proba(self) -> Any:
        """Class probabilities P(y | x), the softmax of the outputs, one column per class; only with the logistic loss."""
        loss = self.agent_.loss if hasattr(self, "states_") else self.loss
        if loss is not None and not isinstance(loss, Logistic):
            raise AttributeError(f"predict_proba needs the logistic loss, got {loss}")
        return self._probabilities

    def _probabilities(self, X: Any, *, agent: Hashable | None = None) -> Floats:
        return Logistic().probabilities(self._outputs(X, agent))

    def _describe_targets(self, arrays: dict[str, NDArray[Any]]) -> Any:
        if not all(isinstance(label, bool | int | float | str) for label in self.classes_.tolist()):
            rule = "be numbers, booleans or strings to be saved"
            raise InvalidArgument(type(self).__name__, "classes_", rule, self.classes_)
        return {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}

    def _restore_targets(self, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        self.classes_ = np.array(description["classes"], dtype=np.dtype(description["dtype"]))
        return len(self.classes_)


class Regression(RegressorMixin, Estimator):
    """Targets are numbers, one or several per row, standardized using the first targets seen.

    A compression budget is an absolute distance; standardizing makes the default suit targets of any size.
    """

    _classifies = False
    _default_loss = Squared()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Floats, NDArray[Any]]:
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, order="C", multi_output=True, y_numeric=True)
        return X, y

    def _observe(self, y: NDArray[Any], *, complete: bool) -> int:
        table = _table(y)
        self._flat = y.ndim == 1
        self.target_offset_ = table.mean(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = table.std(axis=0)
            if (spread < 1e-150).any():  # squares of such small deviations are 0 or inexact
                away = table - self.target_offset_
                unit = np.abs(away).max(axis=0)
                unit[unit == 0.0] = 1.0
                spread = np.where(spread < 1e-150, unit * (away / unit).std(axis=0), spread)
        if not np.isfinite(spread).all():
            found = Verbatim(f"values up to {np.abs(table).max():g}")
            raise InvalidArgument(type(self).__name__, "y", "have a finite variance", found)
        self.target_scale_ = np.where(spread > 1e-12 * np.abs(self.target_offset_), spread, 1.0)
        return int(table.shape[1])

    def _targets(self, y: NDArray[Any]) -> Floats:
        table = _table(y)
        if table.shape[1] != len(self.target_offset_):
            rule = f"have {len(self.target_offset_)} outputs"
            raise InvalidArgument(type(self).__name__, "y", rule, Verbatim(f"shape {np.shape(y)}"))
        return np.asarray((table - self.target_offset_) / self.target_scale_)

    def partial_fit(self, X: Any, y: Any, agents: Any = None) -> Self:
        """Learn from these rows once, in order. The rows of the first call fix the offset and scale of the targets.

        Parameters may change between calls as in classifiers. An error leaves the estimator unchanged.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Points.
        y : array-like of shape (rows,) or (rows, outputs)
            Values.
        agents : array-like of shape (rows,), optional
            Networks only: the name of the agent that sees each row. By default, agents take turns.

        Returns
        -------
        Self
            The estimator.
        """
        return self._partial_fit(X, y, agents, None)

    def predict(self, X: Any, *, agent: Hashable | None = None) -> Floats:
        """The predicted value f(x), in the units of the targets and shaped like them.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Points.
        agent : Hashable, optional
            Networks only: the agent whose function to use, here and in `score`; by default the average of all.

        Returns
        -------
        ndarray of shape (rows,) or (rows, outputs)
            Values.
        """
        outputs = self._outputs(X, agent) * self.target_scale_ + self.target_offset_
        return np.asarray(outputs[:, 0] if self._flat else outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, agent: Hashable | None = None) -> float:
        """R² = 1 − Σ (y − f(x))² / Σ (y − ȳ)², with optional weights, averaged over the outputs."""
        return float(r2_score(y, self.predict(X, agent=agent), sample_weight=sample_weight))

    def _describe_targets(self, arrays: dict[str, NDArray[Any]]) -> Any:
        arrays["target_offset"], arrays["target_scale"] = self.target_offset_, self.target_scale_
        return {"flat": self._flat}

    def _restore_targets(self, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        self._flat = bool(description["flat"])
        offset = matrix("file", "target_offset", arrays["target_offset"][None])[0]
        scale = matrix("file", "target_scale", arrays["target_scale"][None], columns=len(offset))[0]
        self.target_offset_, self.target_scale_ = offset, scale
        return len(offset)


def _table(y: NDArray[Any]) -> Floats:
    return np.asarray(y, dtype=np.float64).reshape(len(y), -1)
