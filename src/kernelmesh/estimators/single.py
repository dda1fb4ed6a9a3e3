"""A single learner as an estimator."""

import dataclasses
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh import (
    Agent,
    ArrayStream,
    ConsensusProtocol,
    Function,
    Gaussian,
    Kernel,
    Learner,
    Local,
    Loss,
    SecondOrder,
    State,
)
from kernelmesh.agent import advance
from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument
from kernelmesh.estimators.base import Estimator
from kernelmesh.estimators.choice import MARKS, Beginning, prefixes, suited
from kernelmesh.estimators.parameters import TOLERANCE, regularized
from kernelmesh.numerics.function import padded
from kernelmesh.streams.arrays import starts_of

__all__ = ["Single"]


class Single(Estimator):
    """A single agent, whose function is the estimator's."""

    _watched = ("kernel", "loss", "learner", "regularization", "budget", "max_order", "half_life", "batch_size")
    _cooperates = False
    _default_kind = SecondOrder
    _names = (0,)
    _beginning: Beginning | None
    """The first rows of a stream, kept while bandwidth and λ may still change."""

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        learner: Learner | None = None,
        regularization: float | None = None,
        budget: float | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        batch_size: int = 32,
        passes: int | None = None,
        tol: float | None = TOLERANCE,
        verbose: bool | int = False,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.learner = learner
        self.regularization = regularization
        self.budget = budget
        self.max_order = max_order
        self.half_life = half_life
        self.batch_size = batch_size
        self.passes = passes
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state

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

    def _cooperation(self) -> ConsensusProtocol:
        return Local()

    def _begin(self, X: Floats, outputs: int, *, complete: bool) -> None:
        super()._begin(X, outputs, complete=complete)
        chooses = self.kernel is None and isinstance(self.agent_.learner, SecondOrder)
        self._beginning = Beginning.empty(self.agent_) if chooses else None

    @property
    def _tunes(self) -> bool:
        """Whether λ is chosen with the bandwidth."""
        return self.regularization is None and self.learner is None

    def _learn_in_passes(self, X: Floats, targets: NDArray[Any], agents: Any, rng: np.random.Generator) -> None:
        self._check_no(agents)
        if self._beginning is not None:
            self._suit_to_all(X, targets)
        passes = self._most_passes(len(X))
        stream = ArrayStream(X, targets, batch_size=self.batch_size, passes=passes, rng=rng)
        progress = self._progress(X, targets, agent=0, rounds=len(stream) // passes, passes=passes)
        for batch in stream:
            state, _ = advance(self.agent_, self.states_[0], *batch)
            self.states_ = (state,)
            ends, self.n_iter_ = progress.see(self.states_), progress.complete
            if ends:
                break

    def _suit_to_all(self, X: Floats, targets: NDArray[Any]) -> None:
        """Choose bandwidth and λ from some of the rows, which are all there are."""
        self._beginning = None
        weight = self.agent_.learner.regularization / self._regularization
        agent = _regularized(self.agent_, self._regularization)
        some = np.random.default_rng(0).permutation(len(X))
        for rows in prefixes(len(X)):
            seen = some[:rows]
            agent = suited(agent, X[seen], targets[seen], regularizes=self._tunes).agent
        self._regularization = agent.learner.regularization
        if self.verbose and len(X) >= MARKS[0]:
            bandwidth = cast(Gaussian, agent.kernel).bandwidth
            print(f"{type(self).__name__}: bandwidth {bandwidth:.3g}, regularization {self._regularization:.3g}", flush=True)
        self.agent_ = _regularized(agent, weight * self._regularization)
        self.states_ = (self.agent_.start(name=self._names[0]),)

    def _learn_once(self, X: Floats, targets: NDArray[Any], agents: Any) -> None:
        self._check_no(agents)
        if self._beginning is None:
            self.states_ = (self._stepped(self.agent_, self.states_[0], X, targets),)
        else:
            self._learn_beginning(self._beginning, X, targets)

    def _stepped(self, agent: Agent, state: State, X: Floats, targets: NDArray[Any]) -> State:
        """The state after these rows in mini-batches."""
        rows, size = len(X), self.batch_size
        edges = [0, rows] if rows <= size else [*starts_of(rows, size), rows]
        for start, stop in pairwise(edges):
            # a model may keep the points, and X may be the user's array
            state, _ = advance(agent, state, X[start:stop].copy(), targets[start:stop])
        return state

    def _learn_beginning(self, beginning: Beginning, X: Floats, targets: NDArray[Any]) -> None:
        """Learn from these rows once, and choose bandwidth and λ again whenever that is due."""
        agent, state = self.agent_, self.states_[0]
        for rows in beginning.parts(len(X)):
            state = self._stepped(agent, state, X[rows], targets[rows])
            beginning = beginning.grown(X[rows], targets[rows])
            if beginning.due:
                found = suited(agent, beginning.points, beginning.targets, regularizes=self._tunes)
                if found.agent is not agent and found.state is not None:
                    agent, state = found.agent, found.state
        self.agent_, self.states_, self._regularization = agent, (state,), agent.learner.regularization
        self._beginning = None if beginning.complete else beginning

    def _check_no(self, agents: Any) -> None:
        if agents is not None:
            raise InvalidArgument(type(self).__name__, "agents", "be omitted for a single learner", agents)

    def _widen(self, *, features: int, outputs: int) -> None:
        """Add features that were 0 so far and outputs that are 0 everywhere, after the known ones."""
        self._check_padding(features)
        self.agent_ = dataclasses.replace(self.agent_, dimension=features, outputs=outputs)
        self.states_ = tuple(state.widened(dimension=features, outputs=outputs) for state in self.states_)
        self._beginning = None if self._beginning is None else self._beginning.widened(features)
        self.n_features_in_ = features

    def _widened_to(self, features: int) -> Function:
        """The function, for points with features that were 0 so far."""
        f = self.states_[0].function
        if features == f.dimension:
            return f
        self._check_padding(features)
        return f.widened(dimension=features, outputs=f.outputs)

    def _check_padding(self, features: int) -> None:
        """Reject a kernel that changes when points are padded with zeros."""
        agent = self.agent_
        probe = np.random.default_rng(0).standard_normal((4, agent.dimension))
        wider = padded(probe, features)
        if not np.allclose(agent.kernel(wider, wider), agent.kernel(probe, probe), rtol=1e-9, atol=0.0):
            rule = "be invariant to zero-padding of points if features appear later"
            remedy = (
                "choose a kernel of distances or inner products, such as Gaussian(), or give all features in the first row"
            )
            raise InvalidArgument(type(self).__name__, "kernel", rule, agent.kernel, remedy=remedy)

    def _describe_agents(self, arrays: dict[str, NDArray[Any]]) -> Any:
        if self._beginning is not None:
            arrays |= self._beginning.arrays()

    def _restore_agents(self, description: Any, arrays: dict[str, NDArray[Any]]) -> None:
        self._beginning = Beginning.restored(arrays, self.agent_)


def _regularized(agent: Agent, regularization: float) -> Agent:
    return dataclasses.replace(agent, learner=regularized(agent.learner, regularization))
