"""Runs one agent: connects a node to its stream, its carrier and its checkpoints."""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from kernelmesh.agent import Agent, State, check_message
from kernelmesh.errors import InvalidArgument, RefusedMessage
from kernelmesh.exchange import check_points
from kernelmesh.messages import Points, Values, decode, encode
from kernelmesh.runtimes.carriers.base import Carrier
from kernelmesh.runtimes.checkpoints import Checkpoint, CheckpointStore
from kernelmesh.runtimes.expiry import Expiry
from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.name_list import NameList
from kernelmesh.runtimes.node import (
    Action,
    Entry,
    FreeRunning,
    GiveUp,
    LockStep,
    Node,
    Recover,
    Send,
    SharingNode,
    Stepped,
    Turn,
)
from kernelmesh.runtimes.node.attempt import without
from kernelmesh.runtimes.status import Status
from kernelmesh.storage import understood
from kernelmesh.streams import Batch, Source

__all__ = ["AgentRunner", "Poll"]

_log = logging.getLogger("kernelmesh.agent")

_DEATHS = 3  # of processes that replay the same step, after which it is taken without the neighbors' words
_MAX_REQUEST = 1 << 17  # points at which a client may ask for predictions at once
_HELPED = 10_000  # samples without trouble after which going back to an earlier function has helped
_MOST_ATTEMPTS = 3  # to go on from earlier functions
_LOOK_EVERY = 1.0  # seconds between two looks at files that the operator may have changed
_RETRY = 5.0  # seconds between attempts to write a checkpoint where that has failed


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
        self._source, self._carrier, self._store, self._stay, self._clock = source, carrier, store, stay, clock
        self._quarantine, self._revoked, self._expiry = quarantine, revoked, expiry
        self.mailbox = Mailbox()
        self._stopping = self._closed = self._save_due = False
        self._save_again = self._look_again = 0.0
        self.recoveries = self._attempts = self._went_back_to = 0
        self._recovered_at = -_HELPED
        tokens = secrets.randbits(62), secrets.randbits(61)
        self.node: Node | SharingNode
        if agent.protocol.shares:
            self.node = SharingNode(agent, membership, tokens=tokens, stay=stay, now=clock())
        else:
            pacing = LockStep() if membership.lock_step else FreeRunning(membership.patience)
            self.node = Node(agent, membership, pacing, tokens=tokens, now=clock())
        self._restore()
        carrier.open(self.mailbox)
        self._watch_lists(clock())

    @property
    def state(self) -> State:
        """The agent's state."""
        return self.node.state

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
                    self._handle(self.mailbox.take(seconds, replies=self.node.replies_awaited), self._clock())
        finally:
            self.close()

    def poll(self, now: float) -> Poll:
        """Do everything possible without waiting: at most one step."""
        if self.mailbox:
            self._handle(self.mailbox.take(0.0), now)
        if self._stopping:
            return Poll(None, now, done=True)
        if now >= self._look_again:
            self._watch_lists(now)
        if self.node.wants_batch:
            self._take(now)
        turn = self._carry_out(self.node.proceed(now))
        store = self._store
        if store is not None and store.trouble and now >= self._save_again and not self.node.has_batch:
            self.save(now)
        if turn is not None:
            return Poll(turn, now)
        return Poll(None, self.node.wake_at(now), done=not self._stay and self.node.finished(now))

    def close(self) -> None:
        """Write the last checkpoint and release all resources."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.node.has_batch:
                self._source.give_back()  # but not learned from: it will come again
            self.save(self._clock(), last=True)
        finally:
            self._source.close()
            if self._store is not None:
                self._store.close()
            self._carrier.close()

    def _watch_lists(self, now: float) -> None:
        """Apply changes made by the operator, and check the date."""
        self._look_again = now + _LOOK_EVERY
        lists = [names for names in (self._quarantine, self._revoked) if names is not None]
        changed = [names for names in lists if names.changed(now)]
        names = frozenset().union(*(names.names for names in lists))
        # what was quarantined before a restart may have been released since
        if changed or (all(each.is_read for each in lists) and not names.issuperset(self.node.excluded)):
            if changed and self.membership.name in names:
                _log.warning("this agent is quarantined or revoked by %s: others do not listen to it", changed[0].path)
            self.node.exclude(names, now)
            self.save(now, again=True)  # what the operator has changed is in no journal
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
                self.save(now)
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

    def _carry_out(self, actions: list[Action]) -> Turn | None:
        turn = None
        for action in actions:
            if isinstance(action, Send):
                if action.ticket:
                    self.mailbox.expect(action.ticket)
                self._carrier.send(action.neighbor, action.data)
            elif isinstance(action, GiveUp):
                self.mailbox.forget(action.ticket)
            elif isinstance(action, Recover):
                self._recover(action)
            else:
                turn = action.turn or turn
                self._record(action)
        return turn

    def _record(self, stepped: Stepped) -> None:
        store = self._store
        if store is None:
            return
        self._watch_trouble(lambda: store.append(stepped.entry))
        if stepped.save or self._save_due or stepped.entry.step % store.every == 0:
            self._save_due = False
            self.save(self._clock())

    # clients

    def _serve(self, request: Request, now: float) -> None:
        if request.kind == "status":
            request.answer(self.status(now).encode())
            return
        try:
            points = decode(request.payload, max_bytes=self.membership.max_bytes)
            if not isinstance(points, Points):
                raise RefusedMessage("request: must be points", points.kind)
            check_points("request", points, _MAX_REQUEST)
            check_message(self.agent, "agent", "request", points)
            request.answer(encode(Values(self.agent.predict(self.state, points.points))))
        except (RefusedMessage, InvalidArgument) as error:
            request.refuse(str(error))  # a client's slip is no offense

    def status(self, now: float | None = None) -> Status:
        """The agent's status."""
        store = self._store
        return structs.replace(
            self.node.status(self._clock() if now is None else now),
            bad_rows=self._source.refused,
            checkpoint=None if store is None else store.newest,
            trouble="" if store is None else store.trouble,
            recoveries=self.recoveries,
            expires=None if self._expiry is None else self._expiry.days,
        )

    # what survives

    def save(self, now: float, *, last: bool = False, again: bool = False) -> None:
        """Write a checkpoint, unless nothing has been learned since the last; the final one also stores pending samples."""
        store, source = self._store, self._source
        if store is None or (store.newest == self.state.steps and not store.trouble and not last and not again):
            return
        if self.node.absurd and not last:  # good ones must not be pushed out by those of a function that is about to go
            return
        self._save_again = now + _RETRY
        checkpoint = Checkpoint(
            state=self.state,
            position=source.position,
            pending=source.pending,
            traffic=self.node.traffic,
            previous=self.node.previous_words(),
            excluded=self.node.excluded,
        )
        self._watch_trouble(lambda: store.save(checkpoint))

    def _recover(self, wish: Recover) -> None:
        """Return to the last good checkpoint; if that does not help, to an older one, and finally to an empty model.

        The stream continues where it is, and steps and samples keep counting.
        """
        now, state, store = self._clock(), self.state, self._store
        if state.samples - self._recovered_at > _HELPED:
            self._attempts, self._went_back_to = 0, state.steps
        self._attempts += 1
        self._recovered_at = state.samples
        if self._attempts > _MOST_ATTEMPTS:
            if wish.error is not None:
                raise wish.error
            if self._attempts == _MOST_ATTEMPTS + 1:
                _log.error("%s, and going back to earlier functions did not help", wish.reason)
            return
        limit = min(wish.good, self._went_back_to - 1)
        found = None if store is None or self._attempts == _MOST_ATTEMPTS else store.good(limit, name=self.membership.name)
        name, number = self.membership.name, self.membership.number or 0
        good = self.agent.start(name=name, number=number) if found is None else found.state
        self._went_back_to = good.steps
        where = "starting from scratch" if found is None else f"going back to the checkpoint of step {good.steps}"
        _log.error("this agent's own function is absurd (%s): %s; the stream continues", wish.reason, where)
        self.node.recover(replace(good, samples=state.samples, steps=state.steps), now)
        self.recoveries += 1
        self._save_due = self.node.has_batch  # which is not part of any checkpoint
        if not self._save_due:
            self.save(now, again=True)

    def _watch_trouble(self, write: Callable[[], object]) -> None:
        """Write something, and log when that starts failing and when it works again."""
        store = self._store
        assert store is not None
        before = store.trouble
        write()
        if store.trouble and not before:
            _log.error("cannot write checkpoints: %s; learning continues, retrying every %.0f s", store.trouble, _RETRY)
        elif before and not store.trouble:
            _log.warning("checkpoints are being written again")

    def _restore(self) -> None:
        """Restore the agent from its folder, replaying the steps in the journal."""
        store = self._store
        if store is None:
            return
        checkpoint, entries = store.restore(name=self.membership.name)
        if checkpoint is not None:
            with understood(store.folder, "a checkpoint of an agent in this mode"):
                self.node.resume(checkpoint.state, checkpoint.previous, checkpoint.traffic, checkpoint.excluded)
        position, taken = (None if checkpoint is None else checkpoint.position), 0
        for entry in entries:
            if not self._replay(store, entry):
                break
            if entry.position is not None:  # else there were no samples
                position, taken = entry.position, taken + len(entry.batch.points)
        if checkpoint is None and not entries:
            self._watch_trouble(store.begin)
            return
        pending = None if checkpoint is None else checkpoint.pending
        if pending is not None:
            pending = Batch(pending.points[taken:], pending.targets[taken:])
        if position is not None:
            self._source.seek(position, pending)
        text = "resuming from step %d (%d samples), %d steps from the journal"
        _log.info(text, self.state.steps, self.state.samples, len(entries))
        self.save(self._clock())
        store.replayed()

    def _replay(self, store: CheckpointStore, entry: Entry) -> bool:
        """Replay a step; input that makes it fail is set aside, so that no restart fails again. False if skipped."""
        # a process that dies each time at the same step has no time to say why
        deaths = 0 if self.membership.lock_step else store.replaying(entry.step)
        if deaths >= 2 * _DEATHS:
            store.set_aside(entry)
            _log.error("step %d is not replayed: %d processes have died of it", entry.step, deaths)
            return False
        names: tuple[str, ...] = ()
        try:
            if deaths >= _DEATHS:
                names = tuple({str(said.neighbor) for said in entry.heard})
            names += self.node.replay(structs.replace(entry, heard=without(entry.heard, names)))
        except Exception as error:
            store.set_aside(entry)
            _log.error("step %d is not replayed: %s", entry.step, error)
            return False
        if names:
            path = store.set_aside(entry)
            text = "step %d is replayed without the messages of %s, which are set aside in %s"
            _log.warning(text, entry.step, ", ".join(names), path)
        return True
