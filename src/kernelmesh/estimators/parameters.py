"""Converts an estimator's parameters into the settings of an agent."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator

from kernelmesh import Agent, Averaged, ConsensusProtocol, Komp, Learner, Relay, Schedule
from kernelmesh.checks import Floats, integer, non_negative
from kernelmesh.errors import InvalidArgument, format_value
from kernelmesh.estimators.defaults import TOLERANCE, ByTargets, defaults_of
from kernelmesh.learners import check_learner
from kernelmesh.numerics.compression import Compression
from kernelmesh.numerics.kernels import Gaussian, Kernel, check_kernel
from kernelmesh.numerics.losses import Loss, check_loss
from kernelmesh.registry import kebab, kinds
from kernelmesh.schema import did_you_mean

__all__ = ["Parameters"]

# The parameters that a rule with a step size leaves to the estimator.
_OF_STEPS = frozenset({"step_size", "parsimony", "budget", "max_order"})
# Parameters that cannot change during learning, and those that take effect with the next rows.
_FIXED = ("kernel", "loss", "learner", "graph", "protocol")
_CHANGING = ("regularization", "budget", "max_order", "half_life", "step_size", "parsimony")
# Remedies for parameters that a rule does not use.
_REMEDIES = {
    "step_size": 'rule="gradient" and rule="averaged" take a step size',
    "parsimony": "set budget",
    "budget": "the rule has no budget",
    "max_order": "the rule has no limit on points",
    "half_life": 'rule="second-order" and rule="averaged" support forgetting',
}


class Parameters(BaseEstimator, ABC):
    """The parameters that all estimators share, and their resolved values."""

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
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
        self.kernel = kernel
        self.loss = loss
        self.learner = rule
        self.regularization = regularization
        self.budget = budget
        self.max_order = max_order
        self.half_life = half_life
        self.step_size = step_size
        self.parsimony = parsimony
        self.batch_size = batch_size
        self.passes = passes
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state

    _classifies: bool
    _cooperates: bool
    _default_loss: Loss
    _size: float
    _scales: bool
    """Whether the agents agree on the scales of the features."""
    _began_with: dict[str, Any]

    @property
    @abstractmethod
    def _default_rule(self) -> str:
        """The name of the best rule for this estimator."""

    def _settle(self, X: Floats, outputs: int, protocol: ConsensusProtocol, *, repeats: bool) -> tuple[Agent, float]:
        """Check all parameters and fill in defaults; returns the agent, and λ on the user's scale.

        `X` is used only to scale the defaults. If there are several passes over its rows and the rule sums losses, λ is
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
        rule = self._chosen_rule(streaming=not repeats)
        self._scales = isinstance(protocol, Relay) and protocol.scales
        kernel = (
            self._default_kernel(X, rule, complete=repeats and not self._scales)
            if self.kernel is None
            else check_kernel(owner, self.kernel)
        )
        passes, usual = integer(owner, "passes", self._passes(rule, len(X)), minimum=1), defaults_of(type(rule))
        # a step moves f(x) by κ(x, x), and ‖f‖² scales with its inverse: the defaults are for κ = 1
        size = float(np.mean(kernel.diag(X[:1000]))) or 1.0
        regularization = self.regularization
        if regularization is None and usual.regularization is not None:
            regularization = cast(float, self._by_targets(usual.regularization)) * size
        weight = passes if usual.sums and repeats else 1
        if weight != 1:
            regularization = non_negative(owner, "regularization", regularization) * weight
        self._size = size
        self._began_with = self._settled_parameters()
        step_size, compression = self._steps(rule, size) if rule.takes_step_size else (None, None)
        agent = Agent(
            dimension=X.shape[1],
            outputs=outputs,
            kernel=kernel,
            loss=loss,
            rule=rule,
            step_size=step_size,
            regularization=regularization,
            compression=compression,
            protocol=protocol,
        )
        return agent, cast(float, agent.regularization) / weight

    def _default_kernel(self, X: Floats, rule: Learner, *, complete: bool) -> Kernel:
        """A Gaussian as wide as the distances between rows; the first rows of a stream are assumed to be standardized."""
        variance = float(X.shape[1])
        if complete:
            with np.errstate(over="ignore", invalid="ignore"):
                found = float(X.var(axis=0).sum())
            variance = found if 0.0 < found < math.inf else variance
        # with factor 1, a typical pair of points has κ = exp(−2) in any dimension
        return Gaussian(bandwidth=cast(float, self._by_targets(defaults_of(type(rule)).width)) * math.sqrt(variance / 2.0))

    def _passes(self, rule: Learner, rows: int) -> int:
        """The maximum number of passes of `fit` over this many rows."""
        usual = defaults_of(type(rule))
        if self.passes is not None:
            return self.passes
        if self._cooperates:
            return usual.network_passes
        return usual.passes * (2 if rows < usual.few_rows else 1)

    def _chosen_rule(self, *, streaming: bool) -> Learner:
        """The rule itself, or the named rule with its parameters; a parameter that it does not use is rejected."""
        owner, chosen = type(self).__name__, self._default_rule if self.learner is None else self.learner
        if not isinstance(chosen, str):
            rule = check_learner(owner, chosen)
            self._refuse_useless(type(rule), is_object=True)
            return rule
        known = {kebab(name): kind for name, kind in kinds("learner").items()}
        if chosen not in known:
            among = f"be a learning rule or one of {', '.join(known)}"
            raise InvalidArgument(owner, "learner", among, chosen, remedy=did_you_mean(chosen, known))
        kind = known[chosen]
        self._refuse_useless(kind, is_object=False)
        usual, own = defaults_of(kind), _own(kind)
        settings: dict[str, Any] = {
            "budget": self._by_targets(usual.budget),
            "novelty": usual.novelty,
            "max_order": usual.max_order,
            "half_life": usual.half_life if streaming else None,
            **self._given(),
            **({} if self.half_life is None else {"half_life": self.half_life}),
        }
        settings["max_order"] = _limit(settings["max_order"])
        return cast(Learner, kind(**{name: value for name, value in settings.items() if name in own and value is not None}))

    def _streaming(self, agent: Agent) -> Agent:
        """The same agent for a stream of rows, with the parameters that have changed since it started.

        By default, it forgets from now on. Changes to parameters that the model already depends on are rejected.
        """
        parameters = self._settled_parameters()
        changed = [name for name, value in parameters.items() if not _same(value, self._began_with[name])]
        usual = defaults_of(type(agent.learner))
        for name in changed:
            if name in _FIXED or (name == "regularization" and usual.sums):
                rule = f"remain {format_value(self._began_with[name])} while partial_fit continues"
                remedy = "call fit to start over, or restore the value"
                raise InvalidArgument(type(self).__name__, name, rule, parameters[name], remedy=remedy)
        if changed:
            self._began_with = parameters
            return self._updated(agent, changed)
        if usual.half_life is None or self.half_life is not None or isinstance(self.learner, Learner):
            return agent
        return dataclasses.replace(agent, rule=dataclasses.replace(cast(Any, agent.learner), half_life=usual.half_life))

    def _updated(self, agent: Agent, changed: Iterable[str]) -> Agent:
        """The agent with the current parameters."""
        rule = self._chosen_rule(streaming=True)
        settings: dict[str, Any] = {"learner": rule}
        if rule.takes_step_size:
            settings["step_size"], settings["compression"] = self._steps(rule, self._size)
        if "regularization" in changed:
            settings["regularization"] = self.regularization
        return dataclasses.replace(agent, **settings)

    def _settled_parameters(self) -> dict[str, Any]:
        """The parameters that learning depends on once started; others matter only to `fit`, or take effect anyway."""
        return {name: getattr(self, name) for name in (*_FIXED, *_CHANGING) if hasattr(self, name)}

    def _given(self) -> dict[str, Any]:
        """The given parameters that not all rules use."""
        given = {name: getattr(self, name) for name in _REMEDIES if getattr(self, name) is not None}
        if self.half_life == math.inf:  # nothing is forgotten, which suits every rule
            del given["half_life"]
        return given

    def _refuse_useless(self, kind: type[Learner], *, is_object: bool) -> None:
        owner, own = type(self).__name__, _own(kind)
        for argument, value in self._given().items():
            if is_object and argument in own:
                rule, remedy = "be omitted if the rule is an object", f"rule={kind.__name__}({argument}=…)"
                raise InvalidArgument(owner, argument, rule, value, remedy=remedy)
            if argument not in (own | _OF_STEPS if kind.takes_step_size else own):
                rule = f"be omitted with the learner {kebab(kind.__name__)}, which does not use it"
                raise InvalidArgument(owner, argument, rule, value, remedy=_REMEDIES[argument])

    def _steps(self, rule: Learner, size: float) -> tuple[float | Schedule, Compression]:
        """The step size, and a compression with a matching budget."""
        owner, usual, max_order = type(self).__name__, defaults_of(type(rule)), _limit(self.max_order)
        base = cast(float, self._by_targets(usual.step_size))
        step_size = base / size if self.step_size is None else self.step_size
        if self.budget is not None:
            if self.parsimony is not None:
                raise InvalidArgument(owner, "parsimony", "be omitted if budget is set", self.parsimony)
            return step_size, Komp(budget=self.budget, max_order=max_order)
        parsimony = self._by_targets(usual.parsimony) if self.parsimony is None else self.parsimony
        parsimony = non_negative(owner, "parsimony", parsimony)
        if isinstance(rule, Averaged):
            return step_size, Komp.averaging(step_size, parsimony=parsimony, max_order=max_order)
        if self.step_size is None:  # the budget is a distance between functions, which scales with the inverse root of κ
            return step_size, Komp(budget=parsimony * base**1.5 / math.sqrt(size), max_order=max_order)
        return step_size, Komp.parsimonious(step_size, parsimony=parsimony, max_order=max_order)

    def _by_targets(self, pair: ByTargets | None) -> float | None:
        return None if pair is None else pair.classes if self._classifies else pair.values


def _own(kind: type[Learner]) -> set[str]:
    """The settings of the rule itself; with a step size, budget and max_order belong to the compression."""
    fields = set(getattr(kind, "__dataclass_fields__", ()))
    return fields - _OF_STEPS if kind.takes_step_size else fields


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(np.all(one == other)))


def _limit(max_order: Any) -> Any:
    return None if max_order == math.inf else max_order
