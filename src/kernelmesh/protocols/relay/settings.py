"""What the moves of a relay need to know of the agent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelmesh.numerics.kernels import Kernel, largest_value

__all__ = ["CALM", "PATIENCE", "POOL", "Settings"]

CALM, PATIENCE = 4, 192
"""Ticks without a change after which the tree counts as standing, and after which nobody waits for that any longer."""
POOL = 256
"""The number of points that a member remembers to propose."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The protocol's settings, and those of the learner on which it depends."""

    every: int
    """k, the ticks between two waves."""
    bits: int
    """The size of a number on the wire."""
    stages: int
    """The stage of a list of points with which members learn: 1 if they first agree on the scales of the features, 2 if then
    on the width of the kernel and on λ."""
    novelty: float
    max_order: int
    kernel: Kernel
    regularization: float
    typical_curvature: float
    """The curvature of the loss of most samples, by which a squared error stands for it."""
    most_curved: float = math.inf
    """The largest curvature of the loss."""
    max_samples: float = math.inf
    """The most samples that a member may claim."""

    @property
    def limit(self) -> float:
        """The most that one sample can add to tr Θ."""
        return self.most_curved * largest_value(self.kernel)

    @property
    def scales(self) -> bool:
        """Whether the members agree on the scales of the features."""
        return self.stages > 0
