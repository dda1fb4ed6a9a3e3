"""Runs the agents of a mesh as processes on this machine, restarts them when they are killed, and stops them together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmesh.deploy.client import AgentClient
from kernelmesh.deploy.config import Config
from kernelmesh.deploy.toml_positions import KeyPath
from kernelmesh.errors import InvalidArgument, InvalidConfig, Problem, Verbatim

__all__ = ["AgentProcess", "check_together", "start_all", "stop_all"]


@dataclass(eq=False)
class AgentProcess:
    """One agent's process, its log, and a client for its status."""

    file: Path
    log: Path
    client: AgentClient
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    ended: float | None = None
    """When the process was found to have exited; None while it runs."""

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.client.address.name

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, negative if it was killed by a signal."""
        return None if self.process is None else self.process.poll()

    @property
    def remark(self) -> str:
        """The state in words; empty if there is nothing to report."""
        if (code := self.code) is None:
            return f"restarted {self.restarts}×" if self.restarts else ""
        if code < 0:
            return f"killed by signal {-code}, restarting"
        return f"failed (exit code {code}): see {self.log}" if code else "has left"

    def start(self) -> None:
        """Start the process; it stops on its own if this process ends."""
        command = [sys.executable, "-m", "kernelmesh", "agent", str(self.file), "--parent", str(os.getpid())]
        # one thread each: agents share the machine, and small products gain nothing from more threads
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with open(self.log, "ab") as log:
            # in its own session, so that Ctrl-C reaches only us
            self.process = subprocess.Popen(  # noqa: S603 (our own program)
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.ended = None

    def restart_if_killed(self, *, after: float = 3.0) -> None:
        """Restart the agent `after` so many seconds if it was killed, but not if it exited on its own or cannot start."""
        if (code := self.code) is None:
            return
        if self.ended is None:
            self.ended = time.monotonic()
            self.client.close()
        if code < 0 and time.monotonic() - self.ended >= after:
            self.restarts += 1
            self.start()

    def interrupt(self) -> None:
        """Ask the process to stop."""
        self.client.close()
        if self.process is not None and self.code is None:
            self.process.send_signal(signal.SIGTERM)


def check_together(configs: Sequence[Config]) -> None:
    """Reject agents that cannot learn together or are already running, listing all problems."""
    from kernelmesh.runtimes.checkpoints import in_use

    by_name = {config.membership.name: config for config in configs}
    by_number: dict[int | None, str] = {}
    first = configs[0]
    problems: list[Problem] = []

    def add(config: Config, key: KeyPath, rule: str, value: object) -> None:
        problems.append(config.problem(key, InvalidArgument("", "", rule, value)))

    for config in configs:
        member = config.membership
        for key, here in _common(config).items():
            if here != (there := _common(first)[key]):
                add(config, key, f"be the same for all agents ({first.membership.name} has {there!r})", here)
        if (twin := by_number.setdefault(member.number, member.name)) != member.name and config.agent.protocol.shares:
            add(config, ("number",), f"be different for all agents ({twin} has it as well)", member.number)
        for other in (by_name[name] for name in member.neighbors if name in by_name):
            if member.name not in other.membership.neighbors:
                found = Verbatim(", ".join(other.membership.neighbors) or "none")
                add(other, ("neighbors",), f"also name {member.name}, which names {other.membership.name}", found)
        if in_use(config.checkpoint.folder):
            add(config, ("checkpoint", "folder"), "not be in use", Verbatim("the folder of a running agent"))
    if problems:
        raise InvalidConfig(problems)


def _common(config: Config) -> dict[KeyPath, object]:
    """The settings that all agents of a mesh must share."""
    agent = config.agent
    model: dict[KeyPath, object] = {("model", key): value for key, value in agent.identity.items()}
    if agent.protocol.shares:  # the list of points is the same for all
        model["model", "learner", "max_order"] = agent.relaying.max_order
        model["model", "protocol", "scales"] = agent.relaying.scales
    return {("mesh",): config.membership.mesh, ("mode",): config.mode, **model}


def start_all(files: Sequence[Path], logs: Path) -> list[AgentProcess]:
    """Start an agent for each file, with their logs in the given folder."""
    logs.mkdir(parents=True, exist_ok=True)
    clients = {file: AgentClient.from_file(file, timeout=1.0) for file in files}
    processes = [AgentProcess(file, logs / f"{client.address.name}.log", client) for file, client in clients.items()]
    try:
        for process in processes:
            process.start()
    except BaseException:
        stop_all(processes)
        raise
    return processes


def stop_all(processes: Sequence[AgentProcess], *, within: float = 20.0) -> list[str]:
    """Stop all agents with a checkpoint `within` so many seconds; returns the names of those that had to be killed."""
    for process in processes:
        process.interrupt()
    deadline, killed = time.monotonic() + within, []
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
