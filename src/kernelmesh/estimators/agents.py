"""How many agents there are: one, or a network."""

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from kernelmesh import (
    Consensus,
    Diffusion,
    Expansion,
    Faults,
    Graph,
    Hilbert,
    Kernel,
    Local,
    Loss,
    Penalty,
    Rule,
    Schedule,
    SharedStatistics,
)
from kernelmesh.checks import Floats, Ints
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.estimators.base import Learner
from kernelmesh.estimators.defaults import TOLERANCE
from kernelmesh.estimators.targets import Classification, Regression
from kernelmesh.numerics.expansion import padded
from kernelmesh.numerics.losses import CurvedLoss
from kernelmesh.streams import deal

__all__ = ["KernelMeshClassifier", "KernelMeshRegressor", "OnlineKernelClassifier", "OnlineKernelRegressor"]


class _Single(Learner):
    """One agent, whose function is the estimator's."""

    _cooperates = False
    _default_rule = "second-order"

    @property
    def dictionary_(self) -> Floats:
        """The points that the function is built from, model_order_ × features."""
        return self._functions[0].centers

    @property
    def weights_(self) -> Floats:
        """Their weights, model_order_ × outputs."""
        return self._functions[0].weights

    @property
    def model_order_(self) -> int:
        """How many points the dictionary holds."""
        return self._functions[0].order

    def _cooperation(self) -> tuple[Graph, Consensus]:
        return Graph.line(1), Local()

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        if agents is not None:
            raise InvalidArgument(type(self).__name__, "agents", "be omitted for a single learner", agents)
        return [np.arange(rows)]

    def _widen(self, *, features: int, outputs: int) -> Self:
        """Go on as if features had been 0 so far, and new outputs 0 everywhere; both come behind those that are known."""
        agent = self._agent
        if (features, outputs) == (agent.dimension, agent.outputs):
            return self
        probe = np.random.default_rng(0).standard_normal((4, agent.dimension))
        wider = padded(probe, features)
        if not np.allclose(agent.kernel(wider, wider), agent.kernel(probe, probe), rtol=1e-9, atol=0.0):
            rule = "have the same values where points are padded with zeros, for features to appear later"
            remedy = "choose one that goes by distances or inner products, such as Gaussian(), or name all features at first"
            raise InvalidArgument(type(self).__name__, "kernel", rule, agent.kernel, remedy=remedy)
        self._agent = dataclasses.replace(agent, dimension=features, outputs=outputs)
        self._states = tuple(state.widened(dimension=features, outputs=outputs) for state in self._states)
        self._beginning = None if self._beginning is None else self._beginning.widened(features)
        self.n_features_in_ = features
        return self


class OnlineKernelClassifier(Classification, _Single):
    """One online kernel classifier with bounded memory.

    One pass over the data, with the default rule, learns nearly what a batch SVM does. A parameter that the rule has no use
    for is refused.

    Parameters
    ----------
    kernel : Kernel, optional
        κ; by default a Gaussian. With the second-order rule its bandwidth is chosen along with λ, starting from 0.7 √(v / 2):
        in `fit` by at most 1024 of the rows, in `partial_fit` by the first 128, 256, 512 and 1024. With the other rules it is
        √(v / 2). In `fit`, v is the sum of the features' variances; `partial_fit` takes features for standardized, and v is
        their number.
    loss : Loss, optional
        ℓ, with class targets; by default Logistic().
    rule : str or Rule, optional
        How it learns: "second-order" (the default), "averaged", "gradient", another registered rule by its name, or an object
        such as SecondOrder(novelty=0.05). A name takes `budget`, `max_order` and `half_life` from the parameters below:
        "second-order" is SecondOrder(budget=0.0075, max_order=2000), in `partial_fit` with half_life=10_000. An object is
        taken as it is: SecondOrder() has a budget of 0.02, no limit on the points, and forgets nothing.
    regularization : float, optional
        λ. With the second-order rule it is 1/C of an SVM, by default 0.05 times the mean of κ(x, x) over the first rows, from
        where it is chosen along with the bandwidth if `kernel` is left out too; with the others it weighs against the mean
        loss and is 10⁻⁶.
    budget : float or Schedule, optional
        ε: larger means fewer points and a coarser function. With the second-order rule it is by how much the removal of
        points may raise the loss, for each sample, by default 0.0075; with the others it is how far compression may move the
        function in a step, and by default follows from `parsimony`.
    max_order : int, optional
        The largest number of points the dictionary may ever hold; math.inf means no limit. By default 2000 with the
        second-order rule, which keeps two matrices of max_order² numbers (64 MB), and none with the others.
    half_life : float, optional
        Samples after which what was learned weighs half, for streams that change; math.inf means that nothing is forgotten.
        By default `fit`, whose rows are shuffled, forgets nothing, and `partial_fit` has 10,000 with the second-order rule.
        The rule "gradient" cannot be told to forget.
    step_size : float or Schedule, optional
        η, below 1 / regularization; not with the second-order rule. By default 100 (averaged) or 3 (gradient), divided by the
        mean of κ(x, x) over the first rows.
    parsimony : float, optional
        K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.06): larger means fewer
        points and a coarser function. Not with the second-order rule, nor where `budget` is set.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        How often `fit` goes over the rows at most; by default 2 (4 over fewer than 2000 rows), with the rule "averaged" 5 and
        with "gradient" 20. `partial_fit` goes over them once.
    tol : float or None
        `fit` ends when a pass has not lowered the mean loss of what `predict` answers with, on up to 1000 of the rows, by
        more than this share (below 1) of the lowest before; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds within long ones.
    random_state : int, RandomState or None
        Seeds the shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or chosen.
    n_iter_ : int
        How many passes `fit` has completed.
    classes_ : ndarray of shape (classes,)
        The labels, in order.
    dictionary_ : ndarray of shape (model_order_, features)
        The points that the function is built from.
    weights_ : ndarray of shape (model_order_, outputs)
        Their weights.
    model_order_ : int
        How many points there are.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> model = OnlineKernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), bool(model.model_order_ < 100)
    (True, True)
    """


class OnlineKernelRegressor(Regression, _Single):
    """One online kernel regressor with bounded memory.

    One pass over the data, with the default rule, learns nearly what a batch SVM does. A parameter that the rule has no use
    for is refused.

    Targets, one column or several, are centered and scaled by the first ones seen.

    Parameters
    ----------
    kernel : Kernel, optional
        κ; by default a Gaussian. With the second-order rule its bandwidth is chosen along with λ, starting from √(v / 2): in
        `fit` by at most 1024 of the rows, in `partial_fit` by the first 128, 256, 512 and 1024. With the other rules it is
        √(v / 2). In `fit`, v is the sum of the features' variances; `partial_fit` takes features for standardized, and v is
        their number.
    loss : Loss, optional
        ℓ, with value targets; by default Squared().
    rule : str or Rule, optional
        How it learns: "second-order" (the default), "averaged", "gradient", another registered rule by its name, or an object
        such as SecondOrder(novelty=0.05). A name takes `budget`, `max_order` and `half_life` from the parameters below:
        "second-order" is SecondOrder(budget=0.0025, max_order=2000), in `partial_fit` with half_life=10_000. An object is
        taken as it is: SecondOrder() has a budget of 0.02, no limit on the points, and forgets nothing.
    regularization : float, optional
        λ. With the second-order rule it is 1/C of an SVM, by default 0.6 times the mean of κ(x, x) over the first rows, from
        where it is chosen along with the bandwidth if `kernel` is left out too; with the others it weighs against the mean
        loss and is 10⁻⁶.
    budget : float or Schedule, optional
        ε: larger means fewer points and a coarser function. With the second-order rule it is by how much the removal of
        points may raise the loss, for each sample, by default 0.0025; with the others it is how far compression may move the
        function in a step, and by default follows from `parsimony`.
    max_order : int, optional
        The largest number of points the dictionary may ever hold; math.inf means no limit. By default 2000 with the
        second-order rule, which keeps two matrices of max_order² numbers (64 MB), and none with the others.
    half_life : float, optional
        Samples after which what was learned weighs half, for streams that change; math.inf means that nothing is forgotten.
        By default `fit`, whose rows are shuffled, forgets nothing, and `partial_fit` has 10,000 with the second-order rule.
        The rule "gradient" cannot be told to forget.
    step_size : float or Schedule, optional
        η, below 1 / regularization; not with the second-order rule. By default 1.5 (averaged) or 1 (gradient), divided by the
        mean of κ(x, x) over the first rows. Steps well above that diverge.
    parsimony : float, optional
        K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.01): larger means fewer
        points and a coarser function. Not with the second-order rule, nor where `budget` is set.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        How often `fit` goes over the rows at most; by default 2 (4 over fewer than 2000 rows), with the rule "averaged" 5 and
        with "gradient" 20. `partial_fit` goes over them once.
    tol : float or None
        `fit` ends when a pass has not lowered the mean loss of what `predict` answers with, on up to 1000 of the rows, by
        more than this share (below 1) of the lowest before; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds within long ones.
    random_state : int, RandomState or None
        Seeds the shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or chosen.
    n_iter_ : int
        How many passes `fit` has completed.
    target_offset_, target_scale_ : ndarray of shape (outputs,)
        By which targets are centered and scaled.
    dictionary_ : ndarray of shape (model_order_, features)
        The points that the function is built from.
    weights_ : ndarray of shape (model_order_, outputs)
        Their weights.
    model_order_ : int
        How many points there are.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 200)[:, None]
    >>> model = OnlineKernelRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> bool(model.score(X, np.sin(3 * X[:, 0])) > 0.9)
    True
    """


class _Mesh(Learner):
    """A network of agents, each with a function of its own; the estimator answers with their average."""

    _cooperates = True

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        graph: Any = None,
        consensus: Consensus | None = None,
        faults: Faults | None = None,
        rule: str | Rule | None = None,
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
        self.consensus = consensus
        self.faults = faults

    @property
    def _default_rule(self) -> str:
        exchange = getattr(self.consensus, "exchange", None)  # what is no protocol is refused later
        shares = self.consensus is None or (exchange is not None and exchange.statistics)
        if shares and isinstance(self._default_loss if self.loss is None else self.loss, CurvedLoss):
            return "landmarks"
        # large steps need a loss with bounded slope, as those for classes have it, and no penalty, whose bound they lower
        return "averaged" if self._classifies and not isinstance(self.consensus, Penalty | Hilbert) else "gradient"

    @property
    def _faults(self) -> Faults | None:
        given: object = self.faults
        if given is None or isinstance(given, Faults):
            return given
        remedy = "for example Faults(drop=0.1, rng=np.random.default_rng(0))"
        raise InvalidArgument(type(self).__name__, "faults", "be Faults or None", given, remedy=remedy)

    @property
    def agents_(self) -> dict[Hashable, Expansion]:
        """What each agent has learned, by its name in the graph."""
        functions = self._functions
        return dict(zip(self._network.names, functions, strict=True))

    @property
    def dictionary_(self) -> Floats:
        """The points of the average function: all agents' dictionaries, one below the other."""
        return np.concatenate([f.centers for f in self._functions])

    @property
    def weights_(self) -> Floats:
        """The weights of the average function."""
        return np.concatenate([f.weights for f in self._functions]) / len(self._functions)

    @property
    def model_order_(self) -> Ints:
        """How many points each agent's dictionary holds."""
        return np.array([f.order for f in self._functions])

    @property
    def floats_sent_(self) -> Ints:
        """How many numbers each agent has sent, in `fit` and all calls of `partial_fit` since."""
        check_is_fitted(self)
        return np.asarray(self._sent[0])

    @property
    def bytes_sent_(self) -> Ints:
        """How many bytes each agent has sent, in `fit` and all calls of `partial_fit` since."""
        check_is_fitted(self)
        return np.asarray(self._sent[1])

    def _cooperation(self) -> tuple[Graph, Consensus]:
        graph = Graph.ring(5) if self.graph is None else Graph.of(self.graph)
        if self.consensus is not None:
            return graph, self.consensus
        return graph, SharedStatistics() if self._chosen_rule(streaming=True).gathers else Diffusion()

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        """Which rows each agent sees: as named, or dealt out evenly."""
        names = self._network.names
        if agents is None:
            if rng is not None:
                return deal(rows, agents=len(names), rng=rng)
            # one after the other, going on where the call before has stopped
            seen = sum(state.samples for state in self._states)
            return [np.arange((start - seen) % len(names), rows, len(names)) for start in range(len(names))]
        named = list(agents) if isinstance(agents, Iterable) else []
        if len(named) != rows:
            rule, found = f"name an agent for each of {rows} rows", Verbatim(f"{len(named)} names")
            raise InvalidArgument(type(self).__name__, "agents", rule, found)
        numbers = np.array([self._number(_plain(name), "agents") for name in named], dtype=np.int64)
        return [np.flatnonzero(numbers == i) for i in range(len(names))]


def _plain(name: Any) -> Hashable:
    return name.item() if isinstance(name, np.generic) else name if isinstance(name, Hashable) else tuple(name)


class KernelMeshClassifier(Classification, _Mesh):
    """A network of online kernel classifiers that come to agree.

    An agent without any rows neither learns nor passes anything on. A parameter that the rule has no use for is refused.

    Parameters
    ----------
    kernel : Kernel, optional
        κ; by default Gaussian(bandwidth=0.7 √(v / 2)), with the rules "averaged" and "gradient" √(v / 2): in `fit`, v is the
        sum of the features' variances; `partial_fit` takes features for standardized, and v is their number.
    loss : Loss, optional
        ℓ, with class targets; by default Logistic().
    graph : Graph, networkx graph or list of edges, optional
        Who talks to whom; by default a ring of 5 agents.
    consensus : Consensus, optional
        How agents come to agree; by default SharedStatistics(): neighbors average sums over their samples, and each learns
        what a learner with all the data would, also classes or regions that only others see. With rules that take a step
        size it is Diffusion(): neighbors average their functions.
    faults : Faults, optional
        What goes wrong among the agents: messages that are lost, agents that are away, edges that come and go. Rounds count
        from 1 in every call of `fit` and `partial_fit`. Files do not keep it.
    rule : str or Rule, optional
        How an agent learns: "landmarks" (the default), "averaged" (the default with protocols that exchange functions or
        values, and with losses without curvature) or "gradient" (the default with the protocols Penalty and Hilbert, which
        need small steps), another registered rule by its name, or an object such as Landmarks(max_order=300).
        "second-order" is for agents that learn alone, with consensus=Local().
    regularization : float, optional
        λ. With "landmarks" and "second-order" it is 1/C of an SVM, for each agent: by default 0.005 times the mean of κ(x, x)
        over the first rows with "landmarks", by default 0.05 times the mean with "second-order". With the others it weighs
        against the mean loss and is 10⁻⁶.
    budget : float or Schedule, optional
        ε: larger means fewer points and a coarser function; not with "landmarks". With the second-order rule it is by how
        much the removal of points may raise the loss, for each sample, by default 0.0075; with the others it is how far
        compression may move the function in a step, and by default follows from `parsimony`.
    max_order : int, optional
        The largest number of points an agent's dictionary may ever hold; math.inf means no limit. By default 500 with
        "landmarks": neighbors send each other up to max_order² / 2 numbers in every round. By default 2000 with the
        second-order rule, which keeps two matrices of max_order² numbers for each agent (64 MB), and none with the others.
    half_life : float, optional
        Samples of an agent after which what was learned weighs half, for streams that change; math.inf means that nothing is
        forgotten. By default `fit`, whose rows are shuffled, forgets nothing, and `partial_fit` has 10,000 with "landmarks".
        The rule "gradient" cannot be told to forget.
    step_size : float or Schedule, optional
        η, below 1 / regularization; only with "averaged" and "gradient". By default 100 (averaged) or 3 (gradient), divided
        by the mean of κ(x, x) over the first rows.
    parsimony : float, optional
        K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.06): larger means fewer
        points and a coarser function. Only with these two, and not where `budget` is set.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        How often `fit` goes over the rows, of which each agent sees a part, at most; by default 2, with the rule "averaged" 5
        and with "gradient" 50. `partial_fit` goes over them once.
    tol : float or None
        `fit` ends when a pass has not lowered the mean loss of what `predict` answers with, on up to 1000 of the rows, by
        more than this share (below 1) of the lowest before; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds within long ones.
    random_state : int, RandomState or None
        Seeds the shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or chosen.
    n_iter_ : int
        How many passes `fit` has completed.
    classes_ : ndarray of shape (classes,)
        The labels, in order.
    agents_ : dict of Hashable to Expansion
        What each agent has learned, by its name in the graph.
    dictionary_ : ndarray of shape (points, features)
        The points of the average function: all agents' dictionaries, one below the other.
    weights_ : ndarray of shape (points, outputs)
        The weights of the average function.
    model_order_ : ndarray of shape (agents,)
        How many points each agent's dictionary holds.
    floats_sent_, bytes_sent_ : ndarray of shape (agents,)
        How many numbers and bytes each agent has sent, in `fit` and all calls of `partial_fit` since.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> mesh = KernelMeshClassifier(graph=[("a", "b"), ("b", "c")], random_state=0).fit(X, y)
    >>> sorted(mesh.agents_), bool(mesh.score(X, y) > 0.9)
    (['a', 'b', 'c'], True)
    """


class KernelMeshRegressor(Regression, _Mesh):
    """A network of online kernel regressors that come to agree.

    Targets, one column or several, are centered and scaled by the first ones seen. An agent without any rows neither learns
    nor passes anything on. A parameter that the rule has no use for is refused.

    Parameters
    ----------
    kernel : Kernel, optional
        κ; by default Gaussian(bandwidth=√(v / 2)): in `fit`, v is the sum of the features' variances; `partial_fit` takes
        features for standardized, and v is their number.
    loss : Loss, optional
        ℓ, with value targets; by default Squared().
    graph : Graph, networkx graph or list of edges, optional
        Who talks to whom; by default a ring of 5 agents.
    consensus : Consensus, optional
        How agents come to agree; by default SharedStatistics(): neighbors average sums over their samples, and each learns
        what a learner with all the data would, also classes or regions that only others see. With rules that take a step
        size it is Diffusion(): neighbors average their functions.
    faults : Faults, optional
        What goes wrong among the agents: messages that are lost, agents that are away, edges that come and go. Rounds count
        from 1 in every call of `fit` and `partial_fit`. Files do not keep it.
    rule : str or Rule, optional
        How an agent learns: "landmarks" (the default), "gradient" (the default with protocols that exchange functions or
        values, and with losses without curvature) or "averaged", another registered rule by its name, or an object such as
        Landmarks(max_order=300). "second-order" is for agents that learn alone, with consensus=Local().
    regularization : float, optional
        λ. With "landmarks" and "second-order" it is 1/C of an SVM, for each agent: by default 0.1 times the mean of κ(x, x)
        over the first rows with "landmarks", by default 0.6 times the mean with "second-order". With the others it weighs
        against the mean loss and is 10⁻⁶.
    budget : float or Schedule, optional
        ε: larger means fewer points and a coarser function; not with "landmarks". With the second-order rule it is by how
        much the removal of points may raise the loss, for each sample, by default 0.0025; with the others it is how far
        compression may move the function in a step, and by default follows from `parsimony`.
    max_order : int, optional
        The largest number of points an agent's dictionary may ever hold; math.inf means no limit. By default 500 with
        "landmarks": neighbors send each other up to max_order² / 2 numbers in every round. By default 2000 with the
        second-order rule, which keeps two matrices of max_order² numbers for each agent (64 MB), and none with the others.
    half_life : float, optional
        Samples of an agent after which what was learned weighs half, for streams that change; math.inf means that nothing is
        forgotten. By default `fit`, whose rows are shuffled, forgets nothing, and `partial_fit` has 10,000 with "landmarks".
        The rule "gradient" cannot be told to forget.
    step_size : float or Schedule, optional
        η, below 1 / regularization; only with "averaged" and "gradient". By default 1.5 (averaged) or 1 (gradient), divided
        by the mean of κ(x, x) over the first rows. Steps well above that diverge.
    parsimony : float, optional
        K of the budget ε = K η^{3/2} (gradient, by default 0.02) or K η^{1/2} (averaged, by default 0.01): larger means fewer
        points and a coarser function. Only with these two, and not where `budget` is set.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        How often `fit` goes over the rows, of which each agent sees a part, at most; by default 2, with the rule "averaged" 5
        and with "gradient" 50. `partial_fit` goes over them once.
    tol : float or None
        `fit` ends when a pass has not lowered the mean loss of what `predict` answers with, on up to 1000 of the rows, by
        more than this share (below 1) of the lowest before; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds within long ones.
    random_state : int, RandomState or None
        Seeds the shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or chosen.
    n_iter_ : int
        How many passes `fit` has completed.
    target_offset_, target_scale_ : ndarray of shape (outputs,)
        By which targets are centered and scaled.
    agents_ : dict of Hashable to Expansion
        What each agent has learned, by its name in the graph.
    dictionary_ : ndarray of shape (points, features)
        The points of the average function: all agents' dictionaries, one below the other.
    weights_ : ndarray of shape (points, outputs)
        The weights of the average function.
    model_order_ : ndarray of shape (agents,)
        How many points each agent's dictionary holds.
    floats_sent_, bytes_sent_ : ndarray of shape (agents,)
        How many numbers and bytes each agent has sent, in `fit` and all calls of `partial_fit` since.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 400)[:, None]
    >>> mesh = KernelMeshRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> mesh.predict(X, agent=2).shape
    (400,)
    """
