"""The interface of consensus protocols."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, integer
from kernelmesh.consensus.duals import digest
from kernelmesh.messages import Function, Message, Offer, Points, Probe, Terms, Values
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.halves import Half, halved, whole
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.schedules import Doubling, Schedule, as_schedule

__all__ = ["FUNCTIONS", "NOTHING", "NUMBERED_OFFERS", "NUMBERED_STATISTICS", "NUMBERED_WEIGHTS"]
__all__ += ["POINTS_FOR_VALUES", "PROBES_FOR_VALUES"]
__all__ += [
    "Consensus",
    "Coupled",
    "EdgeMemories",
    "EdgeMemory",
    "Exchange",
    "Heard",
    "PastOffer",
    "Spaced",
    "StepInputs",
    "Tuning",
]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What crosses an edge in a round, each way."""

    question: type[Message] | None = None
    """The query about an agent's new points to all neighbors; None if nothing depends on them."""
    replies: tuple[type[Message], ...] = ()
    """The possible replies of a neighbor; empty if there are none."""
    mutual: bool = False
    """Whether a step also uses the neighbors' queries."""
    numbered: bool = False
    """Whether exchanges over each edge are numbered, so that both ends use the same two functions once."""
    statistics: bool = False
    """Whether offers contain `Statistics` of samples instead of functions."""
    shared: bool = False
    """Whether functions are over points that all agents share, which the compression `SharedDictionary` ensures."""


NOTHING = Exchange()
"""Agents exchange nothing."""
POINTS_FOR_VALUES = Exchange(question=Points, replies=(Values,))
"""An agent sends points and receives the neighbors' values there."""
PROBES_FOR_VALUES = Exchange(question=Probe, replies=(Values,), mutual=True)
"""An agent sends points with its own values and receives the neighbors' values; both ends move."""
FUNCTIONS = Exchange(replies=(Function,))
"""An agent sends its whole function."""
NUMBERED_OFFERS = Exchange(replies=(Offer,), numbered=True)
"""An agent sends functions, each for one numbered exchange over one edge."""
NUMBERED_WEIGHTS = Exchange(replies=(Offer,), numbered=True, shared=True)
"""An agent sends functions over shared points, each for one numbered exchange; only weights, once points are known."""
NUMBERED_STATISTICS = Exchange(replies=(Offer,), numbered=True, statistics=True)
"""An agent sends statistics of samples, each for one numbered exchange over one edge."""


@dataclass(frozen=True, eq=False, slots=True)
class PastOffer:
    """An offer that is rarely needed again: of its moments, only half is kept."""

    centers: Floats
    weights: Floats
    terms: Terms
    half: Floats | Half | None = None
    in_doubt: bool = False

    @classmethod
    def of(cls, offer: Offer, half: Floats | Half | None = None) -> Self:
        """From an offer without a dual; `half` is that of its moments, if it is known."""
        if half is None and offer.moments is not None:
            half = halved(offer.moments)
        return cls(offer.centers, offer.weights, offer.terms, half, offer.in_doubt)

    @property
    def moments(self) -> Floats | None:
        """The moments of the offer, if it has any."""
        return None if self.half is None else whole(self.half)

    def offer(self, terms: Terms) -> Offer:
        """The offer again, with these terms."""
        return Offer(self.centers, self.weights, terms, moments=self.moments, in_doubt=self.in_doubt)


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeMemory:
    """What one end of an edge remembers about numbered exchanges, in which both ends use the same two functions once.

    Messages may be lost, so the ends cannot always complete an exchange in the same round. An offer is therefore kept
    unchanged until it has been used and the other end is known to have it. The ends are never more than one
    exchange apart. If they find that their duals are not opposite, a new epoch begins: the end that comes first in the
    graph keeps its dual and hands it over, the other drops its own.
    """

    dual: Expansion | None = None
    epoch: int = 0
    """How often the duals had to be made opposite again, because one end had lost its memory or rounds differently."""
    done: int = 0
    """Exchanges completed at this end in this epoch."""
    acts: int = 0
    """The number of rounds, including this one, in which the dual still acts or the edge counts as alive."""
    offered: Offer | None = None
    """Our offer in the open exchange."""
    before: PastOffer | None = None
    """Our offer in the last completed exchange, which is sent again if the other end has missed it."""
    early: Offer | None = None
    """Their offer in the exchange after the open one, if they are ahead."""
    behind: bool = False
    """Whether the other end had not completed our last exchange when last heard."""
    handed: Expansion | None = None
    """The dual with which this epoch began, at the end that hands it over; kept until the other end is known to have it."""
    newest: Offer | None = field(default=None, init=False, repr=False)
    """The last message over this edge in the open exchange, a cache for repeated queries."""

    def with_acts(self, acts: int) -> Self:
        """A copy with another number of rounds in which the dual acts."""
        # `dataclasses.replace` takes ten times as long, and this happens for every edge in every round without an exchange
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, acts=acts)
        return out

    @property
    def has_begun(self) -> bool:
        """Whether anything has been exchanged, or taken over from an earlier epoch."""
        return self.done > 0 or self.dual is not None

    @property
    def digest(self) -> int:
        """A digest of the dual up to its sign: equal at both ends while the duals are opposite.

        0 before the first exchange of an epoch, when one end has yet to take over the dual of the other.
        """
        if self.dual is None or self.done == 0:
            return 0
        return digest(self.dual)


EdgeMemories = Mapping[Hashable, EdgeMemory]
"""What an agent remembers about each edge, by neighbor."""


class Heard(NamedTuple):
    """What one neighbor sent in this round."""

    question: Message | None
    """Its own query, if the protocol is mutual; None if it had no samples."""
    reply: Message | None
    """Its values at our points, its function, or its offer."""
    weight: float = 0.0
    """The Metropolis weight of the edge."""
    neighbor: Hashable = None
    is_first: bool = False
    """Whether we, not the neighbor, are the end of the edge that comes first in the graph."""
    share: float = 0.0
    """The maximum weight that we can give an edge in this round: 1 / (1 + our degree)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs:
    """The inputs of a step: the function, the new samples, and the current rates."""

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
    """Whether `Consensus.combine` has already averaged with the neighbors."""
    exchanges_next: bool = False
    """Whether it will precede the next step as well."""

    @property
    def shrink(self) -> float:
        """1 − ηλ."""
        return 1.0 - self.step_size * self.regularization


@dataclass(frozen=True, eq=False, kw_only=True)
class Tuning:
    """What is known about a network before it starts, from which a protocol can choose its settings."""

    step_size: float
    coupling: Doubling
    """The schedule of c, for protocols that have one."""
    limit: float = math.inf
    """Cap c at this fraction of the stability limit."""
    dual_budget: float
    """δ, for protocols with duals."""
    kernel: Kernel
    batches: Sequence[Floats]
    """A mini-batch of each agent, or similar points."""
    stiffness: float
    """`Graph.stiffness` of the network."""
    every: int | None = None
    """k, for protocols that need not exchange in every round; None means the protocol's `usual_every`."""


@runtime_checkable
class Consensus(Protocol):
    """A consensus protocol: what agents send to their neighbors, and how they use what they receive.

    The base class of all protocols. A protocol declares its `exchange` and defines `move`; everything
    else has a default here. `kernelmesh.testing.check_consensus` checks a protocol, and `register("consensus")`
    makes it available in files and on the command line.

    Attributes
    ----------
    exchange : Exchange
        What crosses an edge in a round.
    every : int
        k: agents exchange in every k-th round, and learn alone in the others.
    relays : bool
        Whether an agent without samples takes part in rounds (`relay`), so that its neighbors stay connected.
    replays : bool
        Whether an agent whose stream has ended may learn from samples it has kept (`Agent.replay`).
    agreement : Any
        The settings that both ends of an edge must share, in JSON form.

    Examples
    --------
    >>> from kernelmesh import Penalty
    >>> isinstance(Penalty(coupling=0.1), Consensus)
    True
    """

    exchange: ClassVar[Exchange] = NOTHING
    relays: ClassVar[bool] = False
    """Whether an agent without samples takes part in rounds (`relay`), so that its neighbors stay connected."""
    every: int = 1
    """k: agents exchange in every k-th round. A field of protocols that make it configurable."""
    usual_every: ClassVar[int] = 1
    """The default k of a new network."""
    stacks: ClassVar[bool] = False
    """Whether agents over the same points can be advanced as one tensor by `kernelmesh.stack`."""

    def exchanges(self, step: int) -> bool:
        """Whether agents exchange before this step, counted from 1."""
        return step % self.every == 0

    def ask(self, function: Expansion, points: Floats) -> Message:
        """The query about new points to every neighbor, if the exchange has one."""
        return Points(points)

    def answer(self, function: Expansion, question: Any) -> Message:
        """The reply to a neighbor's query."""
        return Values(function.evaluate(question.points))

    def tell(
        self, function: Expansion, edge: EdgeMemory | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        """The message to one neighbor, if functions are exchanged; `edge` is the memory of the edge to it.

        `share` is 1 / (1 + our degree). `there` is the epoch, and the exchanges completed in it, that the other end has
        reported apart from its offers.
        """
        return Function(function.centers, function.weights)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> tuple[Update | None, EdgeMemories]:
        """The first of two stages: average with the neighbors, and update the memory of each edge.

        Returns None if the protocol has only one stage. After the first stage, the agent shows its result.
        """
        return None, edges

    def move(self, inputs: StepInputs, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        """The step before compression; `edges` is the memory returned by `combine`."""

    def relay(self, function: Expansion, heard: Sequence[Heard], edges: EdgeMemories) -> Update:
        """`move` without samples, if the protocol relays; otherwise, the function does not change."""
        return Update(np.empty((0, function.dimension)), np.empty((0, function.outputs)))

    @property
    def replays(self) -> bool:
        """Whether an agent whose stream has ended may learn from samples it has kept (`Agent.replay`)."""
        return bool(self.exchange.replies) and not self.exchange.statistics  # in which samples would count twice

    @property
    def agreement(self) -> Any:
        """The settings that both ends of an edge must share, in JSON form."""
        return type(self).__name__

    def penalty(self, samples: int) -> float:
        """The penalty c on disagreement after this many samples (0 if the protocol has none)."""
        return 0.0

    def max_stable_penalty(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        """The largest penalty for which disagreement shrinks, for mini-batches like these and a network of this stiffness."""
        return math.inf

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        """The protocol with settings chosen for a network; called by `kernelmesh run --protocol` and `mesh init`."""
        return cls()


@dataclass(frozen=True, kw_only=True)
class Coupled(Consensus, Protocol):
    """The base class of protocols with a coupling: `coupling` is c, a number or a schedule."""

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
    """The base class of protocols whose only setting is `every` = k, the same for all agents."""

    every: int = 1

    def __post_init__(self) -> None:
        integer(type(self).__name__, "every", self.every, minimum=1)

    @property
    def agreement(self) -> Any:
        return [type(self).__name__, self.every]

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        return cls(every=tuning.every or cls.usual_every)
