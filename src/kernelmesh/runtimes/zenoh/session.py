"""Zenoh sessions as we want them: the given addresses and no others, TLS on both sides, rules by certificate name."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.membership import Membership, Tls

if TYPE_CHECKING:
    import zenoh

__all__ = ["open_client", "open_peer"]


def open_peer(membership: Membership, *, feeds: tuple[str, ...] = ()) -> zenoh.Session:
    """The session of an agent; `feeds` are the keys that sensors may publish to."""
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen/endpoints": [membership.listen + ("" if membership.tls is None else "#tls_handshake_timeout_ms=3000")],
        "connect/endpoints": [endpoint for endpoint in membership.neighbors.values() if endpoint],
        "transport/link/rx/max_message_size": membership.max_bytes + (1 << 16),  # what zenoh may add to a message
        # a connection must become a session soon, and there is room for a limited number of both
        "transport/unicast/accept_timeout": 3000,  # milliseconds
        "transport/unicast/accept_pending": 100,
        "transport/unicast/max_sessions": len(membership.neighbors) + 64,  # of clients and sensors
    }
    if membership.tls is not None:
        settings |= _tls(membership.tls, listens=True)
        settings["access_control"] = _rules(membership, membership.tls, feeds)
    return _open(settings, f"listen on {membership.listen}")


def open_client(endpoint: str, tls: Tls | None) -> zenoh.Session:
    """A session that only talks to one agent."""
    settings: dict[str, Any] = {"mode": "client", "connect/endpoints": [endpoint]}
    if tls is not None:
        settings |= _tls(tls, listens=False)
    settings |= {"connect/timeout_ms": 3000, "connect/exit_on_failure": True}
    return _open(settings, f"reach {endpoint}")


def _open(settings: dict[str, Any], aim: str) -> zenoh.Session:
    # an agent has few neighbors: more zenoh threads would only wake each other
    others = ", ".join(f"{pool}: (handover: rx)" for pool in ("acc", "app", "net", "tx"))
    os.environ.setdefault("ZENOH_RUNTIME", f"(rx: (worker_threads: 1), {others})")
    try:
        import zenoh
    except ImportError:
        raise ImportError("agents on a network need zenoh: pip install 'kernelmesh[zenoh]'") from None
    zenoh.init_log_from_env_or("off")  # we log what matters ourselves; RUST_LOG turns it on
    config = zenoh.Config()
    everything = {
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {"period_init_ms": 200, "period_max_ms": 1000, "period_increase_factor": 2},
        "transport/shared_memory/enabled": False,
        # by default, a message is dropped if the queue is busy for a millisecond, which is common on a busy machine
        "transport/link/tx/queue/congestion_control/drop/wait_before_drop": 50_000,
        # a peer that stops reading is disconnected before it can block us for long
        "transport/link/tx/queue/congestion_control/block/wait_before_close": 1_000_000,
        **settings,
    }
    for key, value in everything.items():
        config.insert_json5(key, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = str(error).partition(" at ")[0][:200]
        for words, plain in (("in use", "the address is in use"), ("Unable to connect", "no agent answers there")):
            reason = plain if words in str(error) else reason
        raise ConnectionError(f"zenoh: cannot {aim}: {reason}") from None


def _tls(tls: Tls, *, listens: bool) -> dict[str, Any]:
    for path in (tls.authority, tls.certificate, tls.key):
        if not path.is_file():
            raise InvalidArgument("Tls", "files", "exist", str(path))
    files: dict[str, Any] = {
        "root_ca_certificate": str(tls.authority),
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "connect_private_key": str(tls.key),
        "connect_certificate": str(tls.certificate),
    }
    if listens:
        files |= {"listen_private_key": str(tls.key), "listen_certificate": str(tls.certificate)}
    return {f"transport/link/tls/{key}": value for key, value in files.items()}


def _rules(membership: Membership, tls: Tls, feeds: tuple[str, ...]) -> dict[str, Any]:
    """Neighbors may query and reply under their own names, clients may query and publish; everything else is denied."""
    root = f"kernelmesh/{membership.mesh}"
    rules: list[dict[str, Any]] = []
    subjects: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []

    def allow(who: str, table: list[tuple[str, str, str, list[str]]]) -> None:
        subjects.append({"id": who, "cert_common_names": [who]})
        own = []
        for what, message, flow, keys in table:
            if keys:
                name = f"{who} {what}"
                rule = {"id": name, "messages": [message], "flows": [flow], "permission": "allow", "key_exprs": keys}
                rules.append(rule)
                own.append(name)
        policies.append({"rules": own, "subjects": [who]})

    for neighbor in membership.neighbors:
        to_us = [f"{root}/{membership.name}/from/{neighbor}"]
        to_them = [f"{root}/{neighbor}/from/{membership.name}"]
        allow(
            neighbor,
            [
                ("speaks to us", "put", "ingress", to_us),
                ("is spoken to", "put", "egress", to_them),
                ("sees that we listen", "declare_subscriber", "egress", to_us),
                ("shows that it listens", "declare_subscriber", "ingress", to_them),
            ],
        )
    requests = [f"{root}/{membership.name}/{kind}" for kind in ("predict", "status")]
    for client in tls.clients:
        if client in membership.neighbors:
            raise InvalidArgument("Tls", "clients", "be names other than the neighbors'", client)
        allow(
            client,
            [
                ("asks", "query", "ingress", requests),
                ("is answered", "reply", "egress", requests),
                ("sees where to ask", "declare_queryable", "egress", requests),
                ("feeds", "put", "ingress", list(feeds)),
                ("sees where to feed", "declare_subscriber", "egress", list(feeds)),
            ],
        )
    return {"enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies}
