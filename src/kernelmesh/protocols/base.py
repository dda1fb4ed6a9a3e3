"""The interface of consensus protocols."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from msgspec import Struct

from kernelmesh.checks import Floats
from kernelmesh.messages import Message, Points, Values
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.losses import Loss
from kernelmesh.numerics.schedules import Doubling, Schedule, check_schedule, value_at

__all__ = ["ConsensusProtocol", "Coupled", "Heard", "StepInputs", "Tuning"]


class Heard(Struct, frozen=True):
    """What one neighbor sent in this round."""

    reply: Any
    """Its values at our points, or its function; None if nothing arrived."""
    weight: float = 0.0
    """The Metropolis weight of the edge."""
    neighbor: Hashable = None


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs:
    """The inputs of a step: the function, the new samples, and the current rates."""

    function: Function
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
    grows: bool = True
    """Whether the agent chooses its points itself; otherwise the network has a list of them."""

    @property
    def shrink(self) -> float:
        """1 − ηλ."""
        return 1.0 - self.step_size * self.regularization


@dataclass(frozen=True, eq=False, kw_only=True)
class Tuning:
    """What is known about a network before it starts, from which a protocol can choose its settings.

    Attributes
    ----------
    step_size : float
        η of the agents.
    coupling : Doubling
        The schedule of c, for protocols that have one.
    limit : float
        Cap c at this fraction of the stability limit.
    kernel : Kernel
        The kernel of the agents.
    batches : sequence of arrays
        A mini-batch of each agent, or similar points.
    stiffness : float
        `Graph.stiffness` of the network.
    every : int, optional
        k, for protocols that need not exchange in every round; None means the protocol's default.

    Examples
    --------
    >>> from kernelmesh import Diffusion, Gaussian
    >>> schedule = Doubling(start=0.01, every=200)
    >>> Diffusion.tuned(Tuning(step_size=3.0, coupling=schedule, kernel=Gaussian(), batches=(), stiffness=4.0, every=5))
    Diffusion(every=5)
    """

    step_size: float
    coupling: Doubling
    limit: float = math.inf
    kernel: Kernel
    batches: Sequence[Floats]
    stiffness: float
    every: int | None = None


@runtime_checkable
class ConsensusProtocol(Protocol):
    """A consensus protocol: what agents send to their neighbors, and how they use what they receive.

    The base class of all protocols. A protocol declares its messages, `question` and `reply`, and defines `move`; everything
    else has a default here. `kernelmesh.testing.check_protocol` checks a protocol, and `register("protocol")`
    makes it available in files and on the command line.

    Attributes
    ----------
    question : type of Message, optional
        The query about an agent's new points to all neighbors; None if nothing depends on them.
    reply : type of Message, optional
        What an agent sends to each neighbor in a round, in answer to the question if there is one; None if agents are silent.
    every : int
        k: agents exchange in every k-th round, and learn alone in the others.
    listens : bool
        Whether an agent without samples takes part in rounds (`listen`), so that its neighbors stay connected.

    Examples
    --------
    >>> from kernelmesh import Penalty
    >>> isinstance(Penalty(coupling=0.1), ConsensusProtocol)
    True
    """

    question: ClassVar[type[Message] | None] = None
    reply: ClassVar[type[Message] | None] = None
    listens: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    """Whether agents add up sums over their samples (`News`), which they send without being asked."""
    every: int = 1
    """k: agents exchange in every k-th round. A field of protocols that make it configurable."""

    def exchanges(self, step: int) -> bool:
        """Whether agents exchange before this step, counted from 1."""
        return step % self.every == 0

    def ask(self, function: Function, points: Floats) -> Message:
        """The query about new points to every neighbor, if the protocol has one."""
        return Points(points)

    def answer(self, function: Function, question: Any) -> Message:
        """The reply to a neighbor's query."""
        return Values(function.evaluate(question.points))

    def move(self, inputs: StepInputs, heard: Sequence[Heard]) -> Update:
        """The step before compression."""

    def listen(self, function: Function, heard: Sequence[Heard]) -> Update:
        """`move` without samples, if the protocol listens; otherwise, the function does not change."""
        return Update(np.empty((0, function.dimension)), np.empty((0, function.outputs)))

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
class Coupled(ConsensusProtocol, Protocol):
    """The base class of protocols with a coupling: `coupling` is c, a number or a schedule."""

    coupling: Schedule | float

    def __post_init__(self) -> None:
        check_schedule(type(self).__name__, "coupling", self.coupling)

    def penalty(self, samples: int) -> float:
        return value_at(self.coupling, samples)

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        limit = cls(coupling=1.0).max_stable_penalty(tuning.kernel, tuning.batches, tuning.step_size, tuning.stiffness)
        return cls(coupling=replace(tuning.coupling, ceiling=tuning.limit * limit))
