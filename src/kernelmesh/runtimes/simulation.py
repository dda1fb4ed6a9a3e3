"""All agents in one process, in lock step: the definition of a round that every other runtime must reproduce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.agent import Agent, Info, State
from kernelmesh.checks import Ints, Told, refuse
from kernelmesh.consensus import Heard
from kernelmesh.maths.expansion import Expansion
from kernelmesh.maths.graphs import Graph
from kernelmesh.messages import weigh
from kernelmesh.streams import Batch

__all__ = ["Round", "simulate"]


@dataclass(frozen=True, eq=False)
class Round:
    """What is there to see after every agent has moved once. Index everything by the agent's number in the graph."""

    number: int
    """Rounds so far, from 1."""
    states: tuple[State, ...]
    infos: tuple[Info | None, ...]
    """What each step reported; None for an agent whose stream had ended."""
    floats_sent: Ints
    """Numbers that each agent has sent since the start."""
    bytes_sent: Ints

    @property
    def functions(self) -> tuple[Expansion, ...]:
        """What each agent has learned so far: immutable values that can be kept."""
        return tuple(state.function for state in self.states)

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples that each agent has seen since its state was started."""
        return tuple(state.samples for state in self.states)


def simulate(
    agent: Agent, graph: Any, streams: Sequence[Iterable[Batch]], *, states: Sequence[State] | None = None
) -> Iterator[Round]:
    """Run one agent per node, all with the same settings, until every stream has ended.

    A round: every agent with samples left takes a mini-batch and asks; everybody answers from the function it had when the
    round began; then all of them step. An agent whose stream has ended still answers. `graph` is whatever `Graph.of` takes;
    `states` goes on from earlier ones.

    >>> from kernelmesh import Agent, Gaussian, Graph, Komp, Penalty, Squared
    >>> from kernelmesh.streams import ArrayStream
    >>> agent = Agent(
    ...     dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5,
    ...     compression=Komp(budget=0.01), consensus=Penalty(coupling=0.1),
    ... )
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> streams = [ArrayStream(x, np.sin(3 * x)) for _ in range(3)]
    >>> for round in simulate(agent, Graph.ring(3), streams):
    ...     print(round.number, round.samples)
    1 (32, 32, 32)
    2 (64, 64, 64)
    """
    graph = Graph.of(graph)
    if len(streams) != len(graph):
        raise refuse("simulate", "streams", f"be one for each of {len(graph)} agents", Told(f"{len(streams)} streams"))
    if states is not None and len(states) != len(graph):
        raise refuse("simulate", "states", f"be one for each of {len(graph)} agents", Told(f"{len(states)} states"))
    for state in states or ():
        agent.check_state("simulate", state)
    # checked at the call; the generator below only starts with the first round
    now = list(states) if states is not None else [agent.start(name=name) for name in graph.names]
    return _rounds(agent, graph, [iter(stream) for stream in streams], now)


def _rounds(agent: Agent, graph: Graph, streams: list[Iterator[Batch]], states: list[State]) -> Iterator[Round]:
    floats, size = [0] * len(graph), [0] * len(graph)
    weights = graph.metropolis().tolist()
    ties = [[(j, weights[i][j], graph.names[j], i < j) for j in around] for i, around in enumerate(graph.neighbours)]
    consensus = agent.consensus
    nothing = np.empty((0, agent.dimension))
    number = 0
    while True:
        batches = [next(stream, None) for stream in streams]
        if all(batch is None for batch in batches):
            return
        # every sample is checked before any agent moves, so that a bad one leaves the whole network as it was
        checked = [None if batch is None else agent.check(*batch) for batch in batches]
        asked = [
            consensus.ask(state.memory.function, nothing if batch is None else batch[0])
            for state, batch in zip(states, checked, strict=True)
        ]
        heard: list[list[Heard]] = []
        for i, question in enumerate(asked):
            said = []
            if question is not None:
                numbers, octets = weigh(question)
                floats[i] += len(ties[i]) * numbers
                size[i] += len(ties[i]) * octets
            for j, weight, neighbour, lower in ties[i]:
                answer = None if question is None else consensus.answer(states[j].function, question)
                if answer is not None:
                    numbers, octets = weigh(answer)
                    floats[j] += numbers
                    size[j] += octets
                said.append(Heard(asked[j], answer, weight, neighbour, lower))
            heard.append(said)
        infos: list[Info | None] = []
        for i, batch in enumerate(checked):
            info = None
            if batch is not None:
                states[i], info = agent.advance(states[i], *batch, heard[i])
            infos.append(info)
        number += 1
        yield Round(number, tuple(states), tuple(infos), np.array(floats), np.array(size))
