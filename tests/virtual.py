"""A network that lives in memory, with a clock of its own: agents in one thread, and faults that are drawn from a seed."""

from __future__ import annotations

import heapq
import itertools
import random
from types import SimpleNamespace

from kernelmesh.runtimes.carriers import MemoryNetwork
from kernelmesh.runtimes.frames import Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.mailbox import Arrival, Presence
from kernelmesh.runtimes.runner import AgentRunner

MOMENT = 1e-4  # nothing takes no time at all


class World:
    """Runs agents on a clock that jumps to whatever happens next.

    Who is next, what gets lost and how long messages take is drawn from a seed, so that everything can be repeated.
    """

    def __init__(self, *, seed=0, loss=0.0, absence=0.0, delay=0.0, twice=0.0, garbage=0.0):
        self.now, self.rng = 0.0, random.Random(seed)
        self.loss, self.absence, self.delay, self.twice, self.garbage = loss, absence, delay, twice, garbage
        self.network = MemoryNetwork(self._fate)
        self.runs = {}
        self._active = []
        self._due, self._number = [], itertools.count()

    def _fate(self, sender, receiver, data):
        rng = self.rng
        if rng.random() < self.absence and (run := self.newest(sender)) is not None:
            run.runner.mailbox.put(Presence(receiver, False))
            self.at(self.now + 0.01, lambda: run.runner.mailbox.put(Presence(receiver, True)))
        if rng.random() < self.loss:
            return []
        if rng.random() < self.garbage:
            data = rubbish(rng, data)
        return [(rng.random() * self.delay, data) for _ in range(1 + (rng.random() < self.twice))]

    def newest(self, name):
        return self.runs[name][-1] if name in self.runs else None

    def at(self, when, act):
        """Do something at a time of this clock."""
        heapq.heappush(self._due, (max(when, self.now), next(self._number), act))

    def add(self, agent, membership, source, *, each=None, store=None, **options):
        """Start an agent; `each` is called with its runner and every turn."""
        carrier = self.network.carrier(membership.name, list(membership.neighbors))
        runner = AgentRunner(agent, membership, source, carrier, store=store, clock=lambda: self.now, **options)
        run = SimpleNamespace(
            runner=runner, node=runner.node, carrier=carrier, store=store, source=source, turns=[], error=None,
            ended=False, wake=self.now, frozen=0.0, each=each,
        )  # fmt: skip
        self.runs.setdefault(membership.name, []).append(run)
        self._active.append(run)
        return runner

    def puppet(self, name, neighbors, act):
        """A neighbor that does as it likes: `act(sender, frame, answer)`."""
        return Puppet(self.network, name, neighbors, act)

    def kill(self, run):
        """End an agent without its being able to do anything about it."""
        if not run.ended:
            run.ended = True
            self._active.remove(run)
            run.carrier.close()
            if run.store is not None:
                run.store.close()

    def run(self, *, seconds=300.0):
        """Until all agents have ended; those that have not within so many seconds are stopped."""
        self.at(seconds, self.stop)
        while self._active:
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            self.network.deliver(self.now)
            ready = [run for run in self._active if self._ready(run)]
            if ready:
                self._poll(self.rng.choice(ready))
                self.now += MOMENT
                continue
            times = [max(run.wake, run.frozen) for run in self._active] + [due[0] for due in self._due[:1]]
            if self.network.next_delivery is not None:
                times.append(self.network.next_delivery)
            self.now = max(min(times, default=self.now), self.now)
        for run in itertools.chain(*self.runs.values()):
            if run.error is not None:
                raise run.error
        return {name: runs[-1] for name, runs in self.runs.items()}

    def _ready(self, run):
        if self.now < run.frozen:
            return False
        return self.now >= run.wake or (len(run.runner.mailbox) > 0 and self.now >= run.frozen)

    def _poll(self, run):
        try:
            poll = run.runner.poll(self.now)
            run.wake = self.now if poll.turn is not None else poll.wake_at
            if poll.turn is not None:
                run.turns.append((poll.turn, poll.turn.state.function))
                if run.each is not None:
                    run.each(run.runner, poll.turn)
            if poll.done:
                self._end(run)
        except BaseException as error:
            run.error = error
            self._end(run)

    def _end(self, run):
        run.ended = True
        self._active.remove(run)
        run.runner.close()

    def stop(self):
        for run in itertools.chain(*self.runs.values()):
            run.runner.stop()
            run.wake = self.now

    def stop_at_the_end(self):
        """Stop all agents when every stream has ended."""
        if all(run.node.ended for *_, run in self.runs.values()):
            self.stop()
        elif self.now < 300.0:
            self.at(self.now + 0.05, self.stop_at_the_end)


class Puppet:
    """Listens on the network in place of an agent."""

    def __init__(self, network, name, neighbors, act):
        self.name, self._network, self._act = name, network, act
        self.replies = []
        network.carrier(name, neighbors).open(self)

    def put(self, event):
        if not isinstance(event, Arrival):
            return
        frame = decode_frame(event.data, max_bytes=1 << 26)

        def answer(payload, header=None, *, token=5):
            header = header or Header(step=1, share=0.5, ended=True)
            reply = Frame(Prefix(token, True, frame.prefix.ticket), header, payload)
            self._network.send(self.name, event.sender, encode_frame(reply))

        if frame.prefix.is_reply:
            self.replies.append(frame)
        else:
            self._act(event.sender, frame, answer)


def question(header, payload=b"", *, token=5, ticket=1):
    """The bytes of a question."""
    return encode_frame(Frame(Prefix(token, False, ticket), header, payload))


def rubbish(rng, data):
    """Bytes that can be told from a frame, behind a prefix that lets them in."""
    head, words = data[:17], data[17:]
    choice = rng.randrange(4)
    if choice == 0:
        return head + rng.randbytes(rng.randrange(1, 200))
    if choice == 1 and len(words) > 1:
        return head + words[: rng.randrange(1, len(words))]
    if choice == 2:
        return data + b"x"
    return head + b"\xc1" * 8 + words
