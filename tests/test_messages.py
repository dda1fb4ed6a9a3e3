import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import Function, Points, Probe, Repair, Values, decode, encode, wire_size


@given(rows=st.integers(0, 40), columns=st.integers(1, 20), kind=st.sampled_from([Points, Values, Probe, Function]))
def test_round_trip_and_size(rows, columns, kind):
    rng = np.random.default_rng(rows)
    message = kind(*(rng.standard_normal((rows, columns + i)) for i in range(len(kind.names))))
    data = encode(message)
    back = decode(data)
    assert type(back) is kind
    for name, table in message.tables.items():
        np.testing.assert_array_equal(back.tables[name], table)
    assert wire_size(message) == (sum(table.size for table in message.tables.values()), len(data))


@given(rows=st.integers(0, 20), dual=st.integers(0, 20), columns=st.integers(1, 9), digest=st.integers(0, 2**63 - 1))
def test_a_repair_brings_a_function_and_a_dual_of_another_size(rows, dual, columns, digest):
    rng = np.random.default_rng(rows)
    tables = [rng.standard_normal(shape) for shape in ((rows, columns), (rows, 2), (dual, columns), (dual, 2))]
    message = Repair(*tables, 3, 1, 0, digest, 0.25)
    data = encode(message)
    back = decode(data)
    assert type(back) is Repair
    for name in message.names:
        np.testing.assert_array_equal(getattr(back, name), getattr(message, name))
    assert (back.epoch, back.exchange, back.done, back.digest, back.share) == (3, 1, 0, digest, 0.25)
    assert wire_size(message) == (sum(table.size for table in tables), len(data))


@pytest.mark.parametrize("name", Repair.names)
def test_a_repair_with_matrices_that_do_not_belong_together_is_refused(name):
    sizes = {"centers": (3, 2), "weights": (3, 1), "dual_centers": (5, 2), "dual_weights": (5, 1)}
    good = {each: np.zeros(shape) for each, shape in sizes.items()}
    terms = {"epoch": 1, "exchange": 1, "done": 0, "digest": 0, "share": 0.5}
    decode(encode(Repair(**good, **terms)))
    with pytest.raises(RefusedMessage, match=r"message: (dual_)?centers and (dual_)?weights must have as many rows"):
        decode(encode(Repair(**{**good, name: good[name][:-1]}, **terms)))
    with pytest.raises(RefusedMessage, match="every number must be finite"):
        decode(encode(Repair(**{**good, name: good[name] + np.nan}, **terms)))
    with pytest.raises(RefusedMessage, match="share must be finite"):
        decode(encode(Repair(**good, **{**terms, "share": np.inf})))


def forged(header, body=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


META = {"kernelmesh": "3", "kind": "values"}
TABLE = {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]}
BAD = {
    "empty": b"",
    "short": b"abc",
    "huge header": struct.pack("<Q", 10**10) + b"{}",
    "not JSON": struct.pack("<Q", 4) + b"\xff\xfe{}",
    "not an object": forged([1, 2]),
    "deep": struct.pack("<Q", 4000) + b"[" * 4000,
    "foreign": forged({"values": TABLE}, bytes(16)),
    "another version": forged({"__metadata__": {**META, "kernelmesh": "1"}, "values": TABLE}, bytes(16)),
    "unknown kind": forged({"__metadata__": {**META, "kind": "labels"}, "values": TABLE}, bytes(16)),
    "no tensor": forged({"__metadata__": META}),
    "two tensors": forged({"__metadata__": META, "values": TABLE, "more": TABLE}, bytes(32)),
    "wrong dtype": forged({"__metadata__": META, "values": {**TABLE, "dtype": "F32"}}, bytes(16)),
    "ten gigabytes announced": forged(
        {"__metadata__": META, "values": {**TABLE, "shape": [10**6, 1250], "data_offsets": [0, 10**10]}}, bytes(16)
    ),
    "negative shape": forged({"__metadata__": META, "values": {**TABLE, "shape": [-1, -2]}}, bytes(16)),
    "boolean shape": forged({"__metadata__": META, "values": {**TABLE, "shape": [True, 2]}}, bytes(16)),
    "three dimensions": forged({"__metadata__": META, "values": {**TABLE, "shape": [1, 1, 2]}}, bytes(16)),
    "too little data": forged({"__metadata__": META, "values": TABLE}, bytes(8)),
    "too much data": forged({"__metadata__": META, "values": TABLE}, bytes(24)),
    "rows that differ": forged(
        {
            "__metadata__": {**META, "kind": "probe"},
            "points": {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]},
            "values": {"dtype": "F64", "shape": [2, 1], "data_offsets": [16, 32]},
        },
        bytes(32),
    ),
    "overlap": forged(
        {
            "__metadata__": {**META, "kind": "probe"},
            "points": {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]},
            "values": {"dtype": "F64", "shape": [1, 2], "data_offsets": [0, 16]},
        },
        bytes(16),
    ),
    "offsets of text": forged({"__metadata__": META, "values": {**TABLE, "data_offsets": ["0", 16]}}, bytes(16)),
    "nan": forged({"__metadata__": META, "values": TABLE}, struct.pack("<2d", 1.0, float("nan"))),
    "inf": forged({"__metadata__": META, "values": TABLE}, struct.pack("<2d", 1.0, float("inf"))),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    with pytest.raises(RefusedMessage, match="message: "):
        decode(BAD[name])


def test_refuses_more_than_allowed():
    with pytest.raises(RefusedMessage, match="at most 100 bytes"):
        decode(encode(Values(np.zeros((10, 10)))), max_bytes=100)


@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(RefusedMessage):
        decode(data)


@given(cut=st.integers(0, 500), flip=st.integers(0, 255))
def test_damage_never_escapes_as_another_error(cut, flip):
    data = bytearray(encode(Values(np.arange(20.0).reshape(4, 5))))
    data[cut % len(data)] ^= flip
    with contextlib.suppress(RefusedMessage):
        decode(bytes(data[: max(8, len(data) - cut % 3)]))


def test_shapes_beyond_all_memory_are_refused():
    for shape in ([0, 2**63], [2**62, 0]):
        with pytest.raises(RefusedMessage, match="shape must be two whole numbers"):
            decode(forged({"__metadata__": META, "values": {**TABLE, "shape": shape, "data_offsets": [0, 0]}}))
