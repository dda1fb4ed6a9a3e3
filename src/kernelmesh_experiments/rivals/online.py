"""Online learners of other libraries, with `partial_fit` and `predict`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh_experiments.settings import Floats

__all__ = ["AfterFeatures", "RiverClassifier", "river", "river_installed"]


def river_installed() -> bool:
    """Whether river, which is optional, can be imported."""
    return find_spec("river") is not None


def river(module: str) -> Any:
    """A module of river, imported only now."""
    return import_module(f"river.{module}")


class AfterFeatures:
    """A classifier of scikit-learn on features that the first mini-batch fixes."""

    def __init__(self, features: Any, classifier: Any) -> None:
        self.features = features
        self.classifier = classifier

    def partial_fit(self, X: Floats, y: NDArray[Any], classes: Any = None) -> AfterFeatures:
        """Learn from these rows once."""
        if not hasattr(self.classifier, "classes_"):
            self.features.fit(X)
        self.classifier.partial_fit(self.features.transform(X), y, classes=classes)
        return self

    def predict(self, X: Floats) -> NDArray[Any]:
        """Labels."""
        return np.asarray(self.classifier.predict(self.features.transform(X)))


class RiverClassifier:
    """A classifier of river, which learns sample by sample; a mini-batch is predicted as a whole, as for everybody."""

    def __init__(self, classifier: Any) -> None:
        self.classifier = classifier

    def partial_fit(self, X: Floats, y: NDArray[Any]) -> RiverClassifier:
        """Learn from these rows once, in order."""
        for point, label in zip(_points(X), y.tolist(), strict=True):
            self.classifier.learn_one(point, label)
        return self

    def predict(self, X: Floats) -> NDArray[Any]:
        """Labels."""
        return np.array([self.classifier.predict_one(point) for point in _points(X)])


def _points(X: Floats) -> Iterator[dict[int, float]]:
    """Rows as river has them."""
    return (dict(enumerate(row)) for row in X.tolist())
