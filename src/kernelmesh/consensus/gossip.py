"""The exchanges of a whole network without message loss, as sums over arrays with a row per agent or edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints
from kernelmesh.numerics import compiled
from kernelmesh.numerics.graphs import Graph, metropolis_weight, share

__all__ = ["Gossip"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Gossip:
    """W Φ and its flows over the edges of a graph, with the Metropolis weights a_ij or a part of them.

    Each value is an array of any shape, a row Φ_i of a tensor; sums round exactly as those of a single agent.

    Parameters
    ----------
    starts, neighbors, edges : ndarray of int
        The neighbors of agent i, and the edges to them, have the indices starts[i] to starts[i + 1] − 1.
    signs : ndarray of float
        For each of these, 1 at the end that comes first in the graph, −1 at the other.
    weights, own : ndarray of float
        a_ij for each of these, and 1 − Σ_j a_ij for each agent.
    ends : ndarray of int, of shape (2, edges)
        The first and the second end of each edge.
    edge_weights : ndarray of float
        a_ij for each edge.

    Examples
    --------
    >>> Gossip.over(Graph.line(3)).mixed(np.array([[3.0], [0.0], [0.0]]))
    array([[2.],
           [1.],
           [0.]])
    """

    starts: Ints
    neighbors: Ints
    edges: Ints
    signs: Floats
    weights: Floats
    own: Floats
    ends: Ints
    edge_weights: Floats

    @classmethod
    def over(cls, graph: Graph, *, part: float = 1.0) -> Gossip:
        """The exchanges over a graph, with this fraction of the Metropolis weights."""
        shares = [share(len(around)) for around in graph.neighbors]
        number = {pair: n for n, pair in enumerate(graph.edges)}
        pairs = [(i, j) for i, around in enumerate(graph.neighbors) for j in sorted(around)]
        weights = [part * metropolis_weight(shares[i], shares[j]) for i, j in pairs]
        own = np.ones(len(graph))
        for (i, _), weight in zip(pairs, weights, strict=True):
            own[i] -= weight
        degrees = [len(around) for around in graph.neighbors]
        edge_weights = [part * metropolis_weight(shares[i], shares[j]) for i, j in graph.edges]
        return cls(
            starts=_ints(np.concatenate([[0], np.cumsum(degrees)])),
            neighbors=_ints([j for _, j in pairs]),
            edges=_ints([number[min(pair), max(pair)] for pair in pairs]),
            signs=np.array([1.0 if i < j else -1.0 for i, j in pairs]),
            weights=np.array(weights),
            own=own,
            ends=_ints(np.array(graph.edges).reshape(-1, 2).T),
            edge_weights=np.array(edge_weights),
        )

    @property
    def degrees(self) -> Ints:
        """The degree of each agent."""
        return np.diff(self.starts)

    def mixed(self, values: Floats) -> Floats:
        """(1 − Σ_j a_ij) Φ_i + Σ_j a_ij Φ_j for each agent."""
        found = compiled.gossip.mix(_flat(values), self.starts, self.neighbors, self.weights, self.own)
        return found.reshape(values.shape)

    def flowed(self, flows: Floats | None, values: Floats) -> Floats:
        """λ_e + a_e (Φ_j − Φ_i) for each edge e from i to j; before the first exchange there are no flows."""
        if flows is None:
            flows = np.zeros((len(self.edge_weights), *values.shape[1:]))
        first, second = self.ends
        found = compiled.gossip.add_flows(_flat(flows), _flat(values), first, second, self.edge_weights)
        return found.reshape(flows.shape)

    def gathered(self, flows: Floats) -> Floats:
        """Σ_j λ_ij for each agent, where λ_ij = −λ_ji is λ_e at the first end of an edge."""
        found = compiled.gossip.sum_flows(_flat(flows), self.starts, self.edges, self.signs)
        return found.reshape(len(self.starts) - 1, *flows.shape[1:])


def _ints(values: object) -> NDArray[np.int64]:
    return np.ascontiguousarray(values, dtype=np.int64)


def _flat(tensor: Floats) -> Floats:
    """One row for each agent or edge."""
    return tensor.reshape(len(tensor), int(np.prod(tensor.shape[1:])))
