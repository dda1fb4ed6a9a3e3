"""Runs one agent: connects a node to its stream, its carrier and its checkpoints."""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec import structs

from kernelmesh.agent import Agent, State, check_message
from kernelmesh.errors import InvalidArgument, RefusedMessage
from kernelmesh.exchange import check_points
from kernelmesh.messages import Points, Values, decode, encode
from kernelmesh.runtimes.carriers.base import Carrier
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.expiry import Expiry
from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.name_list import NameList
from kernelmesh.runtimes.node import Action, AskingNode, Node, Recover, Send, SharingNode, Turn
from kernelmesh.runtimes.recovery import Recovery
from kernelmesh.runtimes.status import Status
from kernelmesh.streams import Batch, Source

__all__ = ["AgentRunner", "Poll"]

_log = logging.getLogger("kernelmesh.agent")


class Poll(NamedTuple):
    """The result of one iteration of the run loop."""

    turn: Turn | None
    """The step that was taken, if any."""
    wake_at: float
    """When to iterate again if nothing arrives."""
    done: bool = False
    """Whether the run is over."""


class AgentRunner:
    """Runs one agent in one thread. Iterate over `turns` to run it; `stop` ends it from a signal handler or another thread.

    Without a store, nothing survives the process. With `stay`, the agent keeps answering after its stream has ended. The
    neighbors in the file `quarantine` are ignored; those in `revoked` are also disconnected. `expiry` knows until when
    the agent's certificate is valid.
    """

    def __init__(
        self,
        agent: Agent,
        membership: Membership,
        source: Source,
        carrier: Carrier,
        *,
        store: CheckpointStore | None = None,
        stay: bool = True,
        quarantine: NameList | None = None,
        revoked: NameList | None = None,
        expiry: Expiry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent, self.membership = agent, membership
        self._source, self._carrier, self._stay, self._clock = source, carrier, stay, clock
        self._quarantine, self._revoked, self._expiry = quarantine, revoked, expiry
        self.mailbox = Mailbox()
        self._stopping = self._closed = False
        tokens = secrets.randbits(62), secrets.randbits(61)
        self.node: Node
        if agent.protocol.shares and not membership.lock_step:
            self.node = SharingNode(agent, membership, tokens=tokens, stay=stay, now=clock())
        else:
            self.node = AskingNode(agent, membership, tokens=tokens, now=clock())
        self._recovery = Recovery(self.node, source, store)
        self._recovery.restore(clock())
        carrier.open(self.mailbox)
        self._watch_lists(clock())

    @property
    def state(self) -> State:
        """The agent's state."""
        return self.node.state

    @property
    def recoveries(self) -> int:
        """How often this process has gone back to an earlier function."""
        return self._recovery.recoveries

    def stop(self) -> None:
        """End the run after the current step."""
        self._stopping = True

    def turns(self) -> Iterator[Turn]:
        """Learn until the stream has ended (or longer, with `stay`) or `stop` is called, then write a checkpoint."""
        try:
            while not (poll := self.poll(self._clock())).done:
                if poll.turn is not None:
                    yield poll.turn
                else:
                    seconds = min(poll.wake_at - self._clock(), 1.0)
                    self._handle(self.mailbox.take(seconds), self._clock())
        finally:
            self.close()

    def poll(self, now: float) -> Poll:
        """Do everything possible without waiting: at most one step."""
        if self.mailbox:
            self._handle(self.mailbox.take(0.0), now)
        if self._stopping:
            return Poll(None, now, done=True)
        self._watch_lists(now)
        if self.node.wants_batch:
            self._take(now)
        turn = self._carry_out(self.node.proceed(now), now)
        self._recovery.retry(now)
        if turn is not None:
            return Poll(turn, now)
        return Poll(None, self.node.wake_at(now), done=not self._stay and self.node.finished(now))

    def close(self) -> None:
        """Write the last checkpoint and release all resources."""
        if self._closed:
            return
        self._closed = True
        try:
            self._recovery.close(self._clock())
        finally:
            self._carrier.close()

    def _watch_lists(self, now: float) -> None:
        """Apply changes made by the operator, and check the date."""
        lists = [names for names in (self._quarantine, self._revoked) if names is not None]
        changed = [names for names in lists if names.changed(now)]
        names = frozenset().union(*(names.names for names in lists))
        # what was quarantined before a restart may have been released since
        if changed or (all(each.is_read for each in lists) and not names.issuperset(self.node.excluded)):
            if changed and self.membership.name in names:
                _log.warning("this agent is quarantined or revoked by %s: others do not listen to it", changed[0].path)
            self.node.exclude(names, now)
            self._recovery.save(now, again=True)  # what the operator has changed is in no journal
        if self._revoked in changed and self._revoked is not None:
            _log.warning("certificates revoked: %s; reconnecting", ", ".join(sorted(self._revoked.names)) or "none")
            self._carrier.exclude(self._revoked.names)
        if self._expiry is not None:
            self._expiry.warn(now)

    def _take(self, now: float) -> None:
        batch = self._source.take()
        if batch is None:
            if self._source.ended and not self.node.ended:
                self.node.end_stream(now)
                dropped = f"; {self._source.refused} invalid rows were dropped" if self._source.refused else ""
                _log.info("the stream has ended after %d samples%s", self.state.samples, dropped)
                self._recovery.save(now)
            return
        try:
            checked = Batch(*self.agent.check(*batch))
        except InvalidArgument as error:  # sources of ours check rows one by one; this is for those of others
            _log.error("dropped a mini-batch of %d rows: %s", len(batch.points), error)
            return
        self.node.begin_round(checked, self._source.position, now)

    def _handle(self, events: list[Arrival | Presence | Request], now: float) -> None:
        for event in events:
            if isinstance(event, Arrival):
                self.node.receive(event.sender, event.data, now)
            elif isinstance(event, Presence):
                self.node.presence(event.neighbor, event.there, now)
            else:
                self._serve(event, now)

    def _carry_out(self, actions: list[Action], now: float) -> Turn | None:
        turn = None
        for action in actions:
            if isinstance(action, Send):
                if action.ticket:
                    self.mailbox.expect(action.neighbor, action.ticket)
                self._carrier.send(action.neighbor, action.data)
            elif isinstance(action, Recover):
                self._recovery.go_back(action, now)
            else:
                turn = action.turn or turn
                self._recovery.record(action, now)
        return turn

    def _serve(self, request: Request, now: float) -> None:
        if request.kind == "status":
            request.answer(self.status(now).encode())
            return
        try:
            points = decode(request.payload, max_bytes=self.membership.max_bytes)
            if not isinstance(points, Points):
                raise RefusedMessage("request: must be points", points.kind)
            check_points("request", points, max_points=1 << 17)
            check_message(self.agent, "agent", "request", points)
            request.answer(encode(Values(self.agent.predict(self.state, points.points))))
        except (RefusedMessage, InvalidArgument) as error:
            request.refuse(str(error))  # a client's slip is no offense

    def status(self, now: float | None = None) -> Status:
        """The agent's status."""
        return structs.replace(
            self.node.status(self._clock() if now is None else now),
            bad_rows=self._source.refused,
            checkpoint=self._recovery.newest,
            trouble=self._recovery.trouble,
            recoveries=self.recoveries,
            expires=None if self._expiry is None else self._expiry.days,
        )
