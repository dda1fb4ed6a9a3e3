"""The role that every protocol plays, and what it declares about itself."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, integer
from kernelmesh.consensus.duals import digest
from kernelmesh.messages import Function, Message, Offer, Points, Probe, Values
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.schedules import Doubling, Schedule, as_schedule

__all__ = ["FUNCTIONS", "NOTHING", "NUMBERED_OFFERS", "NUMBERED_STATISTICS", "NUMBERED_WEIGHTS"]
__all__ += ["POINTS_FOR_VALUES", "PROBES_FOR_VALUES"]
__all__ += ["Consensus", "Coupled", "EdgeMemories", "EdgeMemory", "Exchange", "Heard", "Spaced", "StepInputs", "Tuning"]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What crosses an edge in a round, each way."""

    question: type[Message] | None = None
    """What an agent asks all neighbors about its new points; None where nothing depends on them."""
    replies: tuple[type[Message], ...] = ()
    """What a neighbor says; empty where nothing crosses at all."""
    mutual: bool = False
    """Whether a step also uses what the neighbors asked."""
    numbered: bool = False
    """Whether both ends keep count of what they said over each edge, so that each uses the same two functions once."""
    statistics: bool = False
    """Whether what is offered are `Statistics` of samples instead of functions."""
    shared: bool = False
    """Whether functions are over points that all agents share, which the compression `SharedDictionary` sees to."""


NOTHING = Exchange()
"""Agents do not talk."""
POINTS_FOR_VALUES = Exchange(question=Points, replies=(Values,))
"""Points go out, the neighbors' values at them come back."""
PROBES_FOR_VALUES = Exchange(question=Probe, replies=(Values,), mutual=True)
"""Points go out with one's own values, the neighbors' values come back, and both ends move."""
FUNCTIONS = Exchange(replies=(Function,))
"""Whole functions go out."""
NUMBERED_OFFERS = Exchange(replies=(Offer,), numbered=True)
"""Functions go out, each for one numbered exchange over one edge."""
NUMBERED_WEIGHTS = Exchange(replies=(Offer,), numbered=True, shared=True)
"""Functions over shared points go out, each for one numbered exchange over one edge: weights only, once points are known."""
NUMBERED_STATISTICS = Exchange(replies=(Offer,), numbered=True, statistics=True)
"""Statistics of samples go out, each for one numbered exchange over one edge."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeMemory:
    """What one end of an edge remembers of numbered exchanges, in which each end uses the same two functions once.

    Messages may be lost, so the ends cannot always complete an exchange in the same round. What was offered is therefore kept
    as it was until it has been used, and once more until the other end is known to have it. The ends are never more than one
    exchange apart. When they find that their duals are not opposite, a new epoch begins: the end that stands first in the
    graph keeps its dual and hands it over, the other drops its own.
    """

    dual: Expansion | None = None
    epoch: int = 0
    """How often the duals have had to be made opposite again, because one end had lost its memory or rounds differently."""
    done: int = 0
    """Exchanges completed at this end in this epoch."""
    acts: int = 0
    """Rounds, the newest included, in which the dual still acts or the edge counts as alive; anew with every exchange."""
    offered: Offer | None = None
    """Ours in the exchange that is open."""
    before: Offer | None = None
    """Ours in the one completed last."""
    early: Offer | None = None
    """Theirs in the one after the open one: they are ahead."""
    behind: bool = False
    """Whether the other end, when last heard, had not completed the exchange that we had."""
    handed: Expansion | None = None
    """The dual with which this epoch began, at the end that hands it over; kept until the other end is known to have it."""
    newest: Offer | None = field(default=None, init=False, repr=False)
    """What was last told over this edge in the open exchange, for whoever asks again; it follows from the rest."""

    def with_acts(self, acts: int) -> Self:
        """The same with another number of rounds in which the dual acts."""
        # `dataclasses.replace` takes ten times as long, and this happens for every edge in every round without an exchange
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, acts=acts)
        return out

    @property
    def digest(self) -> int:
        """Of the dual without regard to its sign: the same at both ends while they are opposite.

        0 before the first exchange of an epoch, when one end has yet to take over the dual of the other.
        """
        if self.dual is None or self.done == 0:
            return 0
        return digest(self.dual)


EdgeMemories = Mapping[Hashable, EdgeMemory]
"""What an agent remembers of each edge, by neighbor."""


class Heard(NamedTuple):
    """What one neighbor said in this round."""

    question: Message | None
    """Its own question, where the protocol is mutual; None when it had no samples."""
    reply: Message | None
    """Its values at our points, its function, or its offer."""
    weight: float = 0.0
    """The Metropolis weight of the edge."""
    neighbor: Hashable = None
    is_first: bool = False
    """Whether we, not the neighbor, are the end of the edge that stands first in the graph."""
    share: float = 0.0
    """The most weight that we can give an edge in this round: 1 / (1 + our degree)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs:
    """What an agent knows when it is about to move: its function, its new samples, and the rates in force."""

    function: Expansion
    points: Floats
    targets: Any
    loss: Loss
    here: Floats
    """f(X), the outputs at the new points before the step."""
    slope: Floats
    """ℓ'(f(X), y)."""
    cross: Floats
    """κ(X, D)."""
    step_size: float
    regularization: float
    samples: int
    combined: bool = False
    """Whether `Consensus.combine` has already led to where the neighbors are."""

    @property
    def shrink(self) -> float:
        """1 − ηλ."""
        return 1.0 - self.step_size * self.regularization


@dataclass(frozen=True, eq=False, kw_only=True)
class Tuning:
    """What is known of a network before it starts, from which a protocol can choose its own settings."""

    step_size: float
    coupling: Doubling
    """The schedule of c, for protocols that have one."""
    limit: float = math.inf
    """Cap c at this share of what is stable."""
    dual_budget: float
    """δ, for protocols with duals."""
    kernel: Kernel
    batches: Sequence[Floats]
    """A mini-batch of each agent, or points like them."""
    stiffness: float
    """`Graph.stiffness` of the network."""
    every: int | None = None
    """k, for protocols that need not exchange in every round; None: what suits the protocol, its `usual_every`."""


@runtime_checkable
class Consensus(Protocol):
    """What an agent says to its neighbors, and how it moves given what it heard.

    The role that every protocol plays. A protocol derives from it, declares its `exchange`, and defines `move`; everything
    else has a default here. `kernelmesh.testing.check_consensus` checks that it is a good one, and `register("consensus")`
    makes it known to files and to the command line.

    Attributes
    ----------
    exchange : Exchange
        What crosses an edge in a round.
    every : int
        k: exchanges happen in every k-th round, all the others are an agent's own.
    relays : bool
        Whether an agent without samples takes part in rounds (`relay`), so that it holds its neighbors together.
    replays : bool
        Whether an agent whose stream has ended may learn from samples that it has kept (`Agent.replay`).
    agreement : Any
        The settings that both ends of an edge must have in common, as JSON can hold them.

    Examples
    --------
    >>> from kernelmesh import Penalty
    >>> isinstance(Penalty(coupling=0.1), Consensus)
    True
    """

    exchange: ClassVar[Exchange] = NOTHING
    relays: ClassVar[bool] = False
    """Whether an agent without samples takes part in rounds (`relay`), so that it holds its neighbors together."""
    every: int = 1
    """k: exchanges happen in every k-th round. A field of protocols that leave it open."""
    usual_every: ClassVar[int] = 1
    """k that a network gets which is set up without one."""
    stacks: ClassVar[bool] = False
    """Whether agents over the same points can be advanced as one tensor: the protocol is that of `kernelmesh.stack`."""

    def exchanges(self, step: int) -> bool:
        """Whether agents talk before they take this step, counted from 1. Otherwise a step hears nothing."""
        return step % self.every == 0

    def ask(self, function: Expansion, points: Floats) -> Message:
        """The question to every neighbor about new points, where the exchange has one."""
        return Points(points)

    def answer(self, function: Expansion, question: Any) -> Message:
        """The reply to a neighbor's question."""
        return Values(function.evaluate(question.points))

    def tell(
        self, function: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        """What one neighbor is told, where functions are exchanged; `edge` is what is remembered of the edge to it.

        `share` is 1 / (1 + our degree). `there` is the epoch, and the exchanges completed in it, that the other end has told
        us of apart from its offers.
        """
        return Function(function.centers, function.weights)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[Update | None, EdgeMemories]:
        """The first of two moves, to where the neighbors are, and what is remembered of each edge from now on.

        None: this protocol moves only once. After a first move, what the agent shows is where that led.
        """
        return None, edges

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        """The step before compression; `edges` is what `combine` has just returned."""

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        """`move` without samples, where the protocol relays; otherwise the agent stays where it is."""
        return Update(np.empty((0, function.dimension)), np.empty((0, function.outputs)))

    @property
    def replays(self) -> bool:
        """Whether an agent whose stream has ended may learn from samples that it has kept (`Agent.replay`)."""
        return bool(self.exchange.replies) and not self.exchange.statistics  # in which samples would count twice

    @property
    def agreement(self) -> Any:
        """The settings that both ends of an edge must have in common, as JSON can hold them."""
        return type(self).__name__

    def penalty(self, samples: int) -> float:
        """How strongly disagreement is weighed, c, after so many samples (0 where there is no such thing)."""
        return 0.0

    def max_stable_penalty(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        """The penalty up to which disagreement shrinks, for mini-batches like these and a network of this stiffness."""
        return math.inf

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        """The protocol with settings that suit a network; `kernelmesh run --protocol` and `mesh init` call it."""
        return cls()


@dataclass(frozen=True, kw_only=True)
class Coupled(Consensus, Protocol):
    """What protocols with a coupling share: `coupling` is c, a number or a schedule."""

    coupling: Schedule | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "coupling", as_schedule(type(self).__name__, "coupling", self.coupling))

    def penalty(self, samples: int) -> float:
        return cast(Schedule, self.coupling)(samples)

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        limit = cls(coupling=1.0).max_stable_penalty(tuning.kernel, tuning.batches, tuning.step_size, tuning.stiffness)
        return cls(coupling=replace(tuning.coupling, ceiling=tuning.limit * limit))


@dataclass(frozen=True, kw_only=True)
class Spaced(Consensus, Protocol):
    """What protocols share that leave open how often agents talk, and nothing else: `every` is k, the same at all agents."""

    every: int = 1

    def __post_init__(self) -> None:
        integer(type(self).__name__, "every", self.every, minimum=1)

    @property
    def agreement(self) -> Any:
        return [type(self).__name__, self.every]

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        return cls(every=tuning.every or cls.usual_every)
