"""A shard: some of the agents of a network in one process, with their states, streams and messages.

A round has four parts: `take` mini-batches, `ask` (send questions or functions), `answer` (if there were questions), and
`step`. In between, a shard sends one batch of messages to each shard with neighbors of its
agents. `simulate` runs a network in one shard; the placement of agents does not change what they learn or send.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from kernelmesh.agent import Agent, Info, State, advance, relay
from kernelmesh.checks import Floats, Ints
from kernelmesh.errors import Diverged
from kernelmesh.exchange import Outbox
from kernelmesh.messages import Message, decode, encode, wire_size
from kernelmesh.numerics.graphs import Graph
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.faults import Faults, Lie, Tie
from kernelmesh.runtimes.plan import Plan
from kernelmesh.streams import Batch

__all__ = ["Batches", "Facts", "Progress", "Shard"]

Batches = dict[int, bytes]
"""The messages to or from each other shard, packed as one batch."""


class Facts(NamedTuple):
    """What the planner of a round must know about a shard."""

    learns: list[int]
    """The agents that have a mini-batch."""
    furthest: int
    """The largest number of steps that any of these has taken."""
    waits: bool
    """Whether an agent that is there has samples left."""
    settled: bool
    """Whether another round without samples would change nothing."""


class Progress(NamedTuple):
    """The report of a shard on a round, by agent."""

    infos: list[Info | None]
    floats: list[int]
    bytes: list[int]
    edge_bytes: Ints
    """The bytes that our agents have sent over each edge of `Shard.edges`."""


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """One message of a batch. A question goes to all neighbors of the sender and has no receiver."""

    sender: int
    receiver: int
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Entry])


class Shard:
    """The agents i of a graph with `parts[i] == part`.

    `streams` and `states` are those of its own agents, in graph order. Streams start at the first mini-batch, or after the
    number that `taken` gives for each stream.
    """

    def __init__(
        self,
        agent: Agent,
        graph: Graph,
        streams: Sequence[Iterable[Batch]],
        states: Sequence[State],
        *,
        part: int = 0,
        parts: Sequence[int] | None = None,
    ) -> None:
        self.agent, self.graph, self.part = agent, graph, part
        self.parts = (0,) * len(graph) if parts is None else tuple(parts)
        self.members = [i for i, owner in enumerate(self.parts) if owner == part]
        self.streams = streams
        own = set(self.members)
        self.edges = [n for n, (i, j) in enumerate(graph.edges) if i in own or j in own]
        """The edges of the graph with at least one end in this shard."""
        ends = [graph.edges[n] for n in self.edges]
        # dictionaries for each agent, because those of all edges would be too large for the cache
        self._places: dict[int, dict[int, int]] = {i: {} for i in self.members}
        for place, (i, j) in enumerate(ends):
            for sender, receiver in ((i, j), (j, i)):
                if sender in own:
                    self._places[sender][receiver] = place
        self._usual = Faults().ties(graph, 1)
        self.begin(states)

    def begin(
        self, states: Sequence[State], taken: Sequence[int] | None = None, sent: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Continue from these states, given the number of mini-batches taken from each stream and the traffic so far.

        `sent` holds the floats and bytes sent by each agent and, as `edge_bytes`, over each edge.
        """
        self.states = dict(zip(self.members, states, strict=True))
        self.before: dict[int, State] = {}
        """The states before the latest round if `keep` was called, because the round may fail in another shard."""
        nothing = (0,) * len(self.members)
        self.floats, self.bytes = (
            dict(zip(self.members, (sent or {}).get(name, nothing), strict=True)) for name in ("floats", "bytes")
        )
        self.edge_bytes = list((sent or {}).get("edge_bytes", (0,) * len(self.edges)))
        used = taken or (0,) * len(self.members)
        self.taken = dict(zip(self.members, used, strict=True))
        opened = zip(self.members, self.streams, used, strict=True)
        self._sources: dict[int, Iterator[Batch]] = {i: islice(iter(own), skip, None) for i, own, skip in opened}
        self._waiting: dict[int, Batch | None] = dict.fromkeys(self.members)
        self._bad: frozenset[int] = frozenset()
        self._first_words: dict[tuple[int, int], tuple[int, Message]] = {}
        """The message of a bad agent over each edge in the first round of its latest attack, with the number of the round."""
        self._end_talk()

    def _end_talk(self) -> None:
        self._talks = False
        self._outboxes: dict[int, Outbox] = {}
        self._questions: dict[int, Message | None] = {}
        self._replies: dict[int, dict[int, Message | None]] = {i: {} for i in self.members}
        """Replies by receiver and sender."""

    def take(self, away: frozenset[int]) -> Facts:
        """Take a mini-batch for every agent whose stream continues, and validate those that will be used."""
        for i, source in self._sources.items():
            if self._waiting[i] is None:
                self._waiting[i] = next(source, None)
        here = [i for i in self.members if i not in away]
        waits = any(self._waiting[i] is not None for i in here)
        # all samples are validated before any agent steps, so that an invalid one leaves the whole network unchanged
        self._checked: dict[int, tuple[Floats, Any]] = {
            i: self.agent.check(*batch) for i, batch in self._waiting.items() if batch is not None and i not in away
        }
        self._checked = {i: batch for i, batch in self._checked.items() if self.agent.wants(self.states[i])}
        self._idle = [i for i in here if i not in self._checked] if self.agent.protocol.shares else []
        settled = not self.agent.protocol.shares or all(self.agent.is_settled(self.states[i]) for i in here)
        learns = list(self._checked)
        return Facts(learns, max((self.states[i].steps for i in learns), default=0), waits, settled)

    def points(self) -> list[Floats]:
        """The points of the current mini-batches."""
        return [batch[0] for batch in self._checked.values()]

    def ask(self, plan: Plan) -> Batches:
        """Send questions or functions, which depend on no message of this round; returns the batches for other shards."""
        self._plan, self._ties, self._bad = plan, self._usual if plan.ties is None else plan.ties, plan.bad
        self._talks = True
        points = {i: batch[0] for i, batch in self._checked.items()}
        self._outboxes = {i: Outbox(self.agent, self.states[i], points.get(i)) for i in self.members}
        return self._ask() if self.agent.protocol.question else self._tell()

    def _ask(self) -> Batches:
        out: defaultdict[int, list[_Entry]] = defaultdict(list)
        for i, outbox in self._outboxes.items():
            question = self._questions[i] = outbox.question
            if question is None:
                continue
            ties = self._ties[i]
            self._count(i, question, *(tie.number for tie in ties))
            others = {self.parts[tie.number] for tie in ties if (i, tie.number) not in self._plan.lost} - {self.part}
            data = encode(question) if others else b""
            for part in others:
                out[part].append(_Entry(i, -1, data))
        return _pack(out)

    def _tell(self) -> Batches:
        """Send functions to the agents that learn."""
        learns, lost, shares = self._plan.learns, self._plan.lost, self.agent.protocol.shares
        out: defaultdict[int, list[_Entry]] = defaultdict(list)
        for i, outbox in self._outboxes.items():
            for tie in self._ties[i]:
                j = tie.number
                message = outbox.reply(None, tie.name) if learns[j] or shares else None
                if message is None:
                    continue
                self._count(i, message, j)
                if (i, j) in lost:
                    continue
                if self.parts[j] == self.part:
                    self._replies[j][i] = message
                else:
                    out[self.parts[j]].append(_Entry(i, j, encode(message)))
        return _pack(out)

    def answer(self, received: Mapping[int, bytes]) -> Batches:
        """Answer the questions that arrived; returns the batches for other shards."""
        for batch in received.values():
            self._questions |= {entry.sender: decode(entry.data) for entry in _decoder.decode(batch)}
        lost, unanswered = self._plan.lost, self._plan.unanswered
        out: defaultdict[int, list[_Entry]] = defaultdict(list)
        for j, outbox in self._outboxes.items():
            for tie in self._ties[j]:
                i = tie.number
                question = self._questions.get(i)
                if question is None or (i, j) in lost:
                    continue
                reply = outbox.reply(question)
                if reply is not None:
                    self._count(j, reply, i)
                if reply is None or (j, i) in unanswered:
                    continue
                if self.parts[i] == self.part:
                    self._replies[i][j] = reply
                else:
                    out[self.parts[i]].append(_Entry(j, i, encode(reply)))
        return _pack(out)

    def keep(self) -> None:
        """Remember the states before a step."""
        self.before = dict(self.states)

    def step(self, received: Mapping[int, bytes]) -> Progress:
        """Receive the messages of all shards, and learn."""
        for data in received.values():
            for entry in _decoder.decode(data):
                self._replies[entry.receiver][entry.sender] = decode(entry.data)
        self._outboxes = {}  # so that only the states themselves hold data from before the step
        infos: dict[int, Info | None] = dict.fromkeys(self.members)
        for i in self._checked:
            self.states[i], infos[i] = self._advanced(i)
            self._waiting[i] = None
            self.taken[i] += 1
        for i in self._idle:
            self.states[i] = relay(self.agent, self.states[i], self._heard(i))
        self._end_talk()
        return Progress(
            list(infos.values()),
            list(self.floats.values()),
            list(self.bytes.values()),
            np.array(self.edge_bytes, dtype=np.int64),
        )

    def _advanced(self, i: int) -> tuple[State, Info | None]:
        """One agent's step. A bad agent that diverges restarts from scratch instead of ending the run."""
        state = self.states[i]
        try:
            return advance(self.agent, state, *self._checked[i], self._heard(i))
        except Diverged:
            if i not in self._bad:
                raise
            return self.agent.start(name=state.name, number=i), None

    def _heard(self, i: int) -> list[Heard]:
        return [self._said(i, tie) for tie in self._ties[i]] if self._talks else []

    def _said(self, i: int, tie: Tie) -> Heard:
        reply = self._replies[i].pop(tie.number, None)  # when all neighbors have it, nobody holds it any longer
        lie = self._plan.lies.get(tie.number)
        if lie is not None and reply is not None:
            reply = self._lied(lie, tie.number, i, reply)
        return Heard(reply, tie.weight, tie.name)

    def _lied(self, lie: Lie, sender: int, receiver: int, message: Message) -> Message:
        """The distorted message of a bad agent, computed by the receiver because non-finite values cannot be sent."""
        first, words = self._first_words.get((sender, receiver), (0, message))
        if first != lie.first:
            words = message
            self._first_words[sender, receiver] = lie.first, words
        return lie.told(message, words, sender, receiver)

    def _count(self, sender: int, message: Message, *receivers: int) -> None:
        size = wire_size(message)
        self.floats[sender] += len(receivers) * size.floats
        self.bytes[sender] += len(receivers) * size.bytes
        for receiver in receivers:
            place = self._places[sender].get(receiver)
            if place is not None:  # faults may connect agents without an edge in the graph
                self.edge_bytes[place] += size.bytes


def _pack(out: Mapping[int, Sequence[_Entry]]) -> Batches:
    return {part: _encoder.encode(entries) for part, entries in out.items()}
