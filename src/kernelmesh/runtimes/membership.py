"""An agent's membership in a mesh: its name, its address, its neighbors, and its TLS files."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelmesh.checks import integer, positive
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.graphs import share
from kernelmesh.schema import path, setting, texts

__all__ = ["ENDPOINT", "NAME", "Membership", "Tls", "agent_name", "endpoint", "endpoint_with", "member_number", "patience"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Valid names of agents, clients and meshes, which become parts of zenoh keys and certificates."""


ENDPOINT = re.compile(r"(tcp|tls)/(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")
"""tcp/HOST:PORT or tls/HOST:PORT."""


def agent_name(owner: str, argument: str, value: object) -> str:
    """A valid name of an agent, client or mesh."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        rule = "be 1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
        raise InvalidArgument(owner, argument, rule, value)
    return value


def endpoint(owner: str, argument: str, value: object) -> str:
    """An address, with or without TLS."""
    found = ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[3]) < 65536:
        raise InvalidArgument(owner, argument, "be tcp/HOST:PORT, or tls/HOST:PORT with TLS", value)
    return found[0]


def endpoint_with(tls: bool, owner: str, argument: str, value: object) -> str:
    """An address with the right scheme."""
    scheme, which = ("tls", "with") if tls else ("tcp", "without")
    found = endpoint(owner, argument, value)
    if not found.startswith(f"{scheme}/"):
        raise InvalidArgument(owner, argument, f"be {scheme}/HOST:PORT ({which} TLS files)", value)
    return found


def member_number(owner: str, argument: str, value: object) -> int:
    """The number of an agent in its mesh."""
    if (number := integer(owner, argument, value, minimum=0)) >= 1 << 16:
        raise InvalidArgument(owner, argument, f"be below {1 << 16}", value)
    return number


def patience(owner: str, argument: str, value: object) -> float:
    """Seconds to wait, at most an hour."""
    if (seconds := positive(owner, argument, value)) > 3600.0:
        raise InvalidArgument(owner, argument, "be at most 3600 seconds", value)
    return seconds


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Certificates for mutual TLS; without this table, connections are not encrypted."""

    authority: Path = setting(
        check=path,
        example='"tls/authority.pem"',
        doc="the certificate of the authority that signed all others, in PEM format",
    )
    certificate: Path = setting(check=path, example='"tls/north.pem"', doc="the certificate of this agent, in PEM format")
    key: Path = setting(check=path, example='"tls/north.key"', doc="its private key, readable by its owner alone")
    clients: tuple[str, ...] = setting(
        (),
        check=texts,
        example='["operator"]',
        doc="names of clients that may request predictions and status, and publish to the stream's key",
    )
    revoked: Path | None = setting(
        None,
        check=path,
        example='"tls/revoked.txt"',
        doc="a file with the names whose certificates are revoked, one per line; it is watched while the agent runs",
    )

    def __post_init__(self) -> None:
        for name in self.clients:
            agent_name("Tls", "clients", name)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """One agent's membership in a mesh.

    >>> Membership(name="north", listen="tcp/127.0.0.1:7450", neighbors={"south": "tcp/127.0.0.1:7451"}).share
    0.5
    """

    name: str
    listen: str
    neighbors: Mapping[str, str] = field(default_factory=dict)
    """The address of each neighbor; an empty string if it connects to us."""
    number: int | None = None
    """The agent's number, different for each agent of a mesh; needed where agents share sums."""
    mesh: str = "mesh"
    """The name that all agents of one mesh share; messages from other meshes are ignored."""
    lock_step: bool = False
    """Whether every round waits for all neighbors, as in simulation, instead of running freely."""
    patience: float = 0.5
    """How slow replies may be when not in lock step: a query expires after twice as many seconds, at least 2."""
    max_bytes: int = 1 << 24
    """The largest accepted message, in bytes."""
    max_points: int = 500
    """The maximum number of points in a neighbor's message, and from all neighbors together in one step."""
    max_bytes_per_second: float | None = None
    """How much the agent may send where agents share sums; None means no limit."""
    insecure: bool = False
    """Whether to listen on a real network without TLS."""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        agent_name("Membership", "name", self.name)
        agent_name("Membership", "mesh", self.mesh)
        encrypted = self.tls is not None
        endpoint_with(encrypted, "Membership", "listen", self.listen)
        for neighbor, address in self.neighbors.items():
            agent_name("Membership", "neighbors", neighbor)
            if neighbor == self.name:
                raise InvalidArgument("Membership", "neighbors", "be other agents than this one", neighbor)
            if address != "":
                endpoint_with(encrypted, "Membership", f"neighbors.{neighbor}", address)
        patience("Membership", "patience", self.patience)
        integer("Membership", "max_bytes", self.max_bytes, minimum=1024)
        integer("Membership", "max_points", self.max_points, minimum=1)
        if self.number is not None:
            member_number("Membership", "number", self.number)
        if self.max_bytes_per_second is not None:
            positive("Membership", "max_bytes_per_second", self.max_bytes_per_second)
        if self.tls is None and not self.insecure and not _loopback(self.listen):
            raise InvalidArgument(
                "Membership",
                "listen",
                "be on loopback (127.0.0.1) when there is no TLS",
                self.listen,
                remedy="add TLS files, or set insecure = true if nobody else can reach this network",
            )

    @property
    def share(self) -> float:
        """The maximum weight that this agent can give a neighbor: 1 / (1 + its degree)."""
        return share(len(self.neighbors))


def _loopback(address: str) -> bool:
    found = ENDPOINT.fullmatch(address)
    host = found[2].strip("[]") if found else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
