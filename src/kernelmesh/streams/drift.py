"""Synthetic streams with concept drift: classes rotate, come and go, or swap their labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelmesh.checks import Floats, Ints, integer
from kernelmesh.errors import InvalidArgument
from kernelmesh.streams.mixture import Mixture

__all__ = ["DriftingSamples", "present_classes", "recurring", "relabeled", "rotating"]


class DriftingSamples(NamedTuple):
    """Samples in temporal order."""

    points: Floats
    labels: Ints
    best: Ints
    """The most likely class of each point at its time: the Bayes-optimal prediction."""


def rotating(mixture: Mixture, rows: int, *, angle: float, rng: np.random.Generator) -> DriftingSamples:
    """x_t = R(angle · t / (rows − 1)) x, R(a) a rotation of the plane by a: the last sample is rotated by the whole angle.

    >>> start = rotating(Mixture.draw(rng=np.random.default_rng(0)), 9, angle=0.0, rng=np.random.default_rng(1))
    >>> end = rotating(Mixture.draw(rng=np.random.default_rng(0)), 9, angle=np.pi, rng=np.random.default_rng(1))
    >>> np.allclose(end.points[0], start.points[0]), np.allclose(end.points[-1], -start.points[-1])
    (True, True)
    """
    points, labels = mixture.sample(rows, rng=rng)
    angles = angle * np.linspace(0.0, 1.0, rows)
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = np.stack([cos * points[:, 0] - sin * points[:, 1], sin * points[:, 0] + cos * points[:, 1]], axis=1)
    return DriftingSamples(rotated, labels, mixture.bayes(points))  # the noise is the same in all directions


def present_classes(classes: int, phase: int, *, absent: int) -> Ints:
    """The classes in a phase: all but `absent` of them, which follow those missing in the previous phase.

    >>> [present_classes(5, phase, absent=2).tolist() for phase in range(3)]
    [[2, 3, 4], [0, 1, 4], [1, 2, 3]]
    """
    integer("present_classes", "absent", absent, minimum=0)
    if absent >= classes:
        raise InvalidArgument("present_classes", "absent", f"be less than the {classes} classes", absent)
    return np.setdiff1d(np.arange(classes), (phase * absent + np.arange(absent)) % classes)


def recurring(mixture: Mixture, rows: int, *, phases: int, absent: int, rng: np.random.Generator) -> DriftingSamples:
    """A stream of phases of equal length, in each of which `absent` classes do not occur; see `present_classes`.

    >>> stream = recurring(Mixture.draw(rng=np.random.default_rng(0)), 90, phases=3, absent=2, rng=np.random.default_rng(1))
    >>> [np.unique(part).tolist() for part in np.array_split(stream.labels, 3)]
    [[2, 3, 4], [0, 1, 4], [1, 2, 3]]
    """
    integer("recurring", "phases", phases, minimum=1)
    parts = []
    for phase, part in enumerate(np.array_split(np.arange(rows), phases)):
        present = present_classes(mixture.classes, phase, absent=absent)
        rest = Mixture(mixture.modes[present], mixture.spread)
        points, labels = rest.sample(len(part), rng=rng)
        parts.append(DriftingSamples(points, present[labels], present[rest.bayes(points)]))
    return DriftingSamples(*map(np.concatenate, zip(*parts, strict=True)))


def relabeled(mixture: Mixture, rows: int, *, rng: np.random.Generator) -> DriftingSamples:
    """A stream in which, from the middle on, labels are permuted in one random cycle.

    >>> mixture = Mixture(np.array([[[-9.0, 0.0]], [[9.0, 0.0]]]))
    >>> stream = relabeled(mixture, 8, rng=np.random.default_rng(1))
    >>> (stream.labels == (stream.points[:, 0] > 0)).tolist()
    [True, True, True, True, False, False, False, False]
    """
    points, labels = mixture.sample(rows, rng=rng)
    cycle = rng.permutation(mixture.classes)
    names = np.empty_like(cycle)
    names[cycle] = np.roll(cycle, 1)
    late = np.arange(rows) >= rows // 2
    best = mixture.bayes(points)
    return DriftingSamples(points, np.where(late, names[labels], labels), np.where(late, names[best], best))
