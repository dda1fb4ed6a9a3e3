"""What was encoded is what is decoded; anything else is refused, cheaply and with the same error."""

import contextlib
import struct
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import (
    VERSION,
    Hello,
    ListPart,
    News,
    PackedSums,
    Points,
    Rows,
    SentFunction,
    Values,
    WireSize,
    decode,
    encode,
    packed,
    unpacked,
    wire_size,
)
from kernelmesh.messages.news import PackedTrial
from kernelmesh.numerics.sums import Sums

KINDS = [Points, Values, SentFunction]

numbers = st.floats(allow_nan=False, allow_infinity=False)


def tables(rows, columns):
    return (
        arrays(np.float64, (rows, columns), elements=numbers) if rows * columns < 100 else st.just(np.ones((rows, columns)))
    )


@st.composite
def messages(draw):
    """Messages of every kind."""
    kind, rows, columns, outputs = draw(st.sampled_from(KINDS)), *(draw(st.integers(0, 9)) for _ in range(3))
    first, second = draw(tables(rows, columns)), draw(tables(rows, outputs))
    return SentFunction(first, second) if kind is SentFunction else kind(first)


COUNTS, MEMBERS = st.integers(0, (1 << 62) - 1), st.integers(0, (1 << 16) - 1)
ORDERS = st.sampled_from([0, 1, 5, 6, 7, 40, 90, 130, 200])
"""Short and long messages: the lengths of 256 and 65,536 bytes are where the encoding of a length grows."""


@st.composite
def sums(draw, order=None, **fields):
    order = draw(st.integers(0, 5)) if order is None else order
    moments, weights = draw(tables(1, order * (order + 1) // 2))[0], draw(tables(order, 2))
    return Sums(moments, weights, draw(st.floats(0.0, 1e9)), **{"roll": draw(st.integers(0, 2**600)), **fields})


@st.composite
def whole_sums(draw, order=None):
    """With all that agents send before they learn."""
    trial = draw(st.integers(0, 3)) if order is None else draw(ORDERS)
    trials = tuple(draw(sums(trial, roll=0)) for _ in range(draw(st.integers(0, 3))))
    return draw(sums(order, features=draw(st.just(np.empty((0, 0))) | tables(2, 3)), trials=trials))


@st.composite
def news(draw):
    hello = Hello(*draw(st.tuples(MEMBERS, COUNTS, MEMBERS, COUNTS, MEMBERS, MEMBERS | st.just(-1), COUNTS)))
    bits, order = draw(st.sampled_from([16, 32, 64])), draw(ORDERS)
    found = draw(whole_sums(order)) if bits == 64 else Sums(np.ones(order * (order + 1) // 2), np.ones((order, 2)), 3.0, 5)
    wire = draw(st.sampled_from([None, packed(found, bits=bits)]))
    rows = st.none() | st.tuples(st.integers(0, 5000), st.integers(1, 4)).map(lambda shape: Rows.of(np.ones(shape)))
    part = draw(rows)
    if part is not None:
        strength, scales = draw(st.floats(1e-9, 1e9)), draw(st.binary(max_size=16))
        part = ListPart(
            *draw(st.tuples(st.integers(0, 8191), MEMBERS, st.integers(0, 7))), strength, draw(MEMBERS), scales, scales, part
        )
    standing = draw(st.none() | st.dictionaries(MEMBERS, st.integers(1, 1 << 30), max_size=20))
    return News(hello, draw(st.integers(0, 8191)), draw(st.integers(0, (1 << 32) - 1)), wire, part, draw(rows), standing)


@given(news())
def test_news_round_trip_and_size(message):
    data = encode(message)
    assert decode(data) == message
    assert wire_size(message) == WireSize(message.floats, len(data))


def written(found):
    """Everything that sums say, as something that can be compared."""
    tables = [found.features, *(table for each in (found, *found.trials) for table in (each.moments, each.weights))]
    return [table.tobytes() for table in tables], found.samples, found.roll, [trial.samples for trial in found.trials]


@given(whole_sums(), st.booleans())
def test_sums_of_64_bits_arrive_to_the_last_bit(found, estate):
    wire = packed(found, bits=64, estate=estate)
    assert written(unpacked(wire)) == written(found)
    assert wire.estate is estate


@pytest.mark.parametrize(("bits", "error"), [(32, 1e-7), (16, 1e-4)])
def test_fewer_bits_round_by_little(bits, error):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 12)) * 10.0 ** rng.integers(-4, 3, 12)
    found = Sums.of(features, rng.normal(size=(40, 3)), samples=40.0, roll=5)
    arrived, root = unpacked(packed(found, bits=bits)), np.sqrt(np.diagonal(found.square()))
    assert (arrived.samples, arrived.roll) == (40.0, 5)
    assert np.abs((arrived.square() - found.square()) / np.outer(root, root)).max() < error
    gap = (arrived.weights - found.weights) / np.abs(found.weights).max() / root[:, None] * root.max()
    assert np.abs(gap).max() < 10 * error


@pytest.mark.parametrize("bits", [16, 32])
def test_numbers_that_are_too_large_for_the_wire_arrive_as_large_ones(bits):
    huge = Sums(np.array([1e300, 1e299, 1e300]), np.array([[1e300], [-1e300]]), 1.0)
    arrived = unpacked(packed(huge, bits=bits))
    assert np.isfinite(arrived.moments).all()
    assert (np.sign(arrived.weights) == [[1.0], [-1.0]]).all()
    assert arrived.trace > 1e38


def parts(message):
    """Everything that a message says, as something that can be compared."""
    tables = {name: getattr(message, name) for name in message.tables}
    return type(message), {name: (table.shape, table.dtype.kind, table.tobytes()) for name, table in tables.items()}


@given(messages())
def test_round_trip_and_size(message):
    data = encode(message)
    assert parts(decode(data)) == parts(message)
    assert wire_size(message) == WireSize(sum(getattr(message, name).size for name in message.tables), len(data))


@pytest.mark.parametrize("floats", [0, 1, 31, 32, 33, 8191, 8192, 8193])
@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_right_around_the_lengths_of_binaries(kind, floats):
    """255 and 256, 65535 and 65536 bytes are written differently; numbers take 8, so 31 and 32, 8191 and 8192 of them."""
    table = np.zeros((floats, 1))
    message = SentFunction(table, np.zeros((floats, 3))) if kind is SentFunction else kind(table)
    assert wire_size(message).bytes == len(encode(message))
    assert parts(decode(encode(message))) == parts(message)


def wire(kind=1, matrices=None, *rest, version=VERSION):
    """A message by hand: of kind values, with the matrix [[1, 2]], unless told otherwise."""
    return msgspec.msgpack.encode([version, kind, [MATRIX] if matrices is None else matrices, *rest])


MATRIX = [1, 2, struct.pack("<2d", 1.0, 2.0)]


GOOD = {"values": wire(), "function": wire(2, [MATRIX, MATRIX])}

BAD = {
    "empty": b"",
    "short": b"\x96",
    "not an array": msgspec.msgpack.encode({"version": VERSION}),
    "more fields": wire(1, None, None),
    "something behind": wire() + b"\0",
    "an older version": wire(version=0),
    "a newer version": wire(version=2),
    "a version in words": wire(version="1"),
    "unknown kind": wire(4),
    "matrices as news": wire(3),
    "negative kind": wire(-1),
    "a kind that is no text": b"\x93\x01\xa4\xff\xfe\xff\xfe\x90",
    "no matrix": wire(1, []),
    "no list of matrices": wire(1, None)[: -len(msgspec.msgpack.encode([MATRIX]))] + b"\xc0",
    "five matrices": wire(1, [MATRIX] * 5),
    "a matrix that is a map": wire(1, [{"rows": 1, "columns": 2, "data": bytes(16)}]),
    "a matrix of text": wire(1, [[1, 2, "sixteen bytes ok"]]),
    "a matrix with more": wire(1, [[*MATRIX, 0]]),
    "negative shape": wire(1, [[-1, -2, bytes(16)]]),
    "shape beyond all memory": wire(1, [[0, 2**63, b""]]),
    "shape that wraps around": wire(1, [[2**31 - 1, 2**31 - 1, b""]]),
    "ten gigabytes announced": wire(1, [[10**6, 1250, bytes(16)]]),
    "too little data": wire(1, [[1, 2, bytes(8)]]),
    "too much data": wire(1, [[1, 2, bytes(24)]]),
    "rows that differ": wire(2, [[1, 2, bytes(16)], [2, 1, bytes(16)]]),
    "nan": wire(1, [[1, 2, struct.pack("<2d", 1.0, float("nan"))]]),
    "inf": wire(1, [[1, 2, struct.pack("<2d", 1.0, float("inf"))]]),
    "deep": b"\x91" * 100_000,
    "deep in a matrix": b"\x93\x01\x01" + b"\x91" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    with pytest.raises(RefusedMessage, match="message: ") as caught:
        decode(BAD[name])
    assert len(str(caught.value)) < 300


def test_refuses_more_than_allowed():
    with pytest.raises(RefusedMessage, match="at most 100 bytes"):
        decode(encode(Values(np.zeros((10, 10)))), max_bytes=100)


def attempt(data):
    """A message or a refusal, and nothing else; a message can be encoded again and is then the same."""
    with contextlib.suppress(RefusedMessage):
        found = decode(data)
        if isinstance(found, News):
            assert decode(encode(found)) == found
        else:
            assert parts(decode(encode(found))) == parts(found)


@given(st.binary(max_size=60), st.integers(0, 3))
def test_random_bytes_after_a_valid_beginning_raise_no_other_error(data, kind):
    attempt(bytes([0x93, VERSION, kind]) + data)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(plain, st.lists(plain, max_size=7), st.integers(0, 7))
def test_values_of_any_type_anywhere_raise_no_other_error(anything, fields, spot):
    attempt(msgspec.msgpack.encode(anything))
    attempt(msgspec.msgpack.encode(fields))
    for good in GOOD.values():
        whole = msgspec.msgpack.decode(good)
        whole[min(spot, len(whole) - 1)] = anything
        attempt(msgspec.msgpack.encode(whole))
        if whole[2:] and isinstance(whole[2], list) and whole[2]:
            whole[2][0] = fields
            attempt(msgspec.msgpack.encode(whole))


@given(messages() | news(), st.data())
def test_damage_raises_no_other_error(message, draw):
    data = bytearray(encode(message))
    for _ in range(draw.draw(st.integers(0, 3))):
        data[draw.draw(st.integers(0, min(len(data) - 1, 60)))] = draw.draw(st.integers(0, 255))
    attempt(bytes(data[: draw.draw(st.integers(0, len(data)))]))
    attempt(bytes(data))


@given(messages() | news(), st.data())
def test_every_message_cut_short_is_refused(message, draw):
    data = encode(message)
    with pytest.raises(RefusedMessage):
        decode(data[: draw.draw(st.integers(0, len(data) - 1))])


MEGABYTES = 1 << 24
VALUES = b"\x93\x01\x01"  # three fields: the version, the kind, …
NEWS = b"\x93\x01\x03"
FILL = {"arrays": b"\x90", "nothing": b"\xc0", "numbers": b"\x00", "matrices": b"\x93\x00\x00\xc4\x00", "maps": b"\x80"}


def long(code, length):
    """The head of an array (dd), a map (df), a text (db) or a binary (c6) that announces so much."""
    return bytes.fromhex(code) + struct.pack(">I", length)


def hostile():
    yield "nested arrays", b"\x91" * MEGABYTES
    yield "nested arrays as matrices", VALUES + b"\x91" * MEGABYTES
    yield "nested arrays as news", NEWS + b"\x91" * MEGABYTES
    yield "trials within trials as news", nested_trials()
    yield "a text as the kind", b"\x93\x01" + long("db", MEGABYTES) + b"a" * MEGABYTES + b"\x90"
    yield "data without a shape", VALUES + b"\x91\x93\x01\x01" + long("c6", MEGABYTES) + bytes(MEGABYTES)
    shape = b"\x91\x93\x01\xce" + struct.pack(">I", MEGABYTES // 8)
    yield "numbers that are nan", VALUES + shape + long("c6", MEGABYTES) + b"\xff" * MEGABYTES
    for name, small in FILL.items():
        times = MEGABYTES // len(small)
        yield f"many {name}", long("dd", times) + small * times
        yield f"many {name} as matrices", VALUES + long("dd", times) + small * times
        yield f"many {name} as news", NEWS + long("dd", times) + small * times
        yield f"many {name} as fields", long("dd", times) + VALUES[1:] + small * times
        yield f"many {name} in a matrix", VALUES + b"\x91" + long("dd", times) + small * times
        yield f"a map of {name}", long("df", times // 2) + small * times
        yield f"a map of {name} as matrices", VALUES + long("df", times // 2) + small * times
        for code in ("dd", "df", "db", "c6"):
            head = long(code, 2**32 - 1)
            inside = (VALUES + b"\x91", VALUES + b"\x91\x93\x01\x02", VALUES + b"\x90", NEWS, NEWS + b"\x99")
            for begin in (b"", b"\x93", b"\x93\x01", VALUES, *inside):
                yield f"{name} in {code} that announces 2^32 - 1 after {begin.hex()}", begin + head + small * 50


def test_refusing_costs_no_more_memory_than_the_message_has():
    for name, data in hostile():
        assert peak_of_refusing(data) < 1.5 * len(data) + 10_000, name


def peak_of_refusing(data):
    tracemalloc.start()
    try:
        with pytest.raises(RefusedMessage):
            decode(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BYTES = bytes(8 * (3 + 4))
BAD_SUMS = {
    "too short": {"data": BYTES[:-1]},
    "too long": {"data": BYTES + b"x"},
    "of other bits": {"bits": 32},
    "of strange bits": {"bits": 7},
    "of other points": {"order": 3},
    "of other outputs": {"outputs": 3},
    "nan": {"data": BYTES[:-8] + struct.pack("<d", float("nan"))},
    "infinite": {"data": struct.pack("<d", float("inf")) + BYTES[8:]},
    "of infinitely many samples": {"samples": float("inf")},
    "infinite in 16 bits": {"bits": 16, "data": struct.pack("<4f", *[float("inf")] * 4) + bytes(2 * 5)},
    "nan in 16 bits": {"bits": 16, "data": struct.pack("<4f", *[float("nan")] * 4) + bytes(2 * 5)},
    "trials of other outputs": {"trials": [PackedTrial(0, 3, 64, 1.0, b"")]},
    "trials of different points": {"trials": [PackedTrial(0, 2, 64, 1.0, b""), PackedTrial(1, 2, 64, 1.0, bytes(24))]},
    "trials that are nan": {"trials": [PackedTrial(1, 2, 64, 1.0, struct.pack("<3d", *[float("nan")] * 3))]},
    "half a feature": {"features": Rows(3, bytes(8 * 5))},
    "features without columns": {"features": Rows(0, b"")},
}
GOOD_SUMS = {"order": 2, "outputs": 2, "bits": 64, "samples": 3.0, "roll": b"\1", "data": BYTES}


@pytest.mark.parametrize("name", BAD_SUMS)
def test_invalid_sums_are_refused(name):
    assert unpacked(PackedSums(**GOOD_SUMS)).order == 2
    with pytest.raises(RefusedMessage, match="news: "):
        unpacked(PackedSums(**{**GOOD_SUMS, **BAD_SUMS[name]}))


def nested_trials():
    trial = msgspec.msgpack.encode(PackedTrial(0, 1, 32, 0.0, b""))
    nested = trial
    for _ in range(4):
        nested = b"\x99" + trial[1:] + b"\xc4\x00\xc0\xc2" + b"\xdc\x00\x10" + 16 * nested
    return NEWS + b"\x94" + msgspec.msgpack.encode(Hello(1, 1, 0, 1, 0, -1)) + b"\x00\x00" + nested
