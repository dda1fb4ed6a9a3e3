"""Frames, messages, journals and files that are written by hand, from docs/reference/formats.md alone, can be read."""

import hashlib
import json
import struct
import zlib

import msgspec
import numpy as np
import pytest

from kernelmesh import Agent, Diffusion, Gaussian, Gradient, Komp, OnlineKernelRegressor, Squared
from kernelmesh.messages import News, SentFunction, decode, unpacked
from kernelmesh.runtimes import journal
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.frames import decode_frame

pack = msgspec.msgpack.encode
POINTS, WEIGHTS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[1.0], [-2.0], [0.5]]


def floats(*rows):
    return b"".join(struct.pack(f"<{len(row)}d", *row) for row in rows)


def function():
    return pack([1, 2, [[3, 2, floats(*POINTS)], [3, 1, floats(*WEIGHTS)]]])


def test_a_frame_with_a_function():
    header = [41, 7, 0.5, 2.5, True, False]
    frame = decode_frame(struct.pack(">QBQ", 2**64 - 1, 1, 12) + pack([header, function()]), max_bytes=1 << 20)
    assert (frame.prefix.token, frame.prefix.is_reply, frame.prefix.ticket) == (2**64 - 1, True, 12)
    assert (frame.header.step, frame.header.model, frame.header.share) == (41, 7, 0.5)
    assert (frame.header.age, frame.header.ended, frame.header.ping) == (2.5, True, False)
    message = decode(frame.payload)
    assert isinstance(message, SentFunction)
    assert (message.points.tolist(), message.weights.tolist()) == (POINTS, WEIGHTS)


def test_the_header_may_end_early():
    frame = decode_frame(bytes(17) + pack([[1, 0], b""]), max_bytes=1 << 20)
    assert (frame.header.share, frame.header.age, frame.header.ended, frame.header.ping) == (0.0, 0.0, False, False)


@pytest.mark.parametrize(("kind", "name"), [(0, "points"), (1, "values")])
def test_points_and_values(kind, name):
    message = decode(pack([1, kind, [[3, 2, floats(*POINTS)]]]))
    assert getattr(message, name).tolist() == POINTS


MOMENTS, BETA = [4.0, 1.0, 9.0], [[2.0], [-6.0]]
SUMS = {
    64: struct.pack("<5d", *MOMENTS, 2.0, -6.0),
    32: struct.pack("<5f", *MOMENTS, 2.0, -6.0),
    # d = 2, 3; s = 2; Θ_21 / 6; β / (d s) = 1/2, −1
    16: struct.pack("<3f3h", 2.0, 3.0, 2.0, round(32767 / 6), round(32767 / 2), -32767),
}


@pytest.mark.parametrize("bits", SUMS)
def test_news(bits):
    hello = [3, 100, 0, 98, 2, 1, 95, 0]
    trial = [1, 1, 64, 5.0, struct.pack("<2d", 1.0, 2.0)]
    sums = [2, 1, bits, 10.0, SUMS[bits], bytes([0b101, 0b1]), [2, floats([1.0, 2.0], [3.0, 4.0])], False, [trial]]
    part = [1, 99, 2, 1.5, 0, floats([1.0, 0.5]), struct.pack("<2q", 0, 3), [2, floats(*POINTS[1:])]]
    news = decode(pack([1, 3, [hello, 3, 99, sums, part, [2, floats(POINTS[0])], {7: 1}]]))
    assert isinstance(news, News)
    assert (news.hello.name, news.hello.clock, news.hello.parent, news.hello.heard) == (3, 100, 1, 95)
    found = unpacked(news.sums)
    np.testing.assert_allclose(found.moments, MOMENTS, rtol=1e-4)
    np.testing.assert_allclose(found.weights, BETA, rtol=1e-4)
    assert (found.samples, found.roll, found.features.tolist()) == (10.0, 0b1_0000_0101, [[1.0, 2.0], [3.0, 4.0]])
    assert found.trials[0].weights.tolist() == [[2.0]]
    assert news.part.points.table("points").tolist() == POINTS[1:]
    assert news.proposals.table("proposals").tolist() == POINTS[:1]
    assert news.standing == {7: 1}


def safetensors(metadata, arrays):
    """A file of that format: the length of a JSON header, the header, the bytes of all arrays."""
    codes, header, body = {"F64": "<f8", "I64": "<i8"}, {}, b""
    for name, (code, shape, data) in arrays.items():
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    total = hashlib.sha256()
    for key in sorted(metadata):
        total.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(arrays):
        code, shape, data = arrays[name]
        total.update(f"{name}:{codes[code]}:{','.join(map(str, shape))}\n".encode() + data)
    text = json.dumps({"__metadata__": {**metadata, "digest": total.hexdigest()}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + body


AT = np.array([[1.0, 1.0]])


def value_at(point):
    """Σ_m κ(x, points_m) weights_m with the Gaussian kernel of bandwidth 0.6."""
    return np.exp(-((point - np.array(POINTS)) ** 2).sum(axis=1) / (2 * 0.6**2)) @ np.array(WEIGHTS)


def array(is_integer, shape, data):
    return [is_integer, shape, data]


def test_a_checkpoint_with_its_journal(tmp_path):
    agent = Agent(
        dimension=2,
        outputs=1,
        kernel=Gaussian(bandwidth=0.6),
        loss=Squared(),
        learner=Gradient(step_size=0.5, compression=Komp(budget=0.01)),
        protocol=Diffusion(),
    )
    identity = {
        "dimension": 2,
        "outputs": 1,
        "kernel": {"kind": "Gaussian", "bandwidth": 0.6},
        "loss": {"kind": "Squared"},
        "learner": "Gradient",
        "protocol": "Diffusion",
    }
    settings = {"name": "north", "settings": identity, "position": {"row": 96}, "excluded": ["south"], "traffic": [9, 99]}
    metadata = {"format": "kernelmesh", "version": "1", "kind": "agent", "settings": json.dumps(settings)}
    arrays = {
        "clock": ("I64", [2], struct.pack("<2q", 96, 3)),
        "baseline_loss": ("F64", [1], struct.pack("<d", 0.5)),
        "function.points": ("F64", [3, 2], floats(*POINTS)),
        "function.weights": ("F64", [3, 1], floats(*WEIGHTS)),
    }
    (tmp_path / "checkpoint-000000003.safetensors").write_bytes(safetensors(metadata, arrays))
    batch = [array(False, [2, 2], floats(*POINTS[:2])), array(False, [2, 1], floats([1.0], [2.0]))]
    store = CheckpointStore(tmp_path, agent=agent)
    heard = [["east", 0.25, function()], ["west", 0.25, None]]
    data = pack([store._fingerprint, 4, *batch, {"row": 98}, [10, 110], heard])
    record = struct.pack("<II", len(data), zlib.crc32(data)) + data
    (tmp_path / "journal-000000003.bin").write_bytes(b"kmj1" + record + record[:20])
    checkpoint, entries = store.restore(name="north")
    store.close()
    state = checkpoint.state
    assert (state.samples, state.steps, state.baseline_loss) == (96, 3, 0.5)
    assert (checkpoint.position, checkpoint.traffic, checkpoint.excluded) == ({"row": 96}, (9, 99), ("south",))
    np.testing.assert_allclose(agent.predict(state, AT), value_at(AT)[None])
    (entry,) = entries
    assert (entry.step, entry.position, entry.traffic) == (4, {"row": 98}, (10, 110))
    assert (entry.batch.points.tolist(), entry.batch.targets.tolist()) == (POINTS[:2], [[1.0], [2.0]])
    assert [(said.neighbor, said.weight) for said in entry.heard] == [("east", 0.25), ("west", 0.25)]
    assert entry.heard[0].reply.weights.tolist() == WEIGHTS
    assert entry.heard[1].reply is None


def test_a_model(tmp_path):
    """Predictions are f(x) · target_scale + target_offset."""
    kernel, learner = {"kind": "Gaussian", "bandwidth": 0.6}, {"kind": "Gradient", "step_size": 0.5}
    settings = {
        "settled": {"kernel": kernel, "loss": {"kind": "Squared"}, "learner": learner, "protocol": {"kind": "Local"}},
        "parameters": {"learner": learner},
        "began_with": {"learner": learner},
        "features": 2,
        "feature_names": None,
        "targets": {"flat": True},
        "passes": 1,
        "size": 1.0,
        "regularization": 1e-6,
        "agents": None,
    }
    metadata = {"format": "kernelmesh", "version": "1", "kind": "OnlineKernelRegressor", "settings": json.dumps(settings)}
    arrays = {
        "0.clock": ("I64", [2], struct.pack("<2q", 96, 3)),
        "0.baseline_loss": ("F64", [1], struct.pack("<d", 0.5)),
        "0.function.points": ("F64", [3, 2], floats(*POINTS)),
        "0.function.weights": ("F64", [3, 1], floats(*WEIGHTS)),
        "target_offset": ("F64", [1], struct.pack("<d", 10.0)),
        "target_scale": ("F64", [1], struct.pack("<d", 3.0)),
    }
    (tmp_path / "model.safetensors").write_bytes(safetensors(metadata, arrays))
    model = OnlineKernelRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(model.predict(AT), 3.0 * value_at(AT) + 10.0)


def test_class_numbers_in_a_journal(tmp_path):
    data = pack([0, 1, array(False, [1, 2], floats(POINTS[0])), array(True, [1], struct.pack("<q", 3)), None, [0, 0], []])
    (tmp_path / "journal").write_bytes(b"kmj1" + struct.pack("<II", len(data), zlib.crc32(data)) + data)
    (record,) = journal.read(tmp_path / "journal")
    assert record.entry.batch.targets.tolist() == [3]
    assert record.entry.batch.targets.dtype == np.int64


def test_the_fingerprint_in_the_header():
    """BLAKE2b over JSON, as described."""
    from kernelmesh.runtimes.membership import Membership
    from kernelmesh.runtimes.node import AskingNode

    kernel, learner = Gaussian(bandwidth=0.6), Gradient(step_size=0.5)
    agent = Agent(dimension=1, outputs=1, kernel=kernel, loss=Squared(), learner=learner, protocol=Diffusion(every=3))
    identity = {
        "dimension": 1.0,
        "kernel": {"bandwidth": 0.6, "kind": "Gaussian"},
        "learner": "Gradient",
        "loss": {"kind": "Squared"},
        "outputs": 1.0,
        "protocol": "Diffusion",
    }
    text = json.dumps([identity, 3.0, None, False]).encode()
    expected = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    member = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""})
    node = AskingNode(agent, member, tokens=(1, 1))
    node.presence("b", True, 0.0)
    (question,) = node.proceed(0.0)
    assert decode_frame(question.data, max_bytes=1 << 20).header.model == expected
