"""Agents that ask their neighbors: before a step, each neighbor is asked, and answers from the function that it has then.

Running freely, these are the agents whose protocol exchanges functions or values. In lock step, they are all agents: those
that share sums ask for them, too.
"""

import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.errors import KernelMeshError
from kernelmesh.exchange import disagreement, read_question, read_reply
from kernelmesh.messages import Message, encode, wire_size
from kernelmesh.numerics.graphs import metropolis_weight
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.frames import Frame, Header, Prefix
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.attempt import within
from kernelmesh.runtimes.node.node import Node
from kernelmesh.runtimes.node.pacing import FreeRunning, LocalRound, LockStep, OutOfStep, Pacing
from kernelmesh.runtimes.node.peer import ALIVE, Event, Peer, PeerState, Question
from kernelmesh.runtimes.node.values import Recover, Traffic
from kernelmesh.runtimes.status import Status
from kernelmesh.streams import Batch

__all__ = ["AskingNode"]

_log = logging.getLogger("kernelmesh.agent")

_TICK = 0.05  # seconds after which there may be something to do though nothing has arrived
_PING = 1.0  # seconds after which a silent neighbor is asked for a sign of life
_PAUSE = 0.05  # seconds before a neighbor whose answer was refused is asked again
_FASTEST, _SLOWEST = 0.005, 1.0  # seconds between two rounds without samples
_ABSURD = 20.0  # times the loss of predicting 0: a function with a larger loss is absurd …
_IN_A_ROW = 20  # … if it has that for so many mini-batches


class AskingNode(Node):
    """An agent whose steps use what its neighbors answer."""

    def __init__(self, agent: Agent, membership: Membership, *, tokens: tuple[int, int], now: float = 0.0) -> None:
        super().__init__(agent, membership, tokens=tokens, now=now)
        self._pacing: Pacing = LockStep() if membership.lock_step else FreeRunning(membership.patience)
        self.mode, self.is_lock_step = self._pacing.name, membership.lock_step
        self._round = LocalRound(agent, self.state)
        self._previous: LocalRound | None = None
        """The round of the exchange before, about which slower neighbors may still ask."""
        self._held: dict[str, Frame] = {}
        """Questions that come too early."""
        self._active = -math.inf  # when any agent is last known to have learned something
        self._moved, self._pace, self._relaying = now, _TICK, False
        self._out_of_step: set[str] = set()
        self.newest: tuple[Floats, list[Heard]] | None = None
        """The points of the latest mini-batch, and what neighbors said in the latest exchange."""

    def begin_round(self, batch: Batch, position: Mapping[str, Any] | None, now: float) -> None:
        super().begin_round(batch, position, now)
        self._round.outbox.learn(batch.points)
        self._begin_gathering(now)
        self._open(now)

    def end_stream(self, now: float) -> None:
        super().end_stream(now)
        self._open(now)

    def presence(self, name: str, there: bool, now: float) -> None:
        peer = self.peers[name]
        if there:
            peer.ask_again = peer.retry_at = 0.0
        elif peer.question is not None:
            peer.failed(now)
        super().presence(name, there, now)

    def _on_exclusion(self, peer: Peer, now: float) -> None:
        self._held.pop(peer.name, None)

    # -- what is done now ----------------------------------------------------------------------------------------------

    def _proceed(self, now: float) -> None:
        for peer in self.peers.values():
            if peer.question is not None and now >= peer.question.overdue:
                peer.failed(now)
                peer.on(Event.GIVEN_UP)
        if self._met and (self.batch is not None or self._relaying or self._steps_without_samples):
            self._gather(now)
        else:
            self._idle(now)

    @property
    def _steps_without_samples(self) -> bool:
        """Whether the next step is one without samples: where sums are shared in lock step, everybody takes all steps."""
        return self.agent.protocol.shares and self.batch is None and (self.ended or not self.agent.wants(self.state))

    def wake_at(self, now: float) -> float:
        waits = [peer.question.wait_until for peer in self.peers.values() if peer.question is not None]
        tick = _TICK if self.batch is not None or self._relaying else min(_TICK, self._pace)
        return min([now + tick, *(until for until in waits if until > now)])

    def finished(self, now: float) -> bool:
        nobody = all(self._pacing.may_leave(peer, now, self._began) for peer in self.admitted())
        # where all take all steps, those behind the neighbors may still go on, and the neighbors with them
        is_calm = not self.agent.protocol.shares or now - self._moved > ALIVE
        return self._has_ended and nobody and is_calm

    def _begin_gathering(self, now: float) -> None:
        self._relaying = False
        self._pacing.begin(now)
        for peer in self.peers.values():
            peer.was_asked = False

    def _gather(self, now: float) -> None:
        """Query the remaining neighbors, and take the step when all have replied or have been waited for long enough."""
        if self._steps_without_samples and not self._round.is_open:
            self._open(now)
        if self._round.asks:
            for peer in self.peers.values():
                if self._pacing.asks(peer):
                    self._ask(peer, now)
        if any(self._awaited(now)) or self._is_over:
            return
        heard = self._heard()
        if self._relaying and self._round.asks and not any(said.reply for said in heard):
            self._relaying = False
            return
        self._finish_round(heard, now)

    def _awaited(self, now: float) -> list[Peer]:
        """The neighbors without whom the step at hand is not taken."""
        for peer in self.peers.values():
            if peer.state is PeerState.ASKED and peer.question is not None and now >= peer.question.wait_until:
                peer.was_late(now)
        return [peer for peer in self.peers.values() if self._pacing.waits_for(peer)] if self._round.asks else []

    @property
    def _is_over(self) -> bool:
        """Whether nobody has anything to say any more, where all take all steps: a neighbor goes on if one behind it does."""
        ended = self._round.ended and all(peer.is_done for peer in self.admitted())
        goes_on = any(frame.header.step > self._round.step for frame in self._held.values())
        return self.agent.protocol.shares and self.batch is None and ended and not goes_on

    def _finish_round(self, heard: list[Heard], now: float) -> None:
        batch, asks = self.batch, self._round.asks
        if batch is not None:
            self._pacing.stepped(now)
            self._pace = min(max(0.9 * self._pace + 0.1 * (now - self._stepped), _FASTEST), _SLOWEST)
        self._moved, self._relaying = now, False
        stepped = self._step(heard, now)
        if stepped is None:
            return
        used = list(stepped.entry.heard)
        points, before = (None, used) if self.newest is None else self.newest
        if not asks and not any(each.reply for each in used):  # then disagreement is with what was said before
            used = before
        points = points if batch is None else batch.points
        self.newest = None if points is None else (points, used)
        if stepped.turn is not None:
            self._active = now
            self._watch(stepped.entry.batch, stepped.turn.info.loss)

    def _watch(self, batch: Batch, loss: float) -> None:
        """Ask for an earlier function if the loss on fresh samples has been far above that of predicting 0 for a while."""
        zero_loss = math.inf
        if loss > _ABSURD * self.state.baseline_loss and not self.is_lock_step and self.peers:
            nothing = np.zeros((len(batch.points), self.agent.outputs))
            zero_loss = float(self.agent.loss.value(nothing, batch.targets).mean())
        self.absurd = self.absurd + 1 if loss > _ABSURD * zero_loss else 0
        if self.absurd == _IN_A_ROW:
            text = f"the loss on fresh samples is {loss:.3g} where predicting 0 costs {zero_loss:.3g}"
            # the loss of a step is that of the state before it
            self._actions.append(Recover(text, self.state.steps - self.absurd - 1))

    def _idle(self, now: float) -> None:
        """Be there for others while there are no samples."""
        if self._met:
            self._pacing.idle(now)
        takes_part = self._met and self.agent.protocol.relays and not self.is_lock_step
        if takes_part and self.peers and now - self._active < ALIVE:
            # a mini-batch that is merely due is not missed yet
            if now - self._stepped >= 2.0 * self._pace and now - self._moved >= self._pace:
                self._moved = now
                self._begin_gathering(now)
                self._relaying = True
                self._gather(now)
            if self._round.asks:  # those of which nothing is asked may still be silent for too long
                return
        for peer in self.peers.values():
            if now - peer.seen > _PING:
                self._ask(peer, now, ping=True)

    def _heard(self) -> list[Heard]:
        """What was heard, as far as one step can deal with it; the rest is asked for again."""
        heard = []
        for peer in self.peers.values():
            if peer.words or (self.is_lock_step and self._round.exchanges):
                weight = metropolis_weight(self.membership.share, peer.share)
                heard.append(Heard(peer.words[0] if peer.words else None, weight, peer.name))
        if self.is_lock_step:
            return heard
        heard, late = within(heard, self.state, self.membership.max_points)
        for name in late:
            self.peers[name].left_out += 1
        return heard

    def _after_step(self, now: float) -> None:
        super()._after_step(now)
        if self._round.asks:
            self._previous = self._round
        if self.agent.protocol.shares:
            for size in self._round.said.values():
                self._count(size)
        self._round = LocalRound(self.agent, self.state)

    def recover(self, state: State, now: float) -> None:
        super().recover(state, now)
        self._previous = self.newest = None
        if self.batch is not None:
            self.begin_round(self.batch, self._position, now)
        elif self.ended:
            self._open(now)

    def resume(self, state: State, traffic: Traffic, excluded: Collection[str] = ()) -> None:
        super().resume(state, traffic, excluded)
        self._previous = None

    def status(self, now: float, **more: Any) -> Status:
        gap = None if self.newest is None else disagreement(self.agent, self.state, *self.newest)
        waits = self.is_lock_step and self.batch is not None
        waiting = tuple(peer.name for peer in self._awaited(now)) if waits else ()
        out = tuple(sorted(self._out_of_step))
        return super().status(now, disagreement=gap, waiting_for=waiting, out_of_step=out, **more)

    # -- questions of ours ---------------------------------------------------------------------------------------------

    def _ask(self, peer: Peer, now: float, *, ping: bool = False) -> None:
        """Query a neighbor, unless a query is pending or it is too early."""
        if peer.state not in (PeerState.IDLE, PeerState.HEARD) or now < peer.ask_again:
            return
        if self._guard.ignores(peer.name, peer.token, now=now):
            return
        self._ticket += 1
        message, wait, payload = self._round.outbox.question, 0.0, b""
        if not ping:
            wait = self._pacing.wait(peer, now, needs_answer=self.agent.protocol.question is not None)
            peer.was_asked = True
            if message is not None:
                payload = encode(message)
                self._count_sent(self._round, ("question", peer.name, self._round.step), message)
        overdue = now + self._pacing.timeout
        peer.question = Question(self._ticket, self._round.step, ping, now, overdue, now + wait)
        peer.on(Event.ASKED)
        if not wait:
            peer.on(Event.WAITED)
        self._send(peer, Prefix(self._token, False, self._ticket), self._header(now, self._has_ended, ping=ping), payload)

    def _header(self, now: float, ended: bool, *, ping: bool = False) -> Header:
        return Header(self._round.step, self._model, self.membership.share, now - self._active, ended, ping)

    def _hear(self, peer: Peer, frame: Frame, now: float) -> None:
        if not frame.prefix.is_reply:
            self._check_model(frame.header)
            self._hear_question(peer, frame, now)
            return
        question = peer.question
        if question is None or frame.prefix.ticket != question.ticket:
            return
        try:
            self._check_model(frame.header)
            words = self._read(question, frame)
        except KernelMeshError:
            peer.failed(now, pause=_PAUSE)
            peer.token = frame.prefix.token
            peer.on(Event.GIVEN_UP)
            raise
        self._saw(peer, frame, now)
        peer.question, peer.failures, peer.ask_again = None, 0, 0.0
        if not question.ping:
            peer.latency = now - question.asked_at
        if words is None:
            peer.on(Event.GIVEN_UP)
        else:
            peer.words, peer.is_done = words, frame.header.ended
            peer.on(Event.HEARD)

    def _read(self, question: Question, frame: Frame) -> list[Message] | None:
        """The answer to a question of ours; None if it is of no use for the step at hand."""
        if question.ping:
            return None
        if self.agent.protocol.question is not None and (self.batch is None or question.step != self._round.step):
            return None  # it is about points that have been dealt with
        if not frame.payload:
            return []
        rows = None if self.batch is None else len(self.batch.points)
        return [read_reply(self.agent, frame.payload, rows=rows, **self._limits)]

    @property
    def _limits(self) -> dict[str, int]:
        return {"max_bytes": self.membership.max_bytes, "max_points": self.membership.max_points}

    def _saw(self, peer: Peer, frame: Frame, now: float) -> None:
        super()._saw(peer, frame, now)
        self._active = max(self._active, now - frame.header.age)

    # -- questions of neighbors ----------------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        """Answer the early queries about the round at hand, now that it is known whether there are samples for it."""
        self._round.is_open, self._round.ended = True, self._has_ended
        held, self._held = self._held, {}
        for name, frame in held.items():
            self._hear_question(self.peers[name], frame, now)  # which keeps those that are about a later step

    def _hear_question(self, peer: Peer, frame: Frame, now: float) -> None:
        if frame.header.ping:
            self._saw(peer, frame, now)
            self._reply(peer, frame, b"", self._has_ended, now)
            return
        step, protocol = frame.header.step, self.agent.protocol
        try:
            every = 1 if protocol.shares else protocol.every
            local = self._pacing.round_for(step, self._round, self._previous, every=every, steps_when_ended=protocol.shares)
        except OutOfStep:
            self._tell_out_of_step(peer.name, step)
            return
        if local is None:
            self._held[peer.name] = frame
            return
        question = read_question(self.agent, frame.payload, **self._limits) if protocol.reply else None
        self._saw(peer, frame, now)
        message = local.outbox.reply(question, peer.name)
        if message is not None:
            self._count_sent(local, ("reply", peer.name, step), message)
        payload = b"" if message is None else encode(message)
        self._reply(peer, frame, payload, local.ended if self.is_lock_step else self._has_ended, now)

    def _reply(self, peer: Peer, frame: Frame, payload: bytes, ended: bool, now: float) -> None:
        self._send(peer, Prefix(self._token, True, frame.prefix.ticket), self._header(now, ended), payload)

    def _count_sent(self, local: LocalRound, what: tuple[str, str, int], message: Message) -> None:
        """Count what is said; in lock step as in simulation: what is said again counts once."""
        size = wire_size(message)
        if self.is_lock_step:
            if what in local.said:
                return
            local.said[what] = size
            if self.agent.protocol.shares and local is self._round:
                return  # it counts when the step is taken, which the last one never is
        self._count(size)

    def _tell_out_of_step(self, name: str, step: int) -> None:
        if name not in self._out_of_step:
            self._out_of_step.add(name)
            text = (
                "%s is about to take step %d, and this agent step %d: a mesh in lock step restarts as a whole, from scratch"
            )
            _log.error(text, name, step, self._round.step)
