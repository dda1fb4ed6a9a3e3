"""The state machine of an agent that shares sums: what is said is pushed, nobody asks, and nobody waits.

Every step is a tick of the network: the agent listens to what has arrived, learns from a mini-batch if it has one, and speaks
to every neighbor. Running freely, it ticks at its own pace, faster while its stream has samples and slower while there is
nothing new. In lock step, it needs the words of all neighbors for every step.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kernelmesh.agent import Agent, Info, State, advance, relay
from kernelmesh.errors import InvalidArgument, KernelMeshError, RefusedMessage
from kernelmesh.messages import News, decode, encode
from kernelmesh.protocols import Heard
from kernelmesh.protocols.relay import Memory, Relay
from kernelmesh.registry import fingerprint
from kernelmesh.runtimes.frames import FRAME_BYTES, Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.guard import Guard
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.allowance import Allowance, check_rate
from kernelmesh.runtimes.node.attempt import Attempt, attempt
from kernelmesh.runtimes.node.peer import ALIVE
from kernelmesh.runtimes.node.values import Action, Entry, Recover, Send, Stepped, Traffic, Turn
from kernelmesh.runtimes.status import NeighborStatus, Status
from kernelmesh.streams import Batch

__all__ = ["SharingNode"]

_log = logging.getLogger("kernelmesh.agent")

# Seconds between two ticks: at least, while there is something new, and at most.
_FASTEST, _TICK, _SLOWEST = 0.001, 0.05, 0.2
_CHANGE = 1.1  # by how much the pace changes at a tick, at most, so that neighbors do not give this agent up
_MEETING = 10.0  # seconds to wait for neighbors before the very first mini-batch
_MAX_HEARD = 16  # messages of one neighbor between two ticks; newer ones replace the oldest
_AGAIN = 0.5  # seconds of waiting in lock step after which words are repeated
_LINGER, _FAREWELL = 10.0, 5.0  # seconds: who leaves stays for others whose streams have not ended, and waits to be heard
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
    greeted: float = -math.inf
    """When it was last sent anything."""
    heard: list[News] = field(default_factory=list)
    """What it has said since the last tick."""
    words: dict[int, tuple[News, bool]] = field(default_factory=dict)
    """In lock step: what it says before each step, and whether it has ended."""

    def alive(self, now: float) -> bool:
        """Whether it has given a sign of life lately."""
        return now - self.seen < ALIVE


@dataclass(eq=False, slots=True)
class _Farewell:
    """How an agent leaves its sums to the others."""

    since: float
    heir: str = ""
    """Who takes them; empty as long as nobody has been sent them."""
    had_sums: bool = False
    """Whether the heir had sums from this agent before."""


class SharingNode:
    """One agent that shares sums, without thread, clock or transport: events and the time in, actions out.

    The interface is that of `Node`.
    """

    replies_awaited = 1
    absurd = 0
    """No large step can lead sums astray, so no earlier function is ever asked for."""

    def __init__(
        self, agent: Agent, membership: Membership, *, tokens: tuple[int, int], stay: bool = True, now: float = 0.0
    ) -> None:
        if membership.number is None:
            remedy = "number the agents of a mesh from 0 on; `kernelmesh mesh init` does"
            raise InvalidArgument("Membership", "number", "be given, another one for each agent", None, remedy=remedy)
        self._allowance: Allowance | None = None
        if (rate := membership.max_bytes_per_second) is not None:
            check_rate(agent, rate)
            self._allowance = Allowance(rate, neighbors=len(membership.neighbors))
        self.agent, self.membership, self._stay = agent, membership, stay
        self.state = agent.start(name=membership.name, number=membership.number)
        self.ended = False
        self._neighbors = {name: _Neighbor(name) for name in membership.neighbors}
        self._token = tokens[0]
        settings = agent.relaying
        self._model = fingerprint([agent.identity, settings.scales, settings.max_order, membership.lock_step])
        self._guard = Guard()
        self._actions: list[Action] = []
        self._batch: Batch | None = None
        self._position: Mapping[str, Any] | None = None
        self._began = self._ticked = self._repeated = now
        self._met = not membership.neighbors
        self._pause = _TICK if membership.neighbors else _FASTEST
        self._said: dict[str, News] = {}
        self._said_before: dict[str, News] = {}
        self._ended_at: float | None = None
        self._farewell: _Farewell | None = None
        self._floats = self._bytes = self._steps_here = 0
        self._loss: float | None = None

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
        return self._met and self._batch is None and not self.ended and self.agent.wants(self.state)

    @property
    def excluded(self) -> tuple[str, ...]:
        """The neighbors that the operator has quarantined."""
        return tuple(name for name, neighbor in self._neighbors.items() if neighbor.excluded)

    @property
    def _memory(self) -> Memory:
        assert self.state.memory is not None
        return self.state.memory

    @property
    def _admitted(self) -> list[_Neighbor]:
        return [neighbor for neighbor in self._neighbors.values() if not neighbor.excluded]

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
        protocol = cast(Relay, self.agent.protocol)
        for neighbor in self._neighbors.values():
            before, neighbor.excluded = neighbor.excluded, neighbor.name in names
            if neighbor.excluded == before:
                continue
            neighbor.heard.clear()
            neighbor.words.clear()
            number = self._memory.numbers.get(neighbor.name)
            if number is not None:
                memory = protocol.forgotten(self._memory, number, forgotten=neighbor.excluded)
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
            rule = "come from an agent with the same kernel, loss, protocol, mode and numbers of outputs and points"
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
        if not self._met:
            self._meet(now)
        if self.membership.lock_step:
            self._proceed_in_lock_step(now)
        else:
            self._proceed_freely(now)
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self, now: float) -> float:
        """When to proceed though nothing has happened."""
        return now + _TICK if self.membership.lock_step else max(self._ticked + self._pause, now)

    def _meet(self, now: float) -> None:
        """Wait a while for the neighbors before the very first mini-batch: a short file would be used up before they come."""
        missing = [neighbor.name for neighbor in self._admitted if not neighbor.alive(now)]
        late = now - self._began >= _MEETING
        self._met = not missing or late or self.state.samples > 0 or self.membership.lock_step
        if late and self.state.samples == 0:
            for name in missing:
                text = "%s has not been heard yet: is it running, does it name this agent, and is its mesh %r?"
                _log.warning(text, name, self.membership.mesh)

    def _proceed_freely(self, now: float) -> None:
        if now < self._ticked + self._pause:
            return
        self._take_leave(now)
        had_batch = self._batch is not None
        self._step([Heard(news, neighbor=each.name) for each in self._neighbors.values() for news in each.heard], now)
        neighbors = list(self._neighbors.values())
        first = self.state.steps % max(len(neighbors), 1)  # another one at every tick, as what may be sent can be scarce
        for neighbor in (*neighbors[first:], *neighbors[:first]):
            neighbor.heard = []
            self._say(neighbor, now)
        aim = _FASTEST if had_batch else _SLOWEST if self.agent.is_settled(self.state) else _TICK
        self._pause = min(max(aim, self._pause / _CHANGE), self._pause * _CHANGE)
        self._ticked = now

    def _proceed_in_lock_step(self, now: float) -> None:
        step, neighbors = self.state.steps + 1, self._admitted
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
        # a neighbor goes on as long as somebody behind it does
        if self._has_ended and all(ended for _, ended in words) and not any(step + 1 in each.words for each in neighbors):
            return
        self._step([Heard(news, neighbor=each.name) for each, (news, _) in zip(neighbors, words, strict=True)], now)
        for neighbor in self._neighbors.values():
            neighbor.words.pop(step, None)
            self._say(neighbor, now)
        self._repeated = self._ticked = now

    @property
    def _has_ended(self) -> bool:
        return self.ended and self._batch is None and self.agent.is_settled(self.state)

    def _step(self, heard: list[Heard], now: float) -> None:
        """One step, with the mini-batch if there is one."""
        batch, before = self._batch, self.state
        said = self._words() if self.membership.lock_step else {}
        try:
            (self.state, info), heard = self._attempt(batch, heard, now)
        except Exception as error:
            if self.membership.lock_step or not self._neighbors:
                raise
            self._actions.append(Recover(_reason(error), before.steps - 1, error))
            return
        self._said_before, self._said = said, {}
        for words in said.values():
            self._count(words, len(encode(words)))
        nothing = Batch(np.empty((0, self.agent.dimension)), np.empty(0))
        position = self._position if batch is not None else None
        entry = Entry(step=self.state.steps, batch=batch or nothing, position=position, heard=heard, traffic=self.traffic)
        turn = None
        if info is not None:
            self._batch = self._position = None
            self._loss = info.loss if self._loss is None else 0.95 * self._loss + 0.05 * info.loss
            self._steps_here += 1
            turn = Turn(number=entry.step, state=self.state, info=info, traffic=self.traffic)
        self._actions.append(Stepped(turn, entry))

    def _attempt(self, batch: Batch | None, heard: list[Heard], now: float) -> tuple[tuple[State, Info | None], list[Heard]]:
        """What a step leads to, and the words that were used: not those of neighbors with which it fails.

        In lock step it fails as in simulation.
        """

        def take(state: State, heard: Sequence[Heard]) -> tuple[State, Info | None]:
            return self._taken(state, batch, heard)

        trial = Attempt(take(self.state, heard), heard) if self.membership.lock_step else attempt(take, self.state, heard)
        for name in trial.offenders:
            assert trial.error is not None
            error = RefusedMessage("step: must not fail with what a neighbor says", _reason(trial.error))
            self._guard.offend(name, self._neighbors[name].token, error, now=now)
        for said in trial.heard:
            if said.reply is not None:
                name = str(said.neighbor)
                self._guard.accept(name, self._neighbors[name].token)
        return trial.result, trial.heard

    def _taken(self, state: State, batch: Batch | None, heard: Sequence[Heard]) -> tuple[State, Info | None]:
        if batch is not None:
            return advance(self.agent, state, *batch, heard)
        return relay(self.agent, state, heard), None

    # -- the end -------------------------------------------------------------------------------------------------------

    def finished(self, now: float) -> bool:
        """Whether the stream has ended, and the agent may go: its neighbors have its samples, or have had time enough."""
        if not self.ended or self._batch is not None:
            return False
        if not self._neighbors:
            return True
        if not self.membership.lock_step:
            return self._farewell is not None and (self._is_heard() or now - self._farewell.since > _FAREWELL)
        others = (neighbor.ended or now - max(neighbor.seen, self._began) > _GONE for neighbor in self._admitted)
        # those behind the neighbors may still go on, and these with them
        return self._has_ended and all(others) and now - self._ticked > ALIVE

    def _take_leave(self, now: float) -> None:
        """Say farewell when the stream has ended and all that this agent knows is known to its neighbors."""
        if self._stay or not self.ended or self._batch is not None or self._farewell is not None:
            return
        self._ended_at = now if self._ended_at is None else self._ended_at
        others = all(neighbor.ended or not neighbor.alive(now) for neighbor in self._admitted)
        if (self._has_ended and others) or now - self._ended_at > _LINGER:
            self.state = replace(self.state, memory=cast(Relay, self.agent.protocol).left(self._memory))
            self._farewell = _Farewell(now)

    def _is_heard(self) -> bool:
        """Whether the heir has taken the sums over: then it has none from this agent any longer."""
        farewell = self._farewell
        return farewell is not None and farewell.had_sums and self._acknowledged(farewell.heir) == 0

    def _acknowledged(self, name: str) -> int:
        """The clock of the newest sums that a neighbor has from this agent."""
        peer = self._memory.peers.get(self._memory.numbers.get(name, -1))
        return 0 if peer is None or peer.link.hello is None else peer.link.hello.heard

    # -- what is said --------------------------------------------------------------------------------------------------

    def _words(self) -> dict[str, News]:
        """What all neighbors are told before the next step."""
        words = ((name, self._said.get(name) or self.agent.tell(self.state, name)) for name in self._neighbors)
        return {name: news for name, news in words if news is not None}

    def _say(self, neighbor: _Neighbor, now: float, *, step: int | None = None, again: bool = False) -> None:
        """Push the words from the present state to a neighbor, or those before the step that it still has to take."""
        if not neighbor.present or neighbor.excluded:
            return
        current = self.state.steps + 1
        if step in (None, current):
            news = self._said.get(neighbor.name) or self.agent.tell(self.state, neighbor.name)
        else:
            news = self._said_before.get(neighbor.name) if step == current - 1 else None
        if news is None:
            return
        header = Header(step or current, self._model, 0.0, 0.0, self._has_ended, again)
        if self.membership.lock_step:
            if step in (None, current):
                self._said[neighbor.name] = news
            self._send(neighbor, header, encode(news), now)
            return
        for words in self._shortened(neighbor, news):
            payload = encode(words)
            if self._allows(neighbor, words, len(payload), now):
                self._count(words, len(payload))
                self._send(neighbor, header, payload, now)
                if self._farewell is not None and words.sums is not None and not self._farewell.heir:
                    self._farewell.heir, self._farewell.had_sums = neighbor.name, self._acknowledged(neighbor.name) > 0
                return

    def _shortened(self, neighbor: _Neighbor, news: News) -> Iterator[News]:
        """What can be said instead of all the news while the rate is used up; sums and points will be newer later."""
        farewell = self._farewell
        if farewell is not None and farewell.heir not in ("", neighbor.name):  # only one may have what is left
            news = structs.replace(news, sums=None)
        yield news
        if news.sums is not None:
            yield structs.replace(news, sums=None)
        yield structs.replace(news, sums=None, part=None, proposals=None)

    def _allows(self, neighbor: _Neighbor, news: News, size: int, now: float) -> bool:
        """Whether the rate leaves room for a message now."""
        if self._allowance is None:
            return True
        size += FRAME_BYTES
        is_hello = news.sums is None and news.part is None and news.proposals is None
        if is_hello and now - neighbor.greeted < self._allowance.pause(size):
            return False
        return self._allowance.takes(size, now=now, is_hello=is_hello)

    def _send(self, neighbor: _Neighbor, header: Header, payload: bytes, now: float) -> None:
        neighbor.greeted = now
        self._actions.append(Send(neighbor.name, encode_frame(Frame(Prefix(self._token, False, 0), header, payload)), 0))

    def _count(self, news: News, size: int) -> None:
        self._floats += news.floats
        self._bytes += size

    # -- what survives -------------------------------------------------------------------------------------------------

    def recover(self, state: State, now: float) -> None:
        """Continue from another state; a mini-batch that has not been learned from yet is kept."""
        memory, current = state.memory, self._memory
        assert memory is not None
        memory = memory.copied()
        memory.tree.clock = max(memory.tree.clock, current.tree.clock)  # it never runs backward
        self.state, self._said, self._said_before = replace(state, memory=memory), {}, {}

    def resume(
        self, state: State, previous: Mapping[str, NDArray[Any]], traffic: Traffic, excluded: Collection[str] = ()
    ) -> None:
        """Restore the agent from a checkpoint."""
        memory = state.memory
        assert memory is not None
        if memory.leaving:  # it is back
            memory = memory.copied()
            memory.leaving = False
        self.state = replace(state, memory=memory)
        self._said_before = {name: decode(words.tobytes()) for name, words in previous.items()}
        for name in excluded:
            if name in self._neighbors:
                self._neighbors[name].excluded = True
        self._floats, self._bytes = traffic

    def replay(self, entry: Entry) -> tuple[str, ...]:
        """Take a step again that is on record; returns the neighbors without whose words it had to be taken: none."""
        batch = Batch(*self.agent.check(*entry.batch)) if len(entry.batch.points) else None
        self._said = {}
        said = self._words()
        self.state, _ = self._taken(self.state, batch, list(entry.heard))
        self._said_before = said
        self._floats, self._bytes = entry.traffic
        return ()

    def previous_words(self) -> dict[str, NDArray[Any]]:
        """What neighbors that are one step behind may still need, in lock step."""
        if not self.membership.lock_step:
            return {}
        return {name: np.frombuffer(encode(news), np.uint8) for name, news in self._said_before.items()}

    def status(self, now: float) -> Status:
        """How the agent is doing, as far as a node can tell."""
        memory = self._memory
        waiting: tuple[str, ...] = ()
        if self.membership.lock_step and self._batch is not None:
            waiting = tuple(each.name for each in self._admitted if self.state.steps + 1 not in each.words)
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


def _reason(error: Exception) -> str:
    reason: str = getattr(error, "reason", f"{type(error).__name__}: {error}")
    return reason
