"""The agents of a mesh as processes on this machine: started, started again when they crash, stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmesh.deploy.client import AgentAddress, Line
from kernelmesh.deploy.config import Config
from kernelmesh.deploy.toml_positions import KeyPath, locate
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.runtimes.checkpoints import in_use

__all__ = ["AgentProcess", "check_together", "start_all", "stop_all"]

_AGAIN = 3.0  # seconds before a crashed agent is started again
_MODES = {False: "free", True: "lock-step"}
_PATIENCE = 20.0  # seconds for a clean end, with its checkpoint


@dataclass(eq=False)
class AgentProcess:
    """One agent's process, its log, and a line to ask it how it is."""

    file: Path
    log: Path
    line: Line
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """When the process was seen to have ended; None while it runs."""

    @property
    def name(self) -> str:
        """What the agent is called."""
        return self.line.address.name

    def start(self) -> None:
        """Start the process; it ends by itself should this one be gone."""
        command = [sys.executable, "-m", "kernelmesh", "agent", str(self.file), "--parent", str(os.getpid())]
        # one thread each: agents share the machine, and small products gain nothing from more
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 (our own program)
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us to pass on
            )
        self.began, self.ended = time.monotonic(), None

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.poll() is None

    def watch(self) -> None:
        """Start the agent again if it was killed; one that ended by itself, or cannot start, is left alone."""
        if self.running or self.process is None:
            return
        if self.ended is None:
            self.ended = time.monotonic()
            self.line.close()
        if self.process.returncode < 0 and time.monotonic() - self.ended >= _AGAIN:
            self.restarts += 1
            self.start()

    def remark(self) -> str:
        """What is to be said of the process itself."""
        if self.running or self.process is None:
            return f"started again {self.restarts}×" if self.restarts else ""
        code = self.process.returncode
        if code == 0:
            return "has left"
        return f"killed by signal {-code}, will be started again" if code < 0 else f"failed ({code}): see {self.log}"

    def status(self) -> dict[str, Any] | None:
        """How the agent is doing, or None if it does not say."""
        if not self.running:
            return None
        try:
            return self.line.status()
        except (OSError, ValueError):
            return None

    def interrupt(self) -> None:
        """Ask the process to end."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGTERM)


def check_together(configs: list[Config]) -> None:
    """Refuse agents that cannot learn together, or that are running already, and tell everything that is in the way."""
    by_name = {config.place.name: config for config in configs}
    first = configs[0]
    wrong: list[str] = []

    def tell(config: Config, key: KeyPath, rule: str, value: object) -> None:
        line = locate(config.path.read_text(encoding="utf-8")).of(key)
        wrong.append(str(InvalidArgument(f"{config.path}:{line}", ".".join(map(str, key)), rule, value)))

    for config in configs:
        place, other = config.place, first.place
        same: list[tuple[KeyPath, object, object]] = [
            (("mesh",), place.mesh, other.mesh),
            (("mode",), _MODES[place.lock_step], _MODES[other.lock_step]),
            *((("model", key), value, first.settings[key]) for key, value in config.settings.items()),
        ]
        for key, here, there in same:
            if here != there:
                tell(config, key, f"be the same for all agents ({other.name} has {there!r})", here)
        for name in place.neighbors:
            if name in by_name and place.name not in (around := by_name[name].place.neighbors):
                rule = f"name {place.name} too, which names {name}"
                tell(by_name[name], ("neighbors",), rule, Verbatim(", ".join(around) or "none"))
        if in_use(config.keep.folder):
            tell(config, ("checkpoint", "folder"), "not be in use", Verbatim("one that a running agent keeps"))
    if wrong:
        raise ValueError("\n".join(wrong))


def start_all(files: list[Path], logs: Path) -> list[AgentProcess]:
    """Start an agent for each file; their logs go to the folder."""
    logs.mkdir(parents=True, exist_ok=True)
    processes = []
    for file in files:
        address = AgentAddress.read(file)
        processes.append(AgentProcess(file, logs / f"{address.name}.log", Line(address, timeout=1.0)))
    try:
        for process in processes:
            process.start()
    except BaseException:
        stop_all(processes)
        raise
    return processes


def stop_all(processes: list[AgentProcess]) -> list[str]:
    """Stop every agent with its checkpoint; returns the names of those that had to be killed."""
    for process in processes:
        process.line.close()
        process.interrupt()
    deadline, killed = time.monotonic() + _PATIENCE, []
    for process in processes:
        if process.process is None:
            continue
        try:
            process.process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.process.kill()
            process.process.wait()
            killed.append(process.name)
    return killed
