"""The role that every protocol plays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kernelmesh.checks import Floats
from kernelmesh.messages import Message, Offer
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss

__all__ = ["Combining", "Consensus", "Edge", "Edges", "Explicit", "Heard", "Relaying", "StepInputs"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Edge:
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
    fresh: bool = False
    """Whether one was completed in the newest round; only then does the dual act."""
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


Edges = Mapping[Hashable, Edge]
"""What an agent remembers of each edge, by neighbor."""


class Heard(NamedTuple):
    """What one neighbor said in this round."""

    asked: Message | None
    """Its own question; None when it had no samples."""
    answered: Message | None
    """Its answer to our question."""
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


@runtime_checkable
class Combining(Protocol):
    """What a protocol has in addition when it moves twice in a round: first to where its neighbors are, then by its data."""

    def offer(
        self, function: Expansion, edge: Edge | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        """What to send over one edge, in place of a question to all; `edge` is what is remembered of it.

        `there` is the epoch, and the exchanges completed in it, that the other end has told us of apart from its offers.
        """
        ...

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: Edges) -> tuple[Update, Edges]:
        """The first move, and what is remembered of each edge from now on."""
        ...

    def correction(self, edges: Edges) -> tuple[Floats, Floats] | None:
        """Points with coefficients that the second move adds on account of the edges; None for nothing."""
        ...


@runtime_checkable
class Relaying(Protocol):
    """What a protocol has in addition when an agent without samples can still hold its neighbors together."""

    def relay(self, function: Expansion, heard: Sequence[Heard]) -> Update:
        """The move of an agent that has nothing to learn from in this round."""
        ...


@runtime_checkable
class Explicit(Protocol):
    """What a protocol has in addition when too large a penalty drives agents apart instead of together."""

    def most(self, kernel: Kernel, batches: Sequence[Floats], step_size: float, stiffness: float) -> float:
        """The penalty up to which disagreement shrinks, for mini-batches like these and a network of this stiffness."""
        ...


@runtime_checkable
class Consensus(Protocol):
    """What an agent asks, what it answers, and how it moves given what it heard."""

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        """The question to every neighbor about the new points (none at the end of a stream); None: nothing to say."""
        ...

    def answer(self, function: Expansion, question: Message) -> Message | None:
        """The reply to a neighbor's question."""
        ...

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        """The step before compression, from what the neighbors said."""
        ...

    def penalty(self, samples: int) -> float:
        """How strongly disagreement is weighed, c, after so many samples (0 where there is no such thing)."""
        ...
