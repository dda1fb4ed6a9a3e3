"""Helpers for tests that run agents as processes of their own. Everything started here is ended by its id."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from kernelmesh import Graph
from kernelmesh.deploy.client import AgentClient
from kernelmesh.deploy.config import read
from kernelmesh.deploy.mesh_folder import MeshPlan, create_mesh
from kernelmesh.errors import UnreachableAgent
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.status import Status
from kernelmesh.streams import Columns, FileSource

ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def free_port(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on, wherever others may be looking for some."""
    for _ in range(100):
        first = 20_000 + secrets.randbelow(30_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


class Mesh:
    """Agents of a folder that `mesh init` writes, each a process that the test can kill, freeze and start again."""

    def __init__(self, folder: Path, *, agents: int = 5, change: dict[str, str] | None = None, **options) -> None:
        self.folder = folder
        port = options.pop("port", None) or free_port(agents)
        self.files = create_mesh(folder, MeshPlan(agents=agents, port=port, **options))
        for file in self.files:
            text = file.read_text()
            for old, new in (change or {}).items():
                assert old in text, f"{old!r} is not in {file}"
                text = text.replace(old, new)
            file.write_text(text)
        self.names = [file.stem for file in self.files]
        self.processes: dict[str, subprocess.Popen] = {}
        self.clients = {file.stem: AgentClient.from_file(file, timeout=3.0) for file in self.files}

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients.values():
            client.close()
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def start(self, *names: str) -> None:
        for name in names or self.names:
            command = [sys.executable, "-m", "kernelmesh", "agent", str(self.folder / f"{name}.toml")]
            with open(self.folder / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=ENVIRONMENT
                )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()
        self.clients[name].close()

    def stop(self) -> None:
        """The clean end: SIGTERM, then a checkpoint."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in self.processes.items():
            assert process.wait(30) in (0, -signal.SIGKILL), self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def status(self, name: str) -> Status | None:
        try:
            return self.clients[name].status()
        except UnreachableAgent:
            self.clients[name].close()
            return None

    def wait(self, what, *, seconds: float = 60.0) -> None:
        """Wait until `what(statuses)` holds for the statuses of all agents."""
        deadline, statuses = time.monotonic() + seconds, {}
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                assert process.poll() in (None, -signal.SIGKILL), f"{name} has ended:\n{self.log(name)[-2000:]}"
            statuses = {name: self.status(name) for name in self.names}
            if all(statuses.values()) and what(statuses):
                return
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s: {statuses}")

    def wait_for_samples(self, samples: int, *, seconds: float = 60.0) -> None:
        self.wait(lambda all_: all(s.samples >= samples for s in all_.values()), seconds=seconds)

    def states(self) -> dict:
        """What every agent has in its folder, after the mesh has been stopped."""
        found = {}
        for file in self.files:
            config = read(file)
            store = CheckpointStore(config.checkpoint.folder, agent=config.agent)
            checkpoint, entries = store.restore(name=config.membership.name)
            store.close()
            assert not entries, "the checkpoint at the end holds everything"
            found[config.membership.name] = checkpoint.state
        return found

    def graph(self) -> Graph:
        around = [read(file).membership.neighbors for file in self.files]
        return Graph(tuple(self.names), tuple(tuple(self.names.index(other) for other in near) for near in around))

    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        return samples_of(self.folder / "data" / "test.csv")

    def accuracies(self, states: dict) -> dict[str, float]:
        points, labels = self.held_out()
        return {name: float((state.function(points).argmax(axis=1) == labels).mean()) for name, state in states.items()}


def samples_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    columns = Columns(points=("x1", "x2"), targets=("label",), labels=True, outputs=5)
    source, points, labels = FileSource(path, columns, batch_size=256), [], []
    while not source.ended:
        batch = source.take()
        if batch is not None:
            points.append(batch.points)
            labels.append(batch.targets)
    return np.concatenate(points), np.concatenate(labels)
