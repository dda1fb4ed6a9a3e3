"""All agents in one process, in lock step: the definition of a round that every other runtime must reproduce."""

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set, Sized
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from kernelmesh.agent import Agent, Info, State, advance
from kernelmesh.checks import Floats, Ints
from kernelmesh.consensus import Heard
from kernelmesh.errors import Diverged, InvalidArgument, UnstablePenalty, Verbatim
from kernelmesh.exchange import Link, MissingBase, Outbox
from kernelmesh.messages import Message, Offer, wire_size
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes.faults import Faults, Tie
from kernelmesh.streams import Batch

__all__ = ["Round", "simulate", "stability_warning"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """What is there to see after every agent has moved once. Everything is indexed by the agent's number in the graph.

    Attributes
    ----------
    number : int
        Rounds so far, from 1.
    states : tuple of State
        The state of each agent after the round.
    infos : tuple of Info or None
        What each step reported; None for an agent whose stream had ended, unless it has replayed samples.
    floats_sent, bytes_sent : ndarray of int
        How many numbers and bytes each agent has sent since the start.
    edge_bytes : ndarray of int
        How many bytes have crossed each edge of the graph since the start, in both directions, in the order of `graph.edges`.
    functions : tuple of Expansion
        What each agent has learned so far: immutable values that can be kept.
    samples : tuple of int
        Samples that each agent has seen since its state was started; replayed ones are not counted again.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> *_, last = simulate(agent, Graph.line(1), [ArrayStream(x, np.sin(3 * x))])
    >>> last.number, last.samples, last.bytes_sent.tolist()
    (2, (64,), [0])
    """

    number: int
    """Rounds so far, from 1."""
    states: tuple[State, ...]
    infos: tuple[Info | None, ...]
    """What each step reported; None for an agent whose stream had ended, unless it has replayed samples."""
    floats_sent: Ints
    """Numbers that each agent has sent since the start."""
    bytes_sent: Ints
    edge_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Bytes that have crossed each edge, in both directions, in the order of `graph.edges`."""

    @property
    def functions(self) -> tuple[Expansion, ...]:
        """What each agent has learned so far: immutable values that can be kept."""
        return tuple(state.function for state in self.states)

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples that each agent has seen since its state was started; replayed ones are not counted again."""
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
    protocol sends functions, but is sent none. Where a protocol exchanges in every k-th round only, agents just step in the
    others; rounds are counted by the steps of the agents, so that a run that is continued goes on in the same rhythm.

    With `Agent.replay`, an agent whose stream has ended goes on with samples that it has kept while another stream lasts, so
    that the others do not forget what it has seen. It does so in a round if a path leads from it, over agents that have
    samples or replay some, to one whose stream goes on.

    Parameters
    ----------
    agent : Agent
        The settings of every agent.
    graph : Graph, networkx graph or list of edges
        Who talks to whom: whatever `Graph.of` takes.
    streams : sequence of Stream
        The mini-batches of each agent.
    states : sequence of State, optional
        Where to go on from; by default every agent starts from nothing.
    faults : Faults, optional
        Messages that get lost, agents that are away, networks that change.

    Returns
    -------
    iterator of Round
        One after the other; a round is computed when it is asked for.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Penalty, Squared
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
    for name, given in (("streams", streams), ("states", states)):
        if given is not None and len(given) != len(graph):
            rule = f"be one for each of {len(graph)} agents"
            raise InvalidArgument("simulate", name, rule, Verbatim(f"{len(given)} {name}"))
    for state in states or ():
        agent.check_state("simulate", state)
    if faults is not None:
        faults.check(graph)
    # checked at the call; the generator below only starts with the first round
    now = list(states) if states is not None else [agent.start(name=name) for name in graph.names]
    return _rounds(agent, graph, streams, now, faults)


def _rounds(
    agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: list[State], faults: Faults | None
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
        replaying = _replaying(graph, states, checked, away=away, waiting=waiting) if agent.replay else frozenset()
        for i in replaying:
            checked[i] = states[i].draw()
        if number == 1:
            _warn_if_unstable(agent, graph, streams, states, checked)
        heard = network.talk(states, checked) if _exchanges(agent, states, checked) else [[] for _ in states]
        infos: list[Info | None] = []
        for i, batch in enumerate(checked):
            info = None
            if batch is not None:
                states[i], info = network.step(states[i], batch, heard[i], replayed=i in replaying)
                waiting[i] = None
            infos.append(info)
        yield Round(
            number=number,
            states=tuple(states),
            infos=tuple(infos),
            floats_sent=np.array(network.floats),
            bytes_sent=np.array(network.bytes),
            edge_bytes=np.array([network.edge_bytes[edge] for edge in graph.edges], dtype=np.int64),
        )


def _replaying(
    graph: Graph, states: Sequence[State], batches: Sequence[object], *, away: Set[int], waiting: Sequence[object]
) -> Set[int]:
    """The agents without samples of their own that replay in this round: those to whom word has come that somebody learns."""
    # the word goes from neighbor to neighbor, as in lock step, where nobody knows of the others in any other way
    reached = {i for i, batch in enumerate(batches) if batch is not None}
    news, found = list(reached), set()
    while news:
        for j in graph.neighbors[news.pop()]:
            if j not in reached and j not in away and waiting[j] is None and states[j].can_replay:
                reached.add(j)
                found.add(j)
                news.append(j)
    return found


def _exchanges(agent: Agent, states: Sequence[State], batches: Sequence[object]) -> bool:
    """Whether agents talk in this round: it depends on the step that the furthest of those who learn is about to take."""
    # who has been away has taken fewer steps, and keeps to the rhythm of the others
    learned = [state.steps for state, batch in zip(states, batches, strict=True) if batch is not None]
    return agent.consensus.exchanges(max(learned, default=0) + 1)


# How many rounds to look ahead where nobody knows how long a stream is.
_UNKNOWN = 100_000


def _warn_if_unstable(
    agent: Agent, graph: Graph, streams: Sequence[Any], states: Sequence[State], batches: Sequence[tuple[Floats, Any] | None]
) -> None:
    """Warn before anybody moves if the penalty will sooner or later be too large for the step size."""
    points = [batch[0] for batch in batches if batch is not None]
    if not points or len(graph) == 1:
        return
    rounds = max(len(stream) if isinstance(stream, Sized) else _UNKNOWN for stream in streams)
    first = max(state.samples for state in states)
    warning = stability_warning(agent, points, graph, first=first, last=first + rounds * len(points[0]))
    if warning is not None:
        warnings.warn(warning, UnstablePenalty, stacklevel=3)


def stability_warning(agent: Agent, batches: Sequence[Floats], graph: Graph, *, first: int, last: int) -> str | None:
    """Whether the penalty will be too large for mini-batches like these within a range of samples, in words, or None.

    docs/consensus.md derives the bound. Protocols that are stable for every penalty have none.
    """
    consensus = agent.consensus
    per_step = consensus.max_stable_penalty(agent.kernel, batches, 1.0, graph.stiffness)
    if per_step == np.inf:
        return None
    for samples in np.unique(np.linspace(first, max(first, last - 1), 256).astype(int)):
        penalty, step_size = consensus.penalty(int(samples)), agent.step_size_at(int(samples))
        if penalty * step_size > per_step:
            when = f"reaches {penalty:.3g} after {samples} samples" if samples else f"is {penalty:.3g}"
            return (
                f"{type(consensus).__name__}: with step size {step_size:g} in this network the penalty must stay below "
                f"{per_step / step_size:.2g}, else agents drive each other apart, but it {when}; lower or cap it "
                f"(Doubling has a ceiling), lower the step size, or take another protocol (only Penalty and Hilbert "
                f"have such a bound)"
            )
    return None


class _Network:
    """Carries what agents say in one round, counts it, and loses some of it where that is asked for."""

    def __init__(self, agent: Agent, graph: Graph, faults: Faults | None) -> None:
        self._agent, self._graph, self._faults = agent, graph, faults
        self.floats, self.bytes = [0] * len(graph), [0] * len(graph)
        self.edge_bytes: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._ties: list[list[Tie]] = Faults().ties(graph, 1) if faults is None else []
        self._links: defaultdict[tuple[int, int], Link] = defaultdict(Link)
        self._number = 0
        self._first_words: dict[tuple[int, int], Message] = {}  # of attacks that are under way, over each edge

    def begin(self, number: int) -> set[int]:
        """Set up a round; returns the agents that are away."""
        self._number = number
        if self._faults is None:
            return set()
        self._ties = self._faults.ties(self._graph, number)
        return {i for i, name in enumerate(self._graph.names) if self._faults.away(name, number)}

    def step(
        self, state: State, batch: tuple[Floats, Any], heard: Sequence[Heard], *, replayed: bool
    ) -> tuple[State, Info | None]:
        """One agent's step. A bad agent that its own lies have led astray begins anew, and does not end the run."""
        try:
            return advance(self._agent, state, *batch, heard, replayed=replayed)
        except Diverged:
            if self._faults is None or state.name not in self._faults.byzantine:
                raise
            return self._agent.start(name=state.name), None

    def talk(self, states: Sequence[State], batches: Sequence[tuple[Floats, Any] | None]) -> list[list[Heard]]:
        """What each agent hears, all from the states as they are now."""
        exchange = self._agent.consensus.exchange
        lost = self._drop()
        outboxes = [
            Outbox(self._agent, state, None if batch is None else batch[0])
            for state, batch in zip(states, batches, strict=True)
        ]
        replies = self._answers(outboxes, lost) if exchange.question else self._functions(outboxes, lost)
        return [
            [
                Heard(
                    outboxes[tie.number].question if exchange.mutual and (tie.number, i) not in lost else None,
                    replies.get((tie.number, i)),
                    tie.weight,
                    tie.name,
                    tie.is_first,
                    tie.share,
                )
                for tie in ties
            ]
            for i, ties in enumerate(self._ties)
        ]

    def _drop(self) -> Set[tuple[int, int]]:
        """The messages, (from, to), that will not arrive at the beginning of this round."""
        faults = self._faults
        if faults is None or not faults.drop:
            return frozenset()
        pairs = [(i, tie.number) for i, ties in enumerate(self._ties) for tie in ties]
        return {pair for pair in pairs if faults.lost()}

    def _answers(self, outboxes: Sequence[Outbox], lost: Set[tuple[int, int]]) -> dict[tuple[int, int], Message | None]:
        """Questions go out, and who has been reached answers; (from, to) → answer."""
        out: dict[tuple[int, int], Message | None] = {}
        for i, outbox in enumerate(outboxes):
            question = outbox.question
            if question is None:
                continue
            self._count(i, question, *(tie.number for tie in self._ties[i]))
            for tie in self._ties[i]:
                j = tie.number
                if (i, j) in lost:
                    continue
                answer = outboxes[j].reply(self._graph.names[i], tie.other_share, question)
                if answer is not None:
                    answer = self._said(j, i, answer, outboxes)
                    self._count(j, answer, i)
                out[j, i] = None if self._faults is not None and self._faults.lost() else answer
        return out

    def _functions(self, outboxes: Sequence[Outbox], lost: Set[tuple[int, int]]) -> dict[tuple[int, int], Message | None]:
        """Functions go out over links, as differences where possible, to those who learn; (from, to) → function."""
        traveling: dict[tuple[int, int], Message] = {}
        for i, ties in enumerate(self._ties):
            for tie in ties:
                message = outboxes[i].reply(tie.name, tie.share, None) if outboxes[tie.number].learns else None
                if message is not None:
                    message = self._said(i, tie.number, message, outboxes)
                    packed = self._links[i, tie.number].pack(message)
                    self._count(i, packed, tie.number)
                    if (i, tie.number) not in lost:
                        traveling[i, tie.number] = packed
        out: dict[tuple[int, int], Message | None] = {}
        for (i, j), message in traveling.items():
            try:
                out[i, j] = self._links[j, i].unpack(message)
            except MissingBase:  # it builds on something that was lost; the other end will hear of it
                out[i, j] = None
        return out

    def _said(self, i: int, j: int, message: Message, outboxes: Sequence[Outbox]) -> Message:
        """What agent i says to j: `message`, unless it is bad in this round."""
        faults = self._faults
        found = None if faults is None else faults.attack(self._graph.names[i], self._number)
        if found is None or faults is None:
            self._first_words.pop((i, j), None)
            return message
        attack, age = found
        told = attack.distort(
            message, self._first_words.setdefault((i, j), message), age, faults.attack_rng(self._number, i, j)
        )
        if not isinstance(told, Offer):
            return told
        # it keeps its end of numbered exchanges in order, so that nothing but what it says gives it away
        edge = outboxes[j].remembers(self._graph.names[i])
        terms = msgspec.structs.replace(
            told.terms, epoch=edge.epoch, exchange=edge.done + 1, done=edge.done, digest=edge.digest
        )
        return dataclasses.replace(told, terms=terms)

    def _count(self, sender: int, message: Message, *receivers: int) -> None:
        size = wire_size(message)
        self.floats[sender] += len(receivers) * size.floats
        self.bytes[sender] += len(receivers) * size.bytes
        for receiver in receivers:
            self.edge_bytes[min(sender, receiver), max(sender, receiver)] += size.bytes
