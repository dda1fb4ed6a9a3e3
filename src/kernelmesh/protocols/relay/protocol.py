"""Relay sums, the default of networks: every agent has the sum over all samples, along a tree that repairs itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from kernelmesh.checks import integer, positive
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import BITS, NOBODY, Message, News
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.sums import Sums
from kernelmesh.protocols.base import ConsensusProtocol, Heard, StepInputs, Tuning
from kernelmesh.protocols.relay.hearing import forget
from kernelmesh.protocols.relay.memory import Memory
from kernelmesh.protocols.relay.point_list import PointList
from kernelmesh.protocols.relay.tree import Tree
from kernelmesh.registry import register

__all__ = ["Relay"]


@register("protocol")
@dataclass(frozen=True, kw_only=True)
class Relay(ConsensusProtocol):
    """To tree neighbor j: own_i + Σ_{l ≠ j} inbox_l.  In use: own_i + Σ_l inbox_l.

    Agents with the learner `Landmarks` add up the sums of all their samples over a spanning tree that repairs itself, so that
    every agent has the model of all samples. A message is state: the newest counts, so that loss, repetition and delay do no
    harm. Every sum carries the roll of the members whose samples it contains, and only sums with disjoint rolls are added:
    no sample counts twice, whatever the tree does. What an agent has added can be taken out again.

    Sums travel in waves: each edge carries one for each direction in `every` rounds, yet they reach all agents within
    `every` + 2 · depth rounds. The root of the tree keeps the list of points: the others propose theirs.

    Parameters
    ----------
    every : int
        k, the rounds between two waves.
    bits : int
        The size of a number on the wire: 16, 32 or 64.
    scales : bool
        Whether the agents agree on the scales of the features before they learn, so that features in different units count
        alike.
    tunes : bool
        Whether they then agree on the width of the kernel and on λ: on 1/8 to 2 times the given width, and 1/64 to 4
        times the given λ, by how well these predict the first samples of all agents.
    max_samples : float
        The most samples that a member can have in its lifetime. A neighbor whose sums claim more is excluded.

    Examples
    --------
    >>> Relay(every=16, bits=16).reply.__name__
    'News'
    """

    reply: ClassVar[type[Message] | None] = News
    listens: ClassVar[bool] = True
    shares: ClassVar[bool] = True

    every: int = 8
    bits: int = 32
    scales: bool = False
    tunes: bool = False
    max_samples: float = math.inf

    def __post_init__(self) -> None:
        integer("Relay", "every", self.every, minimum=1)
        positive("Relay", "max_samples", self.max_samples, infinite=True)
        if self.bits not in BITS:
            raise InvalidArgument("Relay", "bits", f"be one of {BITS}", self.bits)
        if self.tunes and not self.scales:
            raise InvalidArgument("Relay", "tunes", "be False without scales", self.tunes)

    @classmethod
    def tuned(cls, tuning: Tuning) -> Self:
        return cls(every=tuning.every or cls.every)

    def move(self, inputs: StepInputs, heard: Sequence[Heard]) -> Update:
        """Nothing: the function follows from the sums."""
        return Update(np.empty((0, inputs.function.dimension)), np.empty((0, inputs.function.outputs)))

    def exchanges(self, step: int) -> bool:
        """Whether agents exchange before this step: always, if only hellos."""
        return True

    def begin(self, number: int, points: PointList, outputs: int) -> Memory:
        """The memory of a new member with this number."""
        return Memory(Tree(number, number), points, Sums.zero(outputs))

    def forgotten(self, memory: Memory, number: int, *, forgotten: bool = True) -> Memory:
        """The memory without any samples of a member, or admitting them again; the network hears of it."""
        memory = memory.copied()
        forget(memory, number, forgotten=forgotten)
        return memory

    def left(self, memory: Memory) -> Memory:
        """The memory of a member whose next message is its farewell: its samples stay in the network."""
        memory = memory.copied()
        memory.leaving, memory.heir = True, NOBODY
        return memory
