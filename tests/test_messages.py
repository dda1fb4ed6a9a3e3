"""What was encoded is what is decoded; anything else is refused, cheaply and with the same error."""

import contextlib
import json
import struct
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import (
    VERSION,
    Difference,
    Function,
    Message,
    Offer,
    Points,
    Probe,
    Revision,
    Terms,
    Values,
    decode,
    encode,
    wire_size,
)

KINDS = [Points, Values, Probe, Function, Offer, Difference]
NUMBER = {kind: number for number, kind in enumerate(KINDS)}

counts = st.integers(0, (1 << 62) - 1)
digests = st.integers(0, (1 << 63) - 1)
all_terms = st.builds(Terms, counts, counts, counts, digests, st.floats(0, 1))
whole = st.builds(Revision, st.integers(1, (1 << 62) - 1), st.just(0), counts, digests)
numbers = st.floats(allow_nan=False, allow_infinity=False)


def tables(rows, columns):
    return arrays(np.float64, (rows, columns), elements=numbers)


@st.composite
def messages(draw):
    """Messages of every kind, with all that each may carry."""
    kind, rows, columns, outputs = draw(st.sampled_from(KINDS)), *(draw(st.integers(0, 9)) for _ in range(3))
    first, second = draw(tables(rows, columns)), draw(tables(rows, outputs))
    if kind in (Points, Values):
        return kind(first)
    if kind is Probe:
        return Probe(first, second)
    if kind is Function:
        return Function(first, second, draw(st.none() | whole))
    if kind is Offer:
        own = draw(st.integers(0, 9))
        dual = Function(draw(tables(own, columns)), draw(tables(own, outputs)))
        return Offer(first, second, draw(all_terms), draw(st.none() | st.just(dual)), draw(st.none() | whole))
    changed = np.array(sorted(draw(st.sets(st.integers(0, max(rows - 1, 0)), max_size=rows))), dtype=np.int32)
    number = draw(st.integers(2, (1 << 62) - 1))
    revision = Revision(number, draw(st.integers(1, number - 1)), draw(counts), draw(digests))
    return Difference(changed, first[: len(changed)], second, revision, draw(st.none() | all_terms))


def parts(message):
    """Everything that a message says, as something that can be compared."""
    found = {"kind": type(message)}
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if isinstance(value, np.ndarray):
            value = (value.shape, value.dtype.kind, value.tobytes())
        found[name] = parts(value) if isinstance(value, Message) else value
    return found


@given(messages())
def test_round_trip_and_size(message):
    data = encode(message)
    arrived = decode(data)
    assert parts(arrived) == parts(message)
    dual = getattr(message, "dual", None)
    carried = [(message, name) for name in (*message.inputs, *message.outputs)]
    carried += [] if dual is None else [(dual, "centers"), (dual, "weights")]
    assert wire_size(message) == (sum(getattr(owner, name).size for owner, name in carried), len(data))


@pytest.mark.parametrize("floats", [0, 1, 31, 32, 33, 8191, 8192, 8193])
@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_right_around_the_lengths_of_binaries(kind, floats):
    """255 and 256, 65535 and 65536 bytes are written differently; numbers take 8, so 31 and 32, 8191 and 8192 of them."""
    table, revision = np.zeros((floats, 1)), Revision(2, 1, 1, 1)
    message = {
        Points: lambda: Points(table),
        Values: lambda: Values(table),
        Probe: lambda: Probe(table, np.zeros((floats, 3))),
        Function: lambda: Function(table, np.zeros((floats, 3)), revision),
        Offer: lambda: Offer(table, table, Terms(0, 1, 0, 0, 0.5), Function(np.zeros((31, 1)), np.zeros((31, 300)))),
        Difference: lambda: Difference(np.arange(floats, dtype=np.int32), table, table, revision),
    }[kind]()
    assert wire_size(message).bytes == len(encode(message))
    assert parts(decode(encode(message))) == parts(message)


@given(rows=st.integers(0, 20_000))
def test_the_size_of_the_rows_of_a_difference_counts(rows):
    """They take 4 bytes each: here 255 and 256, 65535 and 65536 bytes are 63 and 64, 16383 and 16384 rows."""
    message = Difference(np.arange(rows, dtype=np.int32), np.zeros((rows, 0)), np.zeros((rows, 0)), Revision(2, 1))
    assert wire_size(message).bytes == len(encode(message))


def test_an_offer_is_hardly_larger_than_its_numbers():
    rng = np.random.default_rng(0)
    offer = Offer(rng.standard_normal((16, 2)), rng.standard_normal((16, 5)), Terms(3, 1000, 999, (1 << 63) - 1, 0.25))
    assert 8 * wire_size(offer).floats == 896
    assert len(encode(offer)) <= 940


def wire(kind=1, matrices=None, *rest, version=VERSION):
    """A message by hand: of kind values, with the matrix [[1, 2]], unless told otherwise."""
    return msgspec.msgpack.encode([version, kind, [MATRIX] if matrices is None else matrices, *rest])


MATRIX = [1, 2, struct.pack("<2d", 1.0, 2.0)]
EMPTY = [0, 2, b""]
TERMS, REVISION = [0, 1, 0, 0, 0.5], [2, 1, 0, 0]


def old(header, body=b""):
    """A message of format 3, which looked like safetensors."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def difference(rows, order=3, revision=REVISION, terms=None):
    data = np.array(rows, dtype="<i4").tobytes()
    return wire(5, [[len(rows), 1, bytes(8 * len(rows))], [order, 1, bytes(8 * order)]], data, terms, revision)


GOOD = {
    "values": wire(),
    "trailing nothings": wire(1, None, None, None, None),
    "function": wire(3, [MATRIX, MATRIX]),
    "offer": wire(4, [MATRIX, MATRIX], None, TERMS),
    "repair": wire(4, [MATRIX, MATRIX, EMPTY, EMPTY], None, TERMS, [1, 0, 0, 0]),
    "difference": difference([0, 2]),
    "offered difference": difference([], terms=TERMS),
}

BAD = {
    "empty": b"",
    "short": b"\x96",
    "not an array": msgspec.msgpack.encode({"version": VERSION}),
    "a number": msgspec.msgpack.encode(VERSION),
    "a text": msgspec.msgpack.encode("values"),
    "too few fields": msgspec.msgpack.encode([VERSION, 1]),
    "more fields": wire(1, None, None, None, None, None, None),
    "moments of values": wire(1, None, None, None, [b""]),
    "something behind": wire() + b"\0",
    "an older version": wire(version=3),
    "a newer version": wire(version=5),
    "a version in words": wire(version="4"),
    "a true version": wire(version=True),
    "a huge version": wire(version=2**64 - 1),
    "unknown kind": wire(6),
    "negative kind": wire(-1),
    "huge kind": wire(2**64 - 1),
    "a kind in words": wire("values"),
    "a kind that is no text": b"\x93\x04\xa4\xff\xfe\xff\xfe\x90",
    "no matrix": wire(1, []),
    "no list of matrices": wire(1, None)[: -len(msgspec.msgpack.encode([MATRIX]))] + b"\xc0",
    "two matrices": wire(1, [MATRIX] * 2),
    "three matrices": wire(4, [MATRIX] * 3, None, TERMS),
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
    "rows of a dual that differ": wire(4, [MATRIX, MATRIX, MATRIX, EMPTY], None, TERMS),
    "nan": wire(1, [[1, 2, struct.pack("<2d", 1.0, float("nan"))]]),
    "inf": wire(1, [[1, 2, struct.pack("<2d", 1.0, float("inf"))]]),
    "nan in a dual": wire(4, [MATRIX, MATRIX, MATRIX, [1, 1, struct.pack("<d", float("nan"))]], None, TERMS),
    "values with rows": wire(1, None, b""),
    "values with terms": wire(1, None, None, TERMS),
    "values with a revision": wire(1, None, None, None, REVISION),
    "function with terms": wire(3, [MATRIX] * 2, None, TERMS),
    "offer without terms": wire(4, [MATRIX] * 2),
    "terms that are short": wire(4, [MATRIX] * 2, None, TERMS[:-1]),
    "terms that are long": wire(4, [MATRIX] * 2, None, [*TERMS, 0]),
    "negative epoch": wire(4, [MATRIX] * 2, None, [-1, *TERMS[1:]]),
    "an epoch beyond counting": wire(4, [MATRIX] * 2, None, [2**62, *TERMS[1:]]),
    "a share above 1": wire(4, [MATRIX] * 2, None, [*TERMS[:-1], 1.5]),
    "a share that is nan": wire(4, [MATRIX] * 2, None, [*TERMS[:-1], float("nan")]),
    "a share that is infinite": wire(4, [MATRIX] * 2, None, [*TERMS[:-1], float("inf")]),
    "a share in words": wire(4, [MATRIX] * 2, None, [*TERMS[:-1], "half"]),
    "a revision numbered 0": wire(3, [MATRIX] * 2, None, None, [0]),
    "a revision that builds on itself": wire(3, [MATRIX] * 2, None, None, [2, 2, 0, 0]),
    "a negative digest": wire(3, [MATRIX] * 2, None, None, [2, 1, 0, -1]),
    "a digest of 64 bits": wire(3, [MATRIX] * 2, None, None, [2, 1, 0, 2**63]),
    "a difference without revision": difference([0], revision=None),
    "a difference without base": difference([0], revision=[1, 0, 0, 0]),
    "a difference without rows": wire(5, [MATRIX] * 2, None, None, REVISION),
    "rows of three bytes": wire(5, [MATRIX] * 2, b"\0\0\0", None, REVISION),
    "more rows than centers": wire(5, [MATRIX] * 2, bytes(8), None, REVISION),
    "negative row": difference([-1]),
    "row beyond the weights": difference([3]),
    "rows that fall": difference([2, 1]),
    "rows that repeat": difference([1, 1]),
    "deep": b"\x91" * 100_000,
    "deep in a matrix": b"\x96\x04\x01" + b"\x91" * 100_000,
    "deep maps": b"\x81\x00" * 50_000,
    "an extension": b"\xd6\xff" + bytes(4),
    "safetensors": old(
        {
            "__metadata__": {"kernelmesh": "3", "kind": "values"},
            "values": {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]},
        },
        bytes(16),
    ),
    "an offer of format 3": (Path(__file__).parent / "data/format-3/offer.message").read_bytes(),
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
        (BAD["a newer version"], "format must be 4, got 5"),
        (BAD["unknown kind"], "kind must be a number from 0 to 5, got 6"),
        (BAD["too little data"], r"8 bytes for each number, got 8 for shape \(1, 2\)"),
        (BAD["nan"], "every number must be finite"),
        (BAD["two matrices"], "values must have 1 matrices, got 2"),
        (BAD["three matrices"], "offer must have 2 or 4 matrices, got 3"),
        (BAD["rows that differ"], r"probe must have matrices with equally many rows, got shapes \(\(1, 2\), \(2, 1\)\)"),
        (BAD["function with terms"], "function must have no terms"),
        (BAD["rows that fall"], "rows must be increasing, from 0 or more"),
        (BAD["safetensors"], "must be one of format 4"),
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


@given(st.binary(max_size=60), st.integers(0, 5))
def test_random_bytes_behind_a_good_beginning_neither(data, kind):
    attempt(bytes([0x96, VERSION, kind]) + data)


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
VALUES = b"\x96\x04\x01"  # six fields: the version, the kind, …
FILL = {"arrays": b"\x90", "nothing": b"\xc0", "numbers": b"\x00", "matrices": b"\x93\x00\x00\xc4\x00", "maps": b"\x80"}


def long(code, length):
    """The head of an array (dd), a map (df), a text (db) or a binary (c6) that announces so much."""
    return bytes.fromhex(code) + struct.pack(">I", length)


def hostile():
    yield "nested arrays", b"\x91" * MEGABYTES
    yield "nested arrays as matrices", VALUES + b"\x91" * MEGABYTES
    yield "nested arrays as terms", VALUES + b"\x90\xc0" + b"\x91" * MEGABYTES
    yield "a text as the kind", b"\x96\x04" + long("db", MEGABYTES) + b"a" * MEGABYTES + b"\x90\xc0\xc0\xc0"
    yield (
        "rows without centers",
        b"\x96\x04\x05\x92" + 2 * FILL["matrices"] + long("c6", MEGABYTES) + bytes(MEGABYTES) + (b"\xc0\x94\x02\x01\x00\x00"),
    )
    yield "data without a shape", VALUES + b"\x91\x93\x01\x01" + long("c6", MEGABYTES) + bytes(MEGABYTES) + 3 * b"\xc0"
    yield (
        "numbers that are nan",
        (VALUES + b"\x91\x93\x01" + b"\xce" + struct.pack(">I", MEGABYTES // 8) + long("c6", MEGABYTES))
        + b"\xff" * MEGABYTES
        + 3 * b"\xc0",
    )
    for name, small in FILL.items():
        times = MEGABYTES // len(small)
        yield f"many {name}", long("dd", times) + small * times
        yield f"many {name} as matrices", VALUES + long("dd", times) + small * times + 3 * b"\xc0"
        yield f"many {name} as fields", long("dd", times) + VALUES[1:] + small * times
        yield f"many {name} in a matrix", VALUES + b"\x91" + long("dd", times) + small * times
        yield f"a map of {name}", long("df", times // 2) + small * times
        yield f"a map of {name} as matrices", VALUES + long("df", times // 2) + small * times
        for code in ("dd", "df", "db", "c6"):
            head = long(code, 2**32 - 1)
            for begin in (
                b"",
                b"\x96",
                b"\x96\x04",
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
