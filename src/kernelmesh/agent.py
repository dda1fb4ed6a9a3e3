"""One agent: immutable settings, a State that each step returns, and no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from kernelmesh.checks import Floats, integer, matrix, positive
from kernelmesh.errors import Diverged, InvalidArgument, Verbatim
from kernelmesh.learners import Landmarks, Learner, check_learner
from kernelmesh.learners.landmarks import LandmarksModel
from kernelmesh.messages import Message, News
from kernelmesh.numerics.compression import Model
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.kernels import Kernel, Weighted, check_kernel
from kernelmesh.numerics.losses import Loss, check_loss
from kernelmesh.protocols import ConsensusProtocol, Heard, Local, Relay, StepInputs
from kernelmesh.protocols.relay import Memory, PointList
from kernelmesh.protocols.relay.agreement import POINTS, SCALED, candidates
from kernelmesh.protocols.relay.hearing import hear
from kernelmesh.protocols.relay.settings import Settings
from kernelmesh.protocols.relay.speaking import is_settled, prepare, tell
from kernelmesh.registry import describe

__all__ = ["Agent", "Info", "State", "advance", "check_message", "listen"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """Everything the next step needs. A value: a step returns another one.

    Attributes
    ----------
    name : Hashable
        The agent's name.
    model : Model
        The function that the next step starts from, with what makes the step cheap.
    samples, steps : int
        The number of samples and steps so far.
    shown : Function or None
        The learned function, if it differs from that in `model`.
    baseline_loss : float
        The mean loss of predicting 0 on a mini-batch, the reference for detecting divergence.
    memory : Memory or None
        What a protocol that shares sums remembers of the network.

    Examples
    --------
    >>> from kernelmesh import Agent, Gaussian, Gradient, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))
    >>> agent.start(name="north").function.order
    0
    """

    name: Hashable
    model: Model
    samples: int = 0
    steps: int = 0
    shown: Function | None = None
    baseline_loss: float = 0.0
    memory: Memory | None = None

    @property
    def function(self) -> Function:
        """The function learned so far, with which the agent predicts and answers."""
        return self.model.function if self.shown is None else self.shown

    @property
    def sent(self) -> Function:
        """The function that the agent sends to neighbors and continues learning from."""
        return self.model.function

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
        ‖f‖ after the step; NaN with learners that do not track it.
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
    >>> from kernelmesh import Agent, Gaussian, Gradient, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))
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
    learner : Learner
        How samples change the model, for example `SecondOrder()` or `Gradient(step_size=0.5)`.
    protocol : ConsensusProtocol
        What is said to neighbors; by default `Local()`, which ignores them. It must be one of messages from which the learner
        can learn: `Relay` needs `Landmarks`, all others `Gradient` or `Averaged`.
    explosion : float
        An agent counts as diverged if its loss on a mini-batch is this many times that of predicting 0.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Gaussian, Gradient, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))
    >>> state = agent.start()
    >>> state, info = agent.step(state, np.array([[0.0], [1.0]]), np.array([1.0, -1.0]))
    >>> info.order, bool(agent.predict(state, np.array([[0.0]])) > 0)
    (2, True)
    """

    dimension: int
    outputs: int
    kernel: Kernel
    loss: Loss
    learner: Learner
    protocol: ConsensusProtocol = field(default_factory=Local)
    explosion: float = 1e4

    def __post_init__(self) -> None:
        integer("Agent", "dimension", self.dimension, minimum=1)
        integer("Agent", "outputs", self.outputs, minimum=1)
        positive("Agent", "explosion", self.explosion, infinite=True)
        check_kernel("Agent", self.kernel)
        if check_loss("Agent", self.loss).classifies and self.outputs < 2:
            raise InvalidArgument("Agent", "outputs", "be >= 2 with a classification loss", self.outputs)
        check_learner("Agent", self.learner).check("Agent", self.loss)
        if not isinstance(self.protocol, ConsensusProtocol) or isinstance(self.protocol, type):
            raise InvalidArgument("Agent", "protocol", "be a protocol", self.protocol, remedy="for example Local()")
        if self.protocol.reply is not None and self.protocol.reply not in self.learner.hears:
            name, kind = type(self.learner).__name__, self.protocol.reply.__name__
            rule = f"be one from whose messages, {kind}, the learner {name} can learn"
            remedy = (
                "Relay needs the learner Landmarks, other protocols need Gradient or Averaged; SecondOrder learns alone, "
                "with Local()"
            )
            raise InvalidArgument("Agent", "protocol", rule, self.protocol, remedy=remedy)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a stored state must match to be stepped by this agent, in JSON form."""
        return {
            "dimension": self.dimension,
            "outputs": self.outputs,
            "kernel": describe(self.kernel),
            "loss": describe(self.loss),
            "learner": type(self.learner).__name__,
            "protocol": type(self.protocol).__name__,
        }

    def start(self, *, name: Hashable = 0, function: Function | None = None, number: int = 0) -> State:
        """A new state: empty, or from a function learned elsewhere.

        Where agents share sums, `number` must be different for each agent of a network, and `function` one over points
        that all agents are given.
        """
        if function is None:
            function = Function.zero(self.kernel, dimension=self.dimension, outputs=self.outputs)
        elif (function.dimension, function.outputs) != (self.dimension, self.outputs) or function.kernel != self.kernel:
            raise InvalidArgument(
                "Agent.start",
                "function",
                f"have dimension {self.dimension}, outputs {self.outputs} and kernel {self.kernel}",
                Verbatim(f"{function.dimension}, {function.outputs} and {function.kernel}"),
            )
        model = self.learner.start(function)
        memory = None
        if isinstance(self.protocol, Relay):
            points = PointList.given(function.points) if function.order else PointList.empty(self.dimension)
            memory = self.protocol.begin(integer("Agent.start", "number", number, minimum=0), points, self.outputs)
        return State(name=name, model=model, shown=self.learner.shown(model), memory=memory)

    @property
    def relay_settings(self) -> Settings:
        """What a protocol that shares sums needs to know of this agent."""
        learner: Any = self.learner
        protocol: Any = self.protocol
        return Settings(
            every=protocol.every,
            bits=protocol.bits,
            stages=0 if math.isinf(learner.novelty) else protocol.scales + protocol.tunes,
            novelty=learner.novelty,
            max_order=learner.max_order,
            kernel=self.kernel,
            regularization=learner.regularization,
            typical_curvature=getattr(self.loss, "typical_curvature", 1.0),
            max_samples=protocol.max_samples,
            most_curved=getattr(self.loss, "most_curved", math.inf),
        )

    def wants(self, state: State) -> bool:
        """Whether the agent is ready for a mini-batch; until its network stands, it takes only a few, to propose points."""
        if state.memory is None or state.memory.is_ready or state.samples == 0:
            return True
        assert isinstance(state.model, LandmarksModel)
        return not len(state.memory.points) and 2 * len(state.model.kept) < cast(Landmarks, self.learner).keep

    def is_settled(self, state: State) -> bool:
        """Whether another round without samples would change nothing, here or at a neighbor."""
        if state.memory is None:
            return True
        model = state.model
        assert isinstance(model, LandmarksModel)
        return not (model.changed or model.is_due) and is_settled(state.memory)

    def tell(self, state: State, neighbor: Hashable) -> News | None:
        """What an agent that shares sums says to a neighbor before the next round."""
        assert state.memory is not None
        return tell(state.memory, [neighbor])[0]

    def check_state(self, owner: str, state: State) -> None:
        """Reject a state that was started with other settings."""
        if self.learner.model_kind not in (None, type(state.model)):
            rule = f"come from the learner {type(self.learner).__name__}"
            found = Verbatim(f"one with {type(state.model).__name__}")
            remedy = "to continue with another learner, start from the function alone: agent.start(function=state.function)"
            raise InvalidArgument(owner, "state", rule, found, remedy=remedy)
        f = state.function
        if f.points.shape[1] != self.dimension or f.weights.shape[1] != self.outputs:
            found = Verbatim(f"dimension {f.dimension} and {f.outputs} outputs")
            raise InvalidArgument(owner, "state", f"have dimension {self.dimension} and {self.outputs} outputs", found)
        scaled = state.memory is not None and isinstance(f.kernel, Weighted) and f.kernel.kernel == self.kernel
        if f.kernel is not self.kernel and f.kernel != self.kernel and not scaled:
            raise InvalidArgument(owner, "state", f"have kernel {self.kernel}", f.kernel)
        if isinstance(self.protocol, Relay) and state.memory is None:
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
                rows = len(points) if self.protocol.question else None
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


def listen(agent: Agent, state: State, heard: Sequence[Heard]) -> State:
    """Take part in a round without samples: listen to the neighbors, and learn nothing. Counts as a step.

    State and messages must have been checked.
    """
    try:
        if state.memory is not None:
            settings = agent.relay_settings
            memory, sums = _hear(agent, settings, state, heard)
            if memory.is_ready:
                sums = cast(Landmarks, agent.learner).revisit(replace(sums, age=sums.age + 1), agent.loss)
            return replace(state, model=_prepare(agent, settings, memory, sums), steps=state.steps + 1, memory=memory)
        model, update = state.model, agent.protocol.listen(state.model.function, heard)
        if not update.is_identity:
            model = agent.learner.absorb(model, update, samples=state.samples)
    except FloatingPointError as error:
        _blame(heard)
        raise _diverged(agent, state, str(error)) from None
    return replace(state, model=model, steps=state.steps + 1, shown=agent.learner.shown(model))


def advance(agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard] = ()) -> tuple[State, Info]:
    """`Agent.step` for runtimes, which have already checked state, mini-batch and messages."""
    learner, protocol, memory, model = agent.learner, agent.protocol, state.memory, state.model
    try:
        if memory is not None:
            settings = agent.relay_settings
            memory, model = _hear(agent, settings, state, heard)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are detected at the end
            inputs, loss, baseline_loss = _inputs(agent, state, model.function, points, targets)
            model, report = learner.learn(model, inputs, lambda inputs: protocol.move(inputs, heard))
        if memory is not None:
            assert isinstance(model, LandmarksModel)
            model = _prepare(agent, settings, memory, model)
    except FloatingPointError as error:
        _blame(heard)
        raise _diverged(agent, state, str(error)) from None
    except SystemError as error:
        if _hides_interrupt(error):
            raise KeyboardInterrupt from None
        raise
    after = State(
        name=state.name,
        model=model,
        samples=state.samples + len(points),
        steps=state.steps + 1,
        shown=learner.shown(model),
        baseline_loss=baseline_loss,
        memory=memory,
    )
    info = Info(
        batch_size=len(points),
        loss=loss,
        order=len(model.function.points),
        norm=math.sqrt(model.square_norm),
        step_size=inputs.step_size,
        penalty=protocol.penalty(state.samples),
        heard=len(heard),
        over_budget=report.over_budget,
        **vars(report),
    )
    return after, info


def _inputs(agent: Agent, state: State, f: Function, points: Floats, targets: Any) -> tuple[StepInputs, float, float]:
    """What a step starts from: f(X) and ℓ'(f(X), y); the mean loss and its baseline."""
    cross = f.kernel(points, f.points)
    here = f.from_cross(cross)
    losses, slope = agent.loss.value_and_slope(here, targets)
    loss, baseline_loss = _watch(agent, state, losses, targets)
    inputs = StepInputs(
        function=f,
        points=points,
        targets=targets,
        loss=agent.loss,
        here=here,
        slope=slope,
        cross=cross,
        step_size=agent.learner.step_size_at(state.samples),
        regularization=agent.learner.regularization,
        samples=state.samples,
        grows=state.memory is None,
    )
    return inputs, loss, baseline_loss


def _hear(agent: Agent, settings: Settings, state: State, heard: Sequence[Heard]) -> tuple[Memory, LandmarksModel]:
    """The first half of a tick: what neighbors have said, and the model with the sums that now count."""
    assert state.memory is not None
    model = state.model
    assert isinstance(model, LandmarksModel)
    memory, basis = hear(settings, state.memory, model.basis, heard)
    learner: Any = agent.learner
    model = learner.adopt(model, basis, memory.others, memory.points.strength * learner.regularization)
    return memory, learner.begin(model, agent.loss) if memory.is_ready and not model.own.samples else model


def _prepare(agent: Agent, settings: Settings, memory: Memory, model: LandmarksModel) -> LandmarksModel:
    """The second half of a tick: what is sent before the next."""
    points, stages = memory.points, settings.stages
    if points.stage == SCALED < stages and model.is_untried(min(len(points), POINTS)):
        model = model.tried(candidates(settings, points), agent.loss)
    own = model.shared(1 << memory.tree.name, learns=points.stage >= stages)
    prepare(settings, memory, model.basis, own, changed=model.changed, candidates=model.candidates)
    return replace(model, changed=False, candidates=model.candidates[:0])


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


def _watch(agent: Agent, state: State, losses: Floats, targets: Any) -> tuple[float, float]:
    """The mean loss on the mini-batch and its baseline; raises `Diverged` if the loss is far larger."""
    loss = float(np.add.reduce(losses)) / len(losses)
    if not math.isfinite(loss):
        raise _diverged(agent, state, f"the loss on the newest samples is {loss}")
    baseline_loss = state.baseline_loss
    if not loss <= agent.explosion * baseline_loss:  # true for the first samples, which have no baseline yet
        zero_loss = float(agent.loss.value(np.zeros((len(losses), agent.outputs)), targets).mean())
        baseline_loss = max(baseline_loss, zero_loss)
        # a given function, or one influenced by neighbors, may meet targets that are all 0: then its own loss is the baseline
        if math.isfinite(loss) and (state.steps == 0 or baseline_loss == 0.0):
            baseline_loss = max(baseline_loss, loss)
        if not loss <= agent.explosion * max(baseline_loss, np.finfo(float).tiny):
            worse = f"the loss on the newest samples is {loss:.3g} where predicting 0 costs {baseline_loss:.3g}"
            raise _diverged(agent, state, worse)
    return loss, baseline_loss


def _diverged(agent: Agent, state: State, reason: str) -> Diverged:
    """The error for an agent that cannot continue."""
    return Diverged(
        agent=state.name,
        samples=state.samples,
        step_size=agent.learner.step_size_at(state.samples),
        penalty=agent.protocol.penalty(state.samples),
        reason=reason,
    )
