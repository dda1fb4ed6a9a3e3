"""All agents in one process, in lock step: the definition of a round that every other runtime must reproduce."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.agent import Agent, Info, State
from kernelmesh.checks import Floats, Ints
from kernelmesh.consensus import Heard
from kernelmesh.errors import InvalidArgument, RefusedMessage, UnstablePenalty, Verbatim
from kernelmesh.links import Link
from kernelmesh.messages import Function, Message, wire_size
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.faults import Faults
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
    agent: Agent,
    graph: Any,
    streams: Sequence[Iterable[Batch]],
    *,
    states: Sequence[State] | None = None,
    faults: Faults | None = None,
) -> Iterator[Round]:
    """Run one agent per node, all with the same settings, until every stream has ended.

    A round: every agent with samples left takes a mini-batch and asks; everybody answers from the function it had when the
    round began; then all of them step. An agent whose stream has ended still answers, and still sends its function where a
    protocol sends functions, but is sent none. `graph` is whatever `Graph.of` takes; `states` goes on from earlier ones;
    `faults` are those to simulate.

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
        raise InvalidArgument(
            "simulate", "streams", f"be one for each of {len(graph)} agents", Verbatim(f"{len(streams)} streams")
        )
    if states is not None and len(states) != len(graph):
        raise InvalidArgument(
            "simulate", "states", f"be one for each of {len(graph)} agents", Verbatim(f"{len(states)} states")
        )
    for state in states or ():
        agent.check_state("simulate", state)
    if faults is not None:
        faults.check(graph)
    # checked at the call; the generator below only starts with the first round
    now = list(states) if states is not None else [agent.start(name=name) for name in graph.names]
    return _rounds(agent, graph, streams, now, faults)


def _rounds(
    agent: Agent,
    graph: Graph,
    streams: Sequence[Iterable[Batch]],
    states: list[State],
    faults: Faults | None,
) -> Iterator[Round]:
    sources = [iter(stream) for stream in streams]
    network = _Network(agent, graph, faults)
    waiting: list[Batch | None] = [None] * len(graph)
    number = 0
    while True:
        number += 1
        for i, source in enumerate(sources):
            if waiting[i] is None:
                waiting[i] = next(source, None)
        if all(batch is None for batch in waiting):
            return
        away = network.begin(number)
        # every sample is checked before any agent moves, so that a bad one leaves the whole network as it was
        checked = [None if batch is None or i in away else agent.check(*batch) for i, batch in enumerate(waiting)]
        if number == 1:
            _foresee(agent, graph, streams, states, checked)
        heard = network.talk(states, checked)
        infos: list[Info | None] = []
        for i, batch in enumerate(checked):
            info = None
            if batch is not None:
                states[i], info = agent.advance(states[i], *batch, heard[i])
                waiting[i] = None
            infos.append(info)
        yield Round(number, tuple(states), tuple(infos), np.array(network.floats), np.array(network.size))


def _foresee(
    agent: Agent,
    graph: Graph,
    streams: Sequence[Any],
    states: Sequence[State],
    batches: Sequence[tuple[Floats, Any] | None],
) -> None:
    """Warn before anybody moves if the penalty will sooner or later be too large for the step size."""
    points = [batch[0] for batch in batches if batch is not None]
    if not points or len(graph) == 1:
        return
    rounds = max(len(stream) if isinstance(stream, Sized) else _UNKNOWN for stream in streams)
    first = max(state.samples for state in states)
    trouble = agent.stability_warning(points, graph, first=first, last=first + rounds * len(points[0]))
    if trouble is not None:
        warnings.warn(trouble, UnstablePenalty, stacklevel=3)


# How many rounds to look ahead where nobody knows how long a stream is.
_UNKNOWN = 100_000


class _Network:
    """Carries what agents say in one round, counts it, and loses some of it where that is asked for."""

    def __init__(self, agent: Agent, graph: Graph, faults: Faults | None) -> None:
        self.agent, self.graph, self.faults = agent, graph, faults
        self.floats, self.size = [0] * len(graph), [0] * len(graph)
        self._ties = Faults().ties(graph, 1) if faults is None else []
        self._links: defaultdict[tuple[int, int], Link] = defaultdict(Link)
        self._nothing = np.empty((0, agent.dimension))

    def begin(self, number: int) -> set[int]:
        """Set up a round; returns the agents that are away."""
        if self.faults is None:
            return set()
        self._ties = self.faults.ties(self.graph, number)
        return {i for i, name in enumerate(self.graph.names) if self.faults.away(name, number)}

    def talk(self, states: Sequence[State], batches: Sequence[tuple[Floats, Any] | None]) -> list[list[Heard]]:
        """What each agent hears, all from the states as they are now."""
        lost = self._lose()
        learns = [batch is not None for batch in batches]  # nobody else has any use for a function
        if self.agent.offers:  # who does not learn in this round is silent
            offer = self.agent.offer
            said = [
                [offer(states[i], tie[2], tie[4]) if learns[i] and learns[tie[0]] else None for tie in ties]
                for i, ties in enumerate(self._ties)
            ]
            return self._exchange(said, lost)
        asked = [
            self.agent.consensus.ask(state.model.function, self._nothing if batch is None else batch[0])
            for state, batch in zip(states, batches, strict=True)
        ]
        if any(isinstance(question, Function) for question in asked):
            said = [[asked[i] if learns[tie[0]] else None for tie in ties] for i, ties in enumerate(self._ties)]
            return self._exchange(said, lost)
        return self._interview(asked, states, lost)

    def _lose(self) -> Set[tuple[int, int]]:
        """The messages, (from, to), that will not arrive at the beginning of this round."""
        if self.faults is None or not self.faults.drop:
            return frozenset()
        pairs = [(i, tie[0]) for i, ties in enumerate(self._ties) for tie in ties]
        return {pair for pair in pairs if self.faults.lost()}

    def _interview(
        self, asked: Sequence[Message | None], states: Sequence[State], lost: Set[tuple[int, int]]
    ) -> list[list[Heard]]:
        """Questions go out, and what has been reached answers."""
        answer_to = self.agent.consensus.answer
        heard = []
        floats, size, lossy = self.floats, self.size, bool(self.faults and self.faults.drop)
        for i, question in enumerate(asked):
            said = []
            heft: tuple[int, int] | None = None  # all answers to a question have the same shape
            if question is not None:
                self._count(i, question, len(self._ties[i]))
            for j, weight, neighbor, is_first, share in self._ties[i]:
                answer = None
                if question is not None and (i, j) not in lost:
                    answer = answer_to(states[j].function, question)
                    if answer is not None:
                        heft = heft or wire_size(answer)
                        floats[j] += heft[0]
                        size[j] += heft[1]
                        if lossy and self.faults and self.faults.lost():
                            answer = None
                said.append(Heard(None if (j, i) in lost else asked[j], answer, weight, neighbor, is_first, share))
            heard.append(said)
        return heard

    def _exchange(self, said: Sequence[Sequence[Message | None]], lost: Set[tuple[int, int]]) -> list[list[Heard]]:
        """Functions go out over links, as differences where possible; `said` is in the order of the ties."""
        traveling: dict[tuple[int, int], Message | None] = {}
        for i, ties in enumerate(self._ties):
            for tie, message in zip(ties, said[i], strict=True):
                if message is not None:
                    message = self._links[i, tie[0]].pack(message)
                    self._count(i, message)
                traveling[i, tie[0]] = None if (i, tie[0]) in lost else message
        heard = []
        for i, ties in enumerate(self._ties):
            known = []
            for j, weight, neighbor, is_first, share in ties:
                message = traveling[j, i]
                if message is not None:
                    try:
                        message = self._links[i, j].unpack(message)
                    except RefusedMessage:  # it builds on something that was lost; the other end will hear of it
                        message = None
                known.append(Heard(message, None, weight, neighbor, is_first, share))
            heard.append(known)
        return heard

    def _count(self, sender: int, message: Message, times: int = 1) -> None:
        numbers, octets = wire_size(message)
        self.floats[sender] += times * numbers
        self.size[sender] += times * octets
