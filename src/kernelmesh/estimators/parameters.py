"""Converts an estimator's parameters into the settings of an agent."""

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.base import BaseEstimator

from kernelmesh import Agent, ConsensusProtocol, Gaussian, Gradient, Kernel, Komp, Landmarks, Learner, Loss, Relay
from kernelmesh.checks import Floats, integer, non_negative
from kernelmesh.errors import InvalidArgument, format_value
from kernelmesh.estimators.defaults import Defaults, defaults_of
from kernelmesh.learners import check_learner
from kernelmesh.learners.base import Descent
from kernelmesh.numerics.kernels import check_kernel
from kernelmesh.numerics.losses import check_loss

__all__ = ["TOLERANCE", "Parameters", "regularized"]

TOLERANCE = 1e-3
"""`tol`: `fit` stops when a pass does not lower the mean loss by more than this fraction of it."""

# The settings of the default learner.
_OF_LEARNER = ("regularization", "budget", "max_order", "half_life")
# Parameters that cannot change during learning.
_FIXED = ("kernel", "loss", "graph", "protocol")


class Parameters(BaseEstimator, ABC):
    """The parameters that all estimators share, and the agent that they describe."""

    kernel: Kernel | None
    loss: Loss | None
    learner: Learner | None
    regularization: float | None
    max_order: float | None
    half_life: float | None
    batch_size: int
    passes: int | None
    tol: float | None
    verbose: bool | int
    random_state: Any

    _watched: ClassVar[tuple[str, ...]]
    """The parameters that learning depends on once started; the others matter only to `fit`, or take effect anyway."""
    _classifies: bool
    _cooperates: bool
    _default_loss: Loss
    _began_with: dict[str, Any]
    """The watched parameters when learning began, or when they last changed."""
    _size: float
    """The mean of κ(x, x): a step moves f(x) by κ(x, x), and ‖f‖² scales with its inverse; the defaults are for κ = 1."""
    _scales: bool
    """Whether the agents agree on the scales of the features."""

    @property
    @abstractmethod
    def _default_kind(self) -> type[Learner]:
        """The best learner for this estimator."""

    def _settle(self, X: Floats, outputs: int, protocol: ConsensusProtocol, *, complete: bool) -> tuple[Agent, float]:
        """Check all parameters and fill in defaults; returns the agent, and λ on the user's scale.

        `X` is used only to scale the defaults. If there are several passes over its rows, and λ is relative to a sum, it is
        relative to that many times the sum over the rows, so that it means the same for any number of passes.
        """
        owner = type(self).__name__
        loss = check_loss(owner, self._default_loss if self.loss is None else self.loss)
        if loss.classifies != self._classifies:
            raise InvalidArgument(owner, "loss", f"take {'class' if self._classifies else 'value'} targets", loss)
        integer(owner, "batch_size", self.batch_size, minimum=1)
        if self.tol not in (None, -math.inf) and non_negative(owner, "tol", self.tol) >= 1.0:
            remedy = "use None to make all passes, or passes=2 to make two"
            raise InvalidArgument(owner, "tol", "be a fraction >= 0 and < 1", self.tol, remedy=remedy)
        passes = integer(owner, "passes", self._most_passes(len(X)), minimum=1)
        self._scales = isinstance(protocol, Relay) and protocol.scales
        adapts = complete and not self._scales
        kernel = self._default_kernel(X, adapts) if self.kernel is None else check_kernel(owner, self.kernel)
        self._size = float(np.mean(kernel.diag(X[:1000]))) or 1.0
        self._began_with = self._watched_values()
        learner = self._chosen_learner(streaming=not complete)
        regularization = learner.regularization
        if complete and learner.sums_losses and passes > 1:
            learner = regularized(learner, passes * regularization)
        agent = Agent(dimension=X.shape[1], outputs=outputs, kernel=kernel, loss=loss, learner=learner, protocol=protocol)
        return agent, regularization

    @property
    def _usual(self) -> Defaults:
        """The defaults for the learner."""
        kind = self._default_kind
        if self.learner is not None:
            kind = type(check_learner(type(self).__name__, self.learner))
        return defaults_of(kind, classifies=self._classifies)

    def _most_passes(self, rows: int) -> int:
        """The maximum number of passes of `fit` over this many rows."""
        usual = self._usual
        if self.passes is not None:
            return self.passes
        if self._cooperates:
            return usual.network_passes
        return usual.passes * (2 if rows < usual.few_rows else 1)

    def _default_kernel(self, X: Floats, adapts: bool) -> Kernel:
        """A Gaussian as wide as the distances between rows; the first rows of a stream are assumed to be standardized."""
        variance = float(X.shape[1])
        if adapts:
            with np.errstate(over="ignore", invalid="ignore"):
                found = float(X.var(axis=0).sum())
            variance = found if 0.0 < found < math.inf else variance
        # with factor 1, a typical pair of points has κ = exp(−2) in any dimension
        return Gaussian(bandwidth=self._usual.width * math.sqrt(variance / 2.0))

    def _chosen_learner(self, *, streaming: bool) -> Learner:
        """The given learner, or the default one with the given settings."""
        owner = type(self).__name__
        given = {name: value for name in _OF_LEARNER if (value := getattr(self, name, None)) is not None}
        if self.learner is None:
            return self._default_learner(given, streaming=streaming)
        learner = check_learner(owner, self.learner)
        if given:
            argument, value = next(iter(given.items()))
            remedy = f"set it in learner={type(learner).__name__}(…); Gradient and Averaged have compression=Komp(…) for it"
            raise InvalidArgument(owner, argument, "be omitted if learner is given", value, remedy=remedy)
        return learner

    def _default_learner(self, given: dict[str, Any], *, streaming: bool) -> Learner:
        kind, usual, size = self._default_kind, self._usual, self._size
        settings = {**usual.settings, **(usual.streaming if streaming else {}), **given}
        if usual.regularization is not None:
            settings.setdefault("regularization", usual.regularization * size)
        if settings.get("max_order") == math.inf and kind is not Landmarks:
            settings["max_order"] = None
        if usual.step_size is not None:
            settings["step_size"] = usual.step_size / size
            # the budget is a distance between functions, which scales with the inverse root of κ
            parsimony = usual.parsimony * size ** (cast(type[Descent], kind).budget_exponent - 0.5)
            settings["compression"] = Komp(parsimony=parsimony, max_order=settings.pop("max_order", None))
        if kind is Gradient and settings.pop("half_life", math.inf) != math.inf:
            rule = "be omitted with the learner Gradient, which does not forget"
            raise InvalidArgument(type(self).__name__, "half_life", rule, self.half_life)
        return kind(**settings)

    # -- parameters that change while learning continues ---------------------------------------------------------------

    def _watched_values(self) -> dict[str, Any]:
        return dict(zip(self._watched, operator.itemgetter(*self._watched)(vars(self)), strict=True))

    def _updated(self, agent: Agent) -> Agent:
        """The same agent if no parameter has changed; otherwise with those that only affect further learning.

        Changes to parameters on which the model depends already are rejected.
        """
        now, before = self._watched_values(), self._began_with
        if all(map(operator.is_, now.values(), before.values())):
            return agent
        for name, value in now.items():
            if _same(value, before[name]) or self._may_change(name, before[name], value, agent.learner):
                continue
            rule = f"remain {format_value(before[name])} while partial_fit continues"
            remedy = "call fit to start over, or restore the value"
            raise InvalidArgument(type(self).__name__, name, rule, value, remedy=remedy)
        integer(type(self).__name__, "batch_size", self.batch_size, minimum=1)
        agent, self._began_with = self._streaming(agent), now
        return agent

    @staticmethod
    def _may_change(name: str, before: Any, now: Any, learner: Learner) -> bool:
        if name == "learner":  # to another one of its kind with the same λ, if that matters
            alike = isinstance(now, Learner) and type(now) is type(before)
            return alike and not (now.sums_losses and now.regularization != before.regularization)
        return name not in _FIXED and not (name == "regularization" and learner.sums_losses)

    def _streaming(self, agent: Agent) -> Agent:
        """The agent for a stream of rows with the current parameters; by default, it forgets."""
        learner = self._chosen_learner(streaming=True)
        if learner.sums_losses:  # what has been learned depends on λ
            learner = regularized(learner, agent.learner.regularization)
        return agent if learner == agent.learner else dataclasses.replace(agent, learner=learner)


def regularized(learner: Learner, regularization: float) -> Learner:
    """The learner with another λ."""
    return cast(Learner, dataclasses.replace(cast(Any, learner), regularization=regularization))


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(np.all(one == other)))
