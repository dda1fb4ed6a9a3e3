"""Two ways to advance through rounds, for agents that ask their neighbors: in lock step, or running freely."""

import math
from dataclasses import dataclass, field

from kernelmesh.runtimes.node.peer import ALIVE, Peer, PeerState

__all__ = ["FreeRunning", "LockStep", "Pacing"]


@dataclass(frozen=True)
class LockStep:
    """Lock step: every round waits for all neighbors; a query about step t is answered from the state before step t.

    The rounds equal those of `simulate`, bit for bit. If agents exchange only in every k-th round, no neighbor is queried
    or waited for in the others, so that two neighbors can be up to k steps apart. Neighbors of a mesh in lock step cannot be
    started again one by one: the mesh restarts as a whole.
    """

    timeout: float = 1.0
    """Seconds after which a query is repeated."""
    gone: float = 60.0
    """Seconds of silence after which a neighbor counts as gone for good."""

    def begin(self, now: float) -> None:
        """A round begins."""

    def idle(self, now: float) -> None:
        """There are no samples."""

    def stepped(self, now: float) -> None:
        """The step of a round is taken."""

    def wait(self, peer: Peer, now: float, *, needs_answer: bool) -> float:
        """How long a step waits for a neighbor that is asked now, in seconds.

        `needs_answer` says that an answer that comes later is of no use.
        """
        return math.inf

    def asks(self, peer: Peer) -> bool:
        """Whether a neighbor is asked; in lock step again and again, until it answers."""
        return not peer.is_heard

    def waits_for(self, peer: Peer) -> bool:
        """Whether the step is not taken before this neighbor has been heard."""
        return not peer.is_heard and not peer.is_quarantined

    def may_leave(self, peer: Peer, now: float, began: float) -> bool:
        """Whether a neighbor does not need us any more once our stream has ended."""
        return peer.ended or now - max(peer.seen, began) > self.gone


@dataclass
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

    patience: float = 0.5
    at_once: float = 0.005
    """Seconds within which an answer counts as immediate."""
    waiting: float = 0.1
    """The part of the time that may go into waiting for slow neighbors."""
    _slack: float = field(default=0.0, init=False)
    """How many seconds per step the agent usually has nothing else to do."""
    _credit: float = field(default=0.0, init=False)
    """How many seconds it may wait for slow neighbors."""
    _began: float = field(default=0.0, init=False)
    _idle_since: float = field(default=math.inf, init=False)

    @property
    def timeout(self) -> float:
        return max(2.0 * self.patience, 2.0)

    def begin(self, now: float) -> None:
        self._credit = min(self._credit + self.waiting * (now - self._began), self.patience)
        self._began = now

    def idle(self, now: float) -> None:
        self._idle_since = min(self._idle_since, now)

    def stepped(self, now: float) -> None:
        waited, idle = now - self._began, max(self._began - self._idle_since, 0.0)
        self._slack, self._idle_since = 0.9 * self._slack + 0.1 * (waited + idle), math.inf
        if waited > 0.5 * self._slack:
            self._credit = max(self._credit - waited, 0.0)

    def wait(self, peer: Peer, now: float, *, needs_answer: bool) -> float:
        if now >= peer.retry_at:
            return min(max(self.at_once, 0.5 * self._slack), self.patience)
        enough = 1.5 * peer.latency
        return enough if needs_answer and enough <= self._credit else 0.0

    def asks(self, peer: Peer) -> bool:
        return not peer.was_asked  # else those who wait for somebody slow would flood everybody else

    def waits_for(self, peer: Peer) -> bool:
        return peer.state is PeerState.ASKED

    def may_leave(self, peer: Peer, now: float, began: float) -> bool:
        return peer.ended or (not peer.alive(now) and now - began > 2 * ALIVE)


Pacing = LockStep | FreeRunning
