"""One agent: immutable settings, a State that each step returns, and no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from kernelmesh.checks import Floats, integer, matrix, non_negative, positive
from kernelmesh.consensus import Consensus, Heard, Local, StepInputs
from kernelmesh.consensus.base import NOTHING
from kernelmesh.consensus.relay import Memory, PointList, Relay
from kernelmesh.consensus.relay.agreement import POINTS, SCALED, candidates
from kernelmesh.consensus.relay.settings import Settings
from kernelmesh.errors import Diverged, InvalidArgument, Verbatim
from kernelmesh.messages import Message, News
from kernelmesh.numerics.compression import Compression, Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel, Weighted, largest_value
from kernelmesh.numerics.losses import Loss, check_loss
from kernelmesh.numerics.schedules import Power, Schedule, as_schedule
from kernelmesh.registry import describe
from kernelmesh.rules import Gradient, Landmarks, Rule, check_rule
from kernelmesh.rules.landmarks import LandmarksModel

__all__ = ["Agent", "Info", "State", "advance", "check_message", "diverged", "relay"]

# K of the coarsest budget K η^q with which `Averaged` still learns; a tenth of it is a good value.
_COARSEST = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """Everything the next step needs. A step takes ownership of the workspace in `model`; the function stays readable.

    Attributes
    ----------
    name : Hashable
        The agent's name.
    model : Model
        The function that the next step starts from, with its workspace.
    samples, steps : int
        The number of samples and steps so far.
    shown : Expansion or None
        The learned function, if it differs from that in `model`.
    baseline_loss : float
        The mean loss of predicting 0 on a mini-batch, the reference for detecting divergence.
    memory : Memory or None
        What a protocol that shares sums remembers of the network.

    Examples
    --------
    >>> from kernelmesh import Agent, Gaussian, Komp, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> agent.start(name="north").function.order
    0
    """

    name: Hashable
    model: Model
    samples: int = 0
    steps: int = 0
    shown: Expansion | None = None
    baseline_loss: float = 0.0
    memory: Memory | None = None

    @property
    def function(self) -> Expansion:
        """The function learned so far, with which the agent predicts and answers."""
        return self.model.function if self.shown is None else self.shown

    @property
    def sent(self) -> Expansion:
        """The function that the agent sends to neighbors and continues learning from."""
        return self.model.function

    def copy(self) -> State:
        """An independent copy of the state."""
        return replace(self, model=self.model.copy())

    def widened(self, *, dimension: int, outputs: int) -> State:
        """The state of a single learner extended by new features and outputs, which have been 0 so far."""
        shown = None if self.shown is None else self.shown.widened(dimension=dimension, outputs=outputs)
        return replace(self, model=self.model.widened(dimension=dimension, outputs=outputs), shown=shown)


@dataclass(frozen=True, kw_only=True)
class Info:
    """Diagnostics of a step.

    Attributes
    ----------
    batch_size : int
        The number of samples in the mini-batch.
    loss : float
        The mean loss on the mini-batch before learning from it.
    order : int
        The number of points in the dictionary after the step.
    norm : float
        ‖f‖ after the step; NaN with rules that do not track it.
    step_size, penalty, budget : float
        The values used in the step; 0 if there is none.
    error : float
        ‖f − f̃‖, how far compression moved the function; at most the budget unless `over_budget`. With `SecondOrder`,
        the increase in loss caused by removing points, in the same unit as the budget.
    removed, dependent : int
        The numbers of points that were removed, and of new points in the span of the others.
    heard : int
        The number of neighbors whose messages were used.
    over_budget : bool
        Whether the limit on the model order made the error larger than the budget.
    repaired : bool
        Whether the inverse Gram matrix had drifted and was recomputed.

    Examples
    --------
    >>> from kernelmesh import Agent, Gaussian, Komp, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> _, info = agent.step(agent.start(), np.array([[0.0]]), np.array([1.0]))
    >>> info.batch_size, info.loss
    (1, 0.5)
    """

    batch_size: int
    loss: float
    order: int
    norm: float
    step_size: float
    penalty: float
    budget: float
    error: float
    removed: int
    dependent: int
    heard: int
    over_budget: bool
    repaired: bool


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The settings of an agent; one `Agent` can step many states.

    Parameters
    ----------
    dimension : int
        The number of features.
    outputs : int
        The number of classes, or of values to predict.
    kernel : Kernel
        The kernel κ.
    loss : Loss
        The loss ℓ.
    rule : Rule
        The learning rule; by default `Gradient()`, as in the paper.
    step_size : float or Schedule, optional
        The step size η, below 1 / regularization, for rules that take one.
    regularization : float, optional
        The regularization λ; by default that of the rule: 10⁻⁶ for gradient steps, relative to the mean loss.
    compression : Compression, optional
        How the number of points is limited, for rules that take a step size; other rules have their own way.
    consensus : Consensus
        The consensus protocol; by default `Local()`, which ignores neighbors.
    radius : float
        The maximum of ‖f‖ (Corollary 1); infinite means no limit.
    explosion : float
        An agent counts as diverged if its loss on a mini-batch is this many times that of predicting 0.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Gaussian, Komp, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> state = agent.start()
    >>> state, info = agent.step(state, np.array([[0.0], [1.0]]), np.array([1.0, -1.0]))
    >>> info.order, bool(agent.predict(state, np.array([[0.0]])) > 0)
    (2, True)
    """

    dimension: int
    outputs: int
    kernel: Kernel
    loss: Loss
    rule: Rule = field(default_factory=Gradient)
    step_size: Schedule | float | None = None
    regularization: float | None = None
    compression: Compression | None = None
    consensus: Consensus = field(default_factory=Local)
    radius: float = math.inf
    explosion: float = 1e4

    def __post_init__(self) -> None:
        integer("Agent", "dimension", self.dimension, minimum=1)
        integer("Agent", "outputs", self.outputs, minimum=1)
        rule = check_rule("Agent", self.rule)
        if getattr(self.consensus, "shares", False) and not isinstance(rule, Landmarks):
            needed = f"be Landmarks with the consensus {type(self.consensus).__name__}"
            raise InvalidArgument(
                "Agent", "rule", needed, rule, remedy="add rule=Landmarks(): only sums over points can be added"
            )
        for role, kind, example in (
            ("kernel", Kernel, "Gaussian(bandwidth=1.0)"),
            *([("compression", Compression, "Komp(budget=0.1)")] if rule.takes_step_size else []),
            ("consensus", Consensus, "Local()"),
        ):
            value = getattr(self, role)
            if not isinstance(value, kind) or isinstance(value, type):
                raise InvalidArgument("Agent", role, f"be a {role}", value, remedy=f"for example {example}")
        if check_loss("Agent", self.loss).classifies and self.outputs < 2:
            raise InvalidArgument("Agent", "outputs", "be >= 2 with a classification loss", self.outputs)
        if self.regularization is None:
            object.__setattr__(self, "regularization", rule.usual_regularization)
        rule.check("Agent", self.loss, non_negative("Agent", "regularization", self.regularization))
        positive("Agent", "radius", self.radius, infinite=True)
        positive("Agent", "explosion", self.explosion, infinite=True)
        self._check_rule(type(rule).__name__)
        self.step_size_at(0)

    def _check_rule(self, name: str) -> None:
        """Reject settings that the rule does not use, and require those it needs."""
        if not (self.rule.listens or self.consensus.shares or self.consensus.exchange == NOTHING):
            rule = f"be a rule that uses neighbors' messages with the consensus {type(self.consensus).__name__}"
            remedy = (
                f"{name} learns alone, with consensus Local(); agents with neighbors can have Landmarks() with the consensus "
                "Relay(), or Averaged() with a step size and the compression Komp.averaging(step size)"
            )
            raise InvalidArgument("Agent", "rule", rule, self.rule, remedy=remedy)
        if not math.isinf(self.radius) and not isinstance(self.rule, Gradient):
            remedy = "omit it, or use Gradient()"
            raise InvalidArgument("Agent", "radius", "be infinite unless the rule is Gradient", self.radius, remedy=remedy)
        if self.rule.takes_step_size:
            object.__setattr__(self, "step_size", as_schedule("Agent", "step_size", self.step_size))
            self._check_budget(name)
            return
        for setting in ("step_size", "compression"):
            if getattr(self, setting) is not None:
                rule, remedy = (f"be omitted with the rule {name}", f"{name} does not use it; Gradient() and Averaged() do")
                raise InvalidArgument("Agent", setting, rule, getattr(self, setting), remedy=remedy)

    def _check_budget(self, name: str) -> None:
        """Reject the paper's budget, K η^{3/2}, if steps are so large that it would remove nearly every point."""
        budget, step_size = getattr(self.compression, "budget", None), self.step_size_at(0)
        if not isinstance(budget, Power) or not self.rule.budget_exponent < 1.0 < budget.exponent:
            return
        most = _COARSEST * step_size**self.rule.budget_exponent
        if budget(0) > most:
            rule = f"have a budget of at most {most:.3g} with the rule {name} and step size {step_size:g}"
            remedy = f"more would remove nearly every point; use Komp.averaging({step_size:g})"
            raise InvalidArgument("Agent", "compression", rule, self.compression, remedy=remedy)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a stored state must match to be stepped by this agent, in JSON form."""
        return {
            "dimension": self.dimension,
            "outputs": self.outputs,
            "kernel": describe(self.kernel),
            "loss": describe(self.loss),
            **({} if isinstance(self.rule, Gradient) else {"rule": type(self.rule).__name__}),
            "consensus": type(self.consensus).__name__,
        }

    def step_size_at(self, samples: int) -> float:
        """η after this many samples, 0 with rules that take none; rejects η ≥ 1/λ, for which shrinking would overshoot."""
        if self.step_size is None:
            return 0.0
        eta = cast(Schedule, self.step_size)(samples)
        if not 0.0 <= eta < math.inf:
            raise InvalidArgument("Agent", "step_size", f"be finite and >= 0 at sample {samples}", eta)
        regularization = cast(float, self.regularization)
        if eta * regularization >= 1.0:
            limit = 1.0 / regularization
            raise InvalidArgument("Agent", "step_size", f"be < 1/regularization = {limit:g} at sample {samples}", eta)
        return eta

    def start(self, *, name: Hashable = 0, function: Expansion | None = None, number: int = 0) -> State:
        """A new state: empty, or from a function learned elsewhere.

        Where agents share sums, `number` must be another one for each agent of a network, and `function` one over points
        that all agents are given.
        """
        if function is None:
            function = Expansion.zero(self.kernel, dimension=self.dimension, outputs=self.outputs)
        elif (function.dimension, function.outputs) != (self.dimension, self.outputs) or function.kernel != self.kernel:
            raise InvalidArgument(
                "Agent.start",
                "function",
                f"have dimension {self.dimension}, outputs {self.outputs} and kernel {self.kernel}",
                Verbatim(f"{function.dimension}, {function.outputs} and {function.kernel}"),
            )
        model = self.rule.start(function, self.compression, cast(float, self.regularization))
        memory = None
        if isinstance(self.consensus, Relay):
            points = PointList.given(function.centers) if function.order else PointList.empty(self.dimension)
            memory = self.consensus.begin(integer("Agent.start", "number", number, minimum=0), points, self.outputs)
        return State(name=name, model=model, shown=self.rule.shown(model), memory=memory)

    @property
    def relaying(self) -> Settings:
        """What a protocol that shares sums needs to know of this agent."""
        rule, consensus = cast(Landmarks, self.rule), cast(Relay, self.consensus)
        return Settings(
            every=consensus.every,
            bits=consensus.bits,
            scales=consensus.scales and not math.isinf(rule.novelty),
            tunes=consensus.tunes and not math.isinf(rule.novelty),
            novelty=rule.novelty,
            max_order=rule.max_order,
            kernel=self.kernel,
            regularization=cast(float, self.regularization),
            typical_curvature=getattr(self.loss, "typical_curvature", 1.0),
            max_samples=consensus.max_samples,
            limit=getattr(self.loss, "most_curved", math.inf) * largest_value(self.kernel),
        )

    def wants(self, state: State) -> bool:
        """Whether the agent is ready for a mini-batch; until its network stands, it takes only a few, to propose points."""
        if state.memory is None or state.memory.is_ready or state.samples == 0:
            return True
        kept, most = len(cast(LandmarksModel, state.model).kept), cast(Landmarks, self.rule).keep
        return not len(state.memory.points) and 2 * kept < most

    def is_settled(self, state: State) -> bool:
        """Whether another round without samples would change nothing, here or at a neighbor."""
        if state.memory is None:
            return True
        model = cast(LandmarksModel, state.model)
        return not (model.changed or model.is_due) and cast(Relay, self.consensus).is_settled(state.memory)

    def tell(self, state: State, neighbor: Hashable) -> News | None:
        """What an agent that shares sums says to a neighbor before the next round."""
        assert state.memory is not None
        return cast(Relay, self.consensus).tell(state.memory, neighbor)

    def check_state(self, owner: str, state: State) -> None:
        """Reject a state that was started with other settings."""
        if self.rule.model_kind not in (None, type(state.model)):
            rule, found = f"come from the rule {type(self.rule).__name__}", Verbatim(f"one with {type(state.model).__name__}")
            remedy = "to continue with another rule, start from the function alone: agent.start(function=state.function)"
            raise InvalidArgument(owner, "state", rule, found, remedy=remedy)
        f = state.function
        if f.centers.shape[1] != self.dimension or f.weights.shape[1] != self.outputs:
            found = Verbatim(f"dimension {f.dimension} and {f.outputs} outputs")
            raise InvalidArgument(owner, "state", f"have dimension {self.dimension} and {self.outputs} outputs", found)
        kernel = f.kernel.kernel if self.consensus.shares and isinstance(f.kernel, Weighted) else f.kernel
        if kernel is not self.kernel and kernel != self.kernel:
            raise InvalidArgument(owner, "state", f"have kernel {self.kernel}", f.kernel)
        if self.consensus.shares and state.memory is None:
            remedy = "start it with this agent: agent.start(name=…, number=…)"
            raise InvalidArgument(owner, "state", "remember its network", Verbatim("one that was alone"), remedy=remedy)

    def check(self, points: Any, targets: Any) -> tuple[Floats, Any]:
        """A mini-batch in the form that a step takes, or an error that says what is wrong."""
        points = matrix("Agent", "points", points, columns=self.dimension)
        if not len(points):
            raise InvalidArgument("Agent", "points", "have at least one row", Verbatim(f"shape {points.shape}"))
        return points, self.loss.check("Agent", targets, rows=len(points), outputs=self.outputs)

    def predict(self, state: State, points: Floats) -> Floats:
        """The outputs f(x) for each row of `points`: n × outputs."""
        return state.function(matrix("Agent.predict", "points", points, columns=self.dimension))

    def step(self, state: State, points: Any, targets: Any, heard: Sequence[Heard] = ()) -> tuple[State, Info]:
        """Learn from a mini-batch and the neighbors' messages. On an error, `state` is unchanged."""
        self.check_state("Agent.step", state)
        points, targets = self.check(points, targets)
        for said in heard:
            if said.reply is not None:
                rows = len(points) if self.consensus.exchange.question else None
                check_message(self, "Agent.step", "heard", said.reply, rows=rows)
        return advance(self, state, points, targets, heard)


def check_message(agent: Agent, owner: str, argument: str, message: Message, *, rows: int | None = None) -> None:
    """Reject a message whose matrices have the wrong number of columns or rows."""
    if isinstance(message, News):
        return  # a relay tests news itself, and excludes the neighbor if they fail
    for names, columns in ((message.inputs, agent.dimension), (message.outputs, agent.outputs)):
        for name in names:
            table = getattr(message, name)
            if table.ndim != 2 or table.shape[1] != columns or (rows is not None and len(table) != rows):
                rule = f"have {name} with {columns} columns" + (f" and {rows} rows" if rows is not None else "")
                raise InvalidArgument(owner, argument, rule, Verbatim(f"shape {table.shape}"))


def relay(agent: Agent, state: State, heard: Sequence[Heard]) -> State:
    """Take part in a round without samples: listen to the neighbors, and learn nothing. Counts as a step.

    State and messages must have been checked.
    """
    state.model.check_ownership()
    try:
        if agent.consensus.shares:
            memory, sums = _hear(agent, state, heard)
            if memory.is_ready:
                sums = cast(Landmarks, agent.rule).revisit(replace(sums, age=sums.age + 1), agent.loss)
            return replace(state, model=_speak(agent, memory, sums), steps=state.steps + 1, memory=memory)
        model, update = state.model, agent.consensus.relay(state.model.function, heard)
        if not update.is_identity:
            model = agent.rule.absorb(model, update, agent.compression, samples=state.samples)
    except FloatingPointError as error:
        state.model.invalidate()
        _blame(heard)
        raise diverged(agent, state, agent.step_size_at(state.samples), str(error)) from None
    except BaseException:
        state.model.invalidate()
        raise
    return replace(state, model=model, steps=state.steps + 1, shown=agent.rule.shown(model))


def _hear(agent: Agent, state: State, heard: Sequence[Heard]) -> tuple[Memory, LandmarksModel]:
    """The first half of a tick: what neighbors have said, and the model with the sums that now count."""
    assert state.memory is not None
    model = cast(LandmarksModel, state.model)
    said = [(each.neighbor, each.reply) for each in heard if isinstance(each.reply, News)]
    memory, basis = cast(Relay, agent.consensus).hear(agent.relaying, state.memory, model.basis, said)
    regularization = memory.points.strength * cast(float, agent.regularization)
    model = cast(Landmarks, agent.rule).adopt(model, basis, memory.others, regularization)
    return memory, cast(Landmarks, agent.rule).begin(model, agent.loss) if memory.is_ready else model


def _speak(agent: Agent, memory: Memory, model: LandmarksModel) -> LandmarksModel:
    """The second half of a tick: what is sent before the next."""
    settings, points = agent.relaying, memory.points
    if points.stage == SCALED < settings.stages and model.is_untried(min(len(points), POINTS)):
        model = model.tried(candidates(settings, points), agent.loss)
    own = model.shared(1 << memory.tree.name, learns=points.stage >= settings.stages)
    protocol = cast(Relay, agent.consensus)
    protocol.speak(settings, memory, model.basis, own, changed=model.changed, candidates=model.candidates)
    return replace(model, changed=False, candidates=model.candidates[:0])


def advance(agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard] = ()) -> tuple[State, Info]:
    """`Agent.step` for runtimes, which have already checked state, mini-batch and messages."""
    state.model.check_ownership()
    try:
        return _advance(agent, state, points, targets, heard)
    except BaseException:
        state.model.invalidate()
        raise


def _advance(agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard]) -> tuple[State, Info]:
    step_size, memory, model = agent.step_size_at(state.samples), state.memory, state.model
    try:
        if memory is not None:
            memory, model = _hear(agent, state, heard)
        f = model.function
        cross = f.kernel(points, f.centers)
        here = f.from_cross(cross)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are detected at the end
            losses, slope = agent.loss.value_and_slope(here, targets)
            loss, baseline_loss = _watch(agent, state, step_size, losses, targets)
            inputs = StepInputs(
                function=f,
                points=points,
                targets=targets,
                loss=agent.loss,
                here=here,
                slope=slope,
                cross=cross,
                step_size=step_size,
                regularization=cast(float, agent.regularization),
                samples=state.samples,
                grows=memory is None,
            )
            model, report = agent.rule.learn(
                model, inputs, lambda inputs: agent.consensus.move(inputs, heard), agent.compression
            )
        if memory is not None:
            model = _speak(agent, memory, cast(LandmarksModel, model))
    except FloatingPointError as error:
        _blame(heard)
        raise diverged(agent, state, step_size, str(error)) from None
    except SystemError as error:
        if _hides_interrupt(error):
            raise KeyboardInterrupt from None
        raise
    norm = math.sqrt(model.square_norm)
    if norm > agent.radius:
        model, norm = model.scaled(agent.radius / norm), agent.radius
    after = State(
        name=state.name,
        model=model,
        samples=state.samples + len(points),
        steps=state.steps + 1,
        shown=agent.rule.shown(model),
        baseline_loss=baseline_loss,
        memory=memory,
    )
    info = Info(
        batch_size=len(points),
        loss=loss,
        order=model.function.order,
        norm=norm,
        step_size=step_size,
        penalty=agent.consensus.penalty(state.samples),
        heard=len(heard),
        **report.facts(),
    )
    return after, info


def _hides_interrupt(error: BaseException) -> bool:
    """Whether an error was caused by Ctrl-C, which numba turns into a SystemError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _blame(heard: Sequence[Heard]) -> None:
    """Reject replies that are not finite: the neighbor has diverged, not this agent."""
    for said in heard:
        for name in said.reply.tables if said.reply is not None else ():
            matrix("Agent.step", f"heard {name}", getattr(said.reply, name))


def _watch(agent: Agent, state: State, step_size: float, losses: Floats, targets: Any) -> tuple[float, float]:
    """The mean loss on the mini-batch and its baseline; raises `Diverged` if the loss is far larger."""
    loss = float(np.add.reduce(losses)) / len(losses)
    if not math.isfinite(loss):
        raise diverged(agent, state, step_size, f"the loss on the newest samples is {loss}")
    baseline_loss = state.baseline_loss
    if not loss <= agent.explosion * baseline_loss:  # true for the first samples, which have no baseline yet
        zero_loss = float(agent.loss.value(np.zeros((len(losses), agent.outputs)), targets).mean())
        baseline_loss = max(baseline_loss, zero_loss)
        # a given function, or one influenced by neighbors, may meet targets that are all 0: then its own loss is the baseline
        if math.isfinite(loss) and (state.steps == 0 or baseline_loss == 0.0):
            baseline_loss = max(baseline_loss, loss)
        if not loss <= agent.explosion * max(baseline_loss, np.finfo(float).tiny):
            worse = f"the loss on the newest samples is {loss:.3g} where predicting 0 costs {baseline_loss:.3g}"
            raise diverged(agent, state, step_size, worse)
    return loss, baseline_loss


def diverged(agent: Agent, state: State, step_size: float, reason: str) -> Diverged:
    """The error for an agent that cannot continue."""
    return Diverged(
        agent=state.name,
        samples=state.samples,
        step_size=step_size,
        penalty=agent.consensus.penalty(state.samples),
        reason=reason,
    )
