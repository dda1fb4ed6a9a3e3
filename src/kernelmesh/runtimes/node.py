"""One agent among others that run elsewhere: takes its samples, asks its neighbors, answers them, steps.

Everything happens in one thread, fed by the carrier's queue, so that nothing is ever half done. Whoever wants to know
something is served between steps and while the agent waits.

Two ways to go. In *lock step* the answer to a question about step t comes from the state before step t, whoever is ahead; the
rounds are those of `simulate`, bit for bit. *Free running* answers come from the newest state, and an agent waits for its
neighbors at most `patience` seconds, and not at all for those that did not answer last time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.agent import Agent, Info, State
from kernelmesh.checks import Floats
from kernelmesh.consensus import Heard
from kernelmesh.errors import Diverged, RefusedMessage
from kernelmesh.links import Link
from kernelmesh.messages import Function, Message, Points, Values, decode, encode, wire_size
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.runtimes.carrier import Ahead, Answer, Carrier, Event, Note, Offence, Question, Request
from kernelmesh.runtimes.checkpoints import Checkpoint, CheckpointStore, Entry
from kernelmesh.runtimes.guard import Guard
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.neighbors import ALIVE, KINDS, Neighbor, Outbox, Taken, style_of
from kernelmesh.streams import Batch, Source

__all__ = ["Node", "Turn"]

_log = logging.getLogger("kernelmesh.agent")

_TICK = 0.05  # seconds between looks at the stream and at whether to stop
_LONG = 5.0  # seconds that a question may take before it is asked again
_PING = 1.0  # seconds after which a silent neighbor is asked for a sign of life
_MEETING = 10.0  # seconds to wait for neighbors before the first step
_FASTEST, _SLOWEST = 0.005, 1.0  # seconds between two rounds without samples
_GONE = 60.0  # seconds of silence after which a neighbor in lock step counts as gone for good
_AHEAD = 2  # steps by which a question in lock step may come too early: the other's step, and one that it looks ahead
_RETRY = 5.0  # seconds between attempts to write a checkpoint where that has failed


@dataclass(frozen=True, eq=False)
class Turn:
    """What is there to see after a step of this agent."""

    number: int
    """Steps so far, from 1."""
    state: State
    info: Info
    floats_sent: int
    """Numbers sent since the beginning, restarts included."""
    bytes_sent: int


class Node:
    """Runs one agent. `turns` is the run; `stop` ends it from a signal handler or another thread.

    Without a store nothing survives the process.
    """

    def __init__(
        self,
        agent: Agent,
        place: Membership,
        source: Source,
        carrier: Carrier,
        *,
        store: CheckpointStore | None = None,
        stay: bool = True,
    ) -> None:
        self.agent, self.place, self._source, self._carrier, self._store = agent, place, source, carrier, store
        self._stay = stay
        self._share = place.share
        self._model = _model(agent, place)
        self._guard = Guard()
        self._token = secrets.randbits(62)
        self._timeout = _LONG if place.lock_step else max(2.0 * place.patience, 2.0)
        self._tickets = secrets.randbits(62)  # so that nobody can answer what it was not asked
        self._neighbors = {name: Neighbor(name, place.name < name) for name in place.neighbors}
        self._style, self._asks = style_of(agent)
        # what neighbors are asked about a mini-batch can be told before the step unless it depends on the state
        self._foresees = place.lock_step and self._style != "nothing" and self._asks != "probe"
        self._ahead: Taken | None = None
        self._held: dict[tuple[str, int], Question] = {}
        self._stopping = False
        self._began = time.monotonic()
        self._active = -math.inf  # when anybody is known to have learned something
        self._stepped = self._relayed = self._began
        self._pace = _TICK
        self._ended = False
        self._save_again = 0.0
        self._loss: float | None = None
        self._newest: tuple[Floats, list[Heard]] | None = None
        self._steps_here = 0
        self._odd: set[tuple[str, str]] = set()
        self.floats_sent = self.bytes_sent = 0
        self.state = agent.start(name=place.name)
        self._before: Outbox | None = None
        self._now = Outbox(1, self.state.function)
        self._restore()

    # ---- the run

    def stop(self) -> None:
        """End the run after the step at hand."""
        self._stopping = True

    def turns(self) -> Iterator[Turn]:
        """Learn until the stream has ended (and longer if asked to stay) or `stop` is called, then write a checkpoint."""
        try:
            self._meet()
            while not self._stopping:
                self._serve_all()
                if not self._open():
                    self._idle()
                    if self._finished():
                        return
                    continue
                self._ask_all()
                if not self._gather():
                    continue  # stopped while waiting; the mini-batch has not been used
                yield self._step()
        finally:
            self._save(last=True)
            self._source.close()
            if self._store is not None:
                self._store.close()
            self._carrier.close()

    def _meet(self) -> None:
        """Wait a while for the neighbors before the very first step: a short file would be used up before they are there."""
        deadline = time.monotonic() + _MEETING
        while self.state.steps == 0 and not self._stopping and time.monotonic() < deadline:
            missing = [n for n in self._neighbors.values() if not n.alive(time.monotonic())]
            if not missing:
                return
            for neighbor in missing:
                self._ask(neighbor, time.monotonic(), ping=True)
            self._serve(_TICK)
        for neighbor in self._neighbors.values():
            if self.state.steps == 0 and not neighbor.alive(time.monotonic()) and not self._stopping:
                _log.warning(
                    "%s has not answered yet: is it running, does it name this agent, and is its mesh %r?",
                    neighbor.name,
                    self.place.mesh,
                )

    def _open(self) -> bool:
        """Take a mini-batch and decide what to say about it; False while there is none."""
        now = self._now
        if now.batch is not None:
            return True
        if now.open:
            return False
        taken, self._ahead = self._ahead or self._take(), None
        ended = taken is None and self._source.ended
        if taken is None and not ended:
            return False
        now.open = True
        if taken is not None:
            now.batch, now.position = taken.batch, taken.position
            now.question, now.question_floats = taken.question, taken.question_floats
        self._prepare(now)
        if taken is not None and self._foresees:
            self._look_ahead()
        if ended and not self._ended:
            self._ended = True
            left_out = f"; {self._source.refused} rows could not be used" if self._source.refused else ""
            _log.info("the stream has ended after %d samples%s", self.state.samples, left_out)
            self._save()
        held, self._held = self._held, {}
        for question in held.values():
            self._question(question)  # which keeps those that are about a later step
        for neighbor in self._neighbors.values():
            if neighbor.early is not None:
                early, neighbor.early = neighbor.early, None
                self._answer(early)
        return taken is not None

    def _take(self) -> Taken | None:
        batch = self._source.take()
        if batch is None:
            return None
        try:
            return Taken(Batch(*self.agent.check(*batch)), self._source.position)
        except ValueError as error:  # the source checks rows one by one; this is for sources of other people
            _log.error("left out a mini-batch of %d rows: %s", len(batch.points), error)
            return None

    def _look_ahead(self) -> None:
        """Take the next mini-batch, if it is there: the question about it can go with the answers of this step."""
        self._ahead = ahead = self._take()
        if ahead is not None and self._style == "points":
            ahead.question, ahead.question_floats = self._wording(ahead.batch)

    def _wording(self, batch: Batch) -> tuple[bytes, int]:
        question = self.agent.ask(self.state, batch.points)
        return (b"", 0) if question is None else (encode(question), wire_size(question)[0])

    def _prepare(self, spoken: Outbox) -> None:
        """What neighbors will be asked or told in this round."""
        if self._style == "offers":
            if spoken.batch is not None:
                share = self._share
                for name in self._neighbors if self.place.lock_step else ():
                    message = self.agent.offer(self.state, name, share)
                    assert message is not None
                    spoken.said[name] = message
        elif self._style == "functions":
            said = self.agent.ask(self.state, (spoken.batch or self._nothing()).points)
            if said is not None:
                spoken.said = dict.fromkeys(self._neighbors, said)
        elif self._style == "points" and spoken.batch is not None:
            if not spoken.question:
                spoken.question, spoken.question_floats = self._wording(spoken.batch)
            if self.place.lock_step:
                times = len(self._neighbors)
                self._add(times * len(spoken.question), times * spoken.question_floats)
        if self.place.lock_step:  # before anything of this round is unpacked, as in simulation
            for name, message in spoken.said.items():
                if not self._neighbors[name].ended:
                    spoken.packed[name, spoken.step] = self._neighbors[name].link.pack(message)

    def _nothing(self) -> Batch:
        return Batch(np.empty((0, self.agent.dimension)), np.empty(0))

    def _ask_all(self) -> None:
        now = time.monotonic()
        for neighbor in self._neighbors.values() if self._style != "nothing" else ():
            self._ask(neighbor, now)

    def _ask(self, neighbor: Neighbor, now: float, *, ping: bool = False, again: bool = False) -> None:
        if neighbor.ticket or now < neighbor.ask_again:
            return
        if self.place.lock_step and neighbor.answered_step == self._now.step and not (ping or again):
            return
        if self._guard.ignores(neighbor.name, neighbor.token, now=now):
            neighbor.prompt = False
            return
        neighbor.ticket = self._ticket()
        neighbor.asked_step = -self._now.step if again else 0 if ping else self._now.step
        note = self._note(neighbor, whole=again or neighbor.link.lost, ping=ping or again)
        if not self.place.lock_step and self._now.question and not ping:
            self._add(len(self._now.question), self._now.question_floats)
        payload = b"" if note.ping else self._now.question
        self._carrier.ask(neighbor.name, neighbor.ticket, note, payload, timeout=self._timeout)

    def _ask_ahead(self, neighbor: Neighbor, step: int) -> Ahead | None:
        """The question about the next step, to go with an answer in this one; in lock step only.

        What goes over an edge in a round thus takes one message each way instead of two.
        """
        if self._ahead is None or step != self._now.step or neighbor.ahead or neighbor.ended:
            return None
        neighbor.ahead = self._ticket()
        return Ahead(neighbor.ahead, self._ahead.question, neighbor.link.lost, self._timeout)

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _note(self, neighbor: Neighbor, *, whole: bool = False, ping: bool = False, ended: bool | None = None) -> Note:
        edge = self.state.edges.get(neighbor.name)
        epoch, done = (edge.epoch, edge.done) if edge is not None else (0, 0)
        age = time.monotonic() - self._active
        ended = self._ended if ended is None else ended
        return Note(self._now.step, self._token, self._share, epoch, done, age, ended, whole, ping, self._model)

    def _gather(self) -> bool:
        """Wait for what the step needs, serving others meanwhile; False if the run is to stop."""
        if self._style == "nothing":
            return True
        deadline = time.monotonic() + self.place.patience
        while not self._stopping:
            now = time.monotonic()
            if self.place.lock_step:
                missing = [n for n in self._neighbors.values() if self._lacks(n)]
                for neighbor in missing:
                    if neighbor.answered_step != self._now.step:
                        self._ask(neighbor, now)
                    elif now > deadline:  # it has asked, but a process of ours that is no more
                        self._ask(neighbor, now, again=True)
                        deadline = now + self.place.patience
                wait = _TICK
            else:
                missing = [
                    n for n in self._neighbors.values() if n.prompt and n.ticket and n.asked_step == self._now.step
                ]
                wait = min(_TICK, deadline - now)
                if wait <= 0:
                    for neighbor in missing:
                        neighbor.prompt = False
                    missing = []
            if not missing:
                return True
            self._serve(wait, answers=len(missing))
        return False

    def _lacks(self, neighbor: Neighbor) -> bool:
        if neighbor.answered_step != self._now.step:
            return True
        return self._style == "points" and not neighbor.ended and neighbor.question_step < self._now.step

    def _step(self) -> Turn:
        now, batch = self._now, self._now.batch
        assert batch is not None
        heard = self._heard()
        self._put_on_record(heard)
        try:
            state, info = self.agent.advance(self.state, batch.points, batch.targets, heard)
        except Diverged as error:
            if self.place.lock_step or not any(said.asked or said.answered for said in heard):
                raise
            # it may be the neighbors who have gone astray: learn without them
            _log.error("left out what the neighbors said in step %d: %s", now.step, error.reason)
            for neighbor in self._neighbors.values():
                if neighbor.answer is not None or neighbor.question is not None:
                    self._guard.offend(neighbor.name, neighbor.token, f"step: {error.reason}", now=time.monotonic())
            heard = [said._replace(asked=None, answered=None) for said in heard]
            self._put_on_record(heard)
            state, info = self.agent.advance(self.state, batch.points, batch.targets, heard)
        self._newest = (batch.points, heard)
        self._move_on(state)
        self._loss = info.loss if self._loss is None else 0.95 * self._loss + 0.05 * info.loss
        self._steps_here += 1
        at = time.monotonic()
        self._pace = min(max(0.9 * self._pace + 0.1 * (at - self._stepped), _FASTEST), _SLOWEST)
        self._active = self._stepped = at
        turn = Turn(now.step, state, info, self.floats_sent, self.bytes_sent)
        store = self._store
        due = store is not None and (now.step % store.every == 0 or self._try_again(store))
        if due:
            self._save()
        return turn

    def _try_again(self, store: CheckpointStore) -> bool:
        return bool(store.trouble) and time.monotonic() >= self._save_again

    def _put_on_record(self, heard: list[Heard]) -> None:
        if self._store is not None:
            entry = Entry(
                step=self._now.step,
                batch=self._now.batch or self._nothing(),
                position=self._now.position or self._source.position,
                heard=heard,
                counts=self._counts(),
                raw=self._raw(heard) if self._style == "points" else None,
            )
            self._writing(lambda store: store.note(entry))

    def _raw(self, heard: list[Heard]) -> list[tuple[bytes | None, bytes | None]]:
        """What was heard, as it arrived: not worth encoding again."""
        known = [(said, self._neighbors[str(said.neighbor)]) for said in heard]
        return [
            (
                None if said.asked is None else neighbor.raw_question,
                None if said.answered is None else neighbor.raw_answer,
            )
            for said, neighbor in known
        ]

    def _move_on(self, state: State) -> None:
        self.state, self._before = state, self._now
        self._now = Outbox(state.steps + 1, state.function)
        for neighbor in self._neighbors.values():
            neighbor.offered = False
            neighbor.answer = None
            if not self.place.lock_step:
                neighbor.question = None
            elif neighbor.ahead:
                neighbor.ticket, neighbor.asked_step, neighbor.ahead = neighbor.ahead, self._now.step, 0

    def _heard(self) -> list[Heard]:
        heard = []
        for neighbor in self._neighbors.values():
            asked, answered = neighbor.question, neighbor.answer
            if self._style != "points":
                asked, answered = neighbor.answer, None
            elif self.place.lock_step and (neighbor.question_step != self._now.step or neighbor.ended):
                asked = None
            if asked is None and answered is None and not neighbor.offered and not self.place.lock_step:
                continue
            weight = min(self._share, neighbor.share)
            heard.append(Heard(asked, answered, weight, neighbor.name, neighbor.is_first, self._share))
        return heard

    def _idle(self) -> None:
        """Be there for others while there are no samples."""
        now = time.monotonic()
        relays = self.agent.relays and self._neighbors and not self.place.lock_step
        if relays and now - self._active < ALIVE:
            # a mini-batch that is merely due is not missed yet
            if now - self._stepped >= 2.0 * self._pace and now - self._relayed >= self._pace:
                self._relay()
            self._serve(min(_TICK, self._pace))
            return
        for neighbor in self._neighbors.values():
            if now - neighbor.seen > _PING:
                self._ask(neighbor, now, ping=True)
        if self._store is not None and self._try_again(self._store):
            self._save()
        self._serve(_TICK)

    def _relay(self) -> None:
        """A round without samples, at the pace that the stream had: otherwise those who still learn would pull each other
        away from what this agent has seen.
        """
        self._relayed = time.monotonic()
        self._ask_all()
        if not self._gather():
            return
        heard = self._heard()
        if not any(said.asked for said in heard):
            return
        self._put_on_record(heard)
        try:
            state = self.agent.relay(self.state, heard)
        except Diverged as error:
            for neighbor in self._neighbors.values():
                if neighbor.answer is not None:
                    self._guard.offend(neighbor.name, neighbor.token, f"step: {error.reason}", now=time.monotonic())
                    neighbor.answer = None
            return
        if self._newest is not None:
            self._newest = (self._newest[0], heard)
        self._move_on(state)
        if self._store is not None and self._now.step % self._store.every == 0:
            self._save()

    def _finished(self) -> bool:
        """Whether the stream has ended and nobody needs our answers any more."""
        if self._stay or not self._ended:
            return False
        now = time.monotonic()
        if self.place.lock_step:  # who is silent may come back, and could never go on without us
            return all(n.finished or now - n.seen > _GONE for n in self._neighbors.values())
        return all(n.finished or (not n.alive(now) and now - self._began > 2 * ALIVE) for n in self._neighbors.values())

    # ---- what arrives

    def _serve_all(self) -> None:
        while self._handle(self._carrier.wait(0.0)):
            pass

    def _serve(self, seconds: float, *, answers: int = 1) -> None:
        """Deal with what arrives within so many seconds; returns after the first thing, or so many answers, that has."""
        if self._handle(self._carrier.wait(seconds, answers=answers)):
            self._serve_all()

    def _handle(self, event: Event | None) -> bool:
        if isinstance(event, Question):
            self._question(event)
        elif isinstance(event, Answer):
            self._answer(event)
            if event.behind is not None:
                self._question(event.behind)
        elif isinstance(event, Request):
            self._request(event)
        elif isinstance(event, Offence):
            self._guard.offend(event.sender, event.token, event.reason, now=time.monotonic())
        return event is not None

    def _question(self, question: Question) -> None:
        now, step = time.monotonic(), question.note.step
        neighbor = self._neighbors.get(question.sender)
        if neighbor is None:
            self._guard.offend(question.sender, 0, "question: must come from a neighbor", now=now)
            return
        early = self.place.lock_step and 0 < step - self._now.step <= _AHEAD and self._now.batch is not None
        if early and not question.note.ping:
            self._held[neighbor.name, step] = question  # and looked at when its time has come
            return
        if self._guard.ignores(neighbor.name, question.note.token, now=now):
            return
        if not self._same(question.note):
            self._guard.offend(neighbor.name, question.note.token, _OTHER_MODEL, now=now)
        elif question.note.ping:
            self._saw(neighbor, question.note)
            neighbor.finished = question.note.ended
            payload = b""
            if question.note.whole and self._style == "points":
                spoken = self._round_of(question.note.step)
                payload = spoken.question if spoken.step == question.note.step else b""
            question.answer(self._note(neighbor), payload, None)
        elif self.place.lock_step and not self._ready(question):
            if 0 <= step - self._now.step <= _AHEAD:
                self._held[neighbor.name, step] = question
        else:
            self._reply(question)

    def _same(self, note: Note) -> bool:
        return note.model in (0, self._model)

    def _ready(self, question: Question) -> bool:
        """Whether a question of lock step can be answered now; one that comes too early is kept until it can."""
        step, now = question.note.step, self._now
        if now.open and (step == now.step or (now.batch is None and step > now.step)):
            return True
        if self._before is not None and step == self._before.step:
            return True
        if not now.step <= step <= now.step + _AHEAD:
            self._remark(
                question.sender,
                f"is about to take step {step} while this agent is at {now.step}: they cannot go on in lock step; "
                f"restore the checkpoints of both, or begin anew with both",
            )
        return False

    def _reply(self, question: Question) -> None:
        neighbor, step = self._neighbors[question.sender], question.note.step
        try:
            message = self._words(neighbor, question)
        except (RefusedMessage, ValueError) as error:
            self._guard.offend(neighbor.name, question.note.token, str(error), now=time.monotonic())
            return
        self._saw(neighbor, question.note)
        if message is None:
            payload = b""
        else:
            payload = encode(message)
            if not self.place.lock_step or self._first_time(question.sender, step):
                self._count(message)
        about = self._round_of(step)
        ended = about.open and about.batch is None if self.place.lock_step else self._ended
        question.answer(self._note(neighbor, ended=ended), payload, self._ask_ahead(neighbor, step))

    def _words(self, neighbor: Neighbor, question: Question) -> Message | None:
        """What a neighbor is to hear, in answer to a question that has been found in order."""
        if self._style == "nothing":
            return None
        spoken = self._round_of(question.note.step)
        if self._style == "points":
            asked = self._note_question(neighbor, question.payload, question.note.step)
            return self.agent.consensus.answer(spoken.function, asked)
        if question.payload:
            raise RefusedMessage("question: must be empty where functions are exchanged")
        if not self.place.lock_step:
            return self._newest_words(neighbor, question.note)
        said = spoken.said.get(neighbor.name)
        if said is None:
            return None
        key = (neighbor.name, question.note.step)
        packed = spoken.packed.get(key)
        if packed is None or (question.note.whole and "rows" in packed.names):
            if question.note.whole:
                neighbor.link.forget()
            packed = spoken.packed[key] = neighbor.link.pack(said)
            if len(spoken.packed) > 2 * len(self._neighbors) + 2:
                spoken.packed.pop(next(iter(spoken.packed)))
        return packed

    def _note_question(self, neighbor: Neighbor, payload: bytes, step: int) -> Message:
        asked: Message = decode(payload, max_bytes=self.place.max_bytes)
        if asked.kind != self._asks:
            raise RefusedMessage(f"question: must be {self._asks}, got {asked.kind}")
        self.agent.check_message("Node", "question", asked)
        if step >= neighbor.question_step or not self.place.lock_step:
            neighbor.question, neighbor.question_step, neighbor.raw_question = asked, step, payload
        return asked

    def _newest_words(self, neighbor: Neighbor, note: Note) -> Message | None:
        if note.whole:
            neighbor.link.forget()
        if self._style == "functions":
            said = self.agent.ask(self.state, self._nothing().points)
        else:
            said = self.agent.offer(self.state, neighbor.name, self._share, (note.epoch, note.done))
            neighbor.offered = True
        return None if said is None else neighbor.link.pack(said)

    def _round_of(self, step: int) -> Outbox:
        if self.place.lock_step and self._before is not None and step == self._before.step:
            return self._before
        return self._now

    def _first_time(self, name: str, step: int) -> bool:
        counted = self._round_of(step).counted
        if (name, step) in counted:
            return False
        counted.add((name, step))
        return True

    def _answer(self, answer: Answer) -> None:
        neighbor, now = self._neighbors[answer.neighbor], time.monotonic()
        if neighbor.ahead == answer.ticket and answer.note is None:
            neighbor.ahead = 0  # it will be asked when its time has come
            return
        waits = neighbor.asked_step == self._now.step and not self._now.open and self.place.lock_step
        if answer.ticket == (neighbor.ticket if waits else neighbor.ahead):
            neighbor.early = answer  # nothing of a round is unpacked before what is said in it has been packed
            return
        if neighbor.ticket != answer.ticket:
            return
        neighbor.ticket = 0
        step = neighbor.asked_step
        if answer.note is None or answer.payload is None:
            neighbor.failures += 1
            neighbor.ask_again = now + min(0.02 * 2.0 ** min(neighbor.failures, 10), 1.0)
            if step > 0:
                neighbor.prompt = False
            return
        try:
            if not self._same(answer.note):
                raise RefusedMessage(_OTHER_MODEL)
            self._understand(neighbor, answer.note, answer.payload, step)
        except (RefusedMessage, ValueError) as error:
            self._guard.offend(neighbor.name, answer.note.token, str(error), now=now)
            neighbor.token = answer.note.token
            neighbor.ask_again = now + 0.05
            return
        self._saw(neighbor, answer.note)
        neighbor.failures, neighbor.ask_again = 0, 0.0
        if step > 0:
            neighbor.prompt = True

    def _understand(self, neighbor: Neighbor, note: Note, payload: bytes, step: int) -> None:
        """Take in what came back to the question about a step."""
        if step <= 0:
            neighbor.finished = note.ended
            if step == -self._now.step and payload:
                self._note_question(neighbor, payload, -step)
            return
        message = None
        if payload:
            message = decode(payload, max_bytes=self.place.max_bytes)
            if self._style == "points":
                if not isinstance(message, Values):
                    raise RefusedMessage(f"answer: must be values, got {message.kind}")
                if step != self._now.step or self._now.batch is None:
                    return  # too late: it is about points that have been dealt with
                self.agent.check_message("Node", "answer", message, rows=len(self._now.batch.points))
            else:
                if message.kind not in KINDS[self._style]:
                    raise RefusedMessage(f"answer: must be one of {KINDS[self._style]}, got {message.kind}")
                if (message := self._unpacked(neighbor, message)) is None:
                    return
                self.agent.check_message("Node", "answer", message)
        neighbor.answer, neighbor.answered_step, neighbor.raw_answer = message, step, payload or None
        if self.place.lock_step:
            neighbor.share, neighbor.ended = note.share, note.ended

    def _unpacked(self, neighbor: Neighbor, message: Message) -> Message | None:
        try:
            return neighbor.link.unpack(message)
        except RefusedMessage:  # it builds on something that a process before this one had: the next will be whole
            return None

    def _saw(self, neighbor: Neighbor, note: Note) -> None:
        neighbor.seen, neighbor.token, neighbor.share = time.monotonic(), note.token, note.share
        self._active = max(self._active, neighbor.seen - note.age)
        if not self.place.lock_step:
            neighbor.ended = neighbor.finished = note.ended

    def _remark(self, name: str, text: str) -> None:
        if (name, text[:20]) not in self._odd:
            self._odd.add((name, text[:20]))
            _log.error("%s %s", name, text)

    # ---- numbers

    def _count(self, message: Message) -> None:
        floats, size = wire_size(message)
        self._add(size, floats)

    def _add(self, size: int, floats: int) -> None:
        self.bytes_sent += size
        self.floats_sent += floats

    # ---- those who look on

    def _request(self, request: Request) -> None:
        if request.kind == "status":
            request.answer(json.dumps(self.status()).encode())
            return
        try:
            points = decode(request.payload, max_bytes=self.place.max_bytes)
            if not isinstance(points, Points):
                raise RefusedMessage(f"request: must be points, got {points.kind}")
            self.agent.check_message("Node", "request", points)
            request.answer(encode(Values(self.agent.predict(self.state, points.points))))
        except (RefusedMessage, ValueError) as error:
            request.refuse(str(error))  # a client's slip is no offence

    def status(self) -> dict[str, Any]:
        """How the agent is doing, as something JSON can hold."""
        now, gap = time.monotonic(), None
        if self._newest is not None:
            gap = self.agent.gap(self.state, *self._newest)
        waiting = []
        if self._now.batch is not None and self.place.lock_step:
            waiting = [n.name for n in self._neighbors.values() if self._lacks(n)]
        store = self._store
        return {
            "name": self.place.name,
            "mode": "lock-step" if self.place.lock_step else "free",
            "samples": self.state.samples,
            "steps": self.state.steps,
            "steps_here": self._steps_here,
            "seconds": now - self._began,
            "order": self.state.function.order,
            "loss": self._loss,
            "disagreement": gap,
            "bytes_sent": self.bytes_sent,
            "floats_sent": self.floats_sent,
            "neighbors": {
                n.name: {
                    "alive": n.alive(now),
                    "ended": n.finished,
                    "ignored": self._guard.ignores(n.name, n.token, now=now),
                    "refused": self._guard.refused[n.name],
                }
                for n in self._neighbors.values()
            },
            "waiting_for": waiting,
            "out_of_step": sorted({name for name, _ in self._odd}),
            "refused": self._guard.total,
            "bad_rows": self._source.refused,
            "ended": self._ended,
            "checkpoint": None if store is None else store.newest,
            "trouble": "" if store is None else store.trouble,
        }

    # ---- what survives

    def _save(self, *, last: bool = False) -> None:
        """Write a checkpoint, unless nothing has been learned since; the last one also holds what waits and was counted."""
        store = self._store
        if store is None or (store.newest == self.state.steps and not store.trouble and not last):
            return
        self._save_again = time.monotonic() + _RETRY
        for taken in (self._ahead, self._now.batch):  # but not learned from: it will come again
            if taken is not None:
                self._source.give_back()
        self._ahead = self._now.batch = None
        kept = Checkpoint(
            state=self.state,
            position=self._source.position,
            pending=self._source.pending,
            counts=self._counts(),
            said=self._said_before(),
        )
        self._writing(lambda store: store.save(kept))

    def _counts(self) -> dict[str, int]:
        return {"floats_sent": self.floats_sent, "bytes_sent": self.bytes_sent}

    def _said_before(self) -> dict[str, Message]:
        """What neighbors one step behind will still ask for; in lock step only."""
        before = self._before
        if before is None or not self.place.lock_step:
            return {}
        if self._style == "points":
            said: dict[str, Message] = {_FUNCTION: Function(before.function.centers, before.function.weights)}
            return {**said, _QUESTION: decode(before.question)} if before.question else said
        return before.said

    def _writing(self, act: Callable[[CheckpointStore], object]) -> None:
        """Write something, and say when that begins to fail and when it works again."""
        store = self._store
        if store is None:
            return
        before = store.trouble
        act(store)
        if store.trouble and not before:
            _log.error(
                "cannot write to the checkpoint folder: %s; learning goes on, and it is tried again", store.trouble
            )
        elif before and not store.trouble:
            _log.warning("checkpoints are being written again")

    def _restore(self) -> None:
        """Become the agent that the folder tells of, by taking again the steps that it has on record."""
        store = self._store
        if store is None:
            return
        kept, entries = store.restore(name=self.place.name)
        if kept is not None:
            self.state = kept.state
            self._take_over(kept)
        position, replayed = (None if kept is None else kept.position), 0
        for entry in entries:
            try:
                state = self._again(entry)
            except Diverged as error:  # that is where the process before this one ended; the samples will come again
                _log.error("step %d is not taken again: %s", entry.step, error)
                self._now = Outbox(self.state.steps + 1, self.state.function)
                break
            self._move_on(state)
            position, replayed = entry.position, replayed + len(entry.batch.points)
            self.floats_sent, self.bytes_sent = entry.counts["floats_sent"], entry.counts["bytes_sent"]
        for neighbor in self._neighbors.values():
            neighbor.link = Link()
        if self._before is not None:
            self._before.packed.clear()
        if position is None:
            self._writing(CheckpointStore.begin)
            return
        pending = kept.pending if kept is not None else None
        if pending is not None:
            pending = Batch(pending.points[replayed:], pending.targets[replayed:])
        self._source.seek(position, pending)
        _log.info(
            "going on from step %d (%d samples), %d steps of it from the journal",
            self.state.steps,
            self.state.samples,
            len(entries),
        )
        self._save()

    def _again(self, entry: Entry) -> State:
        """The state after a step that is on record."""
        if not len(entry.batch.points):
            return self.agent.relay(self.state, entry.heard)
        self._now.batch = Batch(*self.agent.check(*entry.batch))
        if self.place.lock_step:
            self._prepare(self._now)
        return self.agent.advance(self.state, *self._now.batch, entry.heard)[0]

    def _take_over(self, kept: Checkpoint) -> None:
        self.floats_sent, self.bytes_sent = kept.counts["floats_sent"], kept.counts["bytes_sent"]
        self._now = Outbox(self.state.steps + 1, self.state.function)
        if not kept.said:
            return
        said = dict(kept.said)
        function, question = said.pop(_FUNCTION, None), said.pop(_QUESTION, None)
        before = self.state.function
        if isinstance(function, Function):
            before = Expansion(self.agent.kernel, function.centers, function.weights)
        self._before = Outbox(self.state.steps, before, said=said)
        self._before.question = b"" if question is None else encode(question)


_OTHER_MODEL = "note: must come from an agent with the same kernel, loss, consensus, mode and number of outputs"


def _model(agent: Agent, place: Membership) -> int:
    """A digest of what neighbors must have in common to make sense of each other."""
    consensus = (type(agent.consensus).__name__, getattr(agent.consensus, "budget", None))
    common = (agent.dimension, agent.outputs, agent.kernel, agent.loss, consensus, place.lock_step)
    return int.from_bytes(hashlib.blake2b(repr(common).encode(), digest_size=8).digest(), "big") | 1


# The key in a checkpoint of the function that answered in the round before; no agent can have this name.
_FUNCTION = "/function"
_QUESTION = "/question"
