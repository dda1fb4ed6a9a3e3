"""Runs shards in the actors of a Ray cluster, local or already running."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.runtimes.engines.base import LostShard
from kernelmesh.runtimes.engines.host import Spec
from kernelmesh.runtimes.engines.partitioned import Partitioned
from kernelmesh.runtimes.plan import Plan
from kernelmesh.runtimes.ray.actor import ShardActor

__all__ = ["RayEngine", "connect"]

_SECONDS = 5.0


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtra("Networks on a cluster", "ray") from error
    return ray


def connect(address: str | None, *, cpus: int) -> bool:
    """Join the cluster at an address, or start one on this machine; returns whether this call started or joined it."""
    ray = _ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        os.environ.pop("RAY_ADDRESS", None)
        ray.init(num_cpus=max(cpus, os.cpu_count() or 1), **quiet)
        return True
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _unreachable(address, str(error).partition("\n")[0]) from None
    return True


def _check_reachable(address: str) -> None:
    """Check within seconds whether a Ray server listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        rule, remedy = "be HOST:PORT or auto", "for example --address 10.0.0.1:6379"
        raise InvalidArgument("ray", "--address", rule, address, remedy=remedy)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as talk:
            if os.environ.get("RAY_USE_TLS", "0") == "0" and not _greets(talk):
                raise _unreachable(address, "the server there is not Ray")
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _greets(talk: socket.socket) -> bool:
    """Whether the server speaks HTTP/2, as Ray does: it answers a greeting with its settings."""
    talk.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    answer = b""
    try:
        while len(answer) < 4 and (more := talk.recv(4)):
            answer += more
    except TimeoutError:
        return False
    return answer[3:4] == b"\4"


def _unreachable(address: str, reason: str) -> InvalidArgument:
    remedy = "start one there with `ray start --head --port=6379`, or omit --address for a local one"
    found = Verbatim(f"{address!r} ({reason})")
    return InvalidArgument("ray", "--address", "be the address of a running Ray cluster", found, remedy=remedy)


class RayEngine(Partitioned):
    """Runs agents in the actors of a Ray cluster.

    In each round, every pair of actors that share an edge exchanges one batch of messages (two if agents answer queries),
    which Ray moves directly between them; dictionaries stay where they are.

    Parameters
    ----------
    parts : int, optional
        The number of actors; by default one per core of this machine.
    address : str, optional
        The address of a running cluster, HOST:PORT or "auto"; by default, one is started on this machine.
    checkpoints : str or Path, optional
        A shared folder or fsspec URL for checkpoints, from which the run continues if an actor is lost;
        without one, it starts over.
    every : int
        Rounds between checkpoints.

    Examples
    --------
    >>> from kernelmesh.runtimes.ray import RayEngine
    >>> isinstance(RayEngine.__doc__, str)
    True
    """

    def __init__(
        self, parts: int | None = None, *, address: str | None = None, checkpoints: str | Path | None = None, every: int = 10
    ) -> None:
        super().__init__(parts or os.cpu_count() or 1, checkpoints=checkpoints, every=every)
        self._ray = _ray()
        self._ours = connect(address, cpus=self.parts)
        self._kind = self._ray.remote(ShardActor).options(scheduling_strategy="SPREAD", max_restarts=0)
        self._actors: list[Any] = []

    def _launch(self, specs: Sequence[Spec]) -> None:
        try:
            self._specs = [self._ray.put(spec) for spec in specs]
        except TypeError as error:  # what Ray raises for something that cannot be pickled
            found = Verbatim(str(error).partition("\n")[0])
            raise InvalidArgument("RayEngine", "the network", "be picklable", found) from None
        self._relaunch()

    def _relaunch(self) -> None:
        actors = self._actors or [self._kind.remote() for _ in self._specs]
        started = [actor.handle.remote("start", spec) for actor, spec in zip(actors, self._specs, strict=True)]
        for part, done in enumerate(started):
            try:
                self._checked([self._ray.get(done)])
            except self._ray.exceptions.RayError:  # this one is lost
                actors[part] = self._kind.remote()
                with self._watched(part):
                    self._checked([self._ray.get(actors[part].handle.remote("start", self._specs[part]))])
        self._actors = actors

    @contextmanager
    def _watched(self, part: int | None = None) -> Iterator[None]:
        """Distinguish the loss of an actor from errors inside it."""
        try:
            yield
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(error, self._ray.exceptions.RayTaskError) and not isinstance(cause, self._ray.exceptions.RayError):
                raise
            which = "an actor" if part is None else f"actor {part}"
            raise LostShard(f"{which} of {self.parts} was lost ({type(error).__name__})") from None

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        with self._watched():
            refs = {part: self._actors[part].handle.remote(method, *own) for part, own in arguments.items()}
            return dict(zip(refs, self._ray.get(list(refs.values())), strict=True))

    def exchange(self, method: str, batches: Any, plan: Plan | None = None) -> list[dict[int, Any]]:
        """References to what each shard has for the others, from references to what they have for it."""
        out = []
        with self._watched():
            for part, (actor, peers) in enumerate(zip(self._actors, self.peers, strict=True)):
                say = actor.say.options(num_returns=len(peers))
                found = say.remote(method, plan, peers, *self._received(batches, part))
                out.append(dict(zip(peers, [found] if len(peers) == 1 else found or (), strict=True)))
        return out

    def _received(self, batches: Any, part: int) -> list[Any]:
        return [] if batches is None else [batches[other][part] for other in self.peers[part]]

    def _step(self, number: int, batches: Any) -> list[Any]:
        with self._watched():
            refs = [
                actor.learn.remote(number, peers, *self._received(batches, part))
                for part, (actor, peers) in enumerate(zip(self._actors, self.peers, strict=True))
            ]
            found: list[Any] = self._ray.get(refs)
            return found

    def close(self) -> None:
        """End all actors, and leave the cluster, or stop it if this engine started it."""
        for actor in self._actors if self._ray.is_initialized() else ():
            self._ray.kill(actor)
        self._actors, self._specs = [], []
        if self._ours:
            self._ray.shutdown()
            self._ours = False
