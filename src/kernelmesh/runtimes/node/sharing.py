"""Agents that share sums: what is said is pushed, nobody asks, and nobody waits.

Every step is a tick of the network: the agent listens to what has arrived, learns from a mini-batch if it has one, and speaks
to every neighbor. It ticks at its own pace, faster while its stream has samples and slower while there is nothing new.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import cast

from msgspec import structs

from kernelmesh.agent import Agent, State
from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import News, WireSize, decode, encode
from kernelmesh.protocols import Heard
from kernelmesh.protocols.relay import Memory, Relay
from kernelmesh.runtimes.frames import FRAME_BYTES, Frame, Header, Prefix
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.allowance import Allowance, check_rate
from kernelmesh.runtimes.node.node import Node
from kernelmesh.runtimes.node.peer import Event, Peer
from kernelmesh.runtimes.node.values import Traffic

__all__ = ["SharingNode"]


@dataclass(eq=False, slots=True)
class _Farewell:
    """How an agent leaves its sums to the others."""

    since: float
    heir: str = ""
    """Who takes them; empty as long as nobody has been sent them."""
    had_sums: bool = False
    """Whether the heir had sums from this agent before."""


class SharingNode(Node):
    """An agent that shares sums and runs freely. With `stay`, it never leaves its sums to others."""

    def __init__(
        self, agent: Agent, membership: Membership, *, tokens: tuple[int, int], stay: bool = True, now: float = 0.0
    ) -> None:
        super().__init__(agent, membership, tokens=tokens, now=now)
        self._allowance: Allowance | None = None
        if (rate := membership.max_bytes_per_second) is not None:
            check_rate(agent, rate)
            self._allowance = Allowance(rate, neighbors=len(membership.neighbors))
        self._stay = stay
        self._ticked, self._pause = now, 0.05 if membership.neighbors else 0.001
        self._ended_at = math.inf
        self._farewell: _Farewell | None = None

    @property
    def _memory(self) -> Memory:
        return cast(Memory, self.state.memory)

    @property
    def _protocol(self) -> Relay:
        return cast(Relay, self.agent.protocol)

    def _on_exclusion(self, peer: Peer, now: float) -> None:
        """Take all samples of a member out of the network, or admit them again."""
        number = self._memory.numbers.get(peer.name)
        if number is not None:
            memory = self._protocol.forgotten(self._memory, number, forgotten=peer.is_quarantined)
            self.state = replace(self.state, memory=memory)

    def _hear(self, peer: Peer, frame: Frame, now: float) -> None:
        self._check_model(frame.header)
        news = decode(frame.payload, max_bytes=self.membership.max_bytes)
        if not isinstance(news, News):
            raise RefusedMessage("frame: must hold news", type(news).__name__)
        if news.length > self.membership.max_points:
            raise RefusedMessage(f"news: must be about at most {self.membership.max_points} points", news.length)
        self._saw(peer, frame, now)
        peer.words = [*peer.words[-15:], news]  # the newest 16 between two ticks
        peer.on(Event.HEARD)

    def wake_at(self, now: float) -> float:
        return max(self._ticked + self._pause, now)

    def _proceed(self, now: float) -> None:
        """Listen, learn and speak, if it is time to."""
        if now < self._ticked + self._pause:
            return
        self._take_leave(now)
        had_batch, peers = self.batch is not None, list(self.peers.values())
        self._step([Heard(news, neighbor=peer.name) for peer in peers for news in peer.words], now)
        first = self.state.steps % max(len(peers), 1)  # another one at every tick, as what may be sent can be scarce
        for peer in (*peers[first:], *peers[:first]):
            self._speak(peer, now)
        # between two ticks: at least, at most, or while there is something new
        aim = 0.001 if had_batch else 0.2 if self.agent.is_settled(self.state) else 0.05  # seconds
        # by at most a tenth at a tick, so that neighbors do not give this agent up
        self._pause = min(max(aim, self._pause / 1.1), self._pause * 1.1)
        self._ticked = now

    # -- what is said --------------------------------------------------------------------------------------------------

    def _speak(self, peer: Peer, now: float) -> None:
        """Tell a neighbor what is new, as far as the rate allows."""
        news = self.agent.tell(self.state, peer.name) if peer.listens else None
        for words in () if news is None else self._shortened(peer, news):
            payload = encode(words)
            if self._allows(peer, words, len(payload), now):
                break
        else:
            return
        self._count(WireSize(words.floats, len(payload)))
        header = Header(self.state.steps + 1, self._model, ended=self._has_ended)
        self._send(peer, Prefix(self._token, False, 0), header, payload)
        peer.told, farewell = now, self._farewell
        if farewell is not None and words.sums is not None and not farewell.heir:
            farewell.heir, farewell.had_sums = peer.name, self._acknowledged(peer.name) > 0

    def _shortened(self, peer: Peer, news: News) -> Iterator[News]:
        """What can be said instead of all the news while the rate is used up; sums and points will be newer later."""
        farewell = self._farewell
        if farewell is not None and farewell.heir not in ("", peer.name):  # only one may have what is left
            news = structs.replace(news, sums=None)
        yield news
        if news.sums is not None:
            yield structs.replace(news, sums=None)
        yield structs.replace(news, sums=None, part=None, proposals=None)

    def _allows(self, peer: Peer, news: News, size: int, now: float) -> bool:
        """Whether the rate leaves room for a message now."""
        if self._allowance is None:
            return True
        size += FRAME_BYTES
        is_hello = news.sums is None and news.part is None and news.proposals is None
        if is_hello and now - peer.told < self._allowance.pause(size):
            return False
        return self._allowance.takes(size, now=now, is_hello=is_hello)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end_stream(self, now: float) -> None:
        super().end_stream(now)
        self._ended_at = now

    def finished(self, now: float) -> bool:
        """Whether the stream has ended, and the neighbors have the samples of this agent, or have had time enough."""
        if not self.ended or self.batch is not None:
            return False
        farewell = self._farewell
        if not self.peers or farewell is None:
            return not self.peers
        # once the heir has taken the sums over, it has none from this agent any longer
        is_heard = farewell.had_sums and self._acknowledged(farewell.heir) == 0
        return is_heard or now - farewell.since > 5.0  # seconds

    def _take_leave(self, now: float) -> None:
        """Say farewell when the stream has ended and all that this agent knows is known to its neighbors."""
        if self._stay or not self.ended or self.batch is not None or self._farewell is not None:
            return
        others = all(peer.ended or not peer.alive(now) for peer in self.admitted())
        if (self._has_ended and others) or now - self._ended_at > 10.0:  # seconds, for others whose streams have not ended
            self.state = replace(self.state, memory=self._protocol.left(self._memory))
            self._farewell = _Farewell(now)

    def _acknowledged(self, name: str) -> int:
        """The clock of the newest sums that a neighbor has from this agent."""
        peer = self._memory.peers.get(self._memory.numbers.get(name, -1))
        return 0 if peer is None or peer.link.hello is None else peer.link.hello.heard

    # -- what survives -------------------------------------------------------------------------------------------------

    def recover(self, state: State, now: float) -> None:
        memory, clock = cast(Memory, state.memory).copied(), self._memory.tree.clock
        memory.tree.clock = max(memory.tree.clock, clock)  # it never runs backward
        super().recover(replace(state, memory=memory), now)

    def resume(self, state: State, traffic: Traffic, excluded: Collection[str] = ()) -> None:
        memory = cast(Memory, state.memory)
        if memory.leaving:  # it is back
            memory = memory.copied()
            memory.leaving = False
        super().resume(replace(state, memory=memory), traffic, excluded)
