"""The scikit-learn face: one online kernel learner, or a network of them, behind `fit`, `partial_fit` and `predict`."""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from kernelmesh import storage
from kernelmesh.agent import Agent
from kernelmesh.checks import Floats, Ints, integer, matrix, non_negative
from kernelmesh.consensus import Consensus, Diffusion, Local
from kernelmesh.errors import InvalidArgument, UnreadableFile, Verbatim
from kernelmesh.numerics.compression import Compression, Komp
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian, Kernel, check_kernel
from kernelmesh.numerics.losses import Logistic, Loss, Squared, check_loss
from kernelmesh.numerics.schedules import Schedule
from kernelmesh.runtimes import simulate
from kernelmesh.streams import ArrayStream, deal

__all__ = ["KernelMeshClassifier", "KernelMeshRegressor", "OnlineKernelClassifier", "OnlineKernelRegressor"]


class _Learner(BaseEstimator, ABC):
    """What the four estimators share. Subclasses say what a target is and how many agents there are."""

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        step_size: float | Schedule | None = None,
        regularization: float = 1e-6,
        parsimony: float = 0.02,
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

    # -- what varies ---------------------------------------------------------------------------------------------------

    def _graph(self) -> Graph:
        return Graph.line(1)

    def _consensus(self) -> Consensus:
        return Local()

    @abstractmethod
    def _default_loss(self) -> Loss: ...

    @abstractmethod
    def _default_step(self) -> float:
        """A step that is stable for the default loss when κ(x, x) = 1."""

    # -- learning ------------------------------------------------------------------------------------------------------

    def _begin(self, X: Floats, outputs: int) -> None:
        """Check the settings and start every agent from nothing. `X` only serves to size the default step."""
        try:
            self._settle(X, outputs)
        except ValueError as error:  # the user has set parameters of this estimator, not of the parts it is built from
            raise ValueError(re.sub(r"^(Agent|Komp): ", f"{type(self).__name__}: ", str(error))) from None
        self._states = tuple(self._agent.start(name=name) for name in self._network.names)

    def _settle(self, X: Floats, outputs: int) -> None:
        owner = type(self).__name__
        loss = check_loss(owner, self._default_loss() if self.loss is None else self.loss)
        if loss.classifies != isinstance(self, ClassifierMixin):
            wanted = "class" if isinstance(self, ClassifierMixin) else "value"
            raise InvalidArgument(owner, "loss", f"take {wanted} targets", loss)
        integer(owner, "batch_size", self.batch_size, minimum=1)
        integer(owner, "passes", self.passes, minimum=1)
        # on standardized data the typical pair of points is then at κ = exp(−2), whatever the dimension
        kernel = Gaussian(bandwidth=float(np.sqrt(X.shape[1] / 2))) if self.kernel is None else self.kernel
        check_kernel(owner, kernel)
        network = self._graph()
        step_size, budget = self.step_size, self.budget
        if step_size is None:
            # steps act on f(x) through κ(x, x), and so does the budget through its root: both are sized for κ = 1
            size = float(np.mean(kernel.diag(X[:1000]))) or 1.0
            step_size = self._default_step() / size
            if budget is None:
                budget = non_negative(owner, "parsimony", self.parsimony) * self._default_step() ** 1.5 / np.sqrt(size)
        compression: Compression = (
            Komp.parsimonious(step_size, parsimony=self.parsimony, max_order=self.max_order)
            if budget is None
            else Komp(budget=budget, max_order=self.max_order)
        )
        self._network = network
        self._agent = Agent(
            dimension=X.shape[1],
            outputs=outputs,
            kernel=kernel,
            loss=loss,
            step_size=step_size,
            regularization=self.regularization,
            compression=compression,
            consensus=self._consensus(),
        )

    def _learn(self, X: Floats, targets: NDArray[Any], rows: Sequence[Ints], *, passes: int, rng: Any = None) -> None:
        """Feed each agent its rows; what was learned counts only when all of it went well."""
        streams = [
            ArrayStream(X[mine], targets[mine], batch_size=self.batch_size, passes=passes, rng=rng) for mine in rows
        ]
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

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(check_random_state(self.random_state).randint(2**31))

    # -- what was learned ----------------------------------------------------------------------------------------------

    @property
    def _functions(self) -> tuple[Expansion, ...]:
        return tuple(state.function for state in self._states)

    def _outputs(self, X: Any, agent: Hashable | None) -> Floats:
        check_is_fitted(self, "_states")
        X = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        functions = self._functions if agent is None else (self._functions[self._number(agent)],)
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
        """Write the learned functions and all settings to a safetensors file."""
        check_is_fitted(self, "_states")
        arrays: dict[str, NDArray[Any]] = {}
        for i, state in enumerate(self._states):
            for name, array in storage.pack(state, self._network.names).items():
                arrays[f"{i}.{name}"] = array
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], int | np.integer | None):
            parameters["random_state"] = None  # a generator's position has no meaning in another process
        if "graph" in parameters and parameters["graph"] is not None:
            parameters["graph"] = self._network
        settings = {
            "parameters": {name: storage.describe(value) for name, value in parameters.items()},
            "features": self.n_features_in_,
            "feature_names": list(getattr(self, "feature_names_in_", [])) or None,
            "targets": self._describe_targets(arrays),
            "settled": {
                "kernel": storage.describe(self._agent.kernel),
                "loss": storage.describe(self._agent.loss),
                "step_size": storage.describe(self._agent.step_size),
                "regularization": self._agent.regularization,
                "compression": storage.describe(self._agent.compression),
                "consensus": storage.describe(self._agent.consensus),
                "graph": storage.describe(self._network),
            },
        }
        storage.write(path, kind=type(self).__name__, arrays=arrays, settings=settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read back what `save` wrote; it predicts the same and goes on learning."""
        arrays, settings = storage.read(path, kind=cls.__name__)
        try:
            return cls._restored(arrays, settings)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UnreadableFile(f"{path}: does not describe a {cls.__name__}: {error}") from None

    @classmethod
    def _restored(cls, arrays: dict[str, NDArray[Any]], settings: Any) -> Self:
        self = cls(**{name: storage.restore(value) for name, value in settings["parameters"].items()})
        self.n_features_in_ = int(settings["features"])
        if settings["feature_names"]:
            self.feature_names_in_ = np.array(settings["feature_names"], dtype=object)
        outputs = self._restore_targets(settings["targets"], arrays)
        settled = {name: storage.restore(value) for name, value in settings["settled"].items()}
        self._network = settled.pop("graph")
        self._agent = Agent(dimension=self.n_features_in_, outputs=outputs, **settled)
        states = []
        for i, name in enumerate(self._network.names):
            mine = {key.partition(".")[2]: array for key, array in arrays.items() if key.partition(".")[0] == str(i)}
            states.append(storage.unpack(self._agent, mine, name=name, names=self._network.names))
        self._states = tuple(states)
        return self

    @abstractmethod
    def _describe_targets(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """What a file must say about the targets; arrays may be added to."""

    @abstractmethod
    def _restore_targets(self, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        """The reverse; returns how many outputs there are."""


class _Single(_Learner):
    """One agent."""

    @property
    def dictionary_(self) -> Floats:
        """The points that the function is built from, model_order_ × features."""
        check_is_fitted(self, "_states")
        return self._functions[0].centers

    @property
    def weights_(self) -> Floats:
        """Their weights, model_order_ × outputs."""
        check_is_fitted(self, "_states")
        return self._functions[0].weights

    @property
    def model_order_(self) -> int:
        """How many points the dictionary holds."""
        check_is_fitted(self, "_states")
        return self._functions[0].order

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        if agents is not None:
            raise InvalidArgument(type(self).__name__, "agents", "be left out where there is only one", agents)
        return [np.arange(rows)]


class _Mesh(_Learner):
    """A network of agents."""

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        graph: Any = None,
        consensus: Consensus | None = None,
        step_size: float | Schedule | None = None,
        regularization: float = 1e-6,
        parsimony: float = 0.02,
        budget: float | Schedule | None = None,
        batch_size: int = 32,
        max_order: int | None = None,
        passes: int = 50,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            kernel,
            loss,
            step_size=step_size,
            regularization=regularization,
            parsimony=parsimony,
            budget=budget,
            batch_size=batch_size,
            max_order=max_order,
            passes=passes,
            random_state=random_state,
        )
        self.graph = graph
        self.consensus = consensus

    def _graph(self) -> Graph:
        return Graph.ring(5) if self.graph is None else Graph.of(self.graph)

    def _consensus(self) -> Consensus:
        return Diffusion() if self.consensus is None else self.consensus

    @property
    def agents_(self) -> dict[Hashable, Expansion]:
        """What each agent has learned, by its name in the graph."""
        check_is_fitted(self, "_states")
        return dict(zip(self._network.names, self._functions, strict=True))

    @property
    def dictionary_(self) -> Floats:
        """The points of the average function: all agents' dictionaries, one below the other."""
        check_is_fitted(self, "_states")
        return np.concatenate([f.centers for f in self._functions])

    @property
    def weights_(self) -> Floats:
        """The weights of the average function."""
        check_is_fitted(self, "_states")
        return np.concatenate([f.weights for f in self._functions]) / len(self._functions)

    @property
    def model_order_(self) -> Ints:
        """How many points each agent's dictionary holds."""
        check_is_fitted(self, "_states")
        return np.array([f.order for f in self._functions])

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        """Which rows each agent sees: as told, or dealt out evenly."""
        names = self._network.names
        if agents is None:
            if rng is not None:
                return deal(rows, agents=len(names), rng=rng)
            # one after the other, going on where the call before has stopped
            seen = sum(state.samples for state in self._states)
            return [np.arange((start - seen) % len(names), rows, len(names)) for start in range(len(names))]
        told = list(agents) if isinstance(agents, Iterable) else []
        if len(told) != rows:
            raise InvalidArgument(
                type(self).__name__, "agents", f"name an agent for each of {rows} rows", Verbatim(f"{len(told)} names")
            )
        numbers = np.array([self._number(_plain(name), "agents") for name in told], dtype=np.int64)
        return [np.flatnonzero(numbers == i) for i in range(len(names))]


def _plain(name: Any) -> Hashable:
    return name.item() if isinstance(name, np.generic) else name if isinstance(name, Hashable) else tuple(name)


class _Classification(ClassifierMixin):
    """Targets are labels of any kind."""

    def _default_loss(self) -> Loss:
        return Logistic()

    def _default_step(self) -> float:
        return 3.0

    def _targets(self: Any, y: Any) -> Ints:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InvalidArgument(type(self).__name__, "y", f"hold known classes {self.classes_.tolist()}", unknown[0])
        return np.asarray(np.searchsorted(self.classes_, y))

    def fit(self: Any, X: Any, y: Any, agents: Any = None) -> Any:
        """Learn from scratch, in several passes over shuffled rows. `agents` (networks only) says who saw which row."""
        with self._all_or_nothing():
            X, y = validate_data(self, X, y, dtype=np.float64, order="C")
            check_classification_targets(y)
            self._begin_classes(unique_labels(y), X)
            rng = self._generator()
            self._learn(X, self._targets(y), self._dealt(len(X), agents, rng), passes=self.passes, rng=rng)
        return self

    def partial_fit(self: Any, X: Any, y: Any, classes: Any = None, agents: Any = None) -> Any:
        """Learn from these rows once, in order. The first call must name all classes that will ever occur."""
        with self._all_or_nothing():
            first = not hasattr(self, "_states")
            X, y = validate_data(self, X, y, reset=first, dtype=np.float64, order="C")
            check_classification_targets(y)
            if first:
                if classes is None:
                    raise InvalidArgument(
                        type(self).__name__, "classes", "be given in the first call to partial_fit", None
                    )
                if np.size(classes) < 2:
                    raise InvalidArgument(type(self).__name__, "classes", "name at least 2 classes", classes)
                self._begin_classes(unique_labels(np.asarray(classes)), X)
            elif classes is not None and not np.array_equal(unique_labels(np.asarray(classes)), self.classes_):
                raise InvalidArgument(type(self).__name__, "classes", f"stay {self.classes_.tolist()}", classes)
            self._learn(X, self._targets(y), self._dealt(len(X), agents, None), passes=1)
        return self

    def _begin_classes(self: Any, classes: NDArray[Any], X: Floats) -> None:
        if len(classes) < 2:
            raise InvalidArgument(
                type(self).__name__, "y", "hold at least 2 classes", Verbatim(f"1 class, {classes[0]}")
            )
        self.classes_ = classes
        self._begin(X, len(classes))

    def decision_function(self: Any, X: Any, *, agent: Hashable | None = None) -> Floats:
        """The outputs f(x), one column per class; with two classes their difference."""
        outputs: Floats = self._outputs(X, agent)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self: Any, X: Any, *, agent: Hashable | None = None) -> NDArray[Any]:
        """The class with the largest output, as one agent of a network sees it or (by default) by their average."""
        outputs = self._outputs(X, agent)
        labels: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return labels

    def _probabilities_make_sense(self: Any) -> bool:
        loss = self._agent.loss if hasattr(self, "_states") else self.loss
        if loss is None or isinstance(loss, Logistic):
            return True
        raise AttributeError(f"predict_proba needs the logistic loss, got {loss}")

    def _predict_proba(self: Any, X: Any, *, agent: Hashable | None = None) -> Floats:
        """P(y | x) of the softmax over the outputs."""
        return Logistic().probabilities(self._outputs(X, agent))

    @property
    def predict_proba(self) -> Any:
        """Class probabilities; there only with the logistic loss."""
        self._probabilities_make_sense()
        return self._predict_proba

    def _describe_targets(self: Any, arrays: dict[str, NDArray[Any]]) -> Any:
        if not all(isinstance(label, bool | int | float | str) for label in self.classes_.tolist()):
            raise InvalidArgument(
                type(self).__name__, "classes_", "be numbers, booleans or strings to be saved", self.classes_
            )
        return {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}

    def _restore_targets(self: Any, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        self.classes_ = np.array(description["classes"], dtype=np.dtype(description["dtype"]))
        return len(self.classes_)


class _Regression(RegressorMixin):
    """Targets are numbers, one or several per row, which are centered and scaled by the first ones seen.

    A compression budget is an absolute distance; this makes the default one fit targets of any size.
    """

    def _default_loss(self) -> Loss:
        return Squared()

    def _default_step(self) -> float:
        return 1.0

    def __sklearn_tags__(self: Any) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _table(self: Any, y: Any) -> Floats:
        return np.asarray(y, dtype=np.float64).reshape(len(y), -1)

    def _targets(self: Any, y: Any) -> Floats:
        table = self._table(y)
        if table.shape[1] != len(self.target_offset_):
            raise InvalidArgument(
                type(self).__name__, "y", f"have {len(self.target_offset_)} outputs", Verbatim(f"shape {np.shape(y)}")
            )
        return np.asarray((table - self.target_offset_) / self.target_scale_)

    def fit(self: Any, X: Any, y: Any, agents: Any = None) -> Any:
        """Learn from scratch, in several passes over shuffled rows. `agents` (networks only) says who saw which row."""
        with self._all_or_nothing():
            X, y = validate_data(self, X, y, dtype=np.float64, order="C", multi_output=True, y_numeric=True)
            self._begin_values(X, y)
            rng = self._generator()
            self._learn(X, self._targets(y), self._dealt(len(X), agents, rng), passes=self.passes, rng=rng)
        return self

    def partial_fit(self: Any, X: Any, y: Any, agents: Any = None) -> Any:
        """Learn from these rows once, in order. The rows of the first call fix the offset and scale of the targets."""
        with self._all_or_nothing():
            first = not hasattr(self, "_states")
            X, y = validate_data(
                self, X, y, reset=first, dtype=np.float64, order="C", multi_output=True, y_numeric=True
            )
            if first:
                self._begin_values(X, y)
            self._learn(X, self._targets(y), self._dealt(len(X), agents, None), passes=1)
        return self

    def _begin_values(self: Any, X: Floats, y: NDArray[Any]) -> None:
        table = self._table(y)
        self._flat = y.ndim == 1
        self.target_offset_ = table.mean(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = table.std(axis=0)
        if not np.isfinite(spread).all():
            raise InvalidArgument(
                type(self).__name__, "y", "have a finite variance", Verbatim(f"values up to {np.abs(table).max():g}")
            )
        self.target_scale_ = np.where(spread > 1e-12 * np.abs(self.target_offset_).clip(1e-300), spread, 1.0)
        self._begin(X, table.shape[1])

    def predict(self: Any, X: Any, *, agent: Hashable | None = None) -> Floats:
        """f(x), as one agent of a network sees it or (by default) their average."""
        outputs = self._outputs(X, agent) * self.target_scale_ + self.target_offset_
        return np.asarray(outputs[:, 0] if self._flat else outputs)

    def _describe_targets(self: Any, arrays: dict[str, NDArray[Any]]) -> Any:
        arrays["target_offset"], arrays["target_scale"] = self.target_offset_, self.target_scale_
        return {"flat": self._flat}

    def _restore_targets(self: Any, description: Any, arrays: dict[str, NDArray[Any]]) -> int:
        self._flat = bool(description["flat"])
        offset = matrix("file", "target_offset", arrays["target_offset"][None])[0]
        scale = matrix("file", "target_scale", arrays["target_scale"][None], columns=len(offset))[0]
        self.target_offset_, self.target_scale_ = offset, scale
        return len(offset)


class OnlineKernelClassifier(_Classification, _Single):
    """One online kernel classifier with bounded memory.

    Parameters
    ----------
    kernel : Kernel, default=Gaussian(bandwidth=√(features / 2)), which suits standardized features.
    loss : Loss with class targets, default=Logistic().
    step_size : float or Schedule η, below 1 / regularization; by default 3 for classes and 1 for values, divided by the
        mean of κ(x, x) over the first rows. Steps well above that diverge.
    regularization : float λ.
    parsimony : K of the compression budget ε = K η^{3/2}: larger means fewer points and a coarser function.
    budget : float or Schedule ε of its own, instead of the rule above.
    batch_size : rows per mini-batch.
    max_order : the most points the dictionary may ever hold.
    passes : how often `fit` goes over the rows (20; 50 for networks, whose agents each see a part); `partial_fit`: once.
    random_state : seeds the shuffling in `fit`.

    Attributes
    ----------
    classes_, dictionary_, weights_, model_order_

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> model = OnlineKernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), bool(model.model_order_ < 100)
    (True, True)
    """


class OnlineKernelRegressor(_Regression, _Single):
    """One online kernel regressor with bounded memory.

    Targets (one column or several) are centered and scaled by the first ones seen. See `OnlineKernelClassifier` for the
    parameters; the default loss is Squared().

    Examples
    --------
    >>> X = np.linspace(-2, 2, 200)[:, None]
    >>> model = OnlineKernelRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> bool(model.score(X, np.sin(3 * X[:, 0])) > 0.9)
    True
    """


class KernelMeshClassifier(_Classification, _Mesh):
    """A network of online kernel classifiers that come to agree.

    Parameters beyond those of `OnlineKernelClassifier`:

    graph : Graph, networkx graph or list of edges, default=a ring of 5 agents.
    consensus : how agents come to agree, default=Diffusion(): neighbors average their functions.

    With the default protocol agents come to know what only others see, another class or region; with `ExactDiffusion` as well
    as a learner with all the data. An agent without any rows neither learns nor passes anything on.

    `fit(X, y, agents=None)` takes an agent's name for each row, or deals the rows out. `predict(X, agent=None)` answers as
    one agent or as the average of all.

    Attributes
    ----------
    agents_ : what each agent has learned, by name
    classes_, dictionary_, weights_ (of the average), model_order_ (of each agent)

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> mesh = KernelMeshClassifier(graph=[("a", "b"), ("b", "c")], random_state=0).fit(X, y)
    >>> sorted(mesh.agents_), bool(mesh.score(X, y) > 0.9)
    (['a', 'b', 'c'], True)
    """


class KernelMeshRegressor(_Regression, _Mesh):
    """A network of online kernel regressors that come to agree; parameters as for `KernelMeshClassifier`.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 400)[:, None]
    >>> mesh = KernelMeshRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> mesh.predict(X, agent=2).shape
    (400,)
    """
