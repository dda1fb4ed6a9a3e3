"""The positions of agents in the picture of a network."""

import numpy as np

from kernelmesh.checks import Floats, Ints

__all__ = ["place"]

_ITERATIONS = 250


def place(count: int, edges: Ints) -> Floats:
    """Positions in [0, 1]² after Fruchterman and Reingold: neighbors attract, all repel; equal graphs get equal layouts.

    >>> place(1, np.zeros((0, 2), dtype=int)).tolist()
    [[0.5, 0.5]]
    """
    if count == 1:
        return np.array([[0.5, 0.5]])
    angles = 2 * np.pi * np.arange(count) / count
    at = np.column_stack((np.sin(angles), -np.cos(angles)))
    ideal = 1.6 / np.sqrt(count)
    for step in np.linspace(0.2, 0.002, _ITERATIONS):
        apart = at[:, None] - at[None]
        distances = np.sqrt((apart**2).sum(axis=2)) + np.eye(count)
        force = (apart * (ideal**2 / distances**2)[..., None]).sum(axis=1)
        if len(edges):
            pull = at[edges[:, 0]] - at[edges[:, 1]]
            pull *= np.sqrt((pull**2).sum(axis=1))[:, None] / ideal
            np.add.at(force, edges[:, 0], -pull)
            np.add.at(force, edges[:, 1], pull)
        length = np.sqrt((force**2).sum(axis=1))[:, None] + 1e-12
        at = at + force / length * np.minimum(length, step)
    low, high = at.min(axis=0), at.max(axis=0)
    return np.asarray((at - (low + high) / 2) / max((high - low).max(), 1e-9) + 0.5)
