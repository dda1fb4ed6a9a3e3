"""What survives a crash: checkpoints every so often, and between them a journal of every step's input.

A step is a function of the state, the mini-batch and what was heard. So whoever has the last checkpoint and, for each step
since, its mini-batch and what was heard, has the state itself, bit for bit. A step's input is written before the step is
taken, hence before anybody can have seen its result: an agent killed at any moment comes back as the one its neighbors know.

    checkpoint-000000100.safetensors   the state after 100 steps
    journal-000000100.bin              the inputs of steps 101, 102, …

The last two checkpoints are kept with their journals: should the newest be damaged, the one before leads to the same state.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kernelmesh import storage
from kernelmesh.agent import Agent, State
from kernelmesh.checks import integer
from kernelmesh.consensus import Heard
from kernelmesh.errors import InvalidArgument, UnreadableFile
from kernelmesh.messages import Message, decode, encode
from kernelmesh.streams import Batch

__all__ = ["Checkpoint", "CheckpointStore", "Entry", "in_use"]

_log = logging.getLogger("kernelmesh.agent")

_PREFIX = struct.Struct("<I16s")
_HEAD = struct.Struct(
    "<8sQII?IHI"
)  # mark, step, points (rows and columns), labels, columns of the targets, heard, JSON
_SENDER = struct.Struct("<dd?H")  # weight, share, is_first, name
_SIZE = struct.Struct("<i")
_NOTHING = _SIZE.pack(-1)
_KEPT = 2
_MOST_RECORD = 1 << 31


class Entry(NamedTuple):
    """The input of one step."""

    step: int
    """The number of the step, from 1."""
    batch: Batch
    position: Mapping[str, Any]
    """Where the stream stands after this mini-batch."""
    heard: Sequence[Heard]
    counts: Mapping[str, int]
    """What was sent so far."""
    raw: Sequence[tuple[bytes | None, bytes | None]] | None = None
    """What was heard, asked and answered, as it arrived, where that is at hand."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """What an agent needs to go on from a checkpoint."""

    state: State
    position: Mapping[str, Any] | None = None
    pending: Batch | None = None
    """Samples that had been read but were not yet part of a mini-batch, from a stream that cannot be read again."""
    counts: Mapping[str, int]
    """What was sent so far and the like."""
    said: Mapping[str, Message]
    """What neighbors were told in the round before, by name: in lock step they may still have to ask for it."""


class CheckpointStore:
    """Writes checkpoints and a journal to a folder, and finds the newest state there.

    `settings` is a description of what a checkpoint must agree with, such as the kernel. One process at a time can keep in
    a folder.
    """

    def __init__(self, folder: str | os.PathLike[str], *, agent: Agent, settings: Any, every: int = 100) -> None:
        self.folder, self._agent, self._settings = Path(folder), agent, json.loads(json.dumps(settings))
        self.every = integer("CheckpointStore", "every", every, minimum=1)
        self._mark = hashlib.blake2b(repr(agent).encode(), digest_size=8).digest()
        self.newest: int | None = None
        """The step of the newest checkpoint that is known to be on disk."""
        self.trouble = ""
        """Why the last attempt to write failed; empty while all is well."""
        self._journal: BinaryIO | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / "lock", "a")  # noqa: SIM115 (held as long as the store lives)
        except OSError as error:
            raise InvalidArgument(
                "CheckpointStore", "folder", f"be one that can be written ({error.strerror})", str(self.folder)
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InvalidArgument(
                "CheckpointStore",
                "folder",
                "not be in use by another process",
                str(self.folder),
                remedy="is the agent running?",
            ) from None
        for draft in self.folder.glob(".checkpoint-*"):
            with contextlib.suppress(OSError):  # it is only in the way
                draft.unlink()

    def close(self) -> None:
        """Let go of the folder."""
        self._stop_journal()
        self._lock.close()

    def restore(self, *, name: str) -> tuple[Checkpoint | None, list[Entry]]:
        """The newest checkpoint that can be read, and the inputs of all steps since; (None, steps from 1) without any.

        Damaged files are passed over as long as an older checkpoint leads to the same place, and set aside, so that they do
        not count as one of the two that are kept; otherwise the damage is told.
        """
        checkpoints = sorted(self._numbered("checkpoint-*.safetensors"), reverse=True)
        damage: Exception | None = None
        damaged: list[Path] = []
        for step in [*checkpoints, None]:
            kept = None
            if step is not None:
                try:
                    kept = self._read(step, name)
                except UnreadableFile as error:
                    _log.warning("%s; trying the one before", error)
                    damage = damage or error
                    damaged.append(self._path("checkpoint", step))
                    continue
            elif checkpoints and not self._path("journal", 0).exists():
                break
            entries = self._entries(step or 0)
            for path in damaged:
                with contextlib.suppress(OSError):  # then it is in the way of nothing but itself
                    path.rename(path.with_name(f"damaged-{path.name}"))
            return kept, entries
        raise UnreadableFile(f"{self.folder}: no checkpoint can be read ({damage}); move the folder away to begin anew")

    def _entries(self, step: int) -> list[Entry]:
        """The inputs of the steps after `step`, from all journals there are, up to the first gap."""
        entries: list[Entry] = []
        for number in sorted(self._numbered("journal-*.bin")):
            for entry, mark in _read_journal(self._path("journal", number)):
                if mark != self._mark and entry.step > step:
                    _log.warning(
                        "%s: the settings have changed: steps after %d are forgotten, and their samples come again",
                        self.folder,
                        step + len(entries),
                    )
                    return entries
                if entries and entry.step == entries[-1].step:
                    entries[-1] = entry  # the step failed with the first one and was tried again
                elif entry.step == step + len(entries) + 1:
                    entries.append(entry)
                elif entry.step > step:
                    return entries
        return entries

    def save(self, kept: Checkpoint) -> bool:
        """Write a checkpoint and begin a new journal; False, with the reason in `trouble`, if that is not possible now."""
        step = kept.state.steps
        names = sorted({str(kept.state.name), *map(str, kept.state.edges)})
        arrays = {f"state/{key}": value for key, value in storage.pack(kept.state, names, workspace=True).items()}
        for neighbor, message in kept.said.items():
            arrays[f"said/{neighbor}"] = np.frombuffer(encode(message), dtype=np.uint8)
        if kept.pending is not None:
            arrays["pending/points"] = kept.pending.points
            arrays["pending/targets"] = np.asarray(kept.pending.targets)
        about = {
            "name": str(kept.state.name),
            "names": names,
            "settings": self._settings,
            "position": None if kept.position is None else dict(kept.position),
            "counts": dict(kept.counts),
        }
        try:
            storage.write(self._path("checkpoint", step), kind="agent", arrays=arrays, settings=about)
            self._stop_journal()
            self._journal = self._new_journal(step)
            self.newest, self.trouble = step, ""
            self._tidy()
        except OSError as error:
            self._broken(error)
            return False
        return True

    def note(self, entry: Entry) -> None:
        """Put the input of the next step on record; where that fails, learning goes on without."""
        if self._journal is None:
            return
        try:
            self._journal.write(_record(entry, self._mark))
            self._journal.flush()
        except OSError as error:
            self._broken(error)

    def begin(self) -> None:
        """Keep a journal from the very first step, when there is no checkpoint yet."""
        try:
            self._journal = self._new_journal(0)
        except OSError as error:
            self._broken(error)

    def _new_journal(self, step: int) -> BinaryIO:
        # it holds labels, which are nobody else's business
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return os.fdopen(os.open(self._path("journal", step), flags, 0o600), "wb")

    def _broken(self, error: OSError) -> None:
        # a journal with a hole is worth nothing behind it: none is kept until the next checkpoint
        self.trouble = f"{error.strerror or error} ({self.folder})"
        self._stop_journal()

    def _stop_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            try:
                journal.close()
            except OSError as error:
                self.trouble = f"{error.strerror or error} ({self.folder})"

    def _tidy(self) -> None:
        checkpoints = sorted(self._numbered("checkpoint-*.safetensors"))[:-_KEPT]
        for step in checkpoints:
            self._path("checkpoint", step).unlink(missing_ok=True)
        oldest = min(self._numbered("checkpoint-*.safetensors"))
        for step in self._numbered("journal-*.bin"):
            if step < oldest and not (oldest == self.newest and step == 0):
                self._path("journal", step).unlink(missing_ok=True)

    def _read(self, step: int, name: str) -> Checkpoint:
        path = self._path("checkpoint", step)
        arrays, about = storage.read(path, kind="agent")
        if about["settings"] != self._settings:
            differing = sorted(
                key
                for key in {*self._settings, *about["settings"]}
                if about["settings"].get(key) != self._settings.get(key)
            )
            raise ValueError(
                f"{path}: the checkpoint was made with another {' and '.join(differing)}; restore the settings, or move the "
                f"folder away to begin anew"
            )
        if about["name"] != name:
            raise ValueError(
                f"{path}: the checkpoint is of agent {about['name']!r}, not of {name!r}; each agent needs a folder of its own"
            )
        own = {key.removeprefix("state/"): value for key, value in arrays.items() if key.startswith("state/")}
        state = storage.unpack(self._agent, own, name=name, names=about["names"])
        pending = None
        if "pending/points" in arrays:
            pending = Batch(arrays["pending/points"], arrays["pending/targets"])
        said = {
            key.removeprefix("said/"): decode(value.tobytes())
            for key, value in arrays.items()
            if key.startswith("said/")
        }
        return Checkpoint(state=state, position=about["position"], pending=pending, counts=about["counts"], said=said)

    def _path(self, what: str, step: int) -> Path:
        return self.folder / f"{what}-{step:09d}.{'safetensors' if what == 'checkpoint' else 'bin'}"

    def _numbered(self, pattern: str) -> list[int]:
        what = pattern.partition("-")[0]
        digits = (path.stem.rpartition("-")[2] for path in self.folder.glob(pattern) if path.is_file())
        steps = [int(text) for text in digits if text.isdecimal()]
        return [step for step in steps if self._path(what, step).is_file()]


def in_use(folder: Path) -> bool:
    """Whether a process keeps in this folder at the moment."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _record(entry: Entry, mark: bytes) -> bytes:
    """A length, a digest, and then what is described in this order by `_HEAD` and `_sender`: it is written in every step."""
    points, targets = entry.batch
    told = json.dumps([dict(entry.position), dict(entry.counts)]).encode()
    labels, width = targets.dtype.kind == "i", targets.shape[1] if targets.ndim == 2 else 0
    head = _HEAD.pack(mark, entry.step, *points.shape, labels, width, len(entry.heard), len(told))
    parts = [head, told, points.tobytes(), targets.tobytes()]
    for i, said in enumerate(entry.heard):
        spoken: Sequence[bytes | None]
        if entry.raw is not None:
            spoken = entry.raw[i]
        else:
            spoken = [None if message is None else encode(message) for message in (said.asked, said.answered)]
        parts.append(_sender(str(said.neighbor), said.weight, said.share, said.is_first))
        for data in spoken:
            parts += [_NOTHING] if data is None else [_SIZE.pack(len(data)), data]
    data = b"".join(parts)
    return _PREFIX.pack(len(data), _digest(data)) + data


@lru_cache(maxsize=256)
def _sender(name: str, weight: float, share: float, is_first: bool) -> bytes:
    return _SENDER.pack(weight, share, is_first, len(name.encode())) + name.encode()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _read_journal(path: Path) -> Iterator[tuple[Entry, bytes]]:
    """The entries up to the first that is not complete: the one that was being written when the process was killed."""
    with open(path, "rb") as file:
        while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
            length, digest = _PREFIX.unpack(prefix)
            left = os.fstat(file.fileno()).st_size - file.tell()
            data = file.read(length) if length <= left else b""
            if len(data) < length or _digest(data) != digest:
                return
            yield _entry(path, data)


def _entry(path: Path, data: bytes) -> tuple[Entry, bytes]:
    file = io.BytesIO(data)

    def cut(size: int) -> bytes:
        found = file.read(size)
        if len(found) != size:
            raise ValueError(f"{size} bytes are missing")
        return found

    def message() -> Any:
        (size,) = _SIZE.unpack(cut(_SIZE.size))
        return None if size < 0 else decode(cut(size), max_bytes=_MOST_RECORD)

    try:
        mark, step, rows, columns, labels, width, neighbors, length = _HEAD.unpack(cut(_HEAD.size))
        integer("journal", "step", step, minimum=1)
        position, counts = json.loads(cut(length))
        if not (isinstance(position, dict) and isinstance(counts, dict)):
            raise ValueError("position and counts must be objects")
        points = np.frombuffer(cut(8 * rows * columns), "<f8").reshape(rows, columns)
        targets = np.frombuffer(cut(8 * rows * (width or 1)), "<i8" if labels else "<f8")
        heard = []
        for _ in range(neighbors):
            weight, share, is_first, size = _SENDER.unpack(cut(_SENDER.size))
            name = cut(size).decode()
            heard.append(Heard(message(), message(), weight, name, is_first, share))
        entry = Entry(
            step=step,
            batch=Batch(points, targets.reshape(rows, width) if width else targets),
            position=position,
            heard=heard,
            counts=counts,
        )
        return entry, mark
    except (MemoryError, OverflowError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise UnreadableFile(f"{path}: must be a journal of this version ({error})") from None
