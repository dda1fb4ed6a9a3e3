"""The base class of the four estimators."""

import contextlib
import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelmesh import (
    Agent,
    ArrayStream,
    ConsensusProtocol,
    Faults,
    Function,
    Gaussian,
    Graph,
    Kernel,
    Round,
    State,
    simulate,
    storage,
)
from kernelmesh.checks import Floats, Ints, integer, positive
from kernelmesh.errors import InvalidArgument
from kernelmesh.estimators.choice import MARKS, Beginning, prefixes, suited
from kernelmesh.estimators.defaults import defaults_of
from kernelmesh.estimators.parameters import Parameters
from kernelmesh.estimators.progress import Progress
from kernelmesh.estimators.scale import warn_of_empty, warn_of_scales
from kernelmesh.registry import describe, restore
from kernelmesh.streams import Batch

__all__ = ["Learner", "grouped"]

_SETTLED = ("kernel", "loss", "learner", "step_size", "regularization", "compression", "protocol")
_WATCHED = 1000
"""The number of rows on which `fit` monitors the loss."""


class Learner(Parameters, ABC):
    """An online kernel learner with the scikit-learn API.

    Some subclasses define the targets (`targets.py`), others the agents (`agents.py`);
    an estimator derives from one of each.
    """

    n_features_in_: int
    n_iter_: int
    _states: tuple[State, ...]
    _sent: Ints
    """Floats and bytes that each agent has sent, 2 × agents."""
    _beginning: Beginning | None
    """The first rows of a stream, kept while bandwidth and λ may still change."""
    _regularization: float
    """λ, as given or chosen."""

    # -- what varies with the targets ----------------------------------------------------------------------------------

    @abstractmethod
    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Floats, NDArray[Any]]:
        """Rows and targets as arrays, or scikit-learn's error."""

    @abstractmethod
    def _observe(self, y: NDArray[Any]) -> int:
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

    @abstractmethod
    def _cooperation(self) -> tuple[Graph, ConsensusProtocol]:
        """The graph and the consensus protocol."""

    @abstractmethod
    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        """The rows that each agent sees."""

    @property
    def _faults(self) -> Faults | None:
        """The simulated faults."""
        return None

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
            self._begin(X, self._observe(y), complete=True)
            rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
            rows, passes, targets = (
                self._dealt(len(X), agents, rng),
                self._passes(self._agent.learner, len(X)),
                self._targets(y),
            )
            if self._beginning is not None:
                self._suit_to_all(X, targets)
            streams = self._streams(X, targets, rows, passes=passes, rng=rng)
            longest = max(range(len(streams)), key=lambda i: len(streams[i]))
            loss = self._loss_on(X, targets)
            progress = Progress(
                type(self).__name__,
                loss,
                agent=longest,
                rounds=len(streams[longest]) // passes,
                passes=passes,
                tol=self.tol,
                verbose=self.verbose,
            )
            interrupted = self._learn_in_passes(streams, progress)
        if interrupted:
            raise KeyboardInterrupt
        if not any(f.order for f in self._functions) and loss(self._functions) > 0.0:
            warn_of_empty(type(self).__name__)
        return self

    def _partial_fit(self, X: Any, y: Any, agents: Any, first_targets: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """Learn from these rows once, in order; in the first call, `first_targets` determines the form of all targets."""
        with self._all_or_nothing():
            first = not hasattr(self, "_states")
            X, y = self._validated(X, y, reset=first)
            known = first_targets(y)
            if first:
                self._begin(X, self._observe(known), complete=False)
            else:
                self._agent: Agent = self._gone_on()
            targets, dealt = self._targets(y), self._dealt(len(X), agents, None)
            if self._beginning is None:
                self._learn_once(X, targets, dealt)
            else:
                self._learn_beginning(self._beginning, X, targets)
        return self

    def _learn_once(self, X: Floats, targets: NDArray[Any], rows: Sequence[Ints]) -> None:
        """Learn from these rows once."""
        streams, states = self._streams(X, targets, rows), self._states
        for now in self._rounds(streams, states):
            states = tuple(now.states)
        self._states = states

    def _learn_beginning(self, beginning: Beginning, X: Floats, targets: NDArray[Any]) -> None:
        """Learn from these rows once, and choose bandwidth and λ again whenever that is due."""
        for rows in beginning.parts(len(X)):
            self._learn_once(X[rows], targets[rows], [np.arange(len(X[rows]))])
            beginning = beginning.grown(X[rows], targets[rows])
            if beginning.due:
                found = suited(self._agent, beginning.points, beginning.targets, regularizes=self.regularization is None)
                if found.agent is not self._agent and found.state is not None:
                    self._agent, self._states = found.agent, (found.state,)
                    self._regularization = cast(float, found.agent.regularization)
        self._beginning = None if beginning.complete else beginning

    def _suit_to_all(self, X: Floats, targets: NDArray[Any]) -> None:
        """Choose bandwidth and λ from some of the rows, which are all there are."""
        self._beginning = None
        weight = cast(float, self._agent.regularization) / self._regularization
        agent = dataclasses.replace(self._agent, regularization=self._regularization)
        some = np.random.default_rng(0).permutation(len(X))
        for rows in prefixes(len(X)):
            seen = some[:rows]
            agent = suited(agent, X[seen], targets[seen], regularizes=self.regularization is None).agent
        if self.verbose and len(X) >= MARKS[0]:
            bandwidth = cast(Gaussian, agent.kernel).bandwidth
            print(f"{type(self).__name__}: bandwidth {bandwidth:.3g}, regularization {agent.regularization:.3g}", flush=True)
        self._regularization = cast(float, agent.regularization)
        self._agent = dataclasses.replace(agent, regularization=weight * self._regularization)
        self._states = (self._agent.start(name=self._network.names[0]),)

    def _begin(self, X: Floats, outputs: int, *, complete: bool) -> None:
        """Check the settings and start every agent from scratch. `X` may be all data or the beginning of a stream."""
        try:
            self._network, protocol = self._cooperation()
            self._agent, self._regularization = self._settle(X, outputs, protocol, repeats=complete)
        except InvalidArgument as error:
            # users set parameters of the estimator, not of its parts
            raise error.owned_by(type(self).__name__) from None
        self._states = tuple(self._agent.start(name=name, number=i) for i, name in enumerate(self._network.names))
        self._sent = np.zeros((2, len(self._states)), dtype=np.int64)
        chooses = self.kernel is None and not self._cooperates and defaults_of(type(self._agent.learner)).suits
        self._beginning = Beginning.empty(self._agent) if chooses else None
        if self.kernel is None and not self._scales:
            warn_of_scales(type(self).__name__, X, getattr(self, "feature_names_in_", None), complete=complete)

    def _gone_on(self) -> Agent:
        """The agent for a stream of rows, with the current parameters."""
        try:
            return self._streaming(self._agent)
        except InvalidArgument as error:
            raise error.owned_by(type(self).__name__) from None

    def _streams(
        self, X: Floats, targets: NDArray[Any], rows: Sequence[Ints], *, passes: int = 1, rng: Any = None
    ) -> list[ArrayStream]:
        """The stream of each agent."""
        return [ArrayStream(X[mine], targets[mine], batch_size=self.batch_size, passes=passes, rng=rng) for mine in rows]

    def _rounds(self, streams: Sequence[Iterable[Batch]], states: Sequence[State]) -> Iterator[Round]:
        """Run `simulate` on the streams and count what agents send."""
        before = self._sent
        for now in simulate(self._agent, self._network, streams, states=states, faults=self._faults):
            self._sent = before + np.stack([now.floats_sent, now.bytes_sent])
            yield now

    def _loss_on(self, X: Floats, targets: NDArray[Any]) -> Callable[[Sequence[Function]], float]:
        """The mean loss of the average function, with which `predict` answers, on some of the rows."""
        some = np.random.default_rng(0).permutation(len(X))[:_WATCHED]
        X, targets = X[some], targets[some]
        loss = self._agent.loss
        return lambda functions: float(np.mean(loss.value(_average(functions, X), targets)))

    def _learn_in_passes(self, streams: Sequence[ArrayStream], progress: Progress) -> bool:
        """Learn until all passes are done or one brings no improvement; returns whether Ctrl-C interrupted it."""
        begun = interrupted = False
        try:
            for now in self._rounds(streams, self._states):
                self._states, begun = tuple(now.states), True
                if progress.see(now):
                    break
            for now in self._rounds([()] * len(streams), self._states):  # until all know what each has learned
                self._states = tuple(now.states)
            if self._agent.protocol.shares:
                progress.settle(self._functions)
        except KeyboardInterrupt:
            if not begun:
                raise
            interrupted = True
        self.n_iter_ = progress.complete
        return interrupted

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator if the call fails."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    # -- what was learned ----------------------------------------------------------------------------------------------

    @property
    def _functions(self) -> tuple[Function, ...]:
        check_is_fitted(self)
        return tuple(state.function for state in self._states)

    @property
    def kernel_(self) -> Kernel:
        """The kernel, as given or chosen; in networks with the scales of the features on which the agents have agreed."""
        check_is_fitted(self)
        return self._functions[0].kernel

    @property
    def regularization_(self) -> float:
        """λ, as given or chosen; in networks that on which the agents have agreed."""
        check_is_fitted(self)
        memory = self._states[0].memory
        return self._regularization * (1.0 if memory is None else memory.points.strength)

    def _outputs(self, X: Any, agent: Hashable | None) -> Floats:
        functions = self._functions
        X = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        if agent is not None:
            functions = (functions[self._number(agent)],)
        return _average(functions, X)

    def _number(self, agent: Hashable, argument: str = "agent") -> int:
        names = self._network.names
        if agent not in names:
            raise InvalidArgument(type(self).__name__, argument, f"be among {names}", agent)
        return names.index(agent)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_states")

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
        agent, network = self._agent, self._network
        arrays: dict[str, NDArray[Any]] = {}
        for i, state in enumerate(self._states):
            arrays |= {f"{i}.{name}": array for name, array in storage.pack(state).items()}
        if self._beginning is not None:
            arrays |= self._beginning.arrays()
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], int | np.integer | None):
            parameters["random_state"] = None  # the position of a generator is meaningless in another process
        parameters.pop("faults", None)  # they are not part of the model, and may contain a generator or a function
        settings = {
            "parameters": _described(parameters, network),
            "began_with": _described(self._began_with, network),
            "size": self._size,
            "regularization": self._regularization,
            "sent": self._sent.tolist(),
            "features": self.n_features_in_,
            "passes": getattr(self, "n_iter_", None),
            "feature_names": list(getattr(self, "feature_names_in_", [])) or None,
            "targets": self._describe_targets(arrays),
            "settled": {name: describe(getattr(agent, name)) for name in _SETTLED} | {"graph": describe(network)},
        }
        storage.write(path, kind=type(self).__name__, arrays=arrays, settings=settings)

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
            return cls._restored(arrays, settings)

    @classmethod
    def _restored(cls, arrays: dict[str, NDArray[Any]], settings: Any) -> Self:
        self = cls(**{name: restore(value) for name, value in settings["parameters"].items()})
        self._size = positive("file", "size", settings["size"])
        self._began_with = {name: restore(value) for name, value in settings["began_with"].items()}
        self.n_features_in_ = int(settings["features"])
        if (passes := settings["passes"]) is not None:
            self.n_iter_ = integer("file", "passes", passes, minimum=0)
        if settings["feature_names"]:
            self.feature_names_in_ = np.array(settings["feature_names"], dtype=object)
        outputs = self._restore_targets(settings["targets"], arrays)
        settled = {name: restore(value) for name, value in settings["settled"].items()}
        self._network = network = settled.pop("graph")
        self._sent = _sent(settings["sent"], agents=len(network))
        self._agent = agent = Agent(dimension=self.n_features_in_, outputs=outputs, **settled)
        self._regularization = positive("file", "regularization", settings["regularization"])
        self._beginning = Beginning.restored(arrays, agent)
        of: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in arrays.items():
            number, _, name = key.partition(".")
            of.setdefault(number, {})[name] = array
        self._states = tuple(
            storage.unpack(agent, of.get(str(i), {}), name=name, names=network.names) for i, name in enumerate(network.names)
        )
        return self


def _average(functions: Sequence[Function], X: Floats) -> Floats:
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
    return [Function.of(f.kernel, f.points, np.sum(weights, axis=0) / len(functions)) for f, weights in groups]


def _sent(listed: Any, *, agents: int) -> Ints:
    """The counts in a file."""
    floats, sizes = ([integer("file", "sent", each, minimum=0) for each in row] for row in listed)
    if not len(floats) == len(sizes) == agents:
        raise InvalidArgument("file", "sent", f"have {agents} numbers", listed)
    return np.array([floats, sizes], dtype=np.int64)


def _described(parameters: dict[str, Any], network: Graph) -> dict[str, Any]:
    """Parameters in JSON form; a graph may be given in forms that JSON cannot represent."""
    return {name: describe(network if name == "graph" and value is not None else value) for name, value in parameters.items()}
