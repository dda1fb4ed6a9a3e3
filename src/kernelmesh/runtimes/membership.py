"""Where an agent stands in a real network: its name, its address, its neighbors' addresses, and whom it trusts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from kernelmesh.checks import integer, positive
from kernelmesh.errors import InvalidArgument

__all__ = ["ENDPOINT", "NAME", "Membership", "Tls"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What agents, clients and meshes may be called: names are parts of zenoh keys and of certificates."""

ENDPOINT = re.compile(r"(tcp|tls)/(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")
"""tcp/HOST:PORT or tls/HOST:PORT."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files in PEM format that prove who this agent is, and the authority that must have signed everybody else's.

    `clients` are the names that may ask for predictions and status besides the neighbors.
    """

    authority: Path
    certificate: Path
    key: Path
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.clients:
            _check_name("Tls", "clients", name)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """One agent's place in a mesh.

    >>> Membership(name="north", listen="tcp/127.0.0.1:7450", neighbors={"south": "tcp/127.0.0.1:7451"}).share
    0.5
    """

    name: str
    listen: str
    neighbors: Mapping[str, str] = field(default_factory=dict)
    """Where each neighbor listens; an empty text for one that will connect to us."""
    mesh: str = "mesh"
    """What all agents of one network call it; agents of another one are not heard."""
    lock_step: bool = False
    """Whether everybody waits for everybody in each round, as in simulation, instead of going at its own pace."""
    patience: float = 0.5
    """Seconds to wait for neighbors in a round when not in lock step."""
    max_bytes: int = 1 << 24
    """The largest message that is read."""
    insecure: bool = False
    """Whether to listen on a real network without TLS."""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        _check_name("Membership", "name", self.name)
        _check_name("Membership", "mesh", self.mesh)
        self._check_endpoint("listen", self.listen)
        for neighbor, endpoint in self.neighbors.items():
            _check_name("Membership", "neighbors", neighbor)
            if neighbor == self.name:
                raise InvalidArgument("Membership", "neighbors", "be other agents than this one", neighbor)
            if endpoint != "":
                self._check_endpoint(f"neighbors.{neighbor}", endpoint)
        object.__setattr__(self, "neighbors", MappingProxyType(dict(sorted(self.neighbors.items()))))
        if positive("Membership", "patience", self.patience) > 3600.0:
            raise InvalidArgument("Membership", "patience", "be at most 3600 seconds", self.patience)
        integer("Membership", "max_bytes", self.max_bytes, minimum=1024)
        if self.tls is None and not self.insecure and not _loopback(self.listen):
            raise InvalidArgument(
                "Membership",
                "listen",
                "be on loopback (127.0.0.1) when there is no TLS",
                self.listen,
                remedy="add TLS files, or write insecure = true if nobody else can reach this network",
            )

    def _check_endpoint(self, argument: str, value: object) -> None:
        scheme = "tcp" if self.tls is None else "tls"
        found = ENDPOINT.fullmatch(value) if isinstance(value, str) else None
        if found is None or found[1] != scheme or not 0 < int(found[3]) < 65536:
            why = "with" if self.tls is not None else "without"
            raise InvalidArgument("Membership", argument, f"be {scheme}/HOST:PORT ({why} TLS files)", value)

    @property
    def share(self) -> float:
        """The most weight that this agent can give a neighbor: 1 / (1 + its degree)."""
        return 1.0 / (1 + len(self.neighbors))


def _check_name(owner: str, argument: str, value: object) -> None:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        rule = "be 1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
        raise InvalidArgument(owner, argument, rule, value)


def _loopback(endpoint: str) -> bool:
    found = ENDPOINT.fullmatch(endpoint)
    host = found[2].strip("[]") if found else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
