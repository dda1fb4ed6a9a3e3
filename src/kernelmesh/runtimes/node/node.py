"""One agent on a network as a state machine: events and the time go in, actions come out.

What is common to all nodes is here; `asking` has agents that ask their neighbors, and `sharing` agents that share sums.
The states of a neighbor are in `peer`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.errors import InvalidArgument, KernelMeshError, RefusedMessage
from kernelmesh.messages import WireSize
from kernelmesh.protocols import Heard
from kernelmesh.registry import fingerprint
from kernelmesh.runtimes.frames import Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.guard import Guard
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.attempt import Attempt, Result, attempt, reason, take_step
from kernelmesh.runtimes.node.peer import Event, Peer
from kernelmesh.runtimes.node.values import Action, Entry, Recover, Send, Stepped, Traffic, Turn
from kernelmesh.runtimes.status import NeighborStatus, Status
from kernelmesh.streams import Batch

__all__ = ["Node"]

_log = logging.getLogger("kernelmesh.agent")


class Node(ABC):
    """One agent on a network, without thread, clock or transport.

    `receive`, `presence`, `exclude`, `begin_round` and `end_stream` say what has happened; `proceed` does what is to be done
    now and returns it as actions; `wake_at` is when to call it again if nothing happens. `tokens` are two random numbers
    below 2^62: one identifies this process, the other is the first ticket, so that replies to queries never received cannot
    be forged.
    """

    def __init__(self, agent: Agent, membership: Membership, *, tokens: tuple[int, int], now: float = 0.0) -> None:
        if agent.protocol.shares and membership.number is None:
            remedy = "number the agents of a mesh from 0; `kernelmesh mesh init` does"
            raise InvalidArgument("Membership", "number", "be given, and different for each agent", None, remedy=remedy)
        self.agent, self.membership, self.is_lock_step = agent, membership, membership.lock_step
        self.state = agent.start(name=membership.name, number=membership.number or 0)
        self.traffic = Traffic()
        """What was sent since the beginning, restarts included."""
        self.ended = False
        """Whether the stream has ended."""
        self.batch: Batch | None = None
        """A mini-batch that has not been learned from yet."""
        self.peers = {name: Peer(name) for name in sorted(membership.neighbors)}
        self._position: Mapping[str, Any] | None = None
        self._token, self._ticket = tokens
        shared = agent.relay_settings if agent.protocol.shares else None
        points = None if shared is None else [shared.scales, shared.max_order]
        self._model = fingerprint([agent.identity, agent.protocol.every, points, membership.lock_step])
        self._guard = Guard()
        self._actions: list[Action] = []
        self._began = self._stepped = now
        self._met = not membership.neighbors
        self._loss: float | None = None
        self._steps_here = 0

    def begin_round(self, batch: Batch, position: Mapping[str, Any] | None, now: float) -> None:
        """There is a mini-batch, which has been checked; `position` is where the stream stands after it."""
        self.batch, self._position = batch, position

    def end_stream(self, now: float) -> None:
        """There will be no mini-batch any more."""
        self.ended = True

    def presence(self, name: str, there: bool, now: float) -> None:
        """A neighbor has started listening, or is gone."""
        self.peers[name].appeared() if there else self.peers[name].vanished(now)

    def exclude(self, names: Collection[str], now: float) -> None:
        """Ignore these neighbors from now on, and no others."""
        for peer in self.peers.values():
            if peer.is_quarantined and peer.name not in names:
                peer.on(Event.RELEASED)
                self._on_exclusion(peer, now)
                _log.warning("%s is released: its messages are accepted again", peer.name)
            elif not peer.is_quarantined and peer.name in names:
                peer.on(Event.QUARANTINED)
                peer.forget()
                self._on_exclusion(peer, now)
                _log.warning("%s is quarantined: its messages are ignored until it is released", peer.name)

    @abstractmethod
    def _on_exclusion(self, peer: Peer, now: float) -> None:
        """A neighbor has been quarantined or released."""

    def receive(self, sender: str, data: bytes, now: float) -> None:
        """Process bytes that arrived under a neighbor's name."""
        peer, token = self.peers.get(sender), int.from_bytes(data[:8], "big")
        if peer is not None and (peer.is_quarantined or self._guard.ignores(sender, token, now=now)):
            return
        try:
            if peer is None:
                raise RefusedMessage("frame: must come from a neighbor")
            self._hear(peer, decode_frame(data, max_bytes=self.membership.max_bytes), now)
        except KernelMeshError as error:
            self._guard.offend(sender, token, error, now=now)

    @abstractmethod
    def _hear(self, peer: Peer, frame: Frame, now: float) -> None:
        """Process a frame, or raise `RefusedMessage` or `InvalidArgument`."""

    def _check_model(self, header: Header) -> None:
        if header.model not in (0, self._model):
            rule = "come from an agent with the same kernel, loss, protocol, mode and numbers of outputs and points"
            raise RefusedMessage(f"header: must {rule}")

    def _saw(self, peer: Peer, frame: Frame, now: float) -> None:
        peer.seen, peer.token, peer.share, peer.ended = now, frame.prefix.token, frame.header.share, frame.header.ended

    def proceed(self, now: float) -> list[Action]:
        """Do what can be done at this time: at most one step."""
        if not self._met:
            self._meet(now)
        self._proceed(now)
        actions, self._actions = self._actions, []
        return actions

    @abstractmethod
    def _proceed(self, now: float) -> None:
        """Do what can be done at this time."""

    @abstractmethod
    def wake_at(self, now: float) -> float:
        """When to proceed though nothing has happened."""

    @abstractmethod
    def finished(self, now: float) -> bool:
        """Whether the stream has ended and no neighbor needs this agent any more."""

    @property
    def wants_batch(self) -> bool:
        """Whether a mini-batch can be given to `begin_round`."""
        return self._met and self.batch is None and not self.ended and self.agent.wants(self.state)

    @property
    def is_doubtful(self) -> bool:
        """Whether the agent's own function may be absurd: then its states should not be kept."""
        return False

    @property
    def excluded(self) -> tuple[str, ...]:
        """The neighbors that the operator has quarantined."""
        return tuple(peer.name for peer in self.admitted(False))

    def admitted(self, admitted: bool = True) -> list[Peer]:
        """The neighbors that are listened to, or those that are not."""
        return [peer for peer in self.peers.values() if peer.is_quarantined != admitted]

    def _meet(self, now: float) -> None:
        """Wait a while for the neighbors before the very first step: a short file would be used up before they are there."""
        missing = [peer.name for peer in self.admitted() if not peer.alive(now)]
        late = now - self._began >= 10.0  # seconds
        self._met = not missing or late or self.state.samples > 0
        for name in missing if late and self.state.samples == 0 else ():
            text = "%s has not answered yet: is it running, does it name this agent, and is its mesh %r?"
            _log.warning(text, name, self.membership.mesh)

    @property
    def _has_ended(self) -> bool:
        """Whether the stream has ended, and the agent has nothing more to say."""
        return self.ended and self.batch is None and self.agent.is_settled(self.state)

    def _step(self, heard: list[Heard], now: float) -> Stepped | None:
        """Take a step, with the mini-batch if there is one; None if it failed."""
        batch = self.batch
        try:
            trial = self._attempt(batch, heard)
        except Exception as error:
            if self.is_lock_step or not self.peers:  # who is alone has only its settings to blame
                raise
            self._actions.append(Recover(reason(error), self.state.steps - 1, error))
            return None
        for name in trial.offenders:
            refused = RefusedMessage("step: must not fail with what a neighbor says", reason(trial.error))
            self._guard.offend(name, self.peers[name].token, refused, now=now)
        for said in trial.heard:
            if said.reply is not None:
                self._guard.accept(str(said.neighbor), self.peers[str(said.neighbor)].token)
        self.state, info = trial.result
        position, self.batch, self._position = self._position, None, None
        self._after_step(now)
        entry = Entry(
            step=self.state.steps,
            batch=batch or Batch(np.empty((0, self.agent.dimension)), np.empty(0)),
            position=position,
            heard=trial.heard,
            traffic=self.traffic,
        )
        turn = None
        if info is not None:
            self._stepped = now
            self._loss = info.loss if self._loss is None else 0.95 * self._loss + 0.05 * info.loss
            self._steps_here += 1
            turn = Turn(number=entry.step, state=self.state, info=info, traffic=self.traffic)
        stepped = Stepped(turn, entry)
        self._actions.append(stepped)
        return stepped

    def _attempt(self, batch: Batch | None, heard: list[Heard]) -> Attempt[Result]:
        """Take a step, without the messages of neighbors with which it fails. In lock step it fails as in simulation."""
        take = partial(take_step, self.agent, batch)
        return Attempt(take(self.state, heard), heard) if self.is_lock_step else attempt(take, self.state, heard)

    def _after_step(self, now: float) -> None:
        """The state has changed: what was heard has been used."""
        for peer in self.peers.values():
            peer.words, peer.is_done = [], False
            if peer.is_heard:
                peer.on(Event.STEPPED)

    def _send(self, peer: Peer, prefix: Prefix, header: Header, payload: bytes) -> None:
        ticket = 0 if prefix.is_reply else prefix.ticket
        self._actions.append(Send(peer.name, encode_frame(Frame(prefix, header, payload)), ticket))

    def _count(self, size: WireSize) -> None:
        self.traffic = Traffic(self.traffic.floats + size.floats, self.traffic.bytes + size.bytes)

    def recover(self, state: State, now: float) -> None:
        """Continue from another state; a mini-batch that has not been learned from yet is kept."""
        self.state, self._loss = state, None
        self._restart(now)

    def resume(self, state: State, traffic: Traffic, excluded: Collection[str] = ()) -> None:
        """Restore the agent from a checkpoint."""
        self.state, self.traffic = state, traffic
        for peer in self.peers.values():
            if peer.name in excluded:
                peer.on(Event.QUARANTINED)
        self._restart(self._began)

    def _restart(self, now: float) -> None:
        """The state has been replaced."""
        self._after_step(now)

    def replay(self, entry: Entry) -> tuple[str, ...]:
        """Take a step again that is on record; returns the neighbors without whose words it had to be taken."""
        batch = Batch(*self.agent.check(*entry.batch)) if len(entry.batch.points) else None
        trial = self._attempt(batch, list(entry.heard))
        self.state, self.traffic = trial.result[0], entry.traffic
        self._after_step(self._began)
        return trial.offenders

    def status(self, now: float, **more: Any) -> Status:
        """How the agent is doing, as far as a node can tell."""
        if (memory := self.state.memory) is not None:
            more |= {"members": memory.roll.bit_count(), "others": int(memory.others.samples)}
        return Status(
            name=self.membership.name,
            mode="lock-step" if self.is_lock_step else "free",
            samples=self.state.samples,
            steps=self.state.steps,
            steps_here=self._steps_here,
            seconds=now - self._began,
            order=self.state.function.order,
            loss=self._loss,
            bytes_sent=self.traffic.bytes,
            floats_sent=self.traffic.floats,
            neighbors={peer.name: self._status_of(peer, now) for peer in self.peers.values()},
            refused=self._guard.total,
            ended=self.ended,
            **more,
        )

    def _status_of(self, peer: Peer, now: float) -> NeighborStatus:
        memory = self.state.memory
        known = None if memory is None else memory.peers.get(memory.numbers.get(peer.name, -1))
        ignored, refused = self._guard.ignores(peer.name, peer.token, now=now), self._guard.refused[peer.name]
        return peer.status(now, ignored=ignored, refused=refused, excluded="" if known is None else known.excluded)
