"""Some agents of a network in one process, or all of them: what each part of a round does.

A round has four parts: `take` mini-batches, `speak`, `answer` (if the agents asked), and `step`. All messages of a part are
made before any is used, so the placement of agents does not change what they learn or send.
"""

from collections.abc import Iterable, Sequence, Set
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from kernelmesh.agent import Agent, Info, State, advance, listen
from kernelmesh.checks import Floats
from kernelmesh.exchange import Outbox
from kernelmesh.messages import Message, wire_size
from kernelmesh.numerics.graphs import Graph
from kernelmesh.protocols import Heard
from kernelmesh.protocols.relay import tell
from kernelmesh.runtimes.faults import Faults, Lie, Plan, Tie
from kernelmesh.runtimes.round import Round
from kernelmesh.streams import Batch

__all__ = ["Facts", "Messages", "Shard"]

Messages = dict[tuple[int, int], Message]
"""By sender and receiver."""


class Facts(NamedTuple):
    """What must be known of all agents before a round is planned."""

    learns: list[int]
    """The agents that have a mini-batch."""
    furthest: int
    """The largest number of steps that any of these has taken."""
    waits: bool
    """Whether an agent that is there has samples left."""
    settled: bool
    """Whether another round without samples would change nothing."""


class Shard:
    """The agents `members` of a graph, all by default; `streams` and `states` are theirs, in this order."""

    def __init__(
        self,
        agent: Agent,
        graph: Graph,
        streams: Sequence[Iterable[Batch]],
        states: Sequence[State] | None,
        *,
        members: Sequence[int] | None = None,
    ) -> None:
        self.agent = agent
        self.members = range(len(graph)) if members is None else members
        if states is None:
            states = [agent.start(name=graph.names[i], number=i) for i in self.members]
        self.states = dict(zip(self.members, states, strict=True))
        self.floats, self.bytes, self.edge_bytes = [0] * len(graph), [0] * len(graph), [0] * len(graph.edges)
        """What our agents have sent since the start."""
        self._edges = {pair: n for n, (i, j) in enumerate(graph.edges) for pair in ((i, j), (j, i))}
        self._usual = Faults().ties(graph, 1)
        self._sources = {i: iter(stream) for i, stream in zip(self.members, streams, strict=True)}
        self._outboxes: dict[int, Outbox] = {}
        self._waiting: dict[int, Batch] = {}
        """Mini-batches that were taken but not yet learned from."""
        self._replayed: dict[tuple[int, int], tuple[int, Message]] = {}
        """Over each edge from a bad agent, the first round of its latest attack, and what it said then."""

    def take(self, absent: frozenset[int]) -> Facts:
        """Take a mini-batch for every agent whose stream continues, and check those that will be used."""
        for i, source in self._sources.items():
            if i not in self._waiting and (batch := next(source, None)) is not None:
                self._waiting[i] = batch
        agent, here = self.agent, [i for i in self.members if i not in absent]
        # all samples are checked before any agent steps, so that an invalid one leaves the whole network unchanged
        checked = {i: agent.check(*self._waiting[i]) for i in here if i in self._waiting}
        self._batches = {i: batch for i, batch in checked.items() if agent.wants(self.states[i])}
        self._idle = [i for i in here if i not in self._batches] if agent.protocol.shares else []
        settled = not checked and all(agent.is_settled(self.states[i]) for i in here)
        furthest = max([self.states[i].steps for i in self._batches], default=0)
        return Facts(list(self._batches), furthest, bool(checked), settled)

    def points(self) -> list[Floats]:
        """The points of the current mini-batches."""
        return [points for points, _ in self._batches.values()]

    def speak(self, plan: Plan) -> Messages:
        """What our agents say to all others, from their states before the round: sums, functions or questions."""
        self._plan, said = plan, Messages()
        self._ties = self._usual if plan.ties is None else plan.ties
        for i in self.members if plan.talks else ():
            ties = self._ties[i]
            memory = self.states[i].memory
            words = self._words(i, ties) if memory is None else tell(memory, map(attrgetter("name"), ties))
            for tie, message in zip(ties, words, strict=True):
                if message is not None:
                    said[i, tie.number] = message
        self._count(said)
        return _without(said, plan.lost)

    def _words(self, i: int, ties: Sequence[Tie]) -> Sequence[Message | None]:
        points, _ = self._batches.get(i, (None, None))
        outbox = self._outboxes[i] = Outbox(self.agent, self.states[i], points)
        if self.agent.protocol.question is not None:
            return [outbox.question] * len(ties)
        function = outbox.reply(None)
        return [function if tie.number in self._plan.learns else None for tie in ties]

    def answer(self, questions: Messages) -> Messages:
        """The answers of our agents to the questions that have arrived."""
        said = Messages()
        for (i, j), question in questions.items():
            answer = self._outboxes[j].reply(question)
            if answer is not None:
                said[j, i] = answer
        self._count(said)
        return _without(said, self._plan.unanswered)

    def _count(self, said: Messages) -> None:
        """Count numbers and bytes, from the shapes of what was said."""
        for (sender, receiver), message in said.items():
            size = wire_size(message)
            self.floats[sender] += size.floats
            self.bytes[sender] += size.bytes
            edge = self._edges.get((sender, receiver))
            if edge is not None:  # faults may connect agents without an edge in the graph
                self.edge_bytes[edge] += size.bytes

    def step(self, number: int, said: Messages) -> Round:
        """Every agent hears what was said to it, and learns."""
        self._outboxes, infos = {}, dict[int, Info | None].fromkeys(self.members)
        for i, batch in self._batches.items():
            self.states[i], infos[i] = advance(self.agent, self.states[i], *batch, self._heard(i, said))
            del self._waiting[i]
        for i in self._idle:
            self.states[i] = listen(self.agent, self.states[i], self._heard(i, said))
        return Round(
            number=number,
            states=tuple(self.states.values()),
            infos=tuple(infos.values()),
            floats_sent=np.array(self.floats, dtype=np.int64),
            bytes_sent=np.array(self.bytes, dtype=np.int64),
            edge_bytes=np.array(self.edge_bytes, dtype=np.int64),
        )

    def _heard(self, i: int, said: Messages) -> list[Heard]:
        if not self._plan.talks:
            return []
        lies, heard = self._plan.lies, []
        for tie in self._ties[i]:
            message = said.pop((tie.number, i), None)  # nobody holds it any longer
            if message is not None and tie.number in lies:
                message = self._distorted(lies[tie.number], message, tie.number, i)
            heard.append(Heard(message, tie.weight, tie.name))
        return heard

    def _distorted(self, lie: Lie, message: Message, sender: int, receiver: int) -> Message:
        """What a bad agent says instead; computed by the receiver, because values that are not finite cannot be sent."""
        first, before = self._replayed.get((sender, receiver), (0, message))
        if first != lie.first:
            before = message
            self._replayed[sender, receiver] = lie.first, message
        return lie.told(message, before, sender, receiver)


def _without(said: Messages, lost: Set[tuple[int, int]]) -> Messages:
    return {pair: message for pair, message in said.items() if pair not in lost} if lost else said
