"""Runs shards in the actors of a Ray cluster, local or already running."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim
from kernelmesh.runtimes.engines.host import Failed, Host, Spec
from kernelmesh.runtimes.engines.spread import LostShard, Spread

__all__ = ["RayEngine", "connect"]


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
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0) as talk:
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


class _Actor(Host):
    """A host whose batches go straight to the actor that they are for: what is passed on stands for them."""

    def _sent(self, batch: bytes) -> Any:
        return _ray().put(batch)

    def _fetched(self, batch: Any) -> bytes:
        found: bytes = _ray().get(batch)
        return found


class RayEngine(Spread):
    """Runs agents in the actors of a Ray cluster.

    In each round, every pair of actors that share an edge exchanges one batch of messages (two if agents answer questions),
    which Ray moves directly between them; states stay where they are.

    Parameters
    ----------
    parts : int, optional
        The number of actors; by default one per core of this machine.
    address : str, optional
        The address of a running cluster, HOST:PORT or "auto"; by default, one is started on this machine.

    Examples
    --------
    >>> from kernelmesh.runtimes.ray import RayEngine
    >>> isinstance(RayEngine.__doc__, str)
    True
    """

    def __init__(self, parts: int | None = None, *, address: str | None = None) -> None:
        super().__init__((os.cpu_count() or 1) if parts is None else parts)
        self._ray = _ray()
        self._ours = connect(address, cpus=self.parts)
        self._actors: list[Any] = []

    def _launch(self, specs: Sequence[Spec]) -> None:
        kind = self._ray.remote(_Actor).options(scheduling_strategy="SPREAD", max_restarts=0)
        self._actors += [kind.remote() for _ in range(self.parts - len(self._actors))]
        try:
            self._call("start", {part: (spec,) for part, spec in enumerate(specs)})
        except TypeError as error:  # what Ray raises for something that cannot be pickled
            found = Verbatim(str(error).partition("\n")[0])
            raise InvalidArgument("RayEngine", "the network", "be picklable", found) from None

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        lost: Any = self._ray.exceptions.RayError
        try:
            refs = {part: self._actors[part].handle.remote(method, *own) for part, own in arguments.items()}
            found = dict(zip(refs, self._ray.get(list(refs.values())), strict=True))
        except lost as error:
            found = {-1: Failed(error)}
        errors = [each.error for each in found.values() if isinstance(each, Failed) and isinstance(each.error, lost)]
        if errors:
            self._end()
            remedy = "continue from the last states that were read, or repeat the command with --resume"
            raise LostShard(f"an actor of {self.parts} was lost ({type(errors[0]).__name__}); {remedy}")
        return found

    def _end(self) -> None:
        for actor in self._actors if self._ray.is_initialized() else ():
            self._ray.kill(actor)
        self._actors = []

    def close(self) -> None:
        """End all actors, and leave the cluster, or stop it if this engine started it."""
        self._end()
        if self._ours:
            self._ray.shutdown()
            self._ours = False
