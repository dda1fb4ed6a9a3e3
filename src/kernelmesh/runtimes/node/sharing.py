"""The state machine of an agent that shares sums: what is said is pushed, nobody asks, and nobody waits.

Every step is a tick of the network: the agent listens to what has arrived, learns from a mini-batch if it has one, and speaks
to every neighbor. Running freely, it ticks at its own pace, faster while its stream has samples and slower while it has not.
In lock step, it needs the words of all neighbors for every step.
"""

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from kernelmesh.agent import Agent, Info, State, advance, relay
from kernelmesh.consensus import Heard
from kernelmesh.consensus.relay import Relay
from kernelmesh.errors import InvalidArgument, KernelMeshError, RefusedMessage
from kernelmesh.messages import News, decode, encode, wire_size
from kernelmesh.registry import fingerprint
from kernelmesh.runtimes.blas_threads import BlasThreads
from kernelmesh.runtimes.frames import Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.guard import Guard
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.peer import ALIVE
from kernelmesh.runtimes.node.values import Action, Entry, Recover, Send, Stepped, Traffic, Turn
from kernelmesh.runtimes.status import NeighborStatus, Status
from kernelmesh.streams import Batch

__all__ = ["SharingNode"]

_log = logging.getLogger("kernelmesh.agent")

_TICK, _FASTEST, _SLOWEST = 0.05, 0.002, 0.2  # seconds between two ticks: at first, at least, and at most
_CHANGE = 1.1  # by how much the pace changes at a tick, so that neighbors do not give this agent up
_HELLO = 100.0  # bytes of a hello; at most half of a limited rate is used for them
_MAX_HEARD = 16  # messages of one neighbor between two ticks; newer ones replace the oldest
_AGAIN = 0.5  # seconds of waiting in lock step after which words are repeated
_GONE = 60.0  # seconds of silence after which a neighbor in lock step counts as gone for good


@dataclass(eq=False, slots=True)
class _Neighbor:
    """What a node knows about one neighbor."""

    name: str
    excluded: bool = False
    """Whether the operator does not want it to be listened to."""
    present: bool = False
    """Whether it listens, as far as the carrier knows."""
    token: int = 0
    seen: float = -math.inf
    ended: bool = False
    """Whether its stream has ended, and it has nothing more to say."""
    heard: list[News] = field(default_factory=list)
    """What it has said since the last tick."""
    words: dict[int, tuple[News, bool]] = field(default_factory=dict)
    """In lock step: what it says before each step, and whether it has ended."""

    def alive(self, now: float) -> bool:
        """Whether it has given a sign of life lately."""
        return now - self.seen < ALIVE


class SharingNode:
    """One agent that shares sums, without thread, clock or transport: events and the time in, actions out.

    The interface is that of `Node`.
    """

    replies_awaited = 1
    absurd = 0
    """Sums cannot be led astray by a large step, so no earlier function is ever asked for."""

    def __init__(self, agent: Agent, membership: Membership, *, tokens: tuple[int, int], now: float = 0.0) -> None:
        if membership.number is None:
            remedy = "number the agents of a mesh from 0 on; `kernelmesh mesh init` does"
            raise InvalidArgument("Membership", "number", "be given, another one for each agent", None, remedy=remedy)
        self.agent, self.membership = agent, membership
        self.state = agent.start(name=membership.name, number=membership.number)
        self.ended = False
        self._neighbors = {name: _Neighbor(name) for name in membership.neighbors}
        self._token = tokens[0]
        self._model = fingerprint([agent.identity, agent.relaying.scales, membership.lock_step])
        self._guard = Guard()
        self._actions: list[Action] = []
        self._batch: Batch | None = None
        self._position: Mapping[str, Any] | None = None
        self._began = self._ticked = self._stepped = now
        self._pause = _TICK if membership.neighbors else _FASTEST
        self._balance, self._filled = 0.0, now
        self._said: dict[str, News] = {}
        self._said_before: dict[str, News] = {}
        self._repeated = now
        self._floats = self._bytes = self._steps_here = 0
        self._loss: float | None = None
        self._threads = BlasThreads()

    @property
    def traffic(self) -> Traffic:
        """What was sent since the beginning, restarts included."""
        return Traffic(self._floats, self._bytes)

    @property
    def has_batch(self) -> bool:
        """Whether there is a mini-batch that has not been learned from yet."""
        return self._batch is not None

    @property
    def wants_batch(self) -> bool:
        """Whether a mini-batch can be given to `begin_round`."""
        return self._batch is None and not self.ended and self.agent.wants(self.state)

    # -- events --------------------------------------------------------------------------------------------------------

    def begin_round(self, batch: Batch, position: Mapping[str, Any] | None, now: float) -> None:
        """There is a mini-batch, which has been checked; `position` is where the stream stands after it."""
        self._batch, self._position = batch, position

    def end_stream(self, now: float) -> None:
        """There will be no mini-batch any more."""
        self.ended = True

    def presence(self, name: str, there: bool, now: float) -> None:
        """A neighbor has started listening, or is gone."""
        self._neighbors[name].present = there
        if there and self.membership.lock_step:
            self._say(self._neighbors[name], now)

    def exclude(self, names: Collection[str], now: float) -> None:
        """Take all samples of these members out of the network, and admit all others again."""
        protocol = cast(Relay, self.agent.consensus)
        for neighbor in self._neighbors.values():
            before, neighbor.excluded = neighbor.excluded, neighbor.name in names
            if neighbor.excluded == before:
                continue
            neighbor.heard.clear()
            neighbor.words.clear()
            memory = self.state.memory
            assert memory is not None
            number = memory.numbers.get(neighbor.name)
            if number is not None:
                memory = protocol.forgotten(memory, number, forgotten=neighbor.excluded)
                self.state = replace(self.state, memory=memory)
            text = "quarantined: its samples are forgotten" if neighbor.excluded else "released: its samples count again"
            _log.warning("%s is %s", neighbor.name, text)

    def receive(self, sender: str, data: bytes, now: float) -> None:
        """Process bytes that arrived under a neighbor's name."""
        neighbor, token = self._neighbors.get(sender), int.from_bytes(data[:8], "big")
        try:
            if neighbor is None:
                raise RefusedMessage("frame: must come from a neighbor")
            if neighbor.excluded or self._guard.ignores(sender, token, now=now):
                return
            frame = decode_frame(data, max_bytes=self.membership.max_bytes)
            self._hear(neighbor, frame, now)
        except KernelMeshError as error:
            self._guard.offend(sender, token, error, now=now)

    def _hear(self, neighbor: _Neighbor, frame: Frame, now: float) -> None:
        header = frame.header
        if header.model != self._model:
            rule = "come from an agent with the same kernel, loss, consensus, mode and number of outputs"
            raise RefusedMessage(f"header: must {rule}")
        news = decode(frame.payload, max_bytes=self.membership.max_bytes)
        if not isinstance(news, News):
            raise RefusedMessage("frame: must hold news", type(news).__name__)
        if news.length > self.membership.max_points:
            raise RefusedMessage(f"news: must be about at most {self.membership.max_points} points", news.length)
        neighbor.seen, neighbor.token, neighbor.ended = now, frame.prefix.token, header.ended
        if not self.membership.lock_step:
            neighbor.heard = [*neighbor.heard[1 - _MAX_HEARD :], news]
            return
        step = self.state.steps + 1
        if header.step in (step, step + 1):
            neighbor.words[header.step] = news, header.ended
        if header.ping:  # it lacks ours
            self._say(neighbor, now, step=header.step)

    # -- what is done now ----------------------------------------------------------------------------------------------

    def proceed(self, now: float) -> list[Action]:
        """Do what can be done at this time: at most one step."""
        if self.membership.lock_step:
            self._proceed_in_lock_step(now)
        else:
            self._proceed_freely(now)
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self, now: float) -> float:
        """When to proceed though nothing has happened."""
        return now + _TICK if self.membership.lock_step else max(self._ticked + self._pause, now)

    def finished(self, now: float) -> bool:
        """Whether the stream has ended and all that this agent knows is known to its neighbors."""
        if not self.ended or self._batch is not None:
            return False
        gone = 2 * ALIVE if not self.membership.lock_step else _GONE
        others = (neighbor.ended or now - max(neighbor.seen, self._began) > gone for neighbor in self._neighbors.values())
        return self.agent.is_settled(self.state) and all(others)

    def _proceed_freely(self, now: float) -> None:
        if now < self._ticked + self._pause:
            return
        had_batch = self._batch is not None
        heard = [Heard(news, neighbor=each.name) for each in self._neighbors.values() for news in each.heard]
        self._step(heard, now)
        for neighbor in self._neighbors.values():
            neighbor.heard = []
            self._say(neighbor, now)
        pause, rate = self._pause / _CHANGE if had_batch else self._pause * _CHANGE, self.membership.max_bytes_per_second
        least = max(_FASTEST, 2.0 * _HELLO * len(self._neighbors) / rate if rate else 0.0)
        self._pause, self._ticked = max(min(pause, _SLOWEST), least), now

    def _proceed_in_lock_step(self, now: float) -> None:
        step, neighbors = self.state.steps + 1, self._neighbors.values()
        missing = [neighbor for neighbor in neighbors if step not in neighbor.words]
        if missing:
            if now - self._repeated >= _AGAIN:
                self._repeated = now
                for neighbor in missing:
                    self._say(neighbor, now, again=True)
            return
        if self._batch is None and not self.ended and self.agent.wants(self.state):
            return  # the stream is slow
        words = [neighbor.words[step] for neighbor in neighbors]
        if self._has_ended and all(ended for _, ended in words):
            return
        heard = [Heard(news, neighbor=each.name) for each, (news, _) in zip(neighbors, words, strict=True)]
        self._step(heard, now)
        for neighbor in neighbors:
            neighbor.words.pop(step, None)
            self._say(neighbor, now)
        self._repeated = now

    @property
    def _has_ended(self) -> bool:
        return self.ended and self._batch is None and self.agent.is_settled(self.state)

    def _step(self, heard: list[Heard], now: float) -> None:
        """One step, with the mini-batch if there is one."""
        batch, before = self._batch, self.state
        try:
            with self._threads.limited(before.function.order):
                self.state, info = self._taken(before, batch, heard)
        except Exception as error:
            if self.membership.lock_step or not self._neighbors:
                raise
            reason = getattr(error, "reason", f"{type(error).__name__}: {error}")
            self._actions.append(Recover(reason, before.steps - 1, error))
            return
        self._said_before, self._said = self._said, {}
        nothing = Batch(np.empty((0, self.agent.dimension)), np.empty(0))
        position = self._position if batch is not None else None
        entry = Entry(step=self.state.steps, batch=batch or nothing, position=position, heard=heard, traffic=self.traffic)
        turn = None
        if info is not None:
            self._batch = self._position = None
            self._loss = info.loss if self._loss is None else 0.95 * self._loss + 0.05 * info.loss
            self._steps_here += 1
            self._stepped = now
            turn = Turn(number=entry.step, state=self.state, info=info, traffic=self.traffic)
        self._actions.append(Stepped(turn, entry))

    def _taken(self, state: State, batch: Batch | None, heard: list[Heard]) -> tuple[State, Info | None]:
        if batch is not None:
            return advance(self.agent, state, *batch, heard)
        return relay(self.agent, state, heard), None

    # -- what is said --------------------------------------------------------------------------------------------------

    def _say(self, neighbor: _Neighbor, now: float, *, step: int | None = None, again: bool = False) -> None:
        """Push the words from the present state to a neighbor, or those before the step that it still has to take."""
        if not neighbor.present or neighbor.excluded:
            return
        current = self.state.steps + 1
        step = current if step is None else step
        if step == current:
            news = self._said.get(neighbor.name) or self.agent.tell(self.state, neighbor.name)
        else:
            news = self._said_before.get(neighbor.name) if step == current - 1 else None
        if news is None:
            return
        if not self.membership.lock_step:
            news = self._within_rate(news, now)
        if step == current and neighbor.name not in self._said:
            self._said[neighbor.name] = news
            size = wire_size(news)
            self._floats += size.floats
            self._bytes += size.bytes
        header = Header(step, self._model, 0.0, 0.0, self._has_ended, again)
        self._actions.append(Send(neighbor.name, encode_frame(Frame(Prefix(self._token, False, 0), header, encode(news))), 0))

    def _within_rate(self, news: News, now: float) -> News:
        """The news without sums and points while the rate is used up: newer ones will be sent instead of them later."""
        rate = self.membership.max_bytes_per_second
        if rate is None:
            return news
        self._balance = min(self._balance + rate * (now - self._filled), rate)
        self._filled = now
        if self._balance <= 0.0:
            news = News(news.hello, news.length, news.digest, standing=news.standing)
        self._balance -= wire_size(news).bytes
        return news

    # -- what survives -------------------------------------------------------------------------------------------------

    def recover(self, state: State, now: float) -> None:
        """Continue from another state; a mini-batch that has not been learned from yet is kept."""
        memory, current = state.memory, self.state.memory
        assert memory is not None
        assert current is not None
        memory = memory.copied()
        memory.tree.clock = max(memory.tree.clock, current.tree.clock)  # it never runs backward
        self.state, self._said, self._said_before = replace(state, memory=memory), {}, {}

    def resume(self, state: State, previous: object, traffic: Traffic) -> None:
        """Restore the agent from a checkpoint."""
        self.state = state
        self._floats, self._bytes = traffic

    def replay(self, entry: Entry) -> tuple[str, ...]:
        """Take a step again that is on record; returns the neighbors without whose words it had to be taken: none."""
        batch = Batch(*self.agent.check(*entry.batch)) if len(entry.batch.points) else None
        words = {name: self.agent.tell(self.state, name) for name in self._neighbors}
        self.state, _ = self._taken(self.state, batch, list(entry.heard))
        self._said, self._said_before = {}, {name: news for name, news in words.items() if news is not None}
        self._floats, self._bytes = entry.traffic
        return ()

    def previous_words(self) -> None:
        """Nothing but the state is stored."""

    def status(self, now: float) -> Status:
        """How the agent is doing, as far as a node can tell."""
        memory = self.state.memory
        waiting: tuple[str, ...] = ()
        assert memory is not None
        if self.membership.lock_step and self._batch is not None:
            step = self.state.steps + 1
            waiting = tuple(each.name for each in self._neighbors.values() if step not in each.words)
        reasons = {name: memory.peers[j].excluded for name, j in memory.numbers.items() if j in memory.peers}
        return Status(
            name=self.membership.name,
            mode="lock-step" if self.membership.lock_step else "free",
            samples=self.state.samples,
            steps=self.state.steps,
            steps_here=self._steps_here,
            seconds=now - self._began,
            order=self.state.function.order,
            loss=self._loss,
            bytes_sent=self._bytes,
            floats_sent=self._floats,
            members=memory.roll.bit_count(),
            others=int(memory.others.samples),
            neighbors={
                each.name: NeighborStatus(
                    alive=each.alive(now),
                    ended=each.ended,
                    ignored=self._guard.ignores(each.name, each.token, now=now),
                    refused=self._guard.refused[each.name],
                    excluded=reasons.get(each.name, ""),
                    quarantined=each.excluded,
                )
                for each in self._neighbors.values()
            },
            waiting_for=waiting,
            refused=self._guard.total,
            ended=self.ended,
        )
