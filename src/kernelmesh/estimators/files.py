"""What a file holds of an estimator."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernelmesh import Agent, storage
from kernelmesh.checks import integer, positive
from kernelmesh.registry import describe, restore

if TYPE_CHECKING:
    from kernelmesh.estimators.base import Estimator

E = TypeVar("E", bound="Estimator")

__all__ = ["packed", "unpacked"]

# The settings of an agent beside its dimension and outputs.
_SETTLED = ("kernel", "loss", "learner", "protocol")


def packed(estimator: "Estimator", arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The settings of a fitted estimator in JSON form; its arrays are added to `arrays`."""
    for i, state in enumerate(estimator.states_):
        arrays |= {f"{i}.{name}": array for name, array in storage.pack(state).items()}
    parameters = estimator.get_params(deep=False)
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # the position of a generator is meaningless in another process
    return {
        "agents": estimator._describe_agents(arrays),
        "parameters": estimator._described(parameters),
        "began_with": estimator._described(estimator._began_with),
        "size": estimator._size,
        "regularization": estimator._regularization,
        "features": estimator.n_features_in_,
        "passes": getattr(estimator, "n_iter_", None),
        "feature_names": list(getattr(estimator, "feature_names_in_", [])) or None,
        "targets": estimator._describe_targets(arrays),
        "settled": {name: describe(getattr(estimator.agent_, name)) for name in _SETTLED},
    }


def unpacked(kind: type[E], arrays: dict[str, NDArray[Any]], settings: Any) -> E:
    """The estimator with these settings and arrays, which are validated."""
    self = kind(**{name: restore(value) for name, value in settings["parameters"].items()})
    self._size = positive("file", "size", settings["size"])
    self._began_with = {name: restore(value) for name, value in settings["began_with"].items()}
    self._regularization = positive("file", "regularization", settings["regularization"])
    self.n_features_in_ = int(settings["features"])
    if (passes := settings["passes"]) is not None:
        self.n_iter_ = integer("file", "passes", passes, minimum=0)
    if settings["feature_names"]:
        self.feature_names_in_ = np.array(settings["feature_names"], dtype=object)
    outputs = self._restore_targets(settings["targets"], arrays)
    settled = {name: restore(value) for name, value in settings["settled"].items()}
    self.agent_ = Agent(dimension=self.n_features_in_, outputs=outputs, **settled)
    self._restore_agents(settings["agents"], arrays)
    states = []
    for i, name in enumerate(self._names):
        own = {key.removeprefix(f"{i}."): array for key, array in arrays.items() if key.startswith(f"{i}.")}
        states.append(storage.unpack(self.agent_, own, name=name, names=self._names))
    self.states_ = tuple(states)
    return self
