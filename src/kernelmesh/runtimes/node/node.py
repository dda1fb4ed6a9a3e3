"""The state machine of an agent on a network: when it queries, waits, steps, relays and idles."""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernelmesh.agent import Agent, State, advance, relay
from kernelmesh.checks import Floats, matrix
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import Outbox, disagreement
from kernelmesh.messages import encode, wire_size
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.graphs import metropolis_weight
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.attempt import Attempt, attempt, oversized, within, without
from kernelmesh.runtimes.node.pacing import LocalRound, Pacing
from kernelmesh.runtimes.node.peer import ALIVE, Peer, Purpose
from kernelmesh.runtimes.node.talk import Talk
from kernelmesh.runtimes.node.values import Action, Entry, Recover, Stepped, Traffic, Turn
from kernelmesh.runtimes.status import NeighborStatus, Status
from kernelmesh.streams import Batch

__all__ = ["Node"]

_log = logging.getLogger("kernelmesh.agent")

T = TypeVar("T")

_TICK = 0.05  # seconds after which there may be something to do though nothing has arrived
_PING = 1.0  # seconds after which a silent neighbor is asked for a sign of life
_MEETING = 10.0  # seconds to wait for neighbors before the first step
_ABSURD, _IN_A_ROW = 20.0, 20  # times the loss of predicting 0, and mini-batches, after which a function counts as absurd
_WAITING = 0.1  # the part of the time that may go into waiting for slow neighbors
_FASTEST, _SLOWEST = 0.005, 1.0  # seconds between two rounds without samples


class Node:
    """One agent on a network, without thread, clock or transport: events and the time in, actions out.

    `receive`, `presence`, `begin_round` and `end_stream` say what has happened; `proceed` does what is to be done now and
    returns it as actions; `wake_at` is when to call it again if nothing happens. `tokens` are two random numbers below 2^62:
    one identifies this process, the other is the first ticket, so that replies to queries never received cannot be forged.
    """

    def __init__(
        self, agent: Agent, membership: Membership, pacing: Pacing, *, tokens: tuple[int, int], now: float = 0.0
    ) -> None:
        self.agent, self.membership, self._pacing = agent, membership, pacing
        self._talk = Talk(agent, membership, pacing, agent.start(name=membership.name), tokens=tokens)
        self.receive, self.presence, self.exclude = self._talk.receive, self._talk.presence, self._talk.exclude
        self._began = self._stepped = self._relayed = now
        self._met = self._relaying = False
        self._late_at = self._gathering = now
        self._slack = self._credit = 0.0
        self._idle_since: float | None = None
        self.replies_awaited = 1
        """How many replies were needed to continue, when it last proceeded."""
        self._pace = _TICK
        self._steps_here = 0
        self._loss: float | None = None
        self._newest: tuple[Floats, list[Heard]] | None = None
        self.absurd = 0
        """For how many mini-batches in a row the loss has been far above that of predicting 0."""

    @property
    def state(self) -> State:
        """The agent's state."""
        return self._talk.state

    @property
    def traffic(self) -> Traffic:
        """What was sent since the beginning, restarts included."""
        return self._talk.traffic

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        return self._talk.ended

    @property
    def excluded(self) -> tuple[str, ...]:
        """The neighbors that the operator has quarantined."""
        return tuple(name for name, peer in self._talk.peers.items() if peer.excluded)

    @property
    def wants_batch(self) -> bool:
        """Whether a mini-batch can be given to `begin_round`."""
        return self._met and not self._talk.current.open

    @property
    def has_batch(self) -> bool:
        """Whether there is a mini-batch that has not been learned from yet."""
        return self._talk.current.batch is not None

    def begin_round(self, batch: Batch, position: Mapping[str, Any] | None, now: float) -> None:
        """There is a mini-batch, which has been checked; `position` is where the stream stands after it."""
        talk = self._talk
        current = talk.current
        current.batch, current.position = batch, position
        current.outbox.learn(batch.points)
        if current.outbox.question is not None:
            current.question, current.question_size = encode(current.outbox.question), wire_size(current.outbox.question)
        self._relaying = False
        self._begin_gathering(now)
        talk.open(now)

    def end_stream(self, now: float) -> None:
        """There will be no mini-batch any more."""
        self._talk.ended = True
        self._talk.open(now)

    def proceed(self, now: float) -> list[Action]:
        """Do what can be done at this time: at most one step."""
        talk = self._talk
        talk.give_up_overdue(now)
        if not self._met:
            self._meet(now)
        elif self.has_batch or self._relaying:
            self._gather(now)
        else:
            self._idle(now)
        actions, talk.actions = talk.actions, []
        return actions

    def wake_at(self, now: float) -> float:
        """When to proceed though nothing has happened."""
        if self.has_batch or self._relaying:
            return min(now + _TICK, max(min(self._late_at, self._wait_until(now)), now))
        return now + min(_TICK, self._pace)

    def _wait_until(self, now: float) -> float:
        """When the first neighbor ceases to be waited for."""
        return min((peer.wait_until for peer in self._talk.peers.values() if now < peer.wait_until), default=math.inf)

    def finished(self, now: float) -> bool:
        """Whether the stream has ended and no neighbor needs our answers any more."""
        peers = self._talk.peers.values()
        return self.ended and all(self._pacing.may_leave(peer, now, self._began) for peer in peers)

    def _meet(self, now: float) -> None:
        """Wait a while for the neighbors before the very first step: a short file would be used up before they are there."""
        missing = [peer for peer in self._talk.peers.values() if not peer.alive(now) and not peer.excluded]
        self._met = self.state.steps > 0 or not missing or now - self._began >= _MEETING
        if not self._met:
            for peer in missing:
                self._talk.ask(peer, Purpose.PING, now)
        elif self.state.steps == 0:
            for peer in missing:
                text = "%s has not answered yet: is it running, does it name this agent, and is its mesh %r?"
                _log.warning(text, peer.name, self.membership.mesh)

    @property
    def _exchanges(self) -> bool:
        """Whether neighbors are asked before the step at hand."""
        return self.agent.protocol.reply is not None and self._talk.current.exchanges

    def _awaited(self, now: float) -> list[Peer]:
        if not self._exchanges:
            return []
        return self._pacing.awaited(self._talk.peers.values(), self._talk.current.step, now)

    def _begin_gathering(self, now: float) -> None:
        self._late_at = now + self._pacing.patience
        self._gathering, self._credit = now, min(self._credit + _WAITING * (now - self._gathering), self._pacing.patience)
        for peer in self._talk.peers.values():
            peer.asked = False

    def _ask(self, peer: Peer, now: float) -> None:
        """Ask a neighbor about the step at hand, and decide how long to wait for it."""
        self._talk.ask(peer, Purpose.STEP, now)
        # a function that comes later can be used later; values are of use for the points that were asked about only
        credit = self._credit if self.agent.protocol.question is not None else 0.0
        peer.wait_until = now + self._pacing.wait(peer, now, slack=self._slack, credit=credit)

    def _account(self, now: float) -> None:
        """A step is about to be taken: take note of how long it was waited for, and how long the stream had kept it idle."""
        waited, idle = now - self._gathering, 0.0 if self._idle_since is None else self._gathering - self._idle_since
        self._slack, self._idle_since = 0.9 * self._slack + 0.1 * (waited + idle), None
        self._credit = max(self._credit - waited, 0.0) if waited > 0.5 * self._slack else self._credit

    def _gather(self, now: float) -> None:
        """Query the remaining neighbors, and take the step when all have replied or patience is over."""
        talk, step = self._talk, self._talk.current.step
        if self._exchanges:
            for peer in self._pacing.unasked(talk.peers.values(), step):
                self._ask(peer, now)
        awaited = self._awaited(now)
        if awaited and now >= self._late_at:
            self._late_at = now + self._pacing.patience
        self.replies_awaited = max(len(awaited), 1)
        if not awaited:
            if self._relaying:
                self._relay(now)
            else:
                self._step(now)

    def _idle(self, now: float) -> None:
        """Be there for others while there are no samples."""
        if self._idle_since is None:
            self._idle_since = now
        takes_part = self.agent.protocol.relays and self._pacing.relays
        if takes_part and self._talk.peers and now - self._talk.active < ALIVE:
            # a mini-batch that is merely due is not missed yet
            if now - self._stepped >= 2.0 * self._pace and now - self._relayed >= self._pace:
                self._relayed, self._relaying = now, True
                self._begin_gathering(now)
                self._gather(now)
            if self._exchanges:  # those of which nothing is asked may still be silent for too long
                return
        for peer in self._talk.peers.values():
            if now - peer.seen > _PING:
                self._talk.ask(peer, Purpose.PING, now)

    def _heard(self) -> list[Heard]:
        return [
            Heard(peer.reply, metropolis_weight(self._talk.share, peer.share), peer.name)
            for peer in self._talk.peers.values()
            if self._pacing.is_heard(peer, exchanges=self._talk.current.exchanges)
        ]

    def _step(self, now: float) -> None:
        batch = self._talk.current.batch
        assert batch is not None
        self._account(now)
        try:
            trial = self._attempt(lambda state, heard: advance(self.agent, state, *batch, heard), self._heard_within(), now)
        except Exception as error:
            if self._pacing.everybody_waits or not self._talk.peers:  # who is alone has only its settings to blame
                raise
            reason = getattr(error, "reason", f"{type(error).__name__}: {error}")
            self._talk.actions.append(Recover(reason, self.state.steps - 1, error))
            return
        (state, info), heard = trial.result, trial.heard
        entry = self._entry(batch, self._talk.current.position, heard)
        self._newest = (batch.points, self._newest_words(heard))
        self._move_on(state)
        self._loss = info.loss if self._loss is None else 0.95 * self._loss + 0.05 * info.loss
        self._steps_here += 1
        self._pace = min(max(0.9 * self._pace + 0.1 * (now - self._stepped), _FASTEST), _SLOWEST)
        self._talk.active = self._stepped = now
        turn = Turn(number=entry.step, state=state, info=info, traffic=self.traffic)
        self._talk.actions.append(Stepped(turn, entry, save=bool(trial.offenders)))
        self._watch(batch, info.loss)

    def _watch(self, batch: Batch, loss: float) -> None:
        """Ask for an earlier function if the loss on fresh samples has been far above that of predicting 0 for a while."""
        if loss > _ABSURD * self.state.baseline_loss and not self._pacing.everybody_waits and self._talk.peers:
            nothing = np.zeros((len(batch.points), self.agent.outputs))
            zero_loss = float(self.agent.loss.value(nothing, batch.targets).mean())
            if loss > _ABSURD * zero_loss:
                self.absurd += 1
                if self.absurd == _IN_A_ROW:
                    reason = f"the loss on fresh samples is {loss:.3g} where predicting 0 costs {zero_loss:.3g}"
                    # the loss of a step is that of the state before it
                    self._talk.actions.append(Recover(reason, self.state.steps - self.absurd - 1))
                return
        self.absurd = 0

    def recover(self, state: State, now: float) -> None:
        """Continue from another state; a mini-batch that has not been learned from yet is kept."""
        talk, before = self._talk, self._talk.current
        talk.state, talk.previous = state, None
        talk.current = self._pacing.next_round(self.agent, state)
        self.absurd, self._loss, self._newest, self._relaying = 0, None, None, False
        for peer in talk.peers.values():
            peer.reply, peer.reply_data = None, b""
        if before.batch is not None:
            self.begin_round(before.batch, before.position, now)
        elif before.open:
            talk.open(now)

    def _relay(self, now: float) -> None:
        """A round without samples, at the pace that the stream had: otherwise those who still learn would pull each other
        away from what this agent has seen.
        """
        self._relaying = False
        heard = self._heard_within()
        if self._exchanges and not any(said.reply for said in heard):
            return
        trial = self._attempt(lambda state, heard: relay(self.agent, state, heard), heard, now)
        heard = trial.heard
        entry = self._entry(self._nothing(), None, heard)
        if self._newest is not None:
            self._newest = (self._newest[0], self._newest_words(heard))
        self._move_on(trial.result)
        self._talk.actions.append(Stepped(None, entry, save=bool(trial.offenders)))

    def _newest_words(self, heard: list[Heard]) -> list[Heard]:
        """What disagreement is measured by: between two exchanges, what neighbors said in the one before."""
        if self._exchanges or self._newest is None or any(said.reply for said in heard):
            return heard
        return self._newest[1]

    def _nothing(self) -> Batch:
        return Batch(np.empty((0, self.agent.dimension)), np.empty(0))

    def _entry(self, batch: Batch, position: Mapping[str, Any] | None, heard: list[Heard]) -> Entry:
        peers, step = self._talk.peers.values(), self.state.steps + 1
        replies = {peer.name: peer.reply_data for peer in peers if peer.reply_data}
        return Entry(step=step, batch=batch, position=position, heard=heard, replies=replies, traffic=self.traffic)

    def _heard_within(self) -> list[Heard]:
        """What was heard, as far as one step can deal with it; the rest is asked for again."""
        heard = self._heard()
        if self._pacing.everybody_waits:
            return heard
        heard, late = within(heard, self.state, self.membership.max_points)
        self._talk.left_out.update(late)
        return heard

    def _attempt(self, take: Callable[[State, Sequence[Heard]], T], heard: list[Heard], now: float) -> Attempt[T]:
        """Take a step, without those with whose words it fails: one of them may have gone astray, or be an enemy.

        In lock step it fails as in simulation.
        """
        if self._pacing.everybody_waits:
            return Attempt(take(self.state, heard), heard)
        trial = attempt(take, self.state, heard)
        for name in trial.offenders:
            reason = getattr(trial.error, "reason", f"{type(trial.error).__name__}: {trial.error}")
            error = RefusedMessage("step: must not fail with what a neighbor says", reason)
            self._talk.guard.offend(name, self._talk.peers[name].token, error, now=now)
        return trial

    def _move_on(self, state: State) -> None:
        talk = self._talk
        talk.state, talk.previous = state, talk.current if talk.current.exchanges else talk.previous
        talk.current = self._pacing.next_round(self.agent, state)
        for peer in talk.peers.values():
            peer.reply, peer.reply_data = None, b""

    def resume(
        self, state: State, previous: Mapping[str, NDArray[Any]], traffic: Traffic, excluded: Collection[str] = ()
    ) -> None:
        """Restore the agent from a checkpoint; those who are excluded will be excluded again."""
        self._talk.state, self._talk.traffic = state, traffic
        self._talk.current = self._pacing.next_round(self.agent, state)
        if previous:
            agent = self.agent
            centers = matrix("checkpoint", "previous/centers", previous["points"], columns=agent.dimension)
            weights = matrix("checkpoint", "previous/weights", previous["weights"], rows=len(centers), columns=agent.outputs)
            step = state.steps - state.steps % agent.protocol.every
            function = Function.of(agent.kernel, centers, weights)
            self._talk.previous = LocalRound(step, Outbox.restored(agent, step, function))

    def replay(self, entry: Entry) -> tuple[str, ...]:
        """Take a step again that is on record; returns the neighbors without whose words it had to be taken."""
        heard = list(entry.heard)
        offenders: tuple[str, ...] = ()
        if not self._pacing.everybody_waits:
            offenders = oversized(heard, self.membership.max_points)
        heard = without(heard, offenders)
        if len(entry.batch.points):
            batch = Batch(*self.agent.check(*entry.batch))
            trial = self._attempt(lambda state, heard: advance(self.agent, state, *batch, heard)[0], heard, self._began)
            self.begin_round(batch, entry.position, self._began)
        else:
            trial = self._attempt(lambda state, heard: relay(self.agent, state, heard), heard, self._began)
        self._move_on(trial.result)
        self._talk.traffic = entry.traffic
        return (*offenders, *trial.offenders)

    def previous_words(self) -> dict[str, NDArray[Any]]:
        """What neighbors that are one exchange behind may still ask about."""
        before = self._talk.previous
        if before is None or not self._pacing.everybody_waits:
            return {}
        return {"points": before.outbox.function.points, "weights": before.outbox.function.weights}

    def status(self, now: float) -> Status:
        """How the agent is doing, as far as a node can tell."""
        gap = None if self._newest is None else disagreement(self.agent, self.state, *self._newest)
        waiting = self._awaited(now) if self._talk.current.batch is not None and self._pacing.everybody_waits else []
        return Status(
            name=self.membership.name,
            mode=self._pacing.name,
            samples=self.state.samples,
            steps=self.state.steps,
            steps_here=self._steps_here,
            seconds=now - self._began,
            order=self.state.function.order,
            loss=self._loss,
            disagreement=gap,
            bytes_sent=self.traffic.bytes,
            floats_sent=self.traffic.floats,
            neighbors={
                peer.name: NeighborStatus(
                    alive=peer.alive(now),
                    ended=peer.finished,
                    ignored=self._talk.guard.ignores(peer.name, peer.token, now=now),
                    refused=self._talk.guard.refused[peer.name],
                    left_out=self._talk.left_out[peer.name],
                    quarantined=peer.excluded,
                )
                for peer in self._talk.peers.values()
            },
            waiting_for=tuple(peer.name for peer in waiting),
            out_of_step=tuple(sorted(self._talk.out_of_step)),
            refused=self._talk.guard.total,
            ended=self.ended,
        )
