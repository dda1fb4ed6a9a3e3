"""Crash recovery: periodic checkpoints, and between them a journal of the input of every step.

A step is a function of the state, the mini-batch and the neighbors' messages. So the last checkpoint and, for each step
since, its mini-batch and messages determine the state, bit for bit. The input of a step is on disk before its result can be
seen: an agent can be killed at any point and resumes in exactly the same state.

    checkpoint-000000100.safetensors   the state after 100 steps
    journal-000000100.bin              the inputs of steps 101, 102, …

The last two checkpoints are kept with their journals: if the latest is damaged, the previous one leads to the same state.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Struct, structs

from kernelmesh import storage
from kernelmesh.agent import Agent, State
from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument, KernelMeshError, UnreadableFile
from kernelmesh.registry import describe, fingerprint
from kernelmesh.runtimes import journal
from kernelmesh.runtimes.journal import Count
from kernelmesh.runtimes.membership import agent_name
from kernelmesh.runtimes.node import Entry, Traffic
from kernelmesh.streams import Batch

__all__ = ["Checkpoint", "CheckpointStore", "in_use"]

_log = logging.getLogger("kernelmesh.agent")


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """What an agent needs to continue."""

    state: State
    position: Mapping[str, Any] | None = None
    """The position in the stream."""
    pending: Batch | None = None
    """Samples read from a stream that cannot be read again, and not yet part of a mini-batch."""
    traffic: Traffic
    excluded: tuple[str, ...] = ()
    """The neighbors that were quarantined."""


class _About(Struct, forbid_unknown_fields=True):
    """The settings of a checkpoint's file."""

    name: str
    settings: dict[str, Any]
    """The agent's identity."""
    position: dict[str, Any] | None
    excluded: list[str]
    traffic: tuple[Count, Count]


class OtherAgent(KernelMeshError, ValueError):
    """A checkpoint written by another agent, or with other settings."""

    def __str__(self) -> str:
        return f"{super().__str__()}; or move the folder away to start from scratch"


class CheckpointStore:
    """Writes checkpoints and a journal to a folder, and restores the latest state.

    A checkpoint must match the agent's identity: its kernel, loss, and the like. Only one process at a time can use a folder.
    """

    def __init__(self, folder: str | os.PathLike[str], *, agent: Agent, every: int = 100) -> None:
        self.folder, self._agent, self._settings = Path(folder), agent, json.loads(json.dumps(agent.identity))
        self.every = integer("CheckpointStore", "every", every, minimum=1)
        self._fingerprint = fingerprint({name: describe(value) for name, value in vars(agent).items()})
        self.newest: int | None = None
        """The step of the latest checkpoint known to be on disk."""
        self.trouble = ""
        """Why the last write failed; empty if it succeeded."""
        self._journal: BinaryIO | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / "lock", "a")  # noqa: SIM115 (held as long as the store lives)
        except OSError as error:
            raise InvalidArgument("CheckpointStore", "folder", f"be writable ({error.strerror})", str(self.folder)) from None
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
        """Release the folder."""
        self._stop_journal()
        self._lock.close()

    def restore(self, *, name: str) -> tuple[Checkpoint | None, list[Entry]]:
        """The newest checkpoint that can be read, and the inputs of all steps since; (None, steps from 1) without any.

        Damaged files are passed over as long as an older checkpoint leads to the same place, and set aside, so that they do
        not count as one of the two that are kept; otherwise the damage is reported.
        """
        checkpoints = self._numbered("checkpoint")[::-1]
        damage: Exception | None = None
        damaged: list[Path] = []
        for step in [*checkpoints, None]:
            kept = None
            if step is not None:
                try:
                    kept = self._read(step, name)
                except UnreadableFile as error:
                    _log.warning("%s; trying the previous one", error)
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
        raise UnreadableFile(
            f"{self.folder}: no checkpoint can be read ({damage}); move the folder away to start from scratch"
        )

    def _entries(self, step: int) -> list[Entry]:
        """The inputs of the steps after `step`, from all journals there are, up to the first gap."""
        entries: list[Entry] = []
        for number in (n for n in self._numbered("journal") if n >= step):
            for entry, settings in journal.read(self._path("journal", number)):
                if settings != self._fingerprint and entry.step > step:
                    _log.warning(
                        "%s: the settings have changed: steps after %d are dropped, and their samples will be read again",
                        self.folder,
                        step + len(entries),
                    )
                    return entries
                if entry.step == step + len(entries) + 1:
                    entries.append(entry)
                elif entry.step > step + len(entries):
                    return entries
        return entries

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint and start a new journal; returns False, with the reason in `trouble`, if that fails."""
        state = checkpoint.state
        arrays = storage.pack(state, workspace=True)
        if checkpoint.pending is not None:
            arrays |= {"pending.points": checkpoint.pending.points, "pending.targets": np.asarray(checkpoint.pending.targets)}
        position = None if checkpoint.position is None else dict(checkpoint.position)
        about = _About(str(state.name), self._settings, position, list(checkpoint.excluded), checkpoint.traffic)
        try:
            storage.write(self._path("checkpoint", state.steps), kind="agent", arrays=arrays, settings=structs.asdict(about))
            self._stop_journal()
            self._journal = journal.create(self._path("journal", state.steps))
            self.newest, self.trouble = state.steps, ""
            self._tidy()
        except OSError as error:
            self._broken(error)
            return False
        return True

    def good(self, step: int, *, name: str) -> Checkpoint | None:
        """The newest checkpoint of this step or an earlier one that can be read; None if there is none."""
        for number in (n for n in self._numbered("checkpoint")[::-1] if n <= step):
            with contextlib.suppress(KernelMeshError, OSError):
                return self._read(number, name)
        return None

    def append(self, entry: Entry) -> None:
        """Append the input of a step to the journal; if that fails, learning continues without it."""
        if self._journal is None:
            return
        try:
            journal.append(self._journal, journal.Record(entry, self._fingerprint))
        except OSError as error:
            self._broken(error)

    def begin(self) -> None:
        """Keep a journal from the very first step, when there is no checkpoint yet."""
        try:
            self._journal = journal.create(self._path("journal", 0))
        except OSError as error:
            self._broken(error)

    def set_aside(self, entry: Entry) -> Path:
        """Set aside the input of a failed step in its own file for inspection; only the latest few are kept."""
        path = self.folder / f"poisoned-{entry.step:09d}.bin"
        with contextlib.suppress(OSError):  # it is not needed to go on
            with journal.create(path) as file:
                journal.append(file, journal.Record(entry, self._fingerprint))
            for old in sorted(self.folder.glob("poisoned-*.bin"))[:-10]:
                old.unlink(missing_ok=True)
        return path

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
        checkpoints = self._numbered("checkpoint")[:-2]  # two are kept
        for step in checkpoints:
            self._path("checkpoint", step).unlink(missing_ok=True)
        oldest = min(self._numbered("checkpoint"))
        for step in self._numbered("journal"):
            if step < oldest and not (oldest == self.newest and step == 0):
                self._path("journal", step).unlink(missing_ok=True)

    def _read(self, step: int, name: str) -> Checkpoint:
        path = self._path("checkpoint", step)
        arrays, settings = storage.read(path, kind="agent")
        with storage.understood(path, "the state of an agent"):
            try:
                about = msgspec.convert(settings, _About)
            except msgspec.ValidationError as error:
                raise UnreadableFile(f"{path}: must have the settings of a checkpoint ({error})") from None
            self._check_agent(path, about, name)
            keys = ("pending.points", "pending.targets")
            pending = Batch(*(arrays.pop(key) for key in keys)) if keys[0] in arrays else None
            state = storage.unpack(self._agent, arrays, name=name)
            if state.steps != step:
                raise InvalidArgument("checkpoint", "clock", f"have {step} steps, like the name of the file", state.steps)
            excluded = tuple(agent_name("checkpoint", "excluded", each) for each in about.excluded)
            traffic = Traffic(*about.traffic)
            return Checkpoint(state=state, position=about.position, pending=pending, traffic=traffic, excluded=excluded)

    def _check_agent(self, path: Path, about: _About, name: str) -> None:
        found, expected = about.settings, self._settings
        if found != expected:
            differing = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
            raise OtherAgent(f"{path}: the checkpoint was made with another {' and '.join(differing)}; restore the settings")
        if about.name != name:
            raise OtherAgent(f"{path}: the checkpoint belongs to agent {about.name!r}, not to {name!r}")

    def _path(self, what: str, step: int) -> Path:
        return self.folder / f"{what}-{step:09d}.{'safetensors' if what == 'checkpoint' else 'bin'}"

    def _numbered(self, what: str) -> list[int]:
        """The steps of the checkpoints or journals in the folder, in order."""
        digits = (path.stem.rpartition("-")[2] for path in self.folder.glob(f"{what}-*"))
        steps = sorted(int(text) for text in digits if text.isdecimal())
        return [step for step in steps if self._path(what, step).is_file()]


def in_use(folder: Path) -> bool:
    """Whether a process is using this folder."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
