"""What the four estimators share."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelmesh import Agent, ArrayStream, Consensus, Expansion, Graph, Komp, Schedule, simulate, storage
from kernelmesh.checks import Floats, Ints, integer, non_negative
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.kernels import Gaussian, Kernel, check_kernel
from kernelmesh.numerics.losses import Loss, check_loss
from kernelmesh.registry import describe, restore

__all__ = ["PARSIMONY", "Learner"]

PARSIMONY = 0.02
"""The default of `parsimony`: half of what the paper's figures have, since a user who sets nothing wants accuracy first."""
_SETTLED = ("kernel", "loss", "step_size", "regularization", "compression", "consensus")


class Learner(BaseEstimator, ABC):
    """An online kernel learner behind `fit`, `partial_fit` and `predict`.

    One half of its subclasses say what a target is (`targets.py`), the other half how many agents there are (`agents.py`);
    an estimator is one of each.
    """

    n_features_in_: int

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        step_size: float | Schedule | None = None,
        regularization: float = 1e-6,
        parsimony: float = PARSIMONY,
        budget: float | Schedule | None = None,
        batch_size: int = 32,
        max_order: int | None = None,
        passes: int = 20,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.step_size = step_size
        self.regularization = regularization
        self.parsimony = parsimony
        self.budget = budget
        self.batch_size = batch_size
        self.max_order = max_order
        self.passes = passes
        self.random_state = random_state

    # -- what varies with the targets ----------------------------------------------------------------------------------

    _classifies: bool
    _default_loss: Loss
    _default_step: float
    """A step that is stable for the default loss when κ(x, x) = 1."""

    @abstractmethod
    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Floats, NDArray[Any]]:
        """Rows and targets as arrays, or scikit-learn's error."""

    @abstractmethod
    def _observe(self, y: NDArray[Any]) -> int:
        """Fix from the first targets what all targets look like; returns how many outputs that makes."""

    @abstractmethod
    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """The targets in the form that the loss takes."""

    @abstractmethod
    def _describe_targets(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """What a file must say about the targets; arrays may be added to."""

    @abstractmethod
    def _restore_targets(self, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        """The reverse; returns how many outputs there are."""

    # -- what varies with the number of agents -------------------------------------------------------------------------

    @abstractmethod
    def _cooperation(self) -> tuple[Graph, Consensus]:
        """Who talks to whom, and how they come to agree."""

    @abstractmethod
    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        """Which rows each agent sees."""

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, agents: Any = None) -> Self:
        """Learn from scratch, in several passes over shuffled rows.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Points.
        y : array-like of shape (rows,) or (rows, outputs)
            Targets.
        agents : array-like of shape (rows,), optional
            Networks only: the name of the agent that sees each row. By default rows are dealt out evenly.

        Returns
        -------
        Self
            The estimator.
        """
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self._begin(X, self._observe(y))
            rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
            self._learn(X, self._targets(y), self._dealt(len(X), agents, rng), passes=self.passes, rng=rng)
        return self

    def _partial_fit(self, X: Any, y: Any, agents: Any, first_targets: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """Learn from these rows once, in order; in the first call `first_targets` says what all targets look like."""
        with self._all_or_nothing():
            first = not hasattr(self, "_states")
            X, y = self._validated(X, y, reset=first)
            known = first_targets(y)
            if first:
                self._begin(X, self._observe(known))
            self._learn(X, self._targets(y), self._dealt(len(X), agents, None), passes=1)
        return self

    def _begin(self, X: Floats, outputs: int) -> None:
        """Check the settings and start every agent from nothing. `X` only serves to size the default step."""
        try:
            self._network, consensus = self._cooperation()
            self._agent = self._settle(X, outputs, consensus)
        except InvalidArgument as error:
            # the user has set parameters of this estimator, not of the parts it is built from
            raise error.owned_by(type(self).__name__) from None
        self._states = tuple(self._agent.start(name=name) for name in self._network.names)

    def _settle(self, X: Floats, outputs: int, consensus: Consensus) -> Agent:
        owner = type(self).__name__
        loss = check_loss(owner, self._default_loss if self.loss is None else self.loss)
        if loss.classifies != self._classifies:
            raise InvalidArgument(owner, "loss", f"take {'class' if self._classifies else 'value'} targets", loss)
        integer(owner, "batch_size", self.batch_size, minimum=1)
        integer(owner, "passes", self.passes, minimum=1)
        # on standardized data the typical pair of points is then at κ = exp(−2), whatever the dimension
        kernel = Gaussian(bandwidth=float(np.sqrt(X.shape[1] / 2))) if self.kernel is None else self.kernel
        check_kernel(owner, kernel)
        step_size, budget = self.step_size, self.budget
        if step_size is None:
            # steps act on f(x) through κ(x, x), and so does the budget through its root: both are sized for κ = 1
            size = float(np.mean(kernel.diag(X[:1000]))) or 1.0
            step_size = self._default_step / size
            if budget is None:
                budget = non_negative(owner, "parsimony", self.parsimony) * self._default_step**1.5 / np.sqrt(size)
        return Agent(
            dimension=X.shape[1],
            outputs=outputs,
            kernel=kernel,
            loss=loss,
            step_size=step_size,
            regularization=self.regularization,
            compression=Komp.parsimonious(step_size, parsimony=self.parsimony, max_order=self.max_order)
            if budget is None
            else Komp(budget=budget, max_order=self.max_order),
            consensus=consensus,
        )

    def _learn(self, X: Floats, targets: NDArray[Any], rows: Sequence[Ints], *, passes: int, rng: Any = None) -> None:
        """Feed each agent its rows; what was learned counts only when all of it went well."""
        streams = [ArrayStream(X[mine], targets[mine], batch_size=self.batch_size, passes=passes, rng=rng) for mine in rows]
        states = tuple(state.copy() for state in self._states)
        for now in simulate(self._agent, self._network, streams, states=states):
            states = now.states
        self._states = states

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A call that fails leaves the estimator as it was."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    # -- what was learned ----------------------------------------------------------------------------------------------

    @property
    def _functions(self) -> tuple[Expansion, ...]:
        check_is_fitted(self)
        return tuple(state.function for state in self._states)

    def _outputs(self, X: Any, agent: Hashable | None) -> Floats:
        functions = self._functions
        X = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        if agent is not None:
            functions = (functions[self._number(agent)],)
        return np.asarray(sum(f(X) for f in functions) / len(functions))

    def _number(self, agent: Hashable, argument: str = "agent") -> int:
        names = self._network.names
        if agent not in names:
            raise InvalidArgument(type(self).__name__, argument, f"be among {names}", agent)
        return names.index(agent)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_states")

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learned functions and all settings to a safetensors file.

        Parameters
        ----------
        path : str or path-like
            Where to.
        """
        check_is_fitted(self)
        agent, network = self._agent, self._network
        arrays: dict[str, NDArray[Any]] = {}
        for i, state in enumerate(self._states):
            arrays |= {f"{i}.{name}": array for name, array in storage.pack(state, network.names).items()}
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], int | np.integer | None):
            parameters["random_state"] = None  # a generator's position has no meaning in another process
        if parameters.get("graph") is not None:
            parameters["graph"] = network
        settings = {
            "parameters": {name: describe(value) for name, value in parameters.items()},
            "features": self.n_features_in_,
            "feature_names": list(getattr(self, "feature_names_in_", [])) or None,
            "targets": self._describe_targets(arrays),
            "settled": {name: describe(getattr(agent, name)) for name in _SETTLED} | {"graph": describe(network)},
        }
        storage.write(path, kind=type(self).__name__, arrays=arrays, settings=settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read back what `save` wrote; it predicts the same and goes on learning.

        Parameters
        ----------
        path : str or path-like
            Where from.

        Returns
        -------
        Self
            The estimator.
        """
        arrays, settings = storage.read(path, kind=cls.__name__)
        with storage.understood(path, f"a {cls.__name__}"):
            return cls._restored(arrays, settings)

    @classmethod
    def _restored(cls, arrays: dict[str, NDArray[Any]], settings: Any) -> Self:
        self = cls(**{name: restore(value) for name, value in settings["parameters"].items()})
        self.n_features_in_ = int(settings["features"])
        if settings["feature_names"]:
            self.feature_names_in_ = np.array(settings["feature_names"], dtype=object)
        outputs = self._restore_targets(settings["targets"], arrays)
        settled = {name: restore(value) for name, value in settings["settled"].items()}
        self._network = network = settled.pop("graph")
        self._agent = agent = Agent(dimension=self.n_features_in_, outputs=outputs, **settled)
        of: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in arrays.items():
            number, _, name = key.partition(".")
            of.setdefault(number, {})[name] = array
        self._states = tuple(
            storage.unpack(agent, of.get(str(i), {}), name=name, names=network.names) for i, name in enumerate(network.names)
        )
        return self
