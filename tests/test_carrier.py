"""What carriers move between two agents, and what becomes of what should not be moved."""

from __future__ import annotations

import time

import pytest

from kernelmesh.runtimes.carriers import MemoryNetwork
from kernelmesh.runtimes.frames import Header
from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.testing import check_carrier
from mesh import free_port
from virtual import question


def check_memory(fate=None, **options):
    network = MemoryNetwork(fate)
    pair = lambda: (network.carrier("a", ["b"]), network.carrier("b", ["a"]))  # noqa: E731
    check_carrier(pair, deliver=lambda: network.deliver(0.0), **options)


def test_the_carrier_in_memory_obeys_the_laws():
    check_memory()


@pytest.mark.parametrize(
    ("fate", "law"),
    [
        (lambda sender, receiver, data: [], "must arrive"),
        (lambda sender, receiver, data: [(0.0, data + b"x")], "must arrive as they were sent"),
    ],
)
def test_the_laws_find_a_carrier_that_breaks_them(fate, law):
    with pytest.raises(AssertionError, match=law):
        check_memory(fate, patience=0.05)


def test_messages_in_memory_take_their_time():
    network = MemoryNetwork(lambda sender, receiver, data: [(0.5, data), (2.0, data)])
    box, a, b = Mailbox(), network.carrier("a", ["b"]), network.carrier("b", ["a"])
    a.open(Mailbox())
    b.open(box)
    box.take(0.0)
    a.send("b", b"?")
    assert network.next_delivery == 0.5
    network.deliver(0.4)
    assert box.take(0.0) == []
    network.deliver(1.0)
    assert box.take(0.0) == [Arrival("a", b"?")]
    b.close()
    network.deliver(3.0)
    assert box.take(0.0) == []
    assert network.next_delivery is None


zenoh = pytest.importorskip("zenoh")

from kernelmesh.runtimes.zenoh import ZenohCarrier, open_client  # noqa: E402 (needs zenoh)


def membership(name: str, other: str, ports: tuple[int, int], **options) -> Membership:
    here, there = (f"tcp/127.0.0.1:{port}" for port in ports)
    return Membership(name=name, listen=here, neighbors={other: there}, **options)


def carriers(**options):
    port = free_port(2)
    return (
        ZenohCarrier(membership("a", "b", (port, port + 1), **options)),
        ZenohCarrier(membership("b", "a", (port + 1, port), **options)),
    )


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("lock_step", [False, True])
def test_zenoh_obeys_the_laws(lock_step):
    check_carrier(lambda: carriers(lock_step=lock_step))


@pytest.fixture
def pair():
    a, b = carriers(max_bytes=5000)
    boxes = Mailbox(), Mailbox()
    a.open(boxes[0])
    b.open(boxes[1])
    for box, other in zip(boxes, "ba", strict=True):
        assert take(box, 1, seconds=20.0) == [Presence(other, True)]
    yield a, b, *boxes
    a.close()
    b.close()


def take(box, count, *, seconds=5.0):
    events, deadline = [], time.monotonic() + seconds
    while len(events) < count and time.monotonic() < deadline:
        events += box.take(0.05)
    return events


@pytest.fixture
def stranger(pair):
    """A session that is no agent's, connected to a."""
    session = open_client(pair[0]._membership.listen, None)
    yield session
    session.close()


@pytest.mark.xdist_group("processes")
def test_keys_of_others_are_not_heard(pair, stranger):
    for key in ("a/from/nobody", "b/from/a"):
        stranger.put(f"kernelmesh/mesh/{key}", question(Header(step=1)), congestion_control=zenoh.CongestionControl.BLOCK)
    assert take(pair[2], 1, seconds=0.5) == []


@pytest.mark.xdist_group("processes")
def test_requests(pair, stranger):
    replies = stranger.get("kernelmesh/mesh/a/status", payload=b"?", timeout=5.0)
    (request,) = take(pair[2], 1)
    assert isinstance(request, Request)
    assert (request.kind, request.payload) == ("status", b"?")
    request.answer(b"fine")
    assert [bytes(reply.ok.payload) for reply in replies] == [b"fine"]
    refused = stranger.get("kernelmesh/mesh/a/predict", payload=b"?", timeout=5.0)
    take(pair[2], 1)[0].refuse("no")
    assert bytes(next(iter(refused)).err.payload) == b"no"


@pytest.mark.xdist_group("processes")
def test_keys_that_zenoh_does_not_take():
    port = free_port(2)
    carrier = ZenohCarrier(membership("a", "b", (port, port + 1)), feeds={"sensors/#/x": lambda data: None})
    with pytest.raises(ValueError, match="zenoh: cannot declare the agent's keys"):
        carrier.open(Mailbox())
