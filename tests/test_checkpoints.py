"""What a store gives back is a prefix of what was done, bit for bit, whatever became of its files."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import shutil
import struct
import tracemalloc
import zlib
from functools import lru_cache
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import save

from kernelmesh import (
    Agent,
    Diffusion,
    Gaussian,
    Gradient,
    Komp,
    Landmarks,
    Local,
    Logistic,
    Penalty,
    Relay,
    Squared,
    storage,
)
from kernelmesh.agent import advance
from kernelmesh.errors import InvalidArgument, UnreadableFile
from kernelmesh.exchange import Outbox
from kernelmesh.messages import encode
from kernelmesh.protocols import Heard
from kernelmesh.protocols.relay import memory
from kernelmesh.runtimes import journal
from kernelmesh.runtimes.checkpoints import Checkpoint, CheckpointStore
from kernelmesh.runtimes.node import Entry, Traffic
from kernelmesh.streams import Batch

STEPS = 9
PROTOCOLS = {"local": Local(), "penalty": Penalty(coupling=0.05), "diffusion": Diffusion(), "relay": Relay(every=2)}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # here only processes are killed, not machines


def make(protocol):
    classifies = protocol == "diffusion"
    return Agent(
        dimension=1,
        outputs=2,
        kernel=Gaussian(bandwidth=1.0),
        loss=Logistic() if classifies else Squared(),
        protocol=PROTOCOLS[protocol],
        learner=(Landmarks(max_order=8) if protocol == "relay" else Gradient(step_size=0.5, compression=Komp(budget=0.05))),
    )


@lru_cache
def history(protocol) -> tuple[Entry, ...]:
    """The inputs of the steps of an agent "a" that learns together with "b"."""
    agent, rng = make(protocol), np.random.default_rng(0)
    states = {name: agent.start(name=name, number=number) for number, name in enumerate("ab")}
    entries = []
    for step in range(1, STEPS + 1):
        batches = {}
        for name in "ab":
            points = rng.normal(size=(2, 1))
            targets = rng.integers(0, 2, 2) if protocol == "diffusion" else np.concatenate([points, -points], axis=1)
            batches[name] = Batch(*agent.check(points, targets))
        boxes = {name: Outbox(agent, states[name], batches[name].points) for name in "ab"}
        heard = {}
        for name, other in ("ab", "ba"):
            question = boxes[name].question
            reply = boxes[other].reply(question, name)
            heard[name] = [] if reply is None else [Heard(reply, 0.5, other)]
        traffic = Traffic(step, 7 * step)
        position = {"row": 2 * step, "head": "é"}
        entries.append(Entry(step=step, batch=batches["a"], position=position, heard=heard["a"], traffic=traffic))
        for name in "ab":
            states[name], _ = advance(agent, states[name], *batches[name], heard[name])
    return tuple(entries)


@lru_cache
def fingerprints(protocol) -> tuple[str, ...]:
    """What the state was after 0, 1, … steps."""
    agent = make(protocol)
    state = agent.start(name="a")
    prints = [fingerprint(state)]
    for entry in history(protocol):
        state, _ = advance(agent, state, *entry.batch, entry.heard)
        prints.append(fingerprint(state))
    return tuple(prints)


def fingerprint(state) -> str:
    total = hashlib.sha256(repr((state.name, state.samples, state.steps)).encode())
    for name, array in sorted(storage.pack(state, workspace=True).items()):
        data = array.tobytes()
        if name == "memory":  # where 1 and 1.0 are the same
            data = memory.store(memory.load(data, dimension=1, outputs=2))
        total.update(name.encode() + data)
    return total.hexdigest()


def replayed(agent, found, entries):
    """The state that a checkpoint, if there is one, and a journal lead to."""
    state = agent.start(name="a") if found is None else found.state
    for entry in entries:
        state, _ = advance(agent, state, *entry.batch, entry.heard)
    return state


def keep(folder, protocol, *, every, upto=STEPS):
    """Do the first steps as a node does, and get killed. Returns how long the journal at hand was after each."""
    agent, lengths = make(protocol), {}
    with contextlib.closing(CheckpointStore(folder, agent=agent, every=every)) as store:
        assert store.restore(name="a") == (None, [])
        store.begin()
        state = agent.start(name="a")
        for entry in history(protocol)[:upto]:
            store.append(entry)
            lengths[entry.step] = os.fstat(store._journal.fileno()).st_size
            state, _ = advance(agent, state, *entry.batch, entry.heard)
            if entry.step % every == 0:
                assert store.save(kept(state, entry))
        assert store.trouble == ""
    return lengths


def told(entry):
    """Everything that an entry says, to compare it with others."""
    words = [(said.weight, said.neighbor, None if said.reply is None else encode(said.reply)) for said in entry.heard]
    batch = [(table.dtype, table.shape, table.tobytes()) for table in map(np.asarray, entry.batch)]
    return entry.step, entry.position, entry.traffic, batch, words


def kept(state, entry) -> Checkpoint:
    return Checkpoint(state=state, position=entry.position, traffic=entry.traffic)


def restored(store, protocol) -> int:
    """How many steps the folder tells of; the state that it leads to must be the true one."""
    found, entries = store.restore(name="a")
    begin = 0 if found is None else found.state.steps
    for entry, true in zip(entries, history(protocol)[begin:], strict=False):
        assert told(entry) == told(true)
    state = replayed(make(protocol), found, entries)
    assert state.steps == begin + len(entries)
    assert fingerprint(state) == fingerprints(protocol)[state.steps]
    if found is not None:
        true = history(protocol)[begin - 1]
        assert (found.position, found.traffic) == (true.position, true.traffic)
    return state.steps


@contextlib.contextmanager
def opened(folder, protocol, **options):
    with contextlib.closing(CheckpointStore(folder, agent=make(protocol), **options)) as store:
        yield store


def files(folder, what="*") -> list[str]:
    return sorted(path.name for path in folder.glob(what) if path.name != "lock")


def newest(folder, what) -> Path:
    return max(folder.glob(f"{what}-*"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("every", [1, 2, 4, 9, 100])
def test_every_recorded_step_is_restored(protocol, every, tmp_path):
    for upto in range(STEPS + 1):
        keep(tmp_path / str(upto), protocol, every=every, upto=upto)
        with opened(tmp_path / str(upto), protocol) as store:
            assert restored(store, protocol) == upto


@pytest.mark.parametrize(("protocol", "every"), [("local", 100), ("penalty", 5), ("diffusion", 5)])
def test_killed_at_any_byte_of_the_journal(protocol, every, tmp_path):
    lengths = keep(tmp_path, protocol, every=every, upto=STEPS - 2)
    path = newest(tmp_path, "journal")
    data, begin = path.read_bytes(), int(path.stem.rpartition("-")[2])
    ends = [4, *(lengths[step] for step in range(begin + 1, STEPS - 1))]
    assert ends[-1] == len(data)
    known = set()
    with opened(tmp_path, protocol) as store:
        for length in range(len(data), -1, -1):
            os.truncate(path, length)
            whole = max(sum(end <= length for end in ends) - 1, 0)
            if whole not in known:
                known.add(whole)
                assert restored(store, protocol) == begin + whole
            else:
                assert len(store._entries(begin)) == whole


def test_any_byte_of_the_journal_changed(tmp_path):
    lengths = keep(tmp_path, "penalty", every=4, upto=7)
    path = newest(tmp_path, "journal")
    data = path.read_bytes()
    ends = [lengths[step] for step in (5, 6, 7)]
    first = ends[0]
    with opened(tmp_path, "penalty") as store:
        for place in [*range(first - 3, first + 30), *range(4, len(data), 5)]:
            path.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
            entries = store._entries(4)
            assert len(entries) == np.searchsorted(ends, place, side="right")
            for entry, true in zip(entries, history("penalty")[4:7], strict=False):
                assert told(entry) == told(true)


def test_a_damaged_length_takes_no_memory(tmp_path):
    keep(tmp_path, "local", every=100, upto=3)
    path = newest(tmp_path, "journal")
    data = bytearray(path.read_bytes())
    data[4 + 3] ^= 0x40
    path.write_bytes(data)
    with opened(tmp_path, "local") as store:
        tracemalloc.start()
        try:
            assert store.restore(name="a") == (None, [])
            assert tracemalloc.get_traced_memory()[1] < 1 << 26
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_damaged_newest_checkpoint(protocol, tmp_path):
    keep(tmp_path, protocol, every=3, upto=STEPS - 1)
    path = newest(tmp_path, "checkpoint")
    assert path.stem.endswith("6")
    data, rng = path.read_bytes(), np.random.default_rng(0)
    damaged = [data[:-1], b"", data + b"x", *(data[:n] for n in range(8, len(data), 397))]
    for place in [*range(12), *rng.integers(0, len(data), 25)]:
        flipped = data[place] ^ (1 << int(rng.integers(0, 8)))
        damaged += [data[:place] + bytes([flipped]) + data[place + 1 :]]
    with opened(tmp_path, protocol) as store:
        for bad in damaged:
            path.write_bytes(bad)
            assert restored(store, protocol) == STEPS - 1
            assert path.with_name(f"damaged-{path.name}").read_bytes() == bad  # set aside
            assert not path.exists()
        assert restored(store, protocol) == STEPS - 1


@pytest.mark.parametrize("upto", [3, 5, 6, 8, 9])
def test_both_checkpoints_damaged_is_an_error_unless_the_journal_is_complete(upto, tmp_path):
    keep(tmp_path, "local", every=3, upto=upto)
    for path in tmp_path.glob("checkpoint-*"):
        path.write_bytes(b"rubbish")
    with opened(tmp_path, "local") as store:
        if upto < 6:
            assert restored(store, "local") == upto
        else:
            with pytest.raises(UnreadableFile, match=r"no checkpoint can be read.*move the folder away"):
                store.restore(name="a")


@pytest.mark.parametrize("every", [1, 2, 4])
def test_two_checkpoints_remain_each_with_its_journal(every, tmp_path):
    keep(tmp_path, "local", every=every)
    steps = [step for step in range(1, STEPS + 1) if step % every == 0][-2:]
    assert files(tmp_path, "checkpoint*") == [f"checkpoint-{step:09d}.safetensors" for step in steps]
    assert files(tmp_path, "journal*") == [f"journal-{step:09d}.bin" for step in steps]
    assert len(files(tmp_path)) == 4


@given(st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_and_restored_again_and_again(tmp_path, data):
    """Whatever was torn off and wherever, going on from what is left leads where an undisturbed run leads."""
    protocol = data.draw(st.sampled_from(sorted(PROTOCOLS)))
    folder, agent, true = tmp_path / "again", make(protocol), history(protocol)
    shutil.rmtree(folder, ignore_errors=True)
    for _ in range(20):
        with opened(folder, protocol, every=data.draw(st.integers(1, 4))) as store:
            found, entries = store.restore(name="a")
            state = replayed(agent, found, entries)
            assert fingerprint(state) == fingerprints(protocol)[state.steps]
            if state.steps == STEPS:
                return
            if found is None and not entries:
                store.begin()
            else:
                assert store.save(kept(state, true[state.steps - 1]))
            for entry in true[state.steps : state.steps + data.draw(st.integers(1, STEPS))]:
                store.append(entry)
                state, _ = advance(agent, state, *entry.batch, entry.heard)
                if entry.step % store.every == 0:
                    assert store.save(kept(state, entry))
        path = newest(folder, "journal")
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[: size - data.draw(st.integers(0, min(size, 40)))])
        if data.draw(st.booleans()) and len(files(folder, "checkpoint-*")) == 2 and state.steps > 4:
            path = newest(folder, "checkpoint")
            path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, 2000))])


def test_steps_after_a_gap_are_not_restored(tmp_path):
    true = history("local")
    with opened(tmp_path, "local") as store:
        store.begin()
        for entry in (*true[:3], *true[4:7]):
            store.append(entry)
        assert restored(store, "local") == 3


def test_one_store_at_a_time(tmp_path):
    with opened(tmp_path, "local"):
        with pytest.raises(ValueError, match="CheckpointStore: folder must not be in use by another process"):
            CheckpointStore(tmp_path, agent=make("local"))
        CheckpointStore(tmp_path / "other", agent=make("local")).close()
    with opened(tmp_path, "local"):
        pass


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dimension": 2}, "another dimension"),
        ({"kernel": Gaussian(bandwidth=2.0)}, "another kernel"),
        ({"protocol": Penalty(coupling=1.0), "loss": Logistic()}, "another loss and protocol"),
        ({}, "belongs to agent 'a', not to 'b'"),
    ],
)
def test_other_settings_are_refused_by_name(change, named, tmp_path):
    keep(tmp_path, "local", every=3)
    store = CheckpointStore(tmp_path, agent=dataclasses.replace(make("local"), **change))
    with contextlib.closing(store), pytest.raises(ValueError, match=named) as caught:
        store.restore(name="a" if change else "b")
    assert not isinstance(caught.value, UnreadableFile)


def test_steps_made_with_other_settings_are_not_replayed(tmp_path, caplog):
    keep(tmp_path, "local", every=3, upto=5)
    agent = dataclasses.replace(make("local"), learner=Gradient(step_size=0.25))
    with contextlib.closing(CheckpointStore(tmp_path, agent=agent)) as store:
        found, entries = store.restore(name="a")
    assert (found.state.steps, entries) == (3, [])
    assert "the settings have changed" in caplog.text


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("room", [0, 1, 20, 60, 10_000])
def test_no_room_for_the_journal(room, tmp_path, monkeypatch):
    """The disk is full some way into a record."""
    true, agent, append = history("local"), make("local"), journal.append

    def torn(file, record):
        append(whole := io.BytesIO(), record)
        file.write(whole.getvalue()[:room])
        file.flush()
        with open("/dev/full", "wb", buffering=0) as disk:
            os.dup2(disk.fileno(), file.fileno())  # from here on, writing fails, and closing as well
        append(file, record)

    with opened(tmp_path, "local", every=100) as store:
        store.begin()
        for entry in true[:4]:
            if entry.step == 3:
                monkeypatch.setattr(journal, "append", torn)
            store.append(entry)
            assert bool(store.trouble) == (entry.step >= 3)
        assert "No space left on device" in store.trouble
        assert str(tmp_path) in store.trouble
        # it was killed here: nothing behind the hole comes back
        assert restored(store, "local") == (3 if room == 10_000 else 2)
        assert store.save(kept(replayed(agent, None, true[:4]), true[3]))
        assert store.trouble == ""
        monkeypatch.setattr(journal, "append", append)
        store.append(true[4])
        assert restored(store, "local") == 5


@pytest.mark.parametrize("call", ["write", "mkstemp", "fsync", "replace"])
def test_no_room_for_a_checkpoint(call, tmp_path, monkeypatch):
    true, agent = history("diffusion"), make("diffusion")
    keep(tmp_path, "diffusion", every=3, upto=4)
    with opened(tmp_path, "diffusion", every=3) as store:
        found, entries = store.restore(name="a")
        state = replayed(agent, found, entries)
        assert store.save(kept(state, true[3]))
        owner = {"write": storage, "mkstemp": storage.tempfile}.get(call, storage.os)
        for entry in true[4:8]:
            store.append(entry)
            state, _ = advance(agent, state, *entry.batch, entry.heard)
            if entry.step == 6:
                with monkeypatch.context() as patch:
                    patch.setattr(owner, call, full)
                    assert not store.save(kept(state, entry))
                assert "No space left on device" in store.trouble
                assert store.newest == 4
                assert not list(tmp_path.glob(".checkpoint-*"))
        assert restored(store, "diffusion") >= 4
        assert store.save(kept(state, true[7]))
        assert (store.trouble, store.newest) == ("", 8)
        store.append(true[8])
        assert restored(store, "diffusion") == STEPS


def test_steps_on_record_before_a_failed_checkpoint_are_not_lost(tmp_path, monkeypatch):
    keep(tmp_path, "local", every=100, upto=5)
    with opened(tmp_path, "local") as store:
        state = replayed(make("local"), *store.restore(name="a"))
        monkeypatch.setattr(storage, "write", full)
        assert not store.save(kept(state, history("local")[4]))
        assert restored(store, "local") == 5


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        with pytest.raises(ValueError, match="CheckpointStore: folder must be writable"):
            CheckpointStore(folder, agent=make("local"))
    (tmp_path / "state" / "lock").mkdir(parents=True)
    with pytest.raises(ValueError, match="CheckpointStore: folder must be writable"):
        CheckpointStore(tmp_path / "state", agent=make("local"))


GARBAGE = st.one_of(
    st.none(),  # a folder
    st.binary(max_size=300),
    st.just(save({"x": np.zeros(3)})),
    st.just(save({"x": np.zeros(3)}, {"format": "kernelmesh", "version": storage.VERSION})),
)
NAMED = st.sampled_from(
    [f"checkpoint-{step}.safetensors" for step in ("000000007", "000000003", "8", "9" * 9, "9" * 20, "", "x")]
    + [f"journal-{step}.bin" for step in ("000000000", "000000006", "000000007", "x", "")]
    + ["notes.txt", ".hidden"]
)


@given(st.dictionaries(NAMED, GARBAGE, max_size=5), st.sampled_from([0, 2, 5, 8]))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_in_the_folder_is_skipped_or_reported(tmp_path, garbage, upto):
    folder = tmp_path / "garbage"
    shutil.rmtree(folder, ignore_errors=True)
    keep(folder, "local", every=3, upto=upto)
    for path, data in ((folder / name, data) for name, data in garbage.items()):
        if data is not None and not path.is_dir():
            path.write_bytes(data)
        elif not path.exists():
            path.mkdir()
    with contextlib.suppress(UnreadableFile), opened(folder, "local") as store:
        assert restored(store, "local") <= upto


FIELDS = ["settings", "step", "points", "targets", "position", "traffic", "heard"]


def checksummed(record: bytes) -> bytes:
    return struct.pack("<II", len(record), zlib.crc32(record)) + record


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", 0),
        ("points", [False, [2**32 - 1, 2**32 - 1], b""]),
        ("points", [False, [3, 1], bytes(16)]),
        ("points", [False, [2], bytes(16)]),
        ("points", [True, [2, 1], bytes(16)]),
        ("points", [False, [2, 1], b"123"]),
        ("targets", [False, [0], b""]),
        ("targets", [False, [2, 2**32 - 1], bytes(16)]),
        ("heard", 7),
        ("heard", [["b", 0.5, b"x"]]),
        ("position", [1, 2]),
        ("traffic", [-1, 0]),
    ],
    ids=str,
)
def test_an_invalid_record_is_reported(field, value, tmp_path):
    lengths = keep(tmp_path, "penalty", every=100, upto=3)
    path = newest(tmp_path, "journal")
    data = path.read_bytes()
    step = msgspec.msgpack.decode(data[lengths[2] + 8 :])
    step[FIELDS.index(field)] = value
    path.write_bytes(data[: lengths[2]] + checksummed(msgspec.msgpack.encode(step)))
    with opened(tmp_path, "penalty") as store, pytest.raises(UnreadableFile, match="must be a journal"):
        store.restore(name="a")


def test_any_record_is_read_or_reported(tmp_path):
    """Not even a digest that fits makes up for what does not make sense."""
    lengths = keep(tmp_path, "penalty", every=100, upto=3)
    path, rng = newest(tmp_path, "journal"), np.random.default_rng(0)
    data, told = path.read_bytes(), 0
    for _ in range(300):
        record = bytearray(data[lengths[2] + 8 :])
        record[int(rng.integers(len(record) if rng.random() < 0.3 else 120))] = int(rng.integers(256))
        path.write_bytes(data[: lengths[2]] + checksummed(record))
        with opened(tmp_path, "penalty") as store:
            try:
                store.restore(name="a")
            except UnreadableFile:
                told += 1
    assert 0 < told < 300


def test_pending_samples_come_back(tmp_path):
    agent, entry = make("diffusion"), history("diffusion")[0]
    state, _ = advance(agent, agent.start(name="a"), *entry.batch, entry.heard)
    pending = Batch(np.array([[1.5], [-0.0]]), np.array([1, 0]))
    with opened(tmp_path, "diffusion") as store:
        assert store.save(Checkpoint(state=state, pending=pending, traffic=Traffic(1, 2)))
        found, entries = store.restore(name="a")
    assert (entries, found.position, found.traffic) == ([], None, (1, 2))
    assert found.pending.points.tobytes() == pending.points.tobytes()
    assert found.pending.targets.tolist() == [1, 0]


def test_a_folder_is_not_taken_for_a_file(tmp_path):
    with pytest.raises(UnreadableFile, match="must be a file, got a folder; specify a file in it"):
        storage.read(tmp_path, kind="agent")
    with pytest.raises(InvalidArgument, match=r"save: path must be the path of a file, got the folder .*; add a file name"):
        storage.write(tmp_path, kind="agent", arrays={}, settings={})
    assert list(tmp_path.iterdir()) == []
