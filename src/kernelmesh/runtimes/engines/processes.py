"""Runs shards in worker processes on this machine: one per core, each with one BLAS thread."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.runtimes.engines.base import LostShard
from kernelmesh.runtimes.engines.host import Host, Spec
from kernelmesh.runtimes.engines.partitioned import Partitioned
from kernelmesh.runtimes.plan import Plan

__all__ = ["Processes"]

# Seconds for which a worker stays awake after an answer: the next request usually arrives within that time.
_AWAKE = 1e-3
# The number of bytes before a request that hold its number.
_TICKET = 8


class Processes(Partitioned):
    """Runs agents in worker processes on this machine.

    Parameters
    ----------
    parts : int, optional
        The number of processes; by default one per core.
    checkpoints : str or Path, optional
        A folder or fsspec URL for checkpoints, from which the run continues if a process is lost; without one, it starts
        over.
    every : int
        Rounds between checkpoints.

    Examples
    --------
    >>> Processes(2).parts
    2
    """

    def __init__(self, parts: int | None = None, *, checkpoints: str | Path | None = None, every: int = 10) -> None:
        super().__init__((os.cpu_count() or 1) if parts is None else parts, checkpoints=checkpoints, every=every)
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._tickets = count()

    def _launch(self, specs: Sequence[Spec]) -> None:
        try:
            self._specs = [pickle.dumps(("start", (spec,))) for spec in specs]
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            remedy = "define classes and functions at module level, not inside a function"
            found = Verbatim(str(error))
            raise InvalidArgument("Processes", "the network", "be picklable", found, remedy=remedy) from None
        try:
            self._relaunch()
        except LostShard as lost:
            remedy = 'in a script, start networks under `if __name__ == "__main__":`, because workers import the script too'
            raise LostShard(f"{lost} before its first round; {remedy}") from None

    def _relaunch(self) -> None:
        alive = [(process, pipe) for process, pipe in self._workers if process.is_alive()]
        for _, pipe in (worker for worker in self._workers if worker not in alive):
            pipe.close()
        context = multiprocessing.get_context("spawn")
        own_core = self.parts <= (os.cpu_count() or 1)  # otherwise one that stays awake would delay another
        while len(alive) < self.parts:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, own_core), daemon=True)
            process.start()
            there.close()
            alive.append((process, here))
        self._workers = alive
        self._checked(list(self._collect(dict(enumerate(self._specs))).values()))

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        return self._collect({part: pickle.dumps((method, own)) for part, own in arguments.items()})

    def _collect(self, requests: Mapping[int, bytes]) -> dict[int, Any]:
        """Send all requests, then wait for all answers. Answers left over from an interrupted call are skipped."""
        ticket, part, found = next(self._tickets), -1, {}
        try:
            for part, request in requests.items():
                self._workers[part][1].send_bytes(ticket.to_bytes(_TICKET) + request)
            for part in requests:
                pipe = self._workers[part][1]
                answered, result = pipe.recv()
                while answered != ticket:
                    answered, result = pipe.recv()
                found[part] = result
        except (EOFError, OSError):
            lost, _ = self._workers[part]
            lost.kill()
            lost.join()  # so that it is known to have ended
            raise LostShard(f"worker process {part} of {self.parts} was lost") from None
        return found

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> list[dict[int, bytes]]:
        """Deliver to each shard the batches from the others, and return the batches it has for them."""
        arguments = [(method, plan if plan is not None else own) for own in self._received(batches)]
        found = self._ask("exchange", dict(enumerate(arguments)))
        out: list[dict[int, bytes]] = self._checked([found[part] for part in range(self.parts)])
        return out

    def _received(self, batches: Sequence[Mapping[int, bytes]] | None) -> list[dict[int, bytes]]:
        if batches is None:
            return [{} for _ in range(self.parts)]
        return [
            {other: batches[other][part] for other in peers if part in batches[other]}
            for part, peers in enumerate(self.peers)
        ]

    def _step(self, number: int, batches: Any) -> list[Any]:
        received = self._received(batches)
        found = self._ask("step", {part: (number, own) for part, own in enumerate(received)})
        return [found[part] for part in range(self.parts)]

    def close(self) -> None:
        """End all processes."""
        for _, pipe in self._workers:
            pipe.close()  # a worker ends when its pipe is closed
        for process, _ in self._workers:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
        self._workers = []


def _serve(pipe: Connection, own_core: bool) -> None:
    """The loop of a worker: answer one request at a time until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    host = Host()
    while True:
        try:
            if own_core:
                _watch(pipe)
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        ticket = int.from_bytes(data[:_TICKET])
        method, arguments = pickle.loads(memoryview(data)[_TICKET:])  # noqa: S301 (from the parent process)
        pipe.send((ticket, host.handle(method, *arguments)))


def _watch(pipe: Connection) -> None:
    """Wait for a request for a moment without sleeping: a process that has slept takes long to wake up."""
    until = time.perf_counter() + _AWAKE
    while time.perf_counter() < until and not pipe.poll(0):
        os.sched_yield()
