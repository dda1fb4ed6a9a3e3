"""What the moves of a relay need to know of the agent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelmesh.numerics.kernels import Kernel

__all__ = ["CALM", "PATIENCE", "POOL", "Settings"]

CALM, PATIENCE = 4, 24
"""Ticks without a change after which the tree counts as standing, and after which nobody waits for that any longer."""
POOL = 64
"""The number of points that a member remembers to propose."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The protocol's settings, and those of the learner on which it depends."""

    every: int
    """k, the ticks between two waves."""
    bits: int
    """The size of a number on the wire."""
    scales: bool
    """Whether the members agree on the scales of the features."""
    novelty: float
    max_order: int
    kernel: Kernel
    limit: float = math.inf
    """The most that one sample can add to tr Θ."""
