"""A status survives its way, and whatever else arrives is refused."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh.errors import RefusedMessage
from kernelmesh.runtimes.status import NeighborStatus, Status

LEAST = {
    "name": "north",
    "mode": "free",
    "samples": 64,
    "steps": 2,
    "steps_here": 1,
    "seconds": 1.5,
    "order": 7,
    "bytes_sent": 100,
    "floats_sent": 10,
}

counts = st.integers(0, (1 << 63) - 1)
words = st.text(st.characters(codec="utf-8"), max_size=20)
amounts = st.none() | st.floats(allow_nan=False, allow_infinity=False)
statuses = st.builds(
    Status,
    name=words,
    mode=st.sampled_from(["free", "lock-step"]),
    **dict.fromkeys(("samples", "steps", "steps_here", "order", "bytes_sent", "floats_sent", "refused", "bad_rows"), counts),
    seconds=st.floats(0, 1e9),
    loss=amounts,
    disagreement=amounts,
    members=st.none() | counts,
    others=counts,
    neighbors=st.dictionaries(
        words,
        st.builds(
            NeighborStatus,
            **dict.fromkeys(("alive", "ended", "ignored", "quarantined"), st.booleans()),
            **dict.fromkeys(("refused", "left_out"), counts),
            excluded=words,
        ),
        max_size=3,
    ),
    waiting_for=st.lists(words, max_size=3).map(tuple),
    out_of_step=st.lists(words, max_size=3).map(tuple),
    ended=st.booleans(),
    checkpoint=st.none() | counts,
    trouble=words,
)


@given(statuses)
def test_what_arrives_is_what_was_sent(status):
    assert Status.decode(status.encode()) == status


def test_it_is_json_that_anybody_can_read():
    status = Status(**LEAST, neighbors={"south": NeighborStatus(alive=True, ended=False, ignored=False, refused=0)})
    found = json.loads(status.encode())
    assert found["neighbors"]["south"] == {
        "alive": True,
        "ended": False,
        "ignored": False,
        "refused": 0,
        "left_out": 0,
        "excluded": "",
        "quarantined": False,
    }
    assert {name: found[name] for name in LEAST} == LEAST
    assert set(found) == set(Status.__struct_fields__)


def test_what_cannot_be_a_number_in_json_is_nothing():
    """A loss may be infinite while the agent diverges; the status must still arrive."""
    assert Status.decode(Status(**LEAST, loss=float("inf"), disagreement=float("nan")).encode()) == Status(**LEAST)


def test_what_is_left_out_has_a_default_and_what_is_needed_is_demanded():
    assert Status.decode(json.dumps(LEAST).encode()) == Status(**LEAST)
    for name in LEAST:
        short = {key: value for key, value in LEAST.items() if key != name}
        with pytest.raises(RefusedMessage, match=rf"status: must be one of this version, got .*`{name}`"):
            Status.decode(json.dumps(short).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"name":' * 100_000,
        b"\xff",
        b'{"name": "\xff\xfe"}',
        b'{"\xff": 1}',
        b'{"name": "\\ud800"}',
        b'{"samples": 1e999}',
        b'{"samples": ' + b"9" * 5000 + b"}",
        json.dumps({**LEAST, "color": "red"}).encode(),
        json.dumps({**LEAST, "samples": "64"}).encode(),
        json.dumps({**LEAST, "samples": 6.5}).encode(),
        json.dumps({**LEAST, "samples": True}).encode(),
        json.dumps({**LEAST, "neighbors": []}).encode(),
        json.dumps({**LEAST, "neighbors": {"south": {}}}).encode(),
        json.dumps({**LEAST, "waiting_for": "south"}).encode(),
        Status(**LEAST).encode()[:-1],
        Status(**LEAST).encode() + b"}",
    ],
    ids=range(20),
)
def test_refuses(data):
    with pytest.raises(RefusedMessage, match="status: must be one of this version"):
        Status.decode(data)


@given(st.binary(max_size=100), st.integers(0, 400), st.integers(0, 255))
def test_bytes_never_escape_as_another_error(noise, spot, byte):
    damaged = bytearray(Status(**LEAST, trouble="é").encode())
    damaged[spot % len(damaged)] = byte
    for data in (noise, bytes(damaged), bytes(damaged[:spot]), msgspec.msgpack.encode(LEAST)):
        with contextlib.suppress(RefusedMessage):
            assert isinstance(Status.decode(data), Status)
