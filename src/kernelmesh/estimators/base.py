"""The base class of the four estimators."""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelmesh import Agent, ConsensusProtocol, Function, Kernel, State, storage
from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument
from kernelmesh.estimators import files
from kernelmesh.estimators.parameters import Parameters
from kernelmesh.estimators.progress import Progress
from kernelmesh.estimators.scale import warn_of_empty, warn_of_scales
from kernelmesh.registry import describe

__all__ = ["Estimator", "grouped"]


class Estimator(Parameters, ABC):
    """An online kernel learner with the scikit-learn API.

    Some subclasses define the targets (`targets.py`), others the agents (`single.py`, `network.py`);
    an estimator derives from one of each.
    """

    n_features_in_: int
    n_iter_: int
    agent_: Agent
    states_: tuple[State, ...]
    _regularization: float
    """λ, as given or chosen."""

    # -- what varies with the targets ----------------------------------------------------------------------------------

    @abstractmethod
    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Floats, NDArray[Any]]:
        """Rows and targets as arrays, or scikit-learn's error."""

    @abstractmethod
    def _observe(self, y: NDArray[Any], *, complete: bool) -> int:
        """Determine the form of all targets from the first ones; returns the number of outputs."""

    @abstractmethod
    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """The targets in the form that the loss expects."""

    @abstractmethod
    def _describe_targets(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """What to store about the targets; arrays may be added to `arrays`."""

    @abstractmethod
    def _restore_targets(self, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        """Restore what was stored; returns the number of outputs."""

    # -- what varies with the number of agents -------------------------------------------------------------------------

    @property
    @abstractmethod
    def _names(self) -> tuple[Hashable, ...]:
        """The name of each agent."""

    @abstractmethod
    def _cooperation(self) -> ConsensusProtocol:
        """Prepare what agents need to cooperate; returns the protocol."""

    @abstractmethod
    def _learn_in_passes(self, X: Floats, targets: NDArray[Any], agents: Any, rng: np.random.Generator) -> None:
        """Learn from shuffled rows until a pass brings no improvement, and count the passes."""

    @abstractmethod
    def _learn_once(self, X: Floats, targets: NDArray[Any], agents: Any) -> None:
        """Learn from these rows once, in order."""

    @abstractmethod
    def _describe_agents(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """What to store about the agents, except their states; arrays may be added to `arrays`."""

    @abstractmethod
    def _restore_agents(self, description: Any, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore what was stored."""

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, agents: Any = None) -> Self:
        """Learn from scratch, in several passes over shuffled rows, until a pass brings no further improvement.

        An error leaves the estimator unchanged. After Ctrl-C, which raises KeyboardInterrupt as usual, the estimator keeps
        what it has learned so far, and `n_iter_` counts the completed passes.

        Parameters
        ----------
        X : array-like of shape (rows, features)
            Points.
        y : array-like of shape (rows,) or (rows, outputs)
            Targets.
        agents : array-like of shape (rows,), optional
            Networks only: the name of the agent that sees each row. By default, rows are split evenly.

        Returns
        -------
        Self
            The estimator.
        """
        with self._all_or_nothing():
            X, y = self._validated(X, y, reset=True)
            self._begin(X, self._observe(y, complete=True), complete=True)
            self._warn_of_scales(X, complete=True)
            rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
            targets, interrupted, self.n_iter_ = self._targets(y), False, 0
            try:
                self._learn_in_passes(X, targets, agents, rng)
            except KeyboardInterrupt:
                if not any(state.steps for state in self.states_):
                    raise
                interrupted = True
            self.agent_ = self._streaming(self.agent_)
        if interrupted:
            raise KeyboardInterrupt
        if not any(f.order for f in self._functions) and self._loss_on(X, targets)(self._functions) > 0.0:
            warn_of_empty(type(self).__name__)
        return self

    def _partial_fit(self, X: Any, y: Any, agents: Any, all_targets: NDArray[Any] | None) -> Self:
        """Learn from these rows once, in order; in the first call, `all_targets` may determine the form of all targets."""
        with self._all_or_nothing():
            first = not hasattr(self, "states_")
            X, y = self._validated(X, y, reset=first)
            if first:
                self._begin(X, self._observe(y if all_targets is None else all_targets, complete=False), complete=False)
                self._warn_of_scales(X, complete=False)
            self._learn_more(X, self._targets(y), agents)
        return self

    def _learn_more(self, X: Floats, targets: NDArray[Any], agents: Any = None) -> None:
        """Learn from valid rows once, in order, with the current parameters. An error leaves states as they were."""
        try:
            self.agent_ = self._updated(self.agent_)
        except InvalidArgument as error:
            raise error.owned_by(type(self).__name__) from None
        self._learn_once(X, targets, agents)

    def _begin(self, X: Floats, outputs: int, *, complete: bool) -> None:
        """Check the settings and start every agent from scratch. `X` may be all data or the beginning of a stream."""
        try:
            self.agent_, self._regularization = self._settle(X, outputs, self._cooperation(), complete=complete)
        except InvalidArgument as error:
            # users set parameters of the estimator, not of its parts
            raise error.owned_by(type(self).__name__) from None
        self.states_ = tuple(self.agent_.start(name=name, number=i) for i, name in enumerate(self._names))

    def _warn_of_scales(self, X: Floats, *, complete: bool) -> None:
        if self.kernel is None and not self._scales:
            warn_of_scales(type(self).__name__, X, getattr(self, "feature_names_in_", None), complete=complete)

    def _progress(self, X: Floats, targets: NDArray[Any], *, agent: int, rounds: int, passes: int) -> Progress:
        """Follows the passes of the agent with the most rows."""
        owner, measure = type(self).__name__, self._loss_on(X, targets)
        return Progress(owner, measure, agent, rounds, passes, tol=self.tol, verbose=self.verbose)

    def _loss_on(self, X: Floats, targets: NDArray[Any]) -> Callable[[Sequence[Function]], float]:
        """The mean loss of the average function, with which `predict` answers, on some of the rows."""
        some = np.random.default_rng(0).permutation(len(X))[:1000]
        X, targets = X[some], targets[some]
        loss = self.agent_.loss
        return lambda functions: float(np.mean(loss.value(_average(functions, X), targets)))

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator if the call fails."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    # -- what was learned ----------------------------------------------------------------------------------------------

    @property
    def _functions(self) -> tuple[Function, ...]:
        check_is_fitted(self)
        return tuple(state.function for state in self.states_)

    @property
    def kernel_(self) -> Kernel:
        """The kernel, as given or chosen; in networks with the scales of the features on which the agents have agreed."""
        return self._functions[0].kernel

    @property
    def regularization_(self) -> float:
        """λ, as given or chosen; in networks that on which the agents have agreed."""
        check_is_fitted(self)
        memory = self.states_[0].memory
        return self._regularization * (1.0 if memory is None else memory.points.strength)

    def _outputs(self, X: Any, agent: Hashable | None) -> Floats:
        functions = self._functions
        X = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        if agent is not None:
            functions = (functions[self._number(agent)],)
        return _average(functions, X)

    def _number(self, agent: Hashable, argument: str = "agent") -> int:
        if agent not in self._names:
            raise InvalidArgument(type(self).__name__, argument, f"be among {self._names}", agent)
        return self._names.index(agent)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "states_")

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save what was learned and all settings except faults to a safetensors file.

        Rows from which nothing has been learned yet are saved with it, rows that agents keep to learn more are not.

        Parameters
        ----------
        path : str or path-like
            The file to write.
        """
        check_is_fitted(self)
        arrays: dict[str, NDArray[Any]] = {}
        settings = files.packed(self, arrays)
        storage.write(path, kind=type(self).__name__, arrays=arrays, settings=settings)

    def _described(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Parameters in JSON form."""
        return {name: describe(value) for name, value in parameters.items()}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load an estimator from a file written by `save`; it makes the same predictions and can continue learning.

        Parameters
        ----------
        path : str or path-like
            The file to read.

        Returns
        -------
        Self
            The estimator.
        """
        arrays, settings = storage.read(path, kind=cls.__name__)
        with storage.understood(path, f"a {cls.__name__}"):
            return files.unpacked(cls, arrays, settings)


def _average(functions: Sequence[Function], X: Floats) -> Floats:
    if len(functions) == 1:
        return functions[0](X)
    return np.asarray(sum(f(X) for f in grouped(functions)))


def grouped(functions: Sequence[Function]) -> list[Function]:
    """Functions whose sum is the average of these: one for all that are over the same points."""
    groups: list[tuple[Function, list[Floats]]] = []
    for f in functions:
        same = next((found for g, found in groups if g.kernel == f.kernel and np.array_equal(g.points, f.points)), None)
        if same is None:
            groups.append((f, [f.weights]))
        else:
            same.append(f.weights)
    return [Function(f.kernel, f.points, np.sum(weights, axis=0) / len(functions)) for f, weights in groups]
