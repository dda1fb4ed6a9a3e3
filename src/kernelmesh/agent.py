"""One agent: settings that never update, a State that a step hands on, and no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from kernelmesh.checks import Floats, integer, matrix, non_negative, positive
from kernelmesh.consensus import Combining, Consensus, Edges, Explicit, Heard, Local, Relaying, StepInputs
from kernelmesh.errors import Diverged, InvalidArgument, Verbatim
from kernelmesh.messages import Function, Message, Offer, Repair, Values
from kernelmesh.numerics.compression import Compression, Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss, check_loss
from kernelmesh.numerics.schedules import Schedule, as_schedule

__all__ = ["Agent", "Info", "State"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State:
    """Everything the next step needs. A step takes over the workspace in `model`; the function stays readable."""

    name: Hashable
    model: Model
    samples: int = 0
    steps: int = 0
    edges: Edges = field(default_factory=dict)
    """What a protocol remembers of each edge, by neighbor."""
    shown: Expansion | None = None
    """What was learned, where that is not what `model` holds (protocols that send another function than they show)."""
    baseline_loss: float = 0.0
    """The mean loss that predicting 0 would have had on a mini-batch: what divergence is measured by."""

    @property
    def function(self) -> Expansion:
        """What the agent has learned so far."""
        return self.model.function if self.shown is None else self.shown

    def copy(self) -> State:
        """An independent state that can be stepped on its own."""
        return replace(self, model=self.model.copy())


@dataclass(frozen=True, kw_only=True)
class Info:
    """What one may want to know about a step."""

    samples: int
    """Samples in this mini-batch."""
    loss: float
    """Mean loss on the mini-batch before learning from it."""
    order: int
    norm: float
    step_size: float
    penalty: float
    budget: float
    error: float
    """‖f − f̃‖: how far compression moved the function; at most the budget unless `over_budget`."""
    removed: int
    dependent: int
    heard: int
    over_budget: bool
    repaired: bool


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The settings of a learner; many states can be stepped with the same one.

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
    step_size: Schedule | float
    regularization: float = 1e-6
    compression: Compression
    consensus: Consensus = field(default_factory=Local)
    radius: float = math.inf
    """Keep ‖f‖ within a ball of this radius (Corollary 1); infinite means no ball."""
    explosion: float = 1e4
    """A mini-batch this many times worse than predicting 0 means the run has diverged."""
    _combining: Combining | None = field(init=False, repr=False, compare=False)
    """The protocol again, if it moves twice in a round: found out once, because asking takes long."""

    def __post_init__(self) -> None:
        integer("Agent", "dimension", self.dimension, minimum=1)
        integer("Agent", "outputs", self.outputs, minimum=1)
        for role, kind, example in (
            ("kernel", Kernel, "Gaussian(bandwidth=1.0)"),
            ("compression", Compression, "Komp(budget=0.1)"),
            ("consensus", Consensus, "Local()"),
        ):
            value = getattr(self, role)
            if not isinstance(value, kind) or isinstance(value, type):
                raise InvalidArgument("Agent", role, f"be a {role}", value, remedy=f"for example {example}")
        if check_loss("Agent", self.loss).classifies and self.outputs < 2:
            raise InvalidArgument("Agent", "outputs", "be >= 2 with a classification loss", self.outputs)
        object.__setattr__(self, "step_size", as_schedule("Agent", "step_size", self.step_size))
        non_negative("Agent", "regularization", self.regularization)
        positive("Agent", "radius", self.radius, infinite=True)
        positive("Agent", "explosion", self.explosion, infinite=True)
        self.step_size_at(0)
        object.__setattr__(self, "_combining", self.consensus if isinstance(self.consensus, Combining) else None)

    def step_size_at(self, samples: int) -> float:
        """η after so many samples; refuses η ≥ 1/λ, with which shrinking would overshoot."""
        eta = cast(Schedule, self.step_size)(samples)
        if not 0.0 <= eta < math.inf:
            raise InvalidArgument("Agent", "step_size", f"be finite and >= 0 at sample {samples}", eta)
        if eta * self.regularization >= 1.0:
            limit = 1.0 / self.regularization
            raise InvalidArgument("Agent", "step_size", f"be < 1/regularization = {limit:g} at sample {samples}", eta)
        return eta

    def start(self, *, name: Hashable = 0, function: Expansion | None = None) -> State:
        """A new state: from nothing, or from a function learned elsewhere."""
        if function is None:
            function = Expansion.zero(self.kernel, dimension=self.dimension, outputs=self.outputs)
        elif (function.dimension, function.outputs) != (self.dimension, self.outputs) or function.kernel != self.kernel:
            raise InvalidArgument(
                "Agent.start",
                "function",
                f"have dimension {self.dimension}, outputs {self.outputs} and kernel {self.kernel}",
                f"{function.dimension}, {function.outputs} and {function.kernel}",
            )
        return State(name=name, model=self.compression.start(function))

    def check_state(self, owner: str, state: State) -> None:
        """Refuse a state that was started with other settings."""
        f = state.function
        if f.centers.shape[1] != self.dimension or f.weights.shape[1] != self.outputs:
            found = Verbatim(f"dimension {f.dimension} and {f.outputs} outputs")
            raise InvalidArgument(owner, "state", f"have dimension {self.dimension} and {self.outputs} outputs", found)
        if f.kernel is not self.kernel and f.kernel != self.kernel:
            raise InvalidArgument(owner, "state", f"have kernel {self.kernel}", f.kernel)

    def predict(self, state: State, points: Floats) -> Floats:
        """f at each row of `points`: n × outputs."""
        return state.function(matrix("Agent.predict", "points", points, columns=self.dimension))

    def check(self, points: Any, targets: Any) -> tuple[Floats, Any]:
        """A mini-batch in the form that a step takes, or an error that says what is wrong with it."""
        points = matrix("Agent", "points", points, columns=self.dimension)
        if not len(points):
            raise InvalidArgument("Agent", "points", "have at least one row", Verbatim(f"shape {points.shape}"))
        return points, self.loss.check("Agent", targets, rows=len(points), outputs=self.outputs)

    def ask(self, state: State, points: Any) -> Message | None:
        """What to send to every neighbor before stepping on these points; None when nothing is to be sent to all."""
        points = matrix("Agent.ask", "points", points, columns=self.dimension)
        return self.consensus.ask(state.model.function, points)

    def offer(
        self, state: State, neighbor: Hashable, share: float, there: tuple[int, int] | None = None
    ) -> Message | None:
        """What to send to one neighbor in particular, if the protocol keeps account of each edge.

        `share` is 1 / (1 + our degree); the step must be told the same one with what was heard. `there` is the epoch and the
        number of exchanges that the neighbor says it has completed, where it does.
        """
        if self._combining is None:
            return None
        return self._combining.offer(state.model.function, state.edges.get(neighbor), share, there)

    @property
    def offers(self) -> bool:
        """Whether the protocol speaks to each neighbor in particular."""
        return self._combining is not None

    def answer(self, state: State, question: Message) -> Message | None:
        """The reply to a neighbor's question, from the function as it is now."""
        self.check_message("Agent.answer", "question", question)
        return self.consensus.answer(state.function, question)

    def gap(self, state: State, points: Floats, heard: Sequence[Heard]) -> float | None:
        """√ mean ‖f(x) − f_j(x)‖² over these points and the neighbors that were heard about them; None: none was."""
        here = state.function(points)
        there = []
        for said in heard:
            if isinstance(said.answered, Values):
                there.append(said.answered.values)
            elif isinstance(said.asked, Function | Offer | Repair):
                there.append(Expansion(self.kernel, said.asked.centers, said.asked.weights)(points))
        return (
            math.sqrt(float(np.mean([((here - values) ** 2).sum(axis=1).mean() for values in there])))
            if there
            else None
        )

    def check_message(self, owner: str, argument: str, message: Message, *, rows: int | None = None) -> None:
        """Refuse a message whose matrices have the wrong number of columns or rows."""
        for name in message.names:
            table = getattr(message, name)
            columns = self.dimension if name in ("points", "centers", "dual_centers") else self.outputs
            if table.ndim != 2 or table.shape[1] != columns or (rows is not None and len(table) != rows):
                rule = f"have {name} with {columns} columns" + (f" and {rows} rows" if rows is not None else "")
                raise InvalidArgument(owner, argument, rule, Verbatim(f"shape {table.shape}"))

    def stability_warning(self, batches: Sequence[Floats], graph: Graph, *, first: int, last: int) -> str | None:
        """Whether the penalty will be too large for mini-batches like these within a range of samples, in words, or None.

        docs/consensus.md derives the bound. Protocols that are stable for every penalty have none.
        """
        if not isinstance(self.consensus, Explicit):
            return None
        per_step = self.consensus.most(self.kernel, batches, 1.0, graph.stiffness)
        for samples in np.unique(np.linspace(first, max(first, last - 1), 256).astype(int)):
            penalty, step_size = self.consensus.penalty(int(samples)), self.step_size_at(int(samples))
            if penalty * step_size > per_step:
                name = type(self.consensus).__name__
                when = f"reaches {penalty:.3g} after {samples} samples" if samples else f"is {penalty:.3g}"
                return (
                    f"{name}: with step size {step_size:g} in this network the penalty must stay below "
                    f"{per_step / step_size:.2g}, else agents drive each other apart, but it {when}; is_first or cap it "
                    f"(Doubling has a ceiling), is_first the step size, or take another protocol (only Penalty and Hilbert "
                    f"have such a bound)"
                )
        return None

    @property
    def relays(self) -> bool:
        """Whether an agent without samples can take part in a round."""
        return isinstance(self.consensus, Relaying)

    def relay(self, state: State, heard: Sequence[Heard]) -> State:
        """Take part in a round without samples: go where the neighbors are, and learn nothing. Counts as a step."""
        if not isinstance(self.consensus, Relaying):
            raise InvalidArgument("Agent.relay", "consensus", "be one that relays, such as Diffusion", self.consensus)
        for said in heard:
            if said.asked is not None:
                self.check_message("Agent.relay", "heard", said.asked)
        state.model.check_ownership()
        model, edges, shown = state.model, state.edges, None
        try:
            if self._combining is not None:
                model, edges = self._combine(state, self._combining, heard)
                shown = model.function
            update = self.consensus.relay(model.function, heard)
            if self._combining is not None:
                update = update.joined(self._combining.correction(edges))
            if len(update.points) or update.shrink != 1.0:
                model, _ = self.compression.absorb(model, update, samples=state.samples)
        except FloatingPointError as error:
            state.model.invalidate()
            self._blame(heard)
            raise self._diverged(state, self.step_size_at(state.samples), str(error)) from None
        except BaseException:
            state.model.invalidate()
            raise
        return replace(state, model=model, steps=state.steps + 1, edges=edges, shown=shown)

    def step(self, state: State, points: Any, targets: Any, heard: Sequence[Heard] = ()) -> tuple[State, Info]:
        """Learn from a mini-batch and what the neighbors said. On any error `state` is as it was."""
        self.check_state("Agent.step", state)
        points, targets = self.check(points, targets)
        for said in heard:
            if said.asked is not None:
                self.check_message("Agent.step", "heard", said.asked)
            if said.answered is not None:
                self.check_message("Agent.step", "heard", said.answered, rows=len(points))
        return self.advance(state, points, targets, heard)

    def advance(self, state: State, points: Floats, targets: Any, heard: Sequence[Heard] = ()) -> tuple[State, Info]:
        """`step` for runtimes, which have had state, mini-batch and messages checked before."""
        state.model.check_ownership()
        try:
            return self._advance(state, points, targets, heard)
        except BaseException:
            state.model.invalidate()
            raise

    def _advance(self, state: State, points: Floats, targets: Any, heard: Sequence[Heard]) -> tuple[State, Info]:
        model, edges, shown = state.model, state.edges, None
        if self._combining is not None:
            try:
                model, edges = self._combine(state, self._combining, heard)
            except FloatingPointError as error:
                self._blame(heard)
                raise self._diverged(state, self.step_size_at(state.samples), str(error)) from None
            shown = model.function
        f = model.function
        cross = self.kernel(points, f.centers)
        here = f.from_cross(cross)
        step_size = self.step_size_at(state.samples)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named in the end
                losses, slope = self.loss.value_and_slope(here, targets)
                loss, baseline_loss = self._watch(state, step_size, losses, targets)
                moment = StepInputs(
                    function=f,
                    points=points,
                    targets=targets,
                    loss=self.loss,
                    here=here,
                    slope=slope,
                    cross=cross,
                    step_size=step_size,
                    regularization=self.regularization,
                    samples=state.samples,
                )
                update = self.consensus.move(moment, heard)
            if self._combining is not None:
                update = update.joined(self._combining.correction(edges))
            model, report = self.compression.absorb(model, update, samples=state.samples)
        except FloatingPointError as error:
            self._blame(heard)
            raise self._diverged(state, step_size, str(error)) from None
        except SystemError as error:  # what numba makes of Ctrl-C
            if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        norm = math.sqrt(model.square_norm)
        if norm > self.radius:
            model, norm = model.scaled(self.radius / norm), self.radius
        after = State(
            name=state.name,
            model=model,
            samples=state.samples + len(points),
            steps=state.steps + 1,
            edges=edges,
            shown=shown,
            baseline_loss=baseline_loss,
        )
        info = Info(
            samples=len(points),
            loss=loss,
            order=model.function.order,
            norm=norm,
            step_size=step_size,
            penalty=self.consensus.penalty(state.samples),
            budget=report.budget,
            error=report.error,
            removed=report.removed,
            dependent=report.dependent,
            heard=len(heard),
            over_budget=report.over_budget,
            repaired=report.repaired,
        )
        return after, info

    def _combine(self, state: State, consensus: Combining, heard: Sequence[Heard]) -> tuple[Model, Edges]:
        """The first of two moves: to where the neighbors are."""
        update, edges = consensus.combine(state.model.function, heard, state.edges)
        if not len(update.points) and update.shrink == 1.0:  # nobody was heard
            return state.model, edges
        model, _ = self.compression.absorb(state.model, update, samples=state.samples)
        return model, edges

    @staticmethod
    def _blame(heard: Sequence[Heard]) -> None:
        """Refuse answers that are not finite: then it was they, not the run, that diverged."""
        for said in heard:
            for message in (said.asked, said.answered):
                for name, table in message.tables.items() if message is not None else ():
                    matrix("Agent.step", f"heard {name}", table)

    def _watch(self, state: State, step_size: float, losses: Floats, targets: Any) -> tuple[float, float]:
        """The mean loss of the mini-batch and the baseline_loss for it; refuses to go on when the one dwarfs the other."""
        loss = float(np.add.reduce(losses)) / len(losses)
        baseline_loss = state.baseline_loss
        if (
            not loss <= self.explosion * baseline_loss
        ):  # true for the first samples, whose baseline_loss is not known yet
            zero_loss = float(self.loss.value(np.zeros((len(losses), self.outputs)), targets).mean())
            # a function from elsewhere may meet targets that are all 0: its own first loss is a baseline_loss too
            baseline_loss = max(baseline_loss, zero_loss, loss if state.steps == 0 and math.isfinite(loss) else 0.0)
            if not loss <= self.explosion * max(baseline_loss, np.finfo(float).tiny):
                worse = f"the loss on the newest samples is {loss:.3g} where predicting 0 costs {baseline_loss:.3g}"
                raise self._diverged(state, step_size, worse)
        return loss, baseline_loss

    def _diverged(self, state: State, step_size: float, reason: str) -> Diverged:
        return Diverged(
            agent=state.name,
            samples=state.samples,
            step_size=step_size,
            penalty=self.consensus.penalty(state.samples),
            reason=reason,
        )
