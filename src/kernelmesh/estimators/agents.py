"""The estimators: a single learner or a network, for classes or values."""

import dataclasses
import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from kernelmesh import (
    ConsensusProtocol,
    Diffusion,
    Faults,
    Function,
    Graph,
    Hilbert,
    Kernel,
    Landmarks,
    Learner,
    Local,
    Loss,
    Penalty,
    Relay,
    Schedule,
)
from kernelmesh.checks import Floats, Ints
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.estimators.base import Learner, grouped
from kernelmesh.estimators.defaults import TOLERANCE
from kernelmesh.estimators.targets import Classification, Regression
from kernelmesh.numerics.function import padded
from kernelmesh.streams import deal

__all__ = ["KernelMeshClassifier", "KernelMeshRegressor", "OnlineKernelClassifier", "OnlineKernelRegressor"]


class _Single(Learner):
    """A single agent, whose function is the estimator's."""

    _cooperates = False
    _default_rule = "second-order"

    @property
    def dictionary_(self) -> Floats:
        """The points of the kernel expansion, model_order_ × features."""
        return self._functions[0].points

    @property
    def weights_(self) -> Floats:
        """Their weights, model_order_ × outputs."""
        return self._functions[0].weights

    @property
    def model_order_(self) -> int:
        """The number of points in the dictionary."""
        return self._functions[0].order

    def _cooperation(self) -> tuple[Graph, ConsensusProtocol]:
        return Graph.line(1), Local()

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        if agents is not None:
            raise InvalidArgument(type(self).__name__, "agents", "be omitted for a single learner", agents)
        return [np.arange(rows)]

    def _widen(self, *, features: int, outputs: int) -> Self:
        """Add features that were 0 so far and outputs that are 0 everywhere, after the known ones."""
        agent = self._agent
        if (features, outputs) == (agent.dimension, agent.outputs):
            return self
        probe = np.random.default_rng(0).standard_normal((4, agent.dimension))
        wider = padded(probe, features)
        if not np.allclose(agent.kernel(wider, wider), agent.kernel(probe, probe), rtol=1e-9, atol=0.0):
            rule = "be invariant to zero-padding of points if features appear later"
            remedy = (
                "choose a kernel of distances or inner products, such as Gaussian(), or give all features in the first row"
            )
            raise InvalidArgument(type(self).__name__, "kernel", rule, agent.kernel, remedy=remedy)
        self._agent = dataclasses.replace(agent, dimension=features, outputs=outputs)
        self._states = tuple(state.widened(dimension=features, outputs=outputs) for state in self._states)
        self._beginning = None if self._beginning is None else self._beginning.widened(features)
        self.n_features_in_ = features
        return self


class OnlineKernelClassifier(Classification, _Single):
    """An online kernel classifier with bounded memory.

    With the default rule, one pass over the data comes close to a batch SVM. Parameters that the rule does not use raise an
    error.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian. With the second-order rule, its bandwidth is chosen together with λ, starting
        from 0.7 √(v / 2): in `fit` from at most 1024 of the rows, in `partial_fit` from the first 128, 256, 512 and 1024.
        With the other rules, the bandwidth is √(v / 2). In `fit`, v is the sum of the features' variances; `partial_fit`
        assumes standardized features, so that v is their number.
    loss : Loss, optional
        The loss ℓ, with class targets; by default Logistic().
    rule : str or Learner, optional
        The learning rule: "second-order" (the default), "averaged", "gradient", the name of another registered rule, or an
        object such as SecondOrder(novelty=0.05). A name takes `budget`, `max_order` and `half_life` from the parameters
        below: "second-order" stands for SecondOrder(budget=0.0075, max_order=2000), in `partial_fit` with half_life=10_000.
        An object is used as is: SecondOrder() has a budget of 0.02, no limit on the number of points, and does not forget.
    regularization : float, optional
        The regularization λ. With the second-order rule, it corresponds to 1/C of an SVM and is by default 0.05 times the
        mean of κ(x, x) over the first rows; if `kernel` is not given either, both are then tuned on the first rows. With the
        other rules, it is relative to the mean loss and is by default 10⁻⁶.
    budget : float or Schedule, optional
        The compression budget ε: larger means fewer points and a coarser function. With the second-order rule, it is the
        increase in loss per sample that removing points may cause, by default 0.0075. With the other rules, it is the
        distance by which compression may move the function in one step, and by default follows from `parsimony`.
    max_order : int, optional
        The maximum number of points in the dictionary; math.inf means no limit. By default 2000 with the second-order rule,
        which stores two matrices of max_order² numbers (64 MB), and unlimited with the other rules.
    half_life : float, optional
        The number of samples after which the influence of old data has halved, for streams that change; math.inf means that
        nothing is forgotten. By default, `fit`, which shuffles the rows, forgets nothing, and `partial_fit` uses 10,000 with
        the second-order rule. The rule "gradient" does not support forgetting.
    step_size : float or Schedule, optional
        The step size η, below 1 / regularization; not with the second-order rule. By default 100 (averaged) or 3 (gradient),
        divided by the mean of κ(x, x) over the first rows.
    parsimony : float, optional
        The constant K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.06):
        larger means fewer points and a coarser function. Not with the second-order rule, and not together with `budget`.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        The maximum number of passes of `fit` over the rows; by default 2 (4 for fewer than 2000 rows), with the learner
        "averaged" 5 and with "gradient" 20. `partial_fit` makes one pass.
    tol : float or None
        `fit` stops early when a pass does not lower the mean loss of the predictions, on up to 1000 of the rows, by more than
        this fraction (below 1) of the lowest so far; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds during long ones.
    random_state : int, RandomState or None
        The seed for shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or as chosen.
    n_iter_ : int
        The number of passes that `fit` has completed.
    classes_ : ndarray of shape (classes,)
        The class labels, in order.
    dictionary_ : ndarray of shape (model_order_, features)
        The points of the kernel expansion.
    weights_ : ndarray of shape (model_order_, outputs)
        Their weights.
    model_order_ : int
        The number of points.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> model = OnlineKernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), bool(model.model_order_ < 100)
    (True, True)
    """


class OnlineKernelRegressor(Regression, _Single):
    """An online kernel regressor with bounded memory.

    With the default rule, one pass over the data comes close to a batch SVM. Parameters that the rule does not use raise an
    error.

    Targets, in one or several columns, are standardized using the first targets seen.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian. With the second-order rule, its bandwidth is chosen together with λ, starting
        from √(v / 2): in `fit` from at most 1024 of the rows, in `partial_fit` from the first 128, 256, 512 and 1024. With
        the other rules, the bandwidth is √(v / 2). In `fit`, v is the sum of the features' variances; `partial_fit` assumes
        standardized features, so that v is their number.
    loss : Loss, optional
        The loss ℓ, with value targets; by default Squared().
    rule : str or Learner, optional
        The learning rule: "second-order" (the default), "averaged", "gradient", the name of another registered rule, or an
        object such as SecondOrder(novelty=0.05). A name takes `budget`, `max_order` and `half_life` from the parameters
        below: "second-order" stands for SecondOrder(budget=0.0025, max_order=2000), in `partial_fit` with half_life=10_000.
        An object is used as is: SecondOrder() has a budget of 0.02, no limit on the number of points, and does not forget.
    regularization : float, optional
        The regularization λ. With the second-order rule, it corresponds to 1/C of an SVM and is by default 0.6 times the mean
        of κ(x, x) over the first rows; if `kernel` is not given either, both are then tuned on the first rows. With the other
        rules, it is relative to the mean loss and is by default 10⁻⁶.
    budget : float or Schedule, optional
        The compression budget ε: larger means fewer points and a coarser function. With the second-order rule, it is the
        increase in loss per sample that removing points may cause, by default 0.0025. With the other rules, it is the
        distance by which compression may move the function in one step, and by default follows from `parsimony`.
    max_order : int, optional
        The maximum number of points in the dictionary; math.inf means no limit. By default 2000 with the second-order rule,
        which stores two matrices of max_order² numbers (64 MB), and unlimited with the other rules.
    half_life : float, optional
        The number of samples after which the influence of old data has halved, for streams that change; math.inf means that
        nothing is forgotten. By default, `fit`, which shuffles the rows, forgets nothing, and `partial_fit` uses 10,000 with
        the second-order rule. The rule "gradient" does not support forgetting.
    step_size : float or Schedule, optional
        The step size η, below 1 / regularization; not with the second-order rule. By default 1.5 (averaged) or 1 (gradient),
        divided by the mean of κ(x, x) over the first rows. Much larger steps diverge.
    parsimony : float, optional
        The constant K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.01):
        larger means fewer points and a coarser function. Not with the second-order rule, and not together with `budget`.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        The maximum number of passes of `fit` over the rows; by default 2 (4 for fewer than 2000 rows), with the learner
        "averaged" 5 and with "gradient" 20. `partial_fit` makes one pass.
    tol : float or None
        `fit` stops early when a pass does not lower the mean loss of the predictions, on up to 1000 of the rows, by more than
        this fraction (below 1) of the lowest so far; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds during long ones.
    random_state : int, RandomState or None
        The seed for shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or as chosen.
    n_iter_ : int
        The number of passes that `fit` has completed.
    target_offset_, target_scale_ : ndarray of shape (outputs,)
        The offset and scale used to standardize targets.
    dictionary_ : ndarray of shape (model_order_, features)
        The points of the kernel expansion.
    weights_ : ndarray of shape (model_order_, outputs)
        Their weights.
    model_order_ : int
        The number of points.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 200)[:, None]
    >>> model = OnlineKernelRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> bool(model.score(X, np.sin(3 * X[:, 0])) > 0.9)
    True
    """


class _Mesh(Learner):
    """A network of agents, each with its own function; the estimator predicts with their average."""

    _cooperates = True

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        graph: Any = None,
        protocol: ConsensusProtocol | None = None,
        faults: Faults | None = None,
        rule: str | Learner | None = None,
        regularization: float | None = None,
        budget: float | Schedule | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        step_size: float | Schedule | None = None,
        parsimony: float | None = None,
        batch_size: int = 32,
        passes: int | None = None,
        tol: float | None = TOLERANCE,
        verbose: bool | int = False,
        random_state: Any = None,
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
            passes=passes,
            tol=tol,
            verbose=verbose,
            random_state=random_state,
        )
        self.graph = graph
        self.protocol = protocol
        self.faults = faults

    @property
    def _default_rule(self) -> str:
        if self.protocol is None or isinstance(self.protocol, Relay):
            return "landmarks"
        if isinstance(self.protocol, Local):
            return "second-order"
        # large steps need a protocol without a penalty, whose stability limit they lower
        return "gradient" if isinstance(self.protocol, Penalty | Hilbert) else "averaged"

    @property
    def _faults(self) -> Faults | None:
        given: object = self.faults
        if given is None or isinstance(given, Faults):
            return given
        remedy = "for example Faults(drop=0.1, rng=np.random.default_rng(0))"
        raise InvalidArgument(type(self).__name__, "faults", "be Faults or None", given, remedy=remedy)

    @property
    def agents_(self) -> dict[Hashable, Function]:
        """The function that each agent has learned, by its name in the graph."""
        functions = self._functions
        return dict(zip(self._network.names, functions, strict=True))

    @property
    def dictionary_(self) -> Floats:
        """The points of the average function: those that all agents share, or the dictionaries of all agents, stacked."""
        return np.concatenate([f.points for f in grouped(self._functions)])

    @property
    def weights_(self) -> Floats:
        """The weights of the average function."""
        return np.concatenate([f.weights for f in grouped(self._functions)])

    @property
    def model_order_(self) -> Ints:
        """The number of points in each agent's dictionary."""
        return np.array([f.order for f in self._functions])

    @property
    def floats_sent_(self) -> Ints:
        """The numbers that each agent has sent, in `fit` and all later calls of `partial_fit`."""
        check_is_fitted(self)
        return np.asarray(self._sent[0])

    @property
    def bytes_sent_(self) -> Ints:
        """The bytes that each agent has sent, in `fit` and all later calls of `partial_fit`."""
        check_is_fitted(self)
        return np.asarray(self._sent[1])

    def _cooperation(self) -> tuple[Graph, ConsensusProtocol]:
        graph = Graph.ring(5) if self.graph is None else Graph.of(self.graph)
        if self.protocol is not None:
            return graph, self.protocol
        rule = self._chosen_rule(streaming=True)
        if isinstance(rule, Landmarks):
            # features of the default kernel count alike, whatever their units
            return graph, Relay(scales=self.kernel is None, tunes=self.kernel is None and self.regularization is None)
        if not rule.listens:
            remedy = "add protocol=Local() for agents that learn alone, or omit rule"
            found = Verbatim(repr(self.learner))
            raise InvalidArgument(type(self).__name__, "learner", "be one that learns from neighbors", found, remedy=remedy)
        return graph, Diffusion()

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        """The rows that each agent sees: as given, or split evenly."""
        names = self._network.names
        if agents is None:
            if rng is not None:
                return deal(rows, agents=len(names), rng=rng)
            # in turn, continuing where the previous call stopped
            seen = sum(state.samples for state in self._states)
            return [np.arange((start - seen) % len(names), rows, len(names)) for start in range(len(names))]
        named = list(agents) if isinstance(agents, Iterable) else []
        if len(named) != rows:
            rule, found = f"name an agent for each of {rows} rows", Verbatim(f"{len(named)} names")
            raise InvalidArgument(type(self).__name__, "agents", rule, found)
        numbers = np.array([self._number(_plain(name), "agents") for name in named], dtype=np.int64)
        dealt = [np.flatnonzero(numbers == i) for i in range(len(names))]
        if rng is not None and not self._agent.protocol.shares:
            self._warn_of_idle([name for name, own in zip(names, dealt, strict=True) if not len(own)])
        return dealt

    def _warn_of_idle(self, idle: Sequence[Hashable]) -> None:
        """Warn of agents that `fit` gives no rows: they learn nothing and separate their neighbors."""
        if idle:
            listed = ", ".join(map(repr, idle[:5])) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
            warnings.warn(
                f"{type(self).__name__}: no rows for {'agent' if len(idle) == 1 else 'agents'} {listed}: an agent without "
                "rows learns nothing and relays nothing between its neighbors; remove it from the graph, or give it rows",
                UserWarning,
                stacklevel=4,  # the caller of fit
            )


def _plain(name: Any) -> Hashable:
    return name.item() if isinstance(name, np.generic) else name if isinstance(name, Hashable) else tuple(name)


class KernelMeshClassifier(Classification, _Mesh):
    """A network of online kernel classifiers that learn one model together.

    By default, agents add up sums over their rows (`Relay`), so that each ends with the model of all rows, also one that has
    none. Features are then compared in units on which the agents agree. Parameters that the rule does not use raise an error.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default Gaussian(bandwidth=0.7 √(v / 2)) with the rules "landmarks" and "second-order", and
        Gaussian(bandwidth=√(v / 2)) with others. With "landmarks", agents agree on the scales of the features, so that v is
        their number, and on 1/8 to 2 times that bandwidth. Otherwise, v is the sum of the features' variances in `fit`, and
        `partial_fit` assumes standardized features.
    loss : Loss, optional
        The loss ℓ, with class targets; by default Logistic().
    graph : Graph, networkx graph or list of edges, optional
        The communication graph; by default a ring of 5 agents.
    protocol : ConsensusProtocol, optional
        The consensus protocol; by default Relay() with the learner "landmarks", and Diffusion() with other rules.
    faults : Faults, optional
        Simulated faults: lost messages, absent agents, changing edges. Rounds are counted from 1 in every call of `fit` and
        `partial_fit`. Not stored by `save`.
    rule : str or Learner, optional
        The learning rule: "landmarks" (the default), "averaged" (with Diffusion), "gradient" (with Penalty and Hilbert,
        which need small steps), "second-order" (with Local, for agents that learn alone), the name of another registered
        rule, or an object such as Landmarks(keep=0).
    regularization : float, optional
        The regularization λ. With "landmarks", it corresponds to 1/C of an SVM with the rows of all agents; by default they
        agree on 1/64 to 4 times 0.05 times the mean of κ(x, x) over the first rows. With "second-order", it is that of each
        agent. With the other rules, it is relative to the mean loss and is by default 10⁻⁶.
    budget : float or Schedule, optional
        The compression budget ε, not with "landmarks": larger means fewer points and a coarser function. With the
        second-order rule, it is the increase in loss per sample that removing points may cause, by default 0.0075. With the
        other rules, it is the distance by which compression may move the function in one step, and by default follows from
        `parsimony`.
    max_order : int, optional
        The maximum number of points; math.inf means no limit. By default 500 with the learner "landmarks", whose agents send
        max_order² / 2 numbers in each wave, 2000 with "second-order", which stores two matrices of max_order² numbers for
        each agent (64 MB), and unlimited with the others.
    half_life : float, optional
        The number of an agent's samples after which the influence of old data has halved, for streams that change; math.inf
        means that nothing is forgotten. By default, `fit`, which shuffles the rows, forgets nothing, and `partial_fit` uses
        10,000 with "landmarks" and "second-order". The rule "gradient" does not support forgetting.
    step_size : float or Schedule, optional
        The step size η, below 1 / regularization; not with "landmarks" and "second-order". By default 100 (averaged) or 3
        (gradient), divided by the mean of κ(x, x) over the first rows.
    parsimony : float, optional
        The constant K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.06):
        larger means fewer points and a coarser function. Not with "landmarks" and "second-order", nor together with `budget`.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        The maximum number of passes of `fit` over the rows, of which each agent sees a part; by default 1, with the learner
        "second-order" 2, with "averaged" 5 and with "gradient" 50. `partial_fit` makes one pass.
    tol : float or None
        `fit` stops early when a pass does not lower the mean loss of the predictions, on up to 1000 of the rows, by more than
        this fraction (below 1) of the lowest so far; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds during long ones.
    random_state : int, RandomState or None
        The seed for shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or as chosen.
    n_iter_ : int
        The number of passes that `fit` has completed.
    classes_ : ndarray of shape (classes,)
        The class labels, in order.
    agents_ : dict of Hashable to Function
        The function that each agent has learned, by its name in the graph.
    dictionary_ : ndarray of shape (points, features)
        The points of the average function: those that all agents share, or the dictionaries of all agents, stacked.
    weights_ : ndarray of shape (points, outputs)
        The weights of the average function.
    model_order_ : ndarray of shape (agents,)
        The number of points in each agent's dictionary.
    floats_sent_, bytes_sent_ : ndarray of shape (agents,)
        The numbers and bytes that each agent has sent, in `fit` and all later calls of `partial_fit`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> mesh = KernelMeshClassifier(graph=[("a", "b"), ("b", "c")], random_state=0).fit(X, y)
    >>> sorted(mesh.agents_), bool(mesh.score(X, y) > 0.9)
    (['a', 'b', 'c'], True)
    """


class KernelMeshRegressor(Regression, _Mesh):
    """A network of online kernel regressors that learn one model together.

    By default, agents add up sums over their rows (`Relay`), so that each ends with the model of all rows, also one that has
    none. Features are then compared in units on which the agents agree. Targets, in one or several columns, are standardized
    using the first targets seen. Parameters that the rule does not use raise an error.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default Gaussian(bandwidth=√(v / 2)). With the rule "landmarks", agents agree on the scales of the
        features, so that v is their number, and on 1/8 to 2 times that bandwidth. Otherwise, v is the sum of the features'
        variances in `fit`, and `partial_fit` assumes standardized features.
    loss : Loss, optional
        The loss ℓ, with value targets; by default Squared().
    graph : Graph, networkx graph or list of edges, optional
        The communication graph; by default a ring of 5 agents.
    protocol : ConsensusProtocol, optional
        The consensus protocol; by default Relay() with the learner "landmarks", and Diffusion() with other rules.
    faults : Faults, optional
        Simulated faults: lost messages, absent agents, changing edges. Rounds are counted from 1 in every call of `fit` and
        `partial_fit`. Not stored by `save`.
    rule : str or Learner, optional
        The learning rule: "landmarks" (the default), "averaged" (with Diffusion), "gradient" (with Penalty and Hilbert,
        which need small steps), "second-order" (with Local, for agents that learn alone), the name of another registered
        rule, or an object such as Landmarks(keep=0).
    regularization : float, optional
        The regularization λ. With "landmarks", it is that of a ridge regression with the rows of all agents; by default they
        agree on 1/64 to 4 times 0.6 times the mean of κ(x, x) over the first rows. With "second-order", it is that of each
        agent. With the other rules, it is relative to the mean loss and is by default 10⁻⁶.
    budget : float or Schedule, optional
        The compression budget ε, not with "landmarks": larger means fewer points and a coarser function. With the
        second-order rule, it is the increase in loss per sample that removing points may cause, by default 0.0025. With the
        other rules, it is the distance by which compression may move the function in one step, and by default follows from
        `parsimony`.
    max_order : int, optional
        The maximum number of points; math.inf means no limit. By default 500 with the learner "landmarks", whose agents send
        max_order² / 2 numbers in each wave, 2000 with "second-order", which stores two matrices of max_order² numbers for
        each agent (64 MB), and unlimited with the others.
    half_life : float, optional
        The number of an agent's samples after which the influence of old data has halved, for streams that change; math.inf
        means that nothing is forgotten. By default, `fit`, which shuffles the rows, forgets nothing, and `partial_fit` uses
        10,000 with "landmarks" and "second-order". The rule "gradient" does not support forgetting.
    step_size : float or Schedule, optional
        The step size η, below 1 / regularization; not with "landmarks" and "second-order". By default 1.5 (averaged) or 1
        (gradient), divided by the mean of κ(x, x) over the first rows. Much larger steps diverge.
    parsimony : float, optional
        The constant K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.01):
        larger means fewer points and a coarser function. Not with "landmarks" and "second-order", nor together with `budget`.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        The maximum number of passes of `fit` over the rows, of which each agent sees a part; by default 1, with the learner
        "second-order" 2, with "averaged" 5 and with "gradient" 50. `partial_fit` makes one pass.
    tol : float or None
        `fit` stops early when a pass does not lower the mean loss of the predictions, on up to 1000 of the rows, by more than
        this fraction (below 1) of the lowest so far; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds during long ones.
    random_state : int, RandomState or None
        The seed for shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or as chosen.
    n_iter_ : int
        The number of passes that `fit` has completed.
    target_offset_, target_scale_ : ndarray of shape (outputs,)
        The offset and scale used to standardize targets.
    agents_ : dict of Hashable to Function
        The function that each agent has learned, by its name in the graph.
    dictionary_ : ndarray of shape (points, features)
        The points of the average function: those that all agents share, or the dictionaries of all agents, stacked.
    weights_ : ndarray of shape (points, outputs)
        The weights of the average function.
    model_order_ : ndarray of shape (agents,)
        The number of points in each agent's dictionary.
    floats_sent_, bytes_sent_ : ndarray of shape (agents,)
        The numbers and bytes that each agent has sent, in `fit` and all later calls of `partial_fit`.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 400)[:, None]
    >>> mesh = KernelMeshRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> mesh.predict(X, agent=2).shape
    (400,)
    """
