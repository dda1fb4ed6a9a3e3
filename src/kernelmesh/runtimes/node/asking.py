"""Agents that ask their neighbors: before a step, each neighbor is asked, and answers from the function that it has then.

Running freely, these are the agents whose protocol exchanges functions or values. In lock step, they are all agents: those
that share sums ask for them, too.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernelmesh.agent import Agent
from kernelmesh.errors import KernelMeshError
from kernelmesh.exchange import read_reply
from kernelmesh.messages import Message, encode
from kernelmesh.numerics.graphs import metropolis_weight
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.frames import Frame, Header, Prefix
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.answers import Answers, LocalRound
from kernelmesh.runtimes.node.attempt import within
from kernelmesh.runtimes.node.hindsight import Hindsight
from kernelmesh.runtimes.node.node import Node
from kernelmesh.runtimes.node.pacing import FreeRunning, LockStep, Pacing
from kernelmesh.runtimes.node.peer import ALIVE, Event, Peer, PeerState, Question
from kernelmesh.runtimes.status import Status
from kernelmesh.streams import Batch

__all__ = ["AskingNode"]

_TICK = 0.05  # seconds after which there may be something to do though nothing has arrived


class AskingNode(Node):
    """An agent whose steps use what its neighbors answer."""

    def __init__(self, agent: Agent, membership: Membership, *, tokens: tuple[int, int], now: float = 0.0) -> None:
        super().__init__(agent, membership, tokens=tokens, now=now)
        self._pacing: Pacing = LockStep() if membership.lock_step else FreeRunning(membership.patience)
        self._answers = Answers(agent, membership, self.state)
        self._disturbed = now  # when a neighbor last asked about a step
        self._active = -math.inf  # when any agent is last known to have learned something
        self._moved, self._pace, self._relaying = now, _TICK, False
        self.hindsight = Hindsight(agent)

    @property
    def _round(self) -> LocalRound:
        return self._answers.round

    def begin_round(self, batch: Batch, position: Mapping[str, Any] | None, now: float) -> None:
        super().begin_round(batch, position, now)
        self._round.outbox.learn(batch.points)
        self._begin_gathering(now)
        self._open(now)

    def end_stream(self, now: float) -> None:
        super().end_stream(now)
        self._open(now)

    def _on_exclusion(self, peer: Peer, now: float) -> None:
        self._answers.drop(peer.name)

    def _proceed(self, now: float) -> None:
        for peer in self.peers.values():
            if peer.question is not None and now >= peer.question.overdue:
                self._overdue(peer, peer.question, now)
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
        if self.agent.protocol.shares:  # those behind the neighbors may still go on, and the neighbors with them
            return self._is_over and now - max(self._moved, self._disturbed) > 5.0 * self._pacing.timeout
        return self._has_ended and all(self._pacing.may_leave(peer, now, self._began) for peer in self.admitted())

    def _overdue(self, peer: Peer, question: Question, now: float) -> None:
        """A question has not been answered in time: in lock step it is repeated, otherwise given up."""
        if self.is_lock_step and not question.ping:
            peer.question = replace(question, overdue=now + self._pacing.timeout)
            self._send_question(peer, peer.question, now)
        else:
            peer.failed(now)
            peer.on(Event.GIVEN_UP)

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
        """Whether this agent and its neighbors have nothing more to say: then nobody behind them has, either."""
        ended = self._round.ended and all(peer.is_done for peer in self.admitted())
        return self.agent.protocol.shares and self.batch is None and ended and not self._answers.is_awaited()

    def _finish_round(self, heard: list[Heard], now: float) -> None:
        asked = self._round.asks
        if self.batch is not None:
            self._pacing.stepped(now)
            # seconds between two rounds without samples
            self._pace = min(max(0.9 * self._pace + 0.1 * (now - self._stepped), 0.005), 1.0)
        self._moved, self._relaying = now, False
        stepped = self._step(heard, now)
        if stepped is None:
            return
        self.hindsight.stepped(stepped.entry, exchanged=asked)
        if stepped.turn is not None:
            self._active = now
            if not self.is_lock_step and self.peers:  # who is alone has only its settings to blame
                wish = self.hindsight.doubt(self.state, stepped.entry, stepped.turn.info.loss)
                self._actions += [] if wish is None else [wish]

    @property
    def is_doubtful(self) -> bool:
        return self.hindsight.absurd > 0

    def _idle(self, now: float) -> None:
        """Be there for others while there are no samples."""
        if self._met:
            self._pacing.idle(now)
        takes_part = self._met and self.agent.protocol.listens and not self.is_lock_step
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
            if now - peer.seen > ALIVE / 3.0:
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
        self._count(self._answers.move_on(self.state))

    def _restart(self, now: float) -> None:
        super()._restart(now)
        self._answers.restart(self.state)
        self.hindsight.forget()
        if self.batch is not None:
            self.begin_round(self.batch, self._position, now)
        elif self.ended:
            self._open(now)

    def status(self, now: float, **more: Any) -> Status:
        waiting = self._awaited(now) if self.is_lock_step and self.batch is not None else []
        more["disagreement"] = self.hindsight.disagreement(self.state)
        more["waiting_for"] = tuple(peer.name for peer in waiting)
        more["out_of_step"] = tuple(sorted(self._answers.out_of_step))
        return super().status(now, **more)

    # -- questions of ours ---------------------------------------------------------------------------------------------

    def _ask(self, peer: Peer, now: float, *, ping: bool = False) -> None:
        """Query a neighbor, unless a query is pending or it is too early."""
        if peer.state not in (PeerState.IDLE, PeerState.HEARD) or now < peer.ask_again:
            return
        if self._guard.ignores(peer.name, peer.token, now=now):
            return
        self._ticket += 1
        wait = 0.0 if ping else self._pacing.wait(peer, now, needs_answer=self.agent.protocol.question is not None)
        overdue = now + self._pacing.timeout
        question = Question(self._ticket, self._round.step, ping, now, overdue, now + wait)
        peer.ask(question)
        self._send_question(peer, question, now)

    def _send_question(self, peer: Peer, question: Question, now: float) -> None:
        message, payload = self._round.outbox.question, b""
        if message is not None and not question.ping:
            payload = encode(message)
            self._count(self._answers.size(self._round, ("question", peer.name, question.step), message))
        header = self._header(now, self._has_ended, ping=question.ping)
        self._send(peer, Prefix(self._token, False, question.ticket), header, payload)

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
            peer.failed(now)
            peer.token = frame.prefix.token
            peer.on(Event.GIVEN_UP)
            raise
        self._saw(peer, frame, now)
        peer.answered(words, is_done=frame.header.ended, now=now)

    def _read(self, question: Question, frame: Frame) -> list[Message] | None:
        """The answer to a question of ours; None if it is of no use for the step at hand."""
        if question.ping:
            return None
        if self.agent.protocol.question is not None and (self.batch is None or question.step != self._round.step):
            return None  # it is about points that have been dealt with
        if not frame.payload:
            return []
        rows = None if self.batch is None else len(self.batch.points)
        limits = {"max_bytes": self.membership.max_bytes, "max_points": self.membership.max_points}
        return [read_reply(self.agent, frame.payload, rows=rows, **limits)]

    def _saw(self, peer: Peer, frame: Frame, now: float) -> None:
        super()._saw(peer, frame, now)
        self._active = max(self._active, now - frame.header.age)

    def _open(self, now: float) -> None:
        """Answer the early queries about the round at hand, now that it is known whether there are samples for it."""
        for name, frame in self._answers.open(self._has_ended):
            try:
                self._hear_question(self.peers[name], frame, now)  # which keeps those that are about a later step
            except KernelMeshError as error:
                self._guard.offend(name, frame.prefix.token, error, now=now)

    def _hear_question(self, peer: Peer, frame: Frame, now: float) -> None:
        payload, ended = b"", self._has_ended
        if not frame.header.ping:
            self._disturbed = now
            answer = self._answers.to(peer.name, frame)
            if answer is None:
                return
            self._count(answer.size)
            payload, ended = answer.payload, answer.ended if self.is_lock_step else ended
        self._saw(peer, frame, now)
        self._send(peer, Prefix(self._token, True, frame.prefix.ticket), self._header(now, ended), payload)
