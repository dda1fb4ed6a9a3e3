"""Queries and replies between one agent and its neighbors: tickets, deadlines and offenders."""

import logging
import math
from collections import Counter
from collections.abc import Collection

from kernelmesh.agent import Agent, State
from kernelmesh.errors import InvalidArgument, RefusedMessage
from kernelmesh.exchange import read_question, read_reply
from kernelmesh.messages import WireSize, encode, wire_size
from kernelmesh.registry import fingerprint
from kernelmesh.runtimes.frames import Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.guard import Guard
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.pacing import LocalRound, OutOfStep, Pacing
from kernelmesh.runtimes.node.peer import Peer, Purpose
from kernelmesh.runtimes.node.values import Action, GiveUp, Send, Traffic

__all__ = ["Talk"]

_log = logging.getLogger("kernelmesh.agent")

_PAUSE = 0.05  # seconds before a neighbor whose answer was refused is asked again


class Talk:
    """All exchanges of one agent with its neighbors. The owner updates `state`, `current`, `previous` and `ended`."""

    def __init__(
        self, agent: Agent, membership: Membership, pacing: Pacing, state: State, *, tokens: tuple[int, int]
    ) -> None:
        self._agent, self._membership, self._pacing = agent, membership, pacing
        self._every, self.share = agent.protocol.every, membership.share
        self._model = fingerprint([agent.identity, agent.protocol.every, pacing.name])
        self._token, self._tickets = tokens
        self._limits = {"max_bytes": membership.max_bytes, "max_points": membership.max_points}
        self.peers = {name: Peer(name) for name in membership.neighbors}
        self.guard = Guard()
        self.left_out: Counter[str] = Counter()
        """How often a neighbor's messages had to wait for another step, by name."""
        self.out_of_step: set[str] = set()
        self.state, self.ended = state, False
        self.current = pacing.next_round(agent, state)
        self.previous: LocalRound | None = None
        """The round of the exchange before."""
        self.active = -math.inf
        """When any agent is last known to have learned something."""
        self._floats = self._bytes = 0
        self.actions: list[Action] = []
        """The pending actions, in order."""
        self._held: dict[str, Frame] = {}

    def open(self, now: float) -> None:
        """Answer the early queries about the current round, now that it is known whether there are samples for it."""
        self.current.open = True
        held, self._held = self._held, {}
        for name, frame in held.items():
            self._question(self.peers[name], frame, now)  # which keeps those that are about a later step

    def presence(self, name: str, there: bool, now: float) -> None:
        """A neighbor has started listening, or is gone."""
        peer = self.peers[name]
        peer.present = there
        if there:
            peer.ask_again, peer.prompt = 0.0, True
        elif peer.ticket:
            self._give_up(peer, now)

    def exclude(self, names: Collection[str], now: float) -> None:
        """Ignore these neighbors from now on, and no others."""
        for peer in self.peers.values():
            before, peer.excluded = peer.excluded, peer.name in names
            if before and not peer.excluded:
                _log.warning("%s is released: its messages are accepted again", peer.name)
            elif peer.excluded and not before:
                _log.warning("%s is quarantined: its messages are ignored until it is released", peer.name)
                if peer.ticket:
                    self._give_up(peer, now)
                peer.reply, peer.reply_data = None, b""
                peer.seen, peer.finished = -math.inf, False
                self._held.pop(peer.name, None)

    def receive(self, sender: str, data: bytes, now: float) -> None:
        """Process bytes that arrived under a neighbor's name."""
        peer = self.peers.get(sender)
        try:
            if peer is None:
                raise RefusedMessage("frame: must come from a neighbor")
            frame = decode_frame(data, max_bytes=self._membership.max_bytes)
        except RefusedMessage as error:
            self.guard.offend(sender, int.from_bytes(data[:8], "big"), error, now=now)
            return
        if peer.excluded:
            return
        if frame.prefix.is_reply:
            self._reply(peer, frame, now)
        else:
            self._question(peer, frame, now)

    def give_up_overdue(self, now: float) -> None:
        """Drop queries that were not answered in time."""
        for peer in self.peers.values():
            if peer.ticket and now >= peer.overdue:
                self._give_up(peer, now)

    def ask(self, peer: Peer, purpose: Purpose, now: float) -> None:
        """Query a neighbor, unless a query is pending or it is too early."""
        if peer.ticket or peer.excluded or now < peer.ask_again:
            return
        if self.guard.ignores(peer.name, peer.token, now=now):
            peer.prompt = False
            return
        current, is_step = self.current, purpose is Purpose.STEP
        peer.purpose, peer.asked_step, peer.asked = purpose, current.step, is_step
        if not peer.present:
            peer.failed(now)
            return
        self._tickets += 1
        peer.ticket, peer.asked_at, peer.overdue = self._tickets, now, now + self._pacing.timeout
        payload = current.question if is_step else b""
        if payload and self._pacing.counts(current, ("question", peer.name, current.step)):
            self._count(current.question_size)
        header = self._header(now, ended=self.ended, ping=not is_step)
        frame = Frame(Prefix(self._token, False, peer.ticket), header, payload)
        self.actions.append(Send(peer.name, encode_frame(frame), peer.ticket))

    def _give_up(self, peer: Peer, now: float) -> None:
        self.actions.append(GiveUp(peer.ticket))
        peer.failed(now)

    def _header(self, now: float, *, ended: bool, ping: bool = False) -> Header:
        return Header(self.current.step, self._model, self.share, now - self.active, ended, ping)

    def _check_model(self, header: Header) -> None:
        if header.model not in (0, self._model):
            rule = "come from an agent with the same kernel, loss, protocol, mode and number of outputs"
            raise RefusedMessage(f"header: must {rule}")

    def _saw(self, peer: Peer, frame: Frame, now: float) -> None:
        peer.seen, peer.token, peer.share = now, frame.prefix.token, frame.header.share
        self.active = max(self.active, now - frame.header.age)
        self._pacing.heed_end(peer, frame.header, of_step=False)

    def _reply(self, peer: Peer, frame: Frame, now: float) -> None:
        """Process the reply to a query of ours."""
        if frame.prefix.ticket != peer.ticket:
            return
        peer.ticket = 0
        try:
            self._check_model(frame.header)
            self._understand(peer, frame)
        except (RefusedMessage, InvalidArgument) as error:
            self.guard.offend(peer.name, frame.prefix.token, error, now=now)
            peer.token, peer.ask_again = frame.prefix.token, now + _PAUSE
            return
        self._saw(peer, frame, now)
        peer.answered(now)

    def _understand(self, peer: Peer, frame: Frame) -> None:
        header, payload = frame.header, frame.payload
        if peer.purpose is not Purpose.STEP:
            peer.finished = header.ended
            return
        message = None
        if payload:
            batch = self.current.batch
            if self._agent.protocol.question is not None and (batch is None or peer.asked_step != self.current.step):
                return  # too late: it is about points that have been dealt with
            rows = None if batch is None else len(batch.points)
            message = read_reply(self._agent, payload, rows=rows, **self._limits)
        peer.reply, peer.reply_data, peer.replied_step = message, payload, peer.asked_step
        self._pacing.heed_end(peer, header, of_step=True)

    # what neighbors ask

    def _question(self, peer: Peer, frame: Frame, now: float) -> None:
        if self.guard.ignores(peer.name, frame.prefix.token, now=now):
            return
        try:
            self._check_model(frame.header)
            if frame.header.ping:
                self._answer_ping(peer, frame, now)
                return
            local = self._pacing.round_for(frame.header.step, self.current, self.previous, every=self._every)
            if local is None:
                self._held[peer.name] = frame
            else:
                self._answer(peer, frame, local, now)
        except OutOfStep:
            self._tell_out_of_step(peer.name, frame.header.step)
        except (RefusedMessage, InvalidArgument) as error:
            self.guard.offend(peer.name, frame.prefix.token, error, now=now)

    def _answer_ping(self, peer: Peer, frame: Frame, now: float) -> None:
        self._saw(peer, frame, now)
        peer.finished = frame.header.ended
        self._send_reply(peer, frame, b"", self.ended, now)

    def _answer(self, peer: Peer, frame: Frame, local: LocalRound, now: float) -> None:
        header = frame.header
        question = None
        if self._agent.protocol.reply:
            question = read_question(self._agent, frame.payload, **self._limits)
        message = local.outbox.reply(question)
        self._saw(peer, frame, now)
        payload = b""
        if message is not None:
            payload = encode(message)
            if self._pacing.counts(local, ("reply", peer.name, header.step)):
                self._count(wire_size(message))
        self._send_reply(peer, frame, payload, self._pacing.has_ended(local, ended=self.ended), now)

    def _send_reply(self, peer: Peer, frame: Frame, payload: bytes, ended: bool, now: float) -> None:
        header = self._header(now, ended=ended)
        reply = Frame(Prefix(self._token, True, frame.prefix.ticket), header, payload)
        self.actions.append(Send(peer.name, encode_frame(reply), 0))

    def _tell_out_of_step(self, name: str, step: int) -> None:
        if name not in self.out_of_step:
            self.out_of_step.add(name)
            _log.error(
                "%s is about to take step %d while this agent is at %d: they cannot continue in lock step; "
                "restore the checkpoints of both, or start both from scratch",
                name,
                step,
                self.current.step,
            )

    @property
    def traffic(self) -> Traffic:
        """What was sent since the beginning, restarts included."""
        return Traffic(self._floats, self._bytes)

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None:
        self._floats, self._bytes = traffic

    def _count(self, size: WireSize) -> None:
        self._floats += size.floats
        self._bytes += size.bytes
