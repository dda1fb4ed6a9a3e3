"""What an agent says when it is asked: running freely, from its newest state; in lock step, from the state before a step."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from kernelmesh.agent import Agent, State
from kernelmesh.exchange import Outbox, read_question
from kernelmesh.messages import Message, WireSize, encode, wire_size
from kernelmesh.runtimes.frames import Frame
from kernelmesh.runtimes.membership import Membership

__all__ = ["Answer", "Answers", "LocalRound"]

_log = logging.getLogger("kernelmesh.agent")

_NOTHING = WireSize(0, 0)


class Answer(NamedTuple):
    """The answer to a neighbor's question."""

    payload: bytes
    ended: bool
    """Whether this agent had nothing more to say in the round that was asked about."""
    size: WireSize
    """How much it adds to what was sent."""


class LocalRound:
    """The step that this agent is about to take, or has just taken, for answering questions about it."""

    def __init__(self, agent: Agent, state: State) -> None:
        self.step = state.steps + 1
        self.outbox = Outbox(agent, state, None)
        self.exchanges = agent.protocol.exchanges(self.step)
        """Whether agents exchange before this step."""
        self.asks = self.exchanges and agent.protocol.reply is not None
        """Whether neighbors are asked before this step."""
        self.is_open = False
        """Whether it is known if there are samples for it."""
        self.ended = False
        """Whether there are none, and never will be."""
        self.said: dict[tuple[str, str, int], WireSize] = {}
        """In lock step, how much was said: what it was, to whom, and about which step."""


class Answers:
    """Answers the questions of neighbors.

    In lock step, a question about step t is answered from the state before step t. It may be about the round at hand, and
    waits until it is known whether there are samples for it; about the exchange before, from a slower neighbor; or about the
    next exchange, and then it is kept. Any other says that the two can never continue together.
    """

    def __init__(self, agent: Agent, membership: Membership, state: State) -> None:
        self._agent, self._membership = agent, membership
        self._in_lock_step = membership.lock_step
        self.round = LocalRound(agent, state)
        self.previous: LocalRound | None = None
        """The round of the exchange before."""
        self.out_of_step: set[str] = set()
        self._held: dict[str, Frame] = {}

    def move_on(self, state: State) -> WireSize:
        """A step has been taken, or another state taken over; returns how much was said before it that counts now."""
        before, self.round = self.round, LocalRound(self._agent, state)
        if before.exchanges:
            self.previous = before
        said = before.said.values() if self._agent.protocol.shares else ()
        return WireSize(sum(size.floats for size in said), sum(size.bytes for size in said))

    def restart(self, state: State) -> None:
        """Begin anew from a state: nothing was said before."""
        self.round, self.previous = LocalRound(self._agent, state), None

    def open(self, ended: bool) -> Iterable[tuple[str, Frame]]:
        """It is known whether there are samples for the round at hand; returns the questions that came too early."""
        self.round.is_open, self.round.ended = True, ended
        held, self._held = self._held, {}
        return held.items()

    def is_awaited(self) -> bool:
        """Whether a neighbor has asked about a later step."""
        return any(frame.header.step > self.round.step for frame in self._held.values())

    def drop(self, name: str) -> None:
        """Do not answer a question that a neighbor has asked too early."""
        self._held.pop(name, None)

    def to(self, name: str, frame: Frame) -> Answer | None:
        """The answer to a neighbor; None if the question came too early, and is kept, or far too late."""
        step = frame.header.step
        local = self._round_of(step) if self._in_lock_step else self.round
        if local is None:
            self._keep(name, frame)
            return None
        question = None
        if self._agent.protocol.reply:
            limits = {"max_bytes": self._membership.max_bytes, "max_points": self._membership.max_points}
            question = read_question(self._agent, frame.payload, **limits)
        message = local.outbox.reply(question, name)
        if message is None:
            return Answer(b"", local.ended, _NOTHING)
        return Answer(encode(message), local.ended, self.size(local, ("reply", name, step), message))

    def size(self, local: LocalRound, what: tuple[str, str, int], message: Message) -> WireSize:
        """How much a message adds to what was sent. In lock step, what is said again counts once, as in simulation."""
        size = wire_size(message)
        if not self._in_lock_step:
            return size
        if what in local.said:
            return _NOTHING
        local.said[what] = size
        # where sums are shared, it counts when the step is taken, which the last one never is
        return _NOTHING if self._agent.protocol.shares and local is self.round else size

    def _round_of(self, step: int) -> LocalRound | None:
        """The round that a question in lock step is about, if it can be answered."""
        current, steps_when_ended = self.round, self._agent.protocol.shares
        if current.is_open and (step == current.step or (current.ended and not steps_when_ended and step > current.step)):
            return current
        return self.previous if self.previous is not None and step == self.previous.step else None

    def _keep(self, name: str, frame: Frame) -> None:
        # who has been answered about the current exchange may already be at the next
        every = 1 if self._agent.protocol.shares else self._agent.protocol.every
        step, current = frame.header.step, self.round.step
        if current <= step <= current + every:
            self._held[name] = frame
        elif name not in self.out_of_step:
            self.out_of_step.add(name)
            text = "%s is about to take step %d, this agent step %d: a mesh in lock step restarts as a whole, from scratch"
            _log.error(text, name, step, current)
