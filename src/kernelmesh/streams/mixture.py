"""The paper's synthetic data: classes that are mixtures of Gaussians in the plane."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kernelmesh.checks import Floats, Ints, integer, positive

__all__ = ["Mixture"]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Each class y has modes μ_yj ~ N(θ_y, 1), θ on the unit circle; x | y is an equal mixture of N(μ_yj, σ² I).

    Parameters
    ----------
    modes : ndarray of shape (classes, modes, 2)
        μ.
    spread : float
        The standard deviation σ. The paper gives 0.2 as a variance, but then no draw is as separable as its accuracies imply;
        with 0.2 as a standard deviation, they are typical.

    Attributes
    ----------
    classes : int
        The number of classes.

    Examples
    --------
    >>> mixture = Mixture.draw(rng=np.random.default_rng(0))
    >>> points, labels = mixture.sample(4, rng=np.random.default_rng(1))
    >>> points.shape, labels.shape
    ((4, 2), (4,))
    """

    modes: Floats
    spread: float = 0.2

    def __post_init__(self) -> None:
        positive("Mixture", "spread", self.spread)

    @classmethod
    def draw(cls, *, classes: int = 5, modes: int = 3, spread: float = 0.2, rng: np.random.Generator) -> Mixture:
        """Draw the modes of every class."""
        integer("Mixture", "classes", classes, minimum=2)
        integer("Mixture", "modes", modes, minimum=1)
        angles = 2 * math.pi * np.arange(classes) / classes
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return cls(circle[:, None, :] + rng.standard_normal((classes, modes, 2)), spread)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.modes)

    def sample(self, rows: int, *, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """Draw points and their class numbers; all classes are equally likely."""
        labels = rng.integers(self.classes, size=rows)
        modes = rng.integers(self.modes.shape[1], size=rows)
        return self.modes[labels, modes] + self.spread * rng.standard_normal((rows, 2)), labels

    def bayes(self, points: Floats) -> Ints:
        """The most likely class of each point: the Bayes-optimal prediction."""
        from kernelmesh.numerics.distances import squared_distances  # compiled, and only needed here

        flat = self.modes.reshape(-1, 2)
        exponent = -squared_distances(np.ascontiguousarray(points), np.ascontiguousarray(flat)) / (2 * self.spread**2)
        density = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        per_class: Floats = density.reshape(len(points), self.classes, -1).sum(axis=2)
        return np.asarray(per_class.argmax(axis=1))
