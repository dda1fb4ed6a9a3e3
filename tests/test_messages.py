"""What was encoded is what is decoded; anything else is refused, cheaply and with the same error."""

import contextlib
import json
import struct
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import VERSION, Function, Message, Points, Values, decode, encode, wire_size

KINDS = [Points, Values, Function]

numbers = st.floats(allow_nan=False, allow_infinity=False)


def tables(rows, columns):
    return arrays(np.float64, (rows, columns), elements=numbers)


@st.composite
def messages(draw):
    """Messages of every kind."""
    kind, rows, columns, outputs = draw(st.sampled_from(KINDS)), *(draw(st.integers(0, 9)) for _ in range(3))
    first, second = draw(tables(rows, columns)), draw(tables(rows, outputs))
    return Function(first, second) if kind is Function else kind(first)


def parts(message):
    """Everything that a message says, as something that can be compared."""
    tables = {name: getattr(message, name) for name in message.tables}
    return type(message), {name: (table.shape, table.dtype.kind, table.tobytes()) for name, table in tables.items()}


@given(messages())
def test_round_trip_and_size(message):
    data = encode(message)
    assert parts(decode(data)) == parts(message)
    assert wire_size(message) == (sum(getattr(message, name).size for name in message.tables), len(data))


@pytest.mark.parametrize("floats", [0, 1, 31, 32, 33, 8191, 8192, 8193])
@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_right_around_the_lengths_of_binaries(kind, floats):
    """255 and 256, 65535 and 65536 bytes are written differently; numbers take 8, so 31 and 32, 8191 and 8192 of them."""
    table = np.zeros((floats, 1))
    message = Function(table, np.zeros((floats, 3))) if kind is Function else kind(table)
    assert wire_size(message).bytes == len(encode(message))
    assert parts(decode(encode(message))) == parts(message)


def wire(kind=1, matrices=None, *rest, version=VERSION):
    """A message by hand: of kind values, with the matrix [[1, 2]], unless told otherwise."""
    return msgspec.msgpack.encode([version, kind, [MATRIX] if matrices is None else matrices, *rest])


MATRIX = [1, 2, struct.pack("<2d", 1.0, 2.0)]


def old(header, body=b""):
    """A message of format 3, which looked like safetensors."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


GOOD = {"values": wire(), "function": wire(2, [MATRIX, MATRIX])}

BAD = {
    "empty": b"",
    "short": b"\x96",
    "not an array": msgspec.msgpack.encode({"version": VERSION}),
    "a number": msgspec.msgpack.encode(VERSION),
    "a text": msgspec.msgpack.encode("values"),
    "too few fields": msgspec.msgpack.encode([VERSION, 1]),
    "more fields": wire(1, None, None),
    "something behind": wire() + b"\0",
    "an older version": wire(version=4),
    "a newer version": wire(version=6),
    "a version in words": wire(version="5"),
    "a true version": wire(version=True),
    "a huge version": wire(version=2**64 - 1),
    "unknown kind": wire(3),
    "negative kind": wire(-1),
    "huge kind": wire(2**64 - 1),
    "a kind in words": wire("values"),
    "a kind that is no text": b"\x93\x05\xa4\xff\xfe\xff\xfe\x90",
    "no matrix": wire(1, []),
    "no list of matrices": wire(1, None)[: -len(msgspec.msgpack.encode([MATRIX]))] + b"\xc0",
    "two matrices": wire(1, [MATRIX] * 2),
    "five matrices": wire(1, [MATRIX] * 5),
    "a matrix that is a map": wire(1, [{"rows": 1, "columns": 2, "data": bytes(16)}]),
    "a matrix of text": wire(1, [[1, 2, "sixteen bytes ok"]]),
    "a matrix of numbers": wire(1, [[1, 2, [1.0, 2.0]]]),
    "a matrix with more": wire(1, [[*MATRIX, 0]]),
    "a matrix with less": wire(1, [MATRIX[:2]]),
    "negative shape": wire(1, [[-1, -2, bytes(16)]]),
    "boolean shape": wire(1, [[True, 2, bytes(16)]]),
    "broken shape": wire(1, [[1.0, 2, bytes(16)]]),
    "shape beyond all memory": wire(1, [[0, 2**63, b""]]),
    "shape beyond all memory, the other way": wire(1, [[2**62, 0, b""]]),
    "shape that wraps around": wire(1, [[2**31 - 1, 2**31 - 1, b""]]),
    "ten gigabytes announced": wire(1, [[10**6, 1250, bytes(16)]]),
    "too little data": wire(1, [[1, 2, bytes(8)]]),
    "too much data": wire(1, [[1, 2, bytes(24)]]),
    "half a number": wire(1, [[1, 2, bytes(15)]]),
    "rows that differ": wire(2, [[1, 2, bytes(16)], [2, 1, bytes(16)]]),
    "nan": wire(1, [[1, 2, struct.pack("<2d", 1.0, float("nan"))]]),
    "inf": wire(1, [[1, 2, struct.pack("<2d", 1.0, float("inf"))]]),
    "deep": b"\x91" * 100_000,
    "deep in a matrix": b"\x93\x05\x01" + b"\x91" * 100_000,
    "deep maps": b"\x81\x00" * 50_000,
    "an extension": b"\xd6\xff" + bytes(4),
    "safetensors": old(
        {
            "__metadata__": {"kernelmesh": "3", "kind": "values"},
            "values": {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]},
        },
        bytes(16),
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_written_by_hand_is_read(name):
    assert isinstance(decode(GOOD[name]), Message)


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    with pytest.raises(RefusedMessage, match="message: ") as caught:
        decode(BAD[name])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (BAD["a newer version"], "format must be 5, got 6"),
        (BAD["unknown kind"], "kind must be a number from 0 to 2, got 3"),
        (BAD["too little data"], r"8 bytes for each number, got 8 for shape \(1, 2\)"),
        (BAD["nan"], "every number must be finite"),
        (BAD["two matrices"], "values must have 1 matrices, got 2"),
        (BAD["rows that differ"], r"function must have matrices with equally many rows, got shapes \(\(1, 2\), \(2, 1\)\)"),
        (BAD["safetensors"], "must be one of format 5"),
    ],
)
def test_refusals_say_why(data, words):
    with pytest.raises(RefusedMessage, match=words):
        decode(data)


def test_refuses_more_than_allowed():
    with pytest.raises(RefusedMessage, match="at most 100 bytes"):
        decode(encode(Values(np.zeros((10, 10)))), max_bytes=100)


def attempt(data):
    """A message or a refusal, and nothing else; a message can be encoded again and is then the same."""
    with contextlib.suppress(RefusedMessage):
        found = decode(data)
        assert parts(decode(encode(found))) == parts(found)


@given(st.binary(max_size=300))
def test_random_bytes_never_escape_as_another_error(data):
    attempt(data)


@given(st.binary(max_size=60), st.integers(0, 2))
def test_random_bytes_behind_a_good_beginning_neither(data, kind):
    attempt(bytes([0x93, VERSION, kind]) + data)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(plain, st.lists(plain, max_size=7), st.integers(0, 7))
def test_values_of_any_type_anywhere_neither(anything, fields, spot):
    attempt(msgspec.msgpack.encode(anything))
    attempt(msgspec.msgpack.encode(fields))
    for good in GOOD.values():
        whole = msgspec.msgpack.decode(good)
        whole[min(spot, len(whole) - 1)] = anything
        attempt(msgspec.msgpack.encode(whole))
        if whole[2:] and isinstance(whole[2], list) and whole[2]:
            whole[2][0] = fields
            attempt(msgspec.msgpack.encode(whole))


@given(messages(), st.data())
def test_damage_never_escapes_as_another_error(message, draw):
    data = bytearray(encode(message))
    for _ in range(draw.draw(st.integers(0, 3))):
        data[draw.draw(st.integers(0, min(len(data) - 1, 60)))] = draw.draw(st.integers(0, 255))
    attempt(bytes(data[: draw.draw(st.integers(0, len(data)))]))
    attempt(bytes(data))


@given(messages(), st.data())
def test_every_message_cut_short_is_refused(message, draw):
    data = encode(message)
    with pytest.raises(RefusedMessage):
        decode(data[: draw.draw(st.integers(0, len(data) - 1))])


MEGABYTES = 1 << 24
VALUES = b"\x93\x05\x01"  # three fields: the version, the kind, …
FILL = {"arrays": b"\x90", "nothing": b"\xc0", "numbers": b"\x00", "matrices": b"\x93\x00\x00\xc4\x00", "maps": b"\x80"}


def long(code, length):
    """The head of an array (dd), a map (df), a text (db) or a binary (c6) that announces so much."""
    return bytes.fromhex(code) + struct.pack(">I", length)


def hostile():
    yield "nested arrays", b"\x91" * MEGABYTES
    yield "nested arrays as matrices", VALUES + b"\x91" * MEGABYTES
    yield "a text as the kind", b"\x93\x05" + long("db", MEGABYTES) + b"a" * MEGABYTES + b"\x90"
    yield "data without a shape", VALUES + b"\x91\x93\x01\x01" + long("c6", MEGABYTES) + bytes(MEGABYTES)
    yield (
        "numbers that are nan",
        (VALUES + b"\x91\x93\x01" + b"\xce" + struct.pack(">I", MEGABYTES // 8) + long("c6", MEGABYTES))
        + b"\xff" * MEGABYTES,
    )
    for name, small in FILL.items():
        times = MEGABYTES // len(small)
        yield f"many {name}", long("dd", times) + small * times
        yield f"many {name} as matrices", VALUES + long("dd", times) + small * times
        yield f"many {name} as fields", long("dd", times) + VALUES[1:] + small * times
        yield f"many {name} in a matrix", VALUES + b"\x91" + long("dd", times) + small * times
        yield f"a map of {name}", long("df", times // 2) + small * times
        yield f"a map of {name} as matrices", VALUES + long("df", times // 2) + small * times
        for code in ("dd", "df", "db", "c6"):
            head = long(code, 2**32 - 1)
            for begin in (
                b"",
                b"\x93",
                b"\x93\x05",
                VALUES,
                VALUES + b"\x91",
                VALUES + b"\x91\x93\x01\x02",
                VALUES + b"\x90",
            ):
                yield f"{name} in {code} that announces 2^32 - 1 after {begin.hex()}", begin + head + small * 50


def test_refusing_costs_no_more_memory_than_the_message_has():
    for name, data in hostile():
        tracemalloc.start()
        try:
            with pytest.raises(RefusedMessage):
                decode(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1.5 * len(data) + 10_000, name
