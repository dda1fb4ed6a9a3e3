"""A round as seen by one agent, and two ways to advance through rounds: in lock step, or running freely."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from kernelmesh.agent import Agent, State
from kernelmesh.exchange import Outbox
from kernelmesh.messages import WireSize
from kernelmesh.runtimes.frames import Header
from kernelmesh.runtimes.node.peer import ALIVE, Peer, Purpose
from kernelmesh.streams import Batch

__all__ = ["FreeRunning", "LocalRound", "LockStep", "OutOfStep", "Pacing"]

_NOTHING = WireSize(0, 0)
_AT_ONCE = 0.005  # seconds within which an answer counts as immediate
_GONE = 60.0  # seconds of silence after which a neighbor in lock step counts as gone for good


@dataclass(eq=False, slots=True)
class LocalRound:
    """The step that this agent is about to take, or has just taken, for answering queries about it."""

    step: int
    outbox: Outbox
    batch: Batch | None = None
    position: Mapping[str, Any] | None = None
    """The position in the stream after the mini-batch."""
    exchanges: bool = True
    """Whether agents exchange before this step."""
    open: bool = False
    """Whether it is known if there are samples for it."""
    question: bytes = b""
    question_size: WireSize = _NOTHING
    counted: set[tuple[str, str, int]] = field(default_factory=set)
    """What has been counted as sent: what it was, to whom, and about which step."""


class OutOfStep(Exception):
    """A query about a step that is too far from this agent's."""


@dataclass(frozen=True)
class LockStep:
    """Lock step: every round waits for all neighbors; a query about step t is answered from the state before step t.

    The rounds equal those of `simulate`, bit for bit. If agents exchange only in every k-th round, no neighbor is queried
    or waited for in the others, so that two neighbors can be up to k steps apart.
    """

    name: ClassVar[str] = "lock-step"
    everybody_waits: ClassVar[bool] = True
    """Whether nobody goes on before everybody has been heard: then a step that fails ends the run, and neighbors may ask
    about the exchange before.
    """
    relays: ClassVar[bool] = False
    """Whether an agent without samples takes part in rounds."""
    timeout: float = 5.0
    """Seconds after which a query expires."""
    patience: float = 0.5
    """Seconds after which a round that is not complete is late."""

    def next_round(self, agent: Agent, state: State) -> LocalRound:
        """The round that follows on a state."""
        step = state.steps + 1
        return LocalRound(step, Outbox(agent, state, None), exchanges=agent.protocol.exchanges(step))

    def round_for(self, step: int, current: LocalRound, previous: LocalRound | None, *, every: int = 1) -> LocalRound | None:
        """The round from which a question about a step is answered; None: it comes too early and is kept.

        `previous` is the round of the exchange before, and every `every`-th round has one.
        """
        if current.open and (step == current.step or (current.batch is None and step > current.step)):
            return current
        if previous is not None and step == previous.step:
            return previous
        # who has been answered about the current exchange may already be at the next
        if not current.step <= step <= current.step + every:
            raise OutOfStep
        return None

    def counts(self, local: LocalRound, key: tuple[str, str, int]) -> bool:
        """Whether a message adds to what was sent: what is said again counts once, as in simulation."""
        if key in local.counted:
            return False
        local.counted.add(key)
        return True

    def heed_end(self, peer: Peer, header: Header, *, of_step: bool) -> None:
        """What a neighbor says about the end of its stream, in answer to a question about our step or otherwise."""
        if of_step:
            peer.ended = header.ended

    def has_ended(self, local: LocalRound, *, ended: bool) -> bool:
        """What a reply says about our stream."""
        return local.open and local.batch is None

    def wait(self, peer: Peer, now: float, *, slack: float, credit: float) -> float:
        """How long a step waits for a neighbor that has just been asked, in seconds.

        `slack` is how long the agent usually has nothing else to do, `credit` how long it may wait for the slow ones.
        """
        return math.inf

    def unasked(self, peers: Collection[Peer], step: int) -> list[Peer]:
        """The neighbors that are to be asked about a step."""
        return [peer for peer in peers if not peer.ticket and peer.replied_step != step]

    def awaited(self, peers: Collection[Peer], step: int, now: float) -> list[Peer]:
        """The neighbors without whom the step is not taken."""
        return [peer for peer in peers if peer.replied_step != step]

    def is_heard(self, peer: Peer, *, exchanges: bool) -> bool:
        """Whether a neighbor takes part in the step."""
        return exchanges

    def may_leave(self, peer: Peer, now: float, began: float) -> bool:
        """Whether a neighbor does not need us any more once our stream has ended."""
        # a silent neighbor may come back, and could never continue without us
        return peer.finished or now - peer.seen > _GONE


@dataclass(frozen=True)
class FreeRunning:
    """Free running: replies come from the latest state, and a step uses what has arrived so far.

    A step waits for a neighbor that answers within a few milliseconds, or within half of the time that the agent would spend
    waiting for samples anyway; after a late answer, it does not wait for that neighbor for a second. Functions that
    arrive later are used in the next step. Values belong to the queried points, so late ones are useless; if
    values are exchanged, up to a tenth of the time is spent waiting for slow neighbors for up to `patience` seconds, so that
    each is heard occasionally. A slow link costs freshness, not speed.

    If agents exchange only in every k-th round, each counts its own: it queries before every k-th of its steps, and replies
    at any time.
    """

    name: ClassVar[str] = "free"
    everybody_waits: ClassVar[bool] = False
    relays: ClassVar[bool] = True
    patience: float = 0.5

    def wait(self, peer: Peer, now: float, *, slack: float, credit: float) -> float:
        if peer.prompt or now >= peer.retry_at:
            peer.prompt = True
            return min(max(_AT_ONCE, 0.5 * slack), self.patience)
        enough = 1.5 * peer.latency
        return enough if enough <= min(credit, self.patience) else 0.0

    @cached_property
    def timeout(self) -> float:
        return max(2.0 * self.patience, 2.0)

    def next_round(self, agent: Agent, state: State) -> LocalRound:
        step = state.steps + 1
        return LocalRound(step, Outbox(agent, state, None), exchanges=agent.protocol.exchanges(step))

    def round_for(self, step: int, current: LocalRound, previous: LocalRound | None, *, every: int = 1) -> LocalRound | None:
        return current

    def counts(self, local: LocalRound, key: tuple[str, str, int]) -> bool:
        return True

    def heed_end(self, peer: Peer, header: Header, *, of_step: bool) -> None:
        peer.ended = peer.finished = header.ended

    def has_ended(self, local: LocalRound, *, ended: bool) -> bool:
        return ended

    def unasked(self, peers: Collection[Peer], step: int) -> list[Peer]:
        return [peer for peer in peers if not peer.ticket and not peer.asked]  # once in a round is enough

    def awaited(self, peers: Collection[Peer], step: int, now: float) -> list[Peer]:
        awaited = []
        for peer in peers:
            if peer.ticket and peer.purpose is Purpose.STEP and peer.asked_step == step:
                if now < peer.wait_until:
                    awaited.append(peer)
                elif peer.prompt:
                    peer.was_late(now)
        return awaited

    def is_heard(self, peer: Peer, *, exchanges: bool) -> bool:
        return peer.reply is not None  # also between exchanges, since a reply may come late

    def may_leave(self, peer: Peer, now: float, began: float) -> bool:
        return peer.finished or (not peer.alive(now) and now - began > 2 * ALIVE)


Pacing = LockStep | FreeRunning
"""What a node leaves to its way of going through rounds; each answers the same questions."""
