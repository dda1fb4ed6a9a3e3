"""Runs shards in worker processes on this machine, each with one BLAS thread."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.runtimes.engines.host import Host, Spec
from kernelmesh.runtimes.engines.spread import LostShard, Spread

__all__ = ["Processes"]


class Processes(Spread):
    """Runs agents in worker processes on this machine.

    Parameters
    ----------
    parts : int, optional
        The number of processes; by default one per core.

    Examples
    --------
    >>> Processes(2).parts
    2
    """

    def __init__(self, parts: int | None = None) -> None:
        super().__init__((os.cpu_count() or 1) if parts is None else parts)
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._tickets = count()

    def _launch(self, specs: Sequence[Spec]) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.parts - len(self._workers)):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._workers.append((process, here))
        try:
            self._call("start", {part: (spec,) for part, spec in enumerate(specs)})
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            remedy = "define classes and functions at module level, not inside a function"
            found = Verbatim(str(error))
            raise InvalidArgument("Processes", "the network", "be picklable", found, remedy=remedy) from None
        except LostShard as lost:
            remedy = 'in a script, start networks under `if __name__ == "__main__":`, because workers import the script too'
            raise LostShard(f"{lost} before its first round; {remedy}") from None

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Send all requests, then wait for all answers. Answers left over from an interrupted call are skipped."""
        if not self._workers:
            raise LostShard("no worker processes are running any more")
        ticket, part, found = next(self._tickets), -1, {}
        try:
            for part, own in arguments.items():
                self._workers[part][1].send((ticket, method, own))
            for part in arguments:
                answered = -1
                while answered != ticket:
                    answered, found[part] = self._workers[part][1].recv()
        except (EOFError, OSError):
            self.close()
            remedy = "continue from the last states that were read, or repeat the command with --resume"
            raise LostShard(f"worker process {part} of {self.parts} was lost; {remedy}") from None
        return found

    def close(self) -> None:
        """End all processes."""
        for _, pipe in self._workers:
            pipe.close()  # a worker ends when its pipe is closed
        for process, _ in self._workers:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
        self._workers = []


def _serve(pipe: Connection) -> None:
    """The loop of a worker: answer one request at a time until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    host = Host()
    while True:
        try:
            ticket, method, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send((ticket, host.handle(method, *arguments)))
