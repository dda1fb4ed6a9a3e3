"""One agent: immutable settings, a State that each step returns, and no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from kernelmesh.checks import Floats, integer, matrix, non_negative, positive
from kernelmesh.consensus import Consensus, EdgeMemories, Heard, Local, StepInputs
from kernelmesh.consensus.base import NOTHING
from kernelmesh.errors import Diverged, InvalidArgument, Verbatim
from kernelmesh.messages import Function, Message, Offer
from kernelmesh.numerics.compression import Compression, Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss, check_loss
from kernelmesh.numerics.reservoir import MAX_ROWS, Reservoir
from kernelmesh.numerics.schedules import Power, Schedule, as_schedule
from kernelmesh.numerics.shared_dictionary import SharedDictionary
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.registry import describe
from kernelmesh.rules import Gradient, Rule, check_rule
from kernelmesh.screening import Bench, Health, Screened, Screening

__all__ = ["Agent", "Info", "State", "advance", "check_message", "diverged", "relay", "relay_screened", "watch"]

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
    replayed : int
        The number of samples replayed from `reservoir`; `samples` does not count them.
    edges : Mapping[Hashable, EdgeMemory]
        What a protocol remembers about each edge, by neighbor.
    shown : Expansion or None
        The learned function, if it differs from that in `model`.
    baseline_loss : float
        The mean loss of predicting 0 on a mini-batch, the reference for detecting divergence.
    reservoir : Reservoir or None
        Some of the agent's own samples, to be replayed when its stream has ended; None if the agent has `replay` = 0.
    newest : tuple of ndarray or None
        The latest mini-batch, on which neighbors' messages are tested when there are no new samples; None if not needed.
    health : Health or None
        The recent course of the agent's own loss; None without screening.
    learned : int
        The number of samples learned from, including replayed ones; schedules depend on it.

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
    edges: EdgeMemories = field(default_factory=dict)
    shown: Expansion | None = None
    baseline_loss: float = 0.0
    replayed: int = 0
    reservoir: Reservoir | None = None
    newest: tuple[Floats, Any] | None = None
    health: Health | None = None

    @property
    def learned(self) -> int:
        """The number of samples learned from, including replayed ones; schedules depend on it."""
        return self.samples + self.replayed

    @property
    def can_replay(self) -> bool:
        """Whether there are samples to replay."""
        return self.reservoir is not None and self.reservoir.kept > 0

    def draw(self) -> tuple[Floats, Any]:
        """The mini-batch to replay next; requires `can_replay`."""
        assert self.reservoir is not None
        return self.reservoir.draw()

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
        assert not self.edges
        assert self.reservoir is None
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
    replayed : bool
        Whether the mini-batch was replayed from the reservoir.
    left_out : mapping of Hashable to str
        The neighbors whose messages screening rejected in this round, and why.
    clipped : mapping of Hashable to str
        The neighbors whose messages screening clipped before they were used, and by how much.

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
    replayed: bool = False
    left_out: Mapping[Hashable, str] = field(default_factory=dict)
    clipped: Mapping[Hashable, str] = field(default_factory=dict)


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
    replay : int
        The number of its own samples that the agent keeps, drawn uniformly, and learns from after its stream has ended while
        others still learn, so that they do not forget what it has seen; 0 disables it. For protocols that exchange functions
        or values.
    screening : Screening, optional
        How to detect neighbors that send wrong messages; by default there is no screening.

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
    replay: int = 0
    screening: Screening | None = None

    def __post_init__(self) -> None:
        integer("Agent", "dimension", self.dimension, minimum=1)
        integer("Agent", "outputs", self.outputs, minimum=1)
        if self.screening is not None and not isinstance(self.screening, Screening):
            raise InvalidArgument("Agent", "screening", "be a Screening or None", self.screening, remedy="Screening()")
        rule = check_rule("Agent", self.rule)
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
        self._check_replay()
        self.step_size_at(0)

    def _check_rule(self, name: str) -> None:
        """Reject settings that the rule does not use, and require those it needs."""
        exchange = self.consensus.exchange
        if exchange.statistics and not self.rule.gathers:
            rule = f"be a rule that gathers statistics with the consensus {type(self.consensus).__name__}"
            raise InvalidArgument("Agent", "rule", rule, self.rule, remedy="for example Landmarks()")
        if not (self.rule.listens or exchange == NOTHING or exchange.statistics):
            rule = f"be a rule that uses neighbors' messages with the consensus {type(self.consensus).__name__}"
            alone = "learns with consensus SharedStatistics() or" if self.rule.gathers else "learns alone, with consensus"
            remedy = (
                f"{name} {alone} Local(); agents with neighbors can have Averaged(), "
                "with a step size and the compression Komp.averaging(step size)"
            )
            raise InvalidArgument("Agent", "rule", rule, self.rule, remedy=remedy)
        if not math.isinf(self.radius) and not isinstance(self.rule, Gradient):
            remedy = "omit it, or use Gradient()"
            raise InvalidArgument("Agent", "radius", "be infinite unless the rule is Gradient", self.radius, remedy=remedy)
        self._check_shared()
        if self.rule.takes_step_size:
            object.__setattr__(self, "step_size", as_schedule("Agent", "step_size", self.step_size))
            self._check_budget(name)
            return
        for setting in ("step_size", "compression"):
            if getattr(self, setting) is not None:
                rule, remedy = (f"be omitted with the rule {name}", f"{name} does not use it; Gradient() and Averaged() do")
                raise InvalidArgument("Agent", setting, rule, getattr(self, setting), remedy=remedy)

    def _check_shared(self) -> None:
        """Reject settings that do not work with shared points."""
        is_shared = isinstance(self.compression, SharedDictionary)
        if self.consensus.exchange.shared and not is_shared:
            rule = f"be a SharedDictionary with the consensus {type(self.consensus).__name__}"
            remedy = "for example SharedDictionary(novelty=0.1), with the rule Gradient() or Averaged()"
            raise InvalidArgument("Agent", "compression", rule, self.compression, remedy=remedy)
        if is_shared and not math.isinf(self.radius):
            rule, remedy = "be infinite with a SharedDictionary, which does not track the norm", "omit it"
            raise InvalidArgument("Agent", "radius", rule, self.radius, remedy=remedy)

    def _check_replay(self) -> None:
        """Reject replay where nothing is forgotten: the agent is alone, or statistics retain every sample."""
        size, name = integer("Agent", "replay", self.replay, minimum=0), type(self.consensus).__name__
        if size > MAX_ROWS:
            raise InvalidArgument("Agent", "replay", f"be at most {MAX_ROWS} rows", size)
        if size and not self.consensus.replays:
            reason = "statistics do not forget" if self.consensus.exchange.statistics else "there are no neighbors to forget"
            raise InvalidArgument("Agent", "replay", f"be 0 with the consensus {name}", size, remedy=f"{reason}: omit it")

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
    def keeps_newest(self) -> bool:
        """Whether a state keeps the latest mini-batch, to judge neighbors when there are no samples to replay."""
        return self.screening is not None and self.consensus.relays and not self.replay

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

    def start(self, *, name: Hashable = 0, function: Expansion | None = None) -> State:
        """A new state: empty, or from a function learned elsewhere."""
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
        reservoir = Reservoir.named(name, size=self.replay) if self.replay else None
        return State(name=name, model=model, shown=self.rule.shown(model, None), reservoir=reservoir)

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
        if f.kernel is not self.kernel and f.kernel != self.kernel:
            raise InvalidArgument(owner, "state", f"have kernel {self.kernel}", f.kernel)

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
            if said.question is not None:
                check_message(self, "Agent.step", "heard", said.question)
            if said.reply is not None:
                rows = len(points) if self.consensus.exchange.question else None
                check_message(self, "Agent.step", "heard", said.reply, rows=rows)
        return advance(self, state, points, targets, heard)


def check_message(agent: Agent, owner: str, argument: str, message: Message, *, rows: int | None = None) -> None:
    """Reject a message whose matrices have the wrong number of columns or rows."""
    for names, columns in ((message.inputs, agent.dimension), (message.outputs, agent.outputs)):
        for name in names:
            table = getattr(message, name)
            if table.ndim != 2 or table.shape[1] != columns or (rows is not None and len(table) != rows):
                rule = f"have {name} with {columns} columns" + (f" and {rows} rows" if rows is not None else "")
                raise InvalidArgument(owner, argument, rule, Verbatim(f"shape {table.shape}"))
    if isinstance(message, Function | Offer) and (message.moments is not None) != agent.consensus.exchange.statistics:
        rule = f"have {'moments' if message.moments is None else 'no moments'} with {type(agent.consensus).__name__}"
        raise InvalidArgument(owner, argument, rule, Verbatim(message.kind))
    dual = getattr(message, "dual", None)
    if dual is not None:
        check_message(agent, owner, f"{argument}: dual", dual)


def relay(agent: Agent, state: State, heard: Sequence[Heard]) -> State:
    """Take part in a round without samples: average with the neighbors, and learn nothing. Counts as a step.

    State and messages must have been checked.
    """
    return relay_screened(agent, state, heard)[0]


def relay_screened(agent: Agent, state: State, heard: Sequence[Heard]) -> tuple[State, Screened]:
    """`relay`, with the results of screening. Messages are tested on the latest samples."""
    state.model.check_ownership()
    try:
        points, targets = state.newest or (np.empty((0, agent.dimension)), None)
        found, (model, edges, combined) = _taken_in(agent, state, points, targets, heard)
        heard = found.heard
        update = agent.consensus.relay(model.function, heard, edges)
        if not update.is_identity:
            go = agent.rule.combine if combined is None else agent.rule.absorb  # the only stage, or the second of two
            model = go(model, update, agent.compression, samples=state.learned)
    except FloatingPointError as error:
        state.model.invalidate()
        _blame(heard)
        raise diverged(agent, state, agent.step_size_at(state.learned), str(error)) from None
    except BaseException:
        state.model.invalidate()
        raise
    after = replace(state, model=model, steps=state.steps + 1, edges=edges, shown=agent.rule.shown(model, combined))
    return after, found


def advance(
    agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard] = (), *, replayed: bool = False
) -> tuple[State, Info]:
    """`Agent.step` for runtimes, which have already checked state, mini-batch and messages.

    `replayed` says that the mini-batch was drawn from the reservoir of the state.
    """
    state.model.check_ownership()
    try:
        return _advance(agent, state, points, targets, heard, replayed=replayed)
    except BaseException:
        state.model.invalidate()
        raise


def _advance(
    agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard], *, replayed: bool
) -> tuple[State, Info]:
    step_size = agent.step_size_at(state.learned)
    try:
        found, (model, edges, combined) = _taken_in(agent, state, points, targets, heard)
        heard = found.heard
        f = agent.rule.current(model)
        cross = agent.kernel(points, f.centers) if found.bench is None else found.bench.cross(f.centers)
        here = found.bench.here if found.bench is not None and found.bench.function is f else f.from_cross(cross)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are detected at the end
            losses, slope = agent.loss.value_and_slope(here, targets)
            loss, baseline_loss = watch(agent, state, step_size, losses, targets)
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
                samples=state.learned,
                combined=combined is not None,
                exchanges_next=combined is not None and agent.consensus.exchanges(state.steps + 2),
            )
            model, report = agent.rule.learn(
                model, inputs, lambda inputs: agent.consensus.move(inputs, heard, edges), agent.compression
            )
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
        samples=state.samples + (0 if replayed else len(points)),
        steps=state.steps + 1,
        edges=edges,
        shown=agent.rule.shown(model, combined),
        baseline_loss=baseline_loss,
        replayed=state.replayed + (len(points) if replayed else 0),
        reservoir=None if (kept := state.reservoir) is None else kept.spent() if replayed else kept.add(points, targets),
        newest=(points, targets) if agent.keeps_newest else None,
        health=None if agent.screening is None else Health.after(state.health, loss),
    )
    info = Info(
        batch_size=len(points),
        loss=loss,
        order=model.function.order,
        norm=norm,
        step_size=step_size,
        penalty=agent.consensus.penalty(state.learned),
        heard=len(heard) - len(found.left_out),
        replayed=replayed,
        left_out=found.left_out,
        clipped=found.clipped,
        **report.facts(),
    )
    return after, info


def _hides_interrupt(error: BaseException) -> bool:
    """Whether an error was caused by Ctrl-C, which numba turns into a SystemError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _taken_in(
    agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard]
) -> tuple[Screened, tuple[Model, EdgeMemories, Expansion | None]]:
    """The messages that pass screening, and what the agent is after averaging with them."""
    found = _screened(agent, state, points, targets, heard)
    after = _combined(agent, state, found)
    if found.bench is None or _owes(state.model) or not _owes(after[0]):
        return found, after
    # messages close to what the agent has itself are not tested, and one of them takes more than the agent has
    found = _screened(agent, state, points, targets, heard, is_strict=True)
    return found, _combined(agent, state, found)


def _owes(model: Model) -> bool:
    """Whether the agent has given away statistics that it did not have."""
    return isinstance(model.function, Statistics) and not model.function.definite


def _screened(
    agent: Agent, state: State, points: Floats, targets: Any, heard: Sequence[Heard], *, is_strict: bool = False
) -> Screened:
    """The messages that pass screening, the edges that restart, and why the others were rejected."""
    if agent.screening is None or not any(said.reply is not None for said in heard):
        return Screened(heard, state.edges)
    bench = Bench(
        kernel=agent.kernel,
        rule=agent.rule,
        model=state.model,
        loss=agent.loss,
        points=points,
        targets=targets,
        function=state.function,
        step=state.steps + 1,
        every=agent.consensus.every,
        health=state.health,
        is_strict=is_strict,
    )
    return agent.screening.screen(bench, heard, state.edges)


def _combined(agent: Agent, state: State, found: Screened) -> tuple[Model, EdgeMemories, Expansion | None]:
    """The first of two stages, averaging with the neighbors, for protocols that have one; the agent then shows the result."""
    update, edges = agent.consensus.combine(state.model.function, found.heard, found.edges)
    if update is None:
        return state.model, edges, None
    model, update = state.model, found.admitted(update)
    # without any messages in such a round, the function stays unchanged, but the protocol may still update its memory
    if not update.is_identity or agent.consensus.exchanges(state.steps + 1):
        model = agent.rule.combine(model, update, agent.compression, samples=state.learned)
    return model, edges, model.function


def _blame(heard: Sequence[Heard]) -> None:
    """Reject replies that are not finite: the neighbor has diverged, not this agent."""
    for said in heard:
        for message in (said.question, said.reply):
            for name in (*message.inputs, *message.outputs) if message is not None else ():
                matrix("Agent.step", f"heard {name}", getattr(message, name))


def watch(agent: Agent, state: State, step_size: float, losses: Floats, targets: Any) -> tuple[float, float]:
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
        samples=state.learned,
        step_size=step_size,
        penalty=agent.consensus.penalty(state.learned),
        reason=reason,
    )
