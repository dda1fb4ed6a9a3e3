"""How many rounds after the last sample every agent of a relay has the sums over the samples of all."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from cases import Line
from kernelmesh import Agent, Gaussian, Graph, Landmarks, Logistic, Relay
from kernelmesh.streams import Mixture

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from relay_network import Network

_BATCH, _BATCHES, _CLASSES = 32, 12, 5
_LIMIT = 1000  # rounds after which a network is given up
_SETTLES = 200  # the most agents of which it is measured when they have nothing more to say


def _geometric(agents: int) -> list[Sequence[int]]:
    return list(Graph.geometric(agents, degree=6, rng=np.random.default_rng(0)).neighbors)


_GRAPHS = {
    "ring of 20": list(Graph.ring(20).neighbors),
    "star of 20": list(Graph.star(20).neighbors),
    "line of 20": list(Graph.line(20).neighbors),
    "geometric 200": _geometric(200),
    "geometric 1000": _geometric(1000),
}


def _network(neighbors: Sequence[Sequence[int]], keep: int) -> Network:
    """Agents that see one class of a mixture each, and exchange numbers of 64 bits."""
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(classes=_CLASSES, rng=rng)
    points, labels = mixture.sample(3 * _BATCH * _BATCHES * len(neighbors), rng=rng)
    batches = []
    for i in range(len(neighbors)):
        own = np.flatnonzero(labels == i % _CLASSES)[i // _CLASSES :: -(-len(neighbors) // _CLASSES)][: _BATCH * _BATCHES]
        batches.append([(points[rows], labels[rows]) for rows in np.array_split(own, _BATCHES)])
    agent = Agent(
        dimension=2,
        outputs=_CLASSES,
        kernel=Gaussian(bandwidth=0.6),
        loss=Logistic(),
        learner=Landmarks(keep=keep),
        protocol=Relay(bits=64),
    )
    return Network(agent, neighbors, batches)


def _is_settled(network: Network) -> bool:
    return network.is_exact() and all(network.agent.is_settled(state) for state in network.states.values())


def _rounds(network: Network, condition: Callable[[], bool]) -> float:
    """The rounds until a condition holds; infinite if that takes too long."""
    for count in range(_LIMIT):
        if condition():
            return count
        network.step()
    return math.inf


def _compared(name: str, neighbors: Sequence[Sequence[int]]) -> Line:
    network = _network(neighbors, keep=0)
    began = _rounds(network, lambda: network.streams_ended)
    rounds = _rounds(network, network.is_exact)
    bound = network.agent.protocol.every + 2 * network.depth()
    shown = f"{rounds:.0f} rounds (last sample in round {began:.0f}, depth {network.depth()}, error {network.error():.0e})"
    if len(neighbors) <= _SETTLES:
        keeping = _network(neighbors, keep=Landmarks().keep)
        _rounds(keeping, lambda: keeping.streams_ended)
        shown += f"; with kept samples, all is said after {_rounds(keeping, lambda: _is_settled(keeping)):.0f}"
    return Line(name, shown, f"≤ k + 2 · depth = {bound}", rounds <= bound)


def exactness() -> list[Line]:
    """Rounds after the last sample until every total equals the sum of all own sums to 1e-10, relative to its largest number.

    Numbers on the wire have 64 bits, k = 8, and depth is that of the tree. With kept samples, own sums go on to change after
    the last sample; up to 200 agents, the second number is of rounds until nobody has anything to say any longer.
    """
    lines = []
    with threadpool_limits(1):
        for name, neighbors in _GRAPHS.items():
            lines.append(_compared(name, neighbors))
            print(*lines[-1][:3], file=sys.stderr, flush=True)
    return lines
