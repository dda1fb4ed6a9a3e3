"""A flood must neither fill the memory nor drown honest neighbors, and nobody can answer what it was not asked."""

import threading
import time

from kernelmesh.runtimes.frames import Frame, Header, Prefix, encode_frame
from kernelmesh.runtimes.mailbox import BUSY, Arrival, Mailbox, Presence, Request


def asking(token, ticket=1, size=0):
    return encode_frame(Frame(Prefix(token, False, ticket), Header(step=1), bytes(size)))


def replying(ticket, token=5):
    return encode_frame(Frame(Prefix(token, True, ticket), Header(step=1), b""))


def test_everything_that_has_arrived_is_taken_at_once_and_in_order():
    box = Mailbox()
    events = [Presence("b", True), Arrival("b", asking(1)), Presence("b", False)]
    for event in events:
        box.put(event)
    assert len(box) == 3
    assert box.take(0.0) == events
    assert box.take(0.0) == []


def test_a_flood_of_one_sender_leaves_room_for_others():
    box = Mailbox()
    for _ in range(1000):
        box.put(Arrival("b", asking(token=7)))
    box.put(Arrival("b", asking(token=8)))  # the honest one, whose name is used
    box.put(Arrival("c", asking(token=9)))
    taken = box.take(0.0)
    assert len(taken) == 4 + 2
    assert box.dropped == 996
    box.put(Arrival("b", asking(token=7)))  # once looked at, there is room again
    assert len(box.take(0.0)) == 1


def test_a_flood_under_many_tokens_is_bounded_and_expected_replies_still_come_in():
    box = Mailbox()
    box.expect("b", 42)
    for token in range(5000):
        box.put(Arrival("b", asking(token)))
    box.put(Arrival("b", replying(42)))
    taken = box.take(0.0)
    assert len(taken) == 64 + 1
    assert taken[-1] == Arrival("b", replying(42))


def test_one_sender_never_takes_the_room_of_others():
    box = Mailbox()
    for token in range(600):
        box.put(Arrival("mallory", asking(token)))
    for token in range(8):
        box.put(Arrival("mallory", asking(token, size=1 << 24)))
    box.put(Arrival("honest", asking(7, size=1 << 24)))
    assert box.take(0.0)[-1].sender == "honest"


def test_large_questions_are_bounded_by_their_bytes():
    box = Mailbox()
    for token in range(20):
        box.put(Arrival("b", asking(token, size=1 << 24)))
    assert sum(len(event.data) for event in box.take(0.0)) <= 1 << 25


def test_unexpected_replies_are_dropped():
    box = Mailbox()
    box.put(Arrival("b", replying(1)))
    box.expect("b", 2)
    box.put(Arrival("c", replying(2)))  # which was not asked
    box.expect("b", 3)
    box.put(Arrival("b", replying(2)))  # too late
    box.put(Arrival("b", replying(3)))
    box.put(Arrival("b", replying(3)))  # once more
    assert box.take(0.0) == [Arrival("b", replying(3))]
    assert box.dropped == 4


def test_a_few_invalid_frames_are_admitted_to_be_refused():
    box = Mailbox()
    for _ in range(10):
        box.put(Arrival("b", b"?"))
    assert box.take(0.0) == [Arrival("b", b"?")] * 4


def test_clients_have_little_room_of_their_own():
    box, told = Mailbox(), []
    for _ in range(100):
        box.put(Request("status", b"", lambda data: None, told.append))
    assert told == [BUSY] * 84
    box.put(Arrival("b", asking(1)))
    assert len(box.take(0.0)) == 16 + 1


def test_waiting_ends_with_the_first_event_or_when_time_is_up():
    box = Mailbox()
    thread = threading.Timer(0.05, lambda: box.put(Arrival("b", asking(1))))
    thread.start()
    assert len(box.take(5.0)) == 1
    thread.join()
    began = time.monotonic()
    assert box.take(0.1) == []
    assert 0.05 < time.monotonic() - began < 2.0
