"""Talking to an agent that runs, from outside: predictions and how it is doing."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument, RefusedMessage, UnreachableAgent
from kernelmesh.messages import Points, Values, decode, encode
from kernelmesh.runtimes.membership import ENDPOINT, NAME, Tls

__all__ = ["AgentAddress", "Line"]

_KEYS = {"name": "", "mesh": "mesh", "listen": ""}


@dataclass(frozen=True, kw_only=True)
class AgentAddress:
    """Where an agent can be asked, and as whom."""

    name: str
    mesh: str
    endpoint: str
    tls: Tls | None = None
    points: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    loss: str = ""

    @classmethod
    def read(cls, path: Path, *, client: str | None = None, host: str | None = None) -> AgentAddress:
        """From the agent's file, of which only the address, the model's loss and the TLS part are looked at.

        With TLS the client's own files, CLIENT.pem and CLIENT.key, lie beside the authority's; `host` takes the place of the
        host in the address, for an agent that listens on all of its own.
        """
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidArgument("ask", "CONFIG", f"be an agent's TOML file ({error})", str(path)) from None
        name, mesh, endpoint = (str(data.get(key, usual)) for key, usual in _KEYS.items())
        for key, value, pattern in (("name", name, NAME), ("mesh", mesh, NAME), ("listen", endpoint, ENDPOINT)):
            if not pattern.fullmatch(value):
                remedy = f"kernelmesh agent --check {path} tells more"
                raise InvalidArgument(str(path), key, "be as an agent needs it", value, remedy=remedy)
        if host is not None:
            scheme, port = endpoint.partition("/")[0], endpoint.rpartition(":")[2]
            endpoint = f"{scheme}/{host}:{port}"
        stream, model = data.get("stream", {}), data.get("model", {})
        return cls(
            name=name,
            mesh=mesh,
            endpoint=endpoint.replace("/0.0.0.0:", "/127.0.0.1:").replace("/[::]:", "/[::1]:"),
            tls=_client(path, data.get("tls"), client),
            points=tuple(map(str, stream.get("points", ()))),
            targets=tuple(map(str, stream.get("targets", ()))) if isinstance(stream.get("targets"), list) else (),
            classes=tuple(map(str, stream.get("classes", ()))),
            loss=str(model.get("loss", {}).get("kind", "")) if isinstance(model.get("loss"), dict) else "",
        )


def _client(path: Path, tls: Any, client: str | None) -> Tls | None:
    if tls is None:
        return None
    clients = tls.get("clients") or []
    client = client or (clients[0] if clients else None)
    if client is None:
        raise InvalidArgument(str(path), "tls.clients", "name those who may ask", clients)
    authority = path.parent / str(tls.get("authority", "tls/authority.pem"))
    certificate, key = (authority.parent / f"{client}.{end}" for end in ("pem", "key"))
    for file in (authority, certificate, key):
        if not file.is_file():
            raise InvalidArgument("ask", "TLS file", "be there", str(file), remedy="--as names another client")
    return Tls(authority=authority, certificate=certificate, key=key)


class Line:
    """A connection to one agent, kept open to ask more than once.

    >>> Line(AgentAddress(name="north", mesh="demo", endpoint="tcp/127.0.0.1:7450")).open
    False
    """

    def __init__(self, address: AgentAddress, *, timeout: float = 5.0) -> None:
        self.address, self._timeout = address, timeout
        self._session: Any = None

    @property
    def open(self) -> bool:
        """Whether there is a connection."""
        return self._session is not None

    def predict(self, points: Floats) -> Floats:
        """f at each row."""
        answer = decode(self._ask("predict", encode(Points(points))))
        if not isinstance(answer, Values):
            raise RefusedMessage(f"answer: must be values, got {answer.kind}")
        return answer.values

    def status(self) -> dict[str, Any]:
        """How the agent is doing."""
        answer: dict[str, Any] = json.loads(self._ask("status", b""))
        return answer

    def close(self) -> None:
        """Hang up."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _ask(self, kind: str, payload: bytes) -> bytes:
        from kernelmesh.runtimes.zenoh import open_client

        if self._session is None:
            try:
                self._session = open_client(self.address.endpoint, self.address.tls)
            except ConnectionError as error:
                raise UnreachableAgent(f"{self.address.name} cannot be reached: {error}") from None
        key = f"kernelmesh/{self.address.mesh}/{self.address.name}/{kind}"
        for reply in self._session.get(key, payload=payload, timeout=self._timeout):
            if reply.ok is not None:
                return bytes(reply.ok.payload)
            if reply.err is not None:
                reason = bytes(reply.err.payload).decode(errors="replace")
                if reason != "Timeout":
                    raise ValueError(f"{self.address.name} refuses: {reason}")
        raise UnreachableAgent(
            f"{self.address.name} does not answer at {self.address.endpoint}"
            + (f" (is {self.address.tls.certificate.stem} among its clients?)" if self.address.tls else "")
        )
