"""What zenoh carries between two agents, and what becomes of what should not be carried."""

from __future__ import annotations

import struct
import threading
import time

import pytest

from kernelmesh.runtimes.carrier import Ahead, Answer, Note, Offence, Question, Request
from kernelmesh.runtimes.membership import Membership
from mesh import free_port

zenoh = pytest.importorskip("zenoh")

from kernelmesh.runtimes.zenoh import ZenohCarrier, open_client  # noqa: E402 (needs zenoh)

pytestmark = pytest.mark.xdist_group("processes")

NOTE = Note(step=5, token=7, share=0.5, epoch=1, done=2, age=0.25, model=9)


def place(name: str, other: str, ports: tuple[int, int], **options) -> Membership:
    here, there = (f"tcp/127.0.0.1:{port}" for port in ports)
    return Membership(name=name, listen=here, neighbors={other: there}, **options)


@pytest.fixture
def pair():
    port = free_port(2)
    a = ZenohCarrier(place("a", "b", (port, port + 1), max_bytes=5000))
    b = ZenohCarrier(place("b", "a", (port + 1, port), max_bytes=5000))
    deadline = time.monotonic() + 20.0
    while not (a._others["b"].there and b._others["a"].there):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def stranger(pair):
    """A session that is no agent's, connected to a."""
    session = open_client(pair[0]._place.listen, None)
    yield session
    session.close()


def put(session, key: str, payload: bytes, beside: bytes | None) -> None:
    block = zenoh.CongestionControl.BLOCK
    session.put(
        f"kernelmesh/{Membership.__dataclass_fields__['mesh'].default}/{key}",
        payload,
        attachment=beside,
        congestion_control=block,
    )


def test_a_question_and_its_answer(pair):
    a, b = pair
    a.ask("b", 41, NOTE, b"what?", timeout=5.0)
    question = b.wait(5.0)
    assert isinstance(question, Question)
    assert question[:3] == ("a", NOTE, b"what?")
    question.answer(NOTE._replace(step=6), b"that", None)
    assert a.wait(5.0) == Answer("b", 41, NOTE._replace(step=6), b"that", None)
    question.answer(NOTE, b"that", None)  # an answer to a question that is not out any more
    assert a.wait(0.3) is None


def test_a_question_behind_an_answer(pair):
    a, b = pair
    a.ask("b", 1, NOTE, b"", timeout=5.0)
    b.wait(5.0).answer(NOTE, b"answer", Ahead(ticket=2, payload=b"question", whole=True, timeout=5.0))
    answer = a.wait(5.0)
    assert answer[:4] == ("b", 1, NOTE, b"answer")
    behind = answer.behind
    assert behind[:3] == ("b", NOTE._replace(step=6, whole=True), b"question")
    behind.answer(NOTE, b"to that", None)
    assert b.wait(5.0)[:4] == ("a", 2, NOTE, b"to that")


def test_a_question_that_is_too_long_to_go_behind_goes_by_itself(pair):
    a, b = pair
    a.ask("b", 1, NOTE, b"", timeout=5.0)
    b.wait(5.0).answer(NOTE, bytes(3000), Ahead(ticket=2, payload=bytes(3000), whole=False, timeout=5.0))
    events = sorted([a.wait(5.0), a.wait(5.0)], key=lambda event: type(event).__name__)
    assert [type(event) for event in events] == [Answer, Question]
    assert events[0].behind is None
    assert events[1][:3] == ("b", NOTE._replace(step=6), bytes(3000))


def test_several_answers_wake_once(pair):
    a, b = pair
    for ticket in (1, 2):
        a.ask("b", ticket, NOTE, b"", timeout=5.0)
    first, second = b.wait(5.0), b.wait(5.0)
    first.answer(NOTE, b"1", None)
    began = time.monotonic()
    assert a.wait(0.2, answers=2).ticket == 1  # all there is when time is up
    assert time.monotonic() - began > 0.19
    a.ask("b", 3, NOTE, b"", timeout=5.0)
    b.wait(5.0).answer(NOTE, b"3", None)
    second.answer(NOTE, b"2", None)
    began = time.monotonic()
    assert a.wait(5.0, answers=2).ticket == 3
    assert a.wait(0.0).ticket == 2
    assert time.monotonic() - began < 4.0


def test_nobody_answers(pair):
    a, b = pair
    a.ask("b", 1, NOTE, b"", timeout=0.3)
    question, began = b.wait(5.0), time.monotonic()
    event = None
    while event is None:
        event = a.wait(0.05)
        assert time.monotonic() - began < 5.0
    assert event == Answer("b", 1)
    question.answer(NOTE, b"", None)
    assert a.wait(0.3) is None
    a.ask("b", 2, NOTE, b"", timeout=60.0)
    b.close()
    began = time.monotonic()
    assert a.wait(10.0) == Answer("b", 2)  # it has gone: no need to wait for a minute
    a.ask("b", 3, NOTE, b"", timeout=60.0)
    assert a.wait(1.0) == Answer("b", 3)
    assert time.monotonic() - began < 10.0


def test_a_question_is_given_up_in_time_however_much_arrives(pair, stranger):
    a = pair[0]
    a.ask("b", 1, NOTE, b"", timeout=0.5)
    began = time.monotonic()
    while time.monotonic() - began < 0.6:  # answers that nobody asked for, and questions that are never missing
        put(stranger, "a/answer/b", b"", bytes(8) + NOTE.encode())
        put(stranger, "a/from/b", b"", bytes(8) + NOTE.encode())
    assert Answer("b", 1) in [a.wait(0.0) for _ in range(3)]


def test_answers_that_nobody_asked_for_do_not_prolong_a_wait(pair, stranger):
    over = threading.Event()

    def flood():
        while not over.is_set():
            put(stranger, "a/answer/b", b"", bytes(8) + NOTE.encode())
            time.sleep(0.001)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        time.sleep(0.2)
        for answers in (1, 2):
            began = time.monotonic()
            while time.monotonic() - began < 1.0:
                asked = time.monotonic()
                assert pair[0].wait(0.1, answers=answers) is None
                assert time.monotonic() - asked < 0.5
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "beside", [None, b"", bytes(8), bytes(8) + NOTE.encode()[:-1], bytes(8) + b"x" + NOTE.encode()[1:]]
)
@pytest.mark.parametrize("kind", ["from", "answer"])
def test_what_cannot_be_read_is_an_offence(pair, stranger, kind, beside):
    put(stranger, f"a/{kind}/b", b"", beside)
    assert isinstance(pair[0].wait(5.0), Offence)


def test_too_many_bytes_are_an_offence(pair, stranger):
    for kind in ("from", "answer"):
        put(stranger, f"a/{kind}/b", bytes(5001), bytes(8) + NOTE.encode())
        event = pair[0].wait(5.0)
        assert event == Offence(
            "b", NOTE.token, f"{'question' if kind == 'from' else kind}: must be at most 5000 bytes, got 5001"
        )


def test_what_is_behind_an_answer_must_be_told_of(pair, stranger):
    put(stranger, "a/answer/b", b"", bytes(8) + NOTE.encode() + b"xyz")
    assert "must be told of in 17 bytes" in pair[0].wait(5.0).reason
    # a length beyond the end: all is answer and the question is empty; the answer was never asked for
    put(stranger, "a/answer/b", b"abc", bytes(8) + NOTE.encode() + struct.pack(">QQ?", 1, 1 << 60, False))
    assert pair[0].wait(5.0)[:3] == ("b", NOTE._replace(step=6), b"")


def test_answers_that_nobody_asked_for_are_left_alone(pair, stranger):
    put(stranger, "a/answer/b", b"", bytes(8) + NOTE.encode())
    put(stranger, "a/from/nobody", b"", bytes(8) + NOTE.encode())
    assert pair[0].wait(0.5) is None


def test_a_flood_does_not_drown_a_neighbor(pair, stranger):
    a, b = pair
    for _ in range(2000):
        put(stranger, "a/from/b", b"x", bytes(8) + NOTE.encode())
    time.sleep(0.5)
    b.ask("a", 1, NOTE._replace(token=8), b"honest", timeout=5.0)
    time.sleep(0.5)
    events = []
    while (event := a.wait(0.1)) is not None:
        events.append(event)
    assert sum(event.payload == b"honest" for event in events) == 1
    assert 1 <= sum(event.payload == b"x" for event in events) <= 4
    assert a._waiting == {}
    assert a._total == 0


def test_requests(pair, stranger):
    key = f"kernelmesh/{pair[0]._place.mesh}/a/status"
    replies = stranger.get(key, payload=b"?", timeout=5.0)
    request = pair[0].wait(5.0)
    assert isinstance(request, Request)
    assert (request.kind, request.payload) == ("status", b"?")
    request.answer(b"fine")
    assert [bytes(reply.ok.payload) for reply in replies] == [b"fine"]
    refused = stranger.get(key, payload=bytes(5001), timeout=5.0)
    assert pair[0].wait(0.5) is None
    assert b"at most 5000 bytes" in bytes(next(iter(refused)).err.payload)


def test_keys_that_zenoh_does_not_take():
    port = free_port(2)
    with pytest.raises(ValueError, match="zenoh: cannot declare the agent's keys"):
        ZenohCarrier(place("a", "b", (port, port + 1)), feeds={"sensors/#/x": lambda data: None})
