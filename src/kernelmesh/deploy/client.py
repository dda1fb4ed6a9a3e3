"""A client that requests predictions and status from a running agent."""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument, RefusedMessage, UnreachableAgent, Verbatim
from kernelmesh.registry import restore
from kernelmesh.runtimes.mailbox import BUSY
from kernelmesh.runtimes.membership import Membership, Tls, agent_name, endpoint
from kernelmesh.runtimes.status import Status

if TYPE_CHECKING:
    import os

    from kernelmesh.numerics.losses import Loss

__all__ = ["AgentAddress", "AgentClient"]

_PAUSE = 0.05  # seconds before a busy agent is asked again


@dataclass(frozen=True, kw_only=True)
class AgentAddress:
    """How to reach an agent, and the names of its inputs and outputs.

    `AgentAddress.read` takes all of this from the agent's file.

    Parameters
    ----------
    name : str
        The agent's name.
    mesh : str
        The mesh it belongs to.
    endpoint : str
        Where it listens, such as tcp/127.0.0.1:7450.
    tls : Tls, optional
        The client's certificate and key, and the authority.
    points, targets, classes : tuple of str
        The names of the columns and classes in its data; empty if not known.
    loss : Loss, optional
        Its loss.
    max_bytes : int, optional
        The largest request it accepts, in bytes, if known.

    Examples
    --------
    >>> AgentAddress(name="north", mesh="demo", endpoint="tcp/127.0.0.1:7450").name
    'north'
    """

    name: str
    mesh: str
    endpoint: str
    tls: Tls | None = None
    points: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    loss: Loss | None = field(default=None, repr=False)
    max_bytes: int | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, client: str | None = None, host: str | None = None) -> AgentAddress:
        """Read the address from the agent's file; only the address, the columns, the loss, `max_bytes` and `[tls]` are used.

        With TLS the client's own files, CLIENT.pem and CLIENT.key, are beside the authority's. `host` replaces the host in
        the address, for an agent that listens on all interfaces.
        """
        path = Path(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidArgument("AgentAddress", "path", f"be an agent's TOML file ({error})", str(path)) from None
        try:
            name = agent_name(str(path), "name", data.get("name"))
            mesh = agent_name(str(path), "mesh", data.get("mesh", "mesh"))
            address = endpoint(str(path), "listen", data.get("listen"))
        except InvalidArgument as error:
            error.remedy = f"`kernelmesh agent --check {path}` reports every mistake"
            raise
        if host is not None:
            address = f"{address.partition('/')[0]}/{host}:{address.rpartition(':')[2]}"
        stream, model, tls = (data[key] if isinstance(data.get(key), dict) else {} for key in ("stream", "model", "tls"))
        return cls(
            name=name,
            mesh=mesh,
            endpoint=address.replace("/0.0.0.0:", "/127.0.0.1:").replace("/[::]:", "/[::1]:"),
            tls=_client_files(path, tls, client) if "tls" in data else None,
            loss=_loss(model.get("loss")),
            max_bytes=limit if type(limit := data.get("max_bytes", Membership.max_bytes)) is int else None,
            **{key: _names(stream.get(key)) for key in ("points", "targets", "classes")},
        )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(map(str, [value] if isinstance(value, str) else value if isinstance(value, list) else ()))


def _loss(settings: Any) -> Loss | None:
    """The loss named in a file, if its kind is registered."""
    with contextlib.suppress(ValueError):
        return cast("Loss", restore(settings, role="loss")) if isinstance(settings, dict) else None
    return None


def _client_files(path: Path, tls: Mapping[str, Any], client: str | None) -> Tls:
    client = client or next(iter(_names(tls.get("clients"))), None)
    if client is None:
        raise InvalidArgument(str(path), "tls.clients", "name at least one client", tls.get("clients"))
    authority = path.parent / str(tls.get("authority", "tls/authority.pem"))
    certificate, key = (authority.parent / f"{client}.{end}" for end in ("pem", "key"))
    for file in (authority, certificate, key):
        if not file.is_file():
            remedy = "use another client (ask --as NAME)"
            raise InvalidArgument("AgentAddress", "TLS file", "exist", str(file), remedy=remedy)
    return Tls(authority=authority, certificate=certificate, key=key)


class AgentClient:
    """A connection to one agent, opened by the first request and reused; also a context manager.

    Parameters
    ----------
    address : AgentAddress
        The address of the agent.
    timeout : float
        Seconds to wait for each answer.

    Examples
    --------
    >>> with AgentClient(AgentAddress(name="north", mesh="demo", endpoint="tcp/127.0.0.1:7450")) as client:
    ...     client.is_open
    False
    """

    def __init__(self, address: AgentAddress, *, timeout: float = 5.0) -> None:
        self.address, self._timeout = address, timeout
        self._session: Any = None

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, client: str | None = None, host: str | None = None, timeout: float = 5.0
    ) -> Self:
        """Create a client from an agent's TOML file; see `AgentAddress.read`."""
        return cls(AgentAddress.read(path, client=client, host=host), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._session is not None

    def predict(self, points: Floats) -> Floats:
        """The agent's outputs f(x) for each row of `points`, in one request."""
        from kernelmesh.messages import Points, Values, decode, encode

        request, limit = encode(Points(points)), self.address.max_bytes
        if limit is not None and len(request) > limit:  # the agent would reject it, or not even answer
            rule = f"fit in a request of {limit} bytes, the max_bytes of {self.address.name}"
            found = Verbatim(f"{len(points)} points in {len(request)} bytes")
            remedy = "request fewer at a time, or raise max_bytes in the agent's file and restart it"
            raise InvalidArgument("predict", "points", rule, found, remedy=remedy)
        answer = decode(self._request("predict", request))
        if not isinstance(answer, Values):
            raise RefusedMessage("answer: must be values", type(answer).__name__)
        return answer.values

    def status(self) -> Status:
        """The agent's status."""
        return Status.decode(self._request("status", b""))

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _request(self, kind: str, payload: bytes, *, patience: float = 1.0) -> bytes:
        """Send a request, and retry for a while if the agent is busy."""
        from kernelmesh.runtimes.zenoh import open_client

        address = self.address
        if self._session is None:
            try:
                self._session = open_client(address.endpoint, address.tls)
            except ConnectionError as error:
                raise UnreachableAgent(f"{address.name} cannot be reached: {error}") from None
        silence = f"{address.name} does not answer"
        key = f"kernelmesh/{address.mesh}/{address.name}/{kind}"
        for reply in self._session.get(key, payload=payload, timeout=self._timeout):
            if reply.ok is not None:
                return bytes(reply.ok.payload)
            reason = bytes(reply.err.payload).decode(errors="replace")
            if reason == BUSY and patience <= 0:
                raise UnreachableAgent(f"{silence}: {reason}")
            if reason == BUSY:
                time.sleep(_PAUSE)
                return self._request(kind, payload, patience=patience - _PAUSE)
            if reason != "Timeout":  # zenoh's own wording
                raise RefusedMessage(f"{address.name} rejected the request: {reason}")
        silence += f" at {address.endpoint}"
        if address.tls is not None:
            silence += f" (is it still starting, or is {address.tls.certificate.stem} not among its clients?)"
        if len(payload) > 1 << 16:  # bytes that every agent accepts, or rejects with an answer
            silence += f" (is a request of {len(payload)} bytes within its max_bytes?)"
        raise UnreachableAgent(silence)
