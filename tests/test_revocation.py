"""Certificates that expire or are revoked while connections are open, over zenoh with TLS."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("zenoh")
certificates = pytest.importorskip("kernelmesh.deploy.certificates")

from kernelmesh.runtimes.mailbox import Arrival, Mailbox, Presence  # noqa: E402 (needs zenoh)
from kernelmesh.runtimes.membership import Membership, Tls  # noqa: E402
from kernelmesh.runtimes.zenoh import ZenohCarrier  # noqa: E402
from mesh import free_port  # noqa: E402

pytestmark = pytest.mark.xdist_group("processes")


class Trio:
    """a, which listens, with the neighbors b and c."""

    def __init__(self, folder):
        ports = dict(zip("abc", range(free_port(3), 65536), strict=False))
        self.boxes, self.carriers = {}, {}
        for name, others in {"a": "bc", "b": "a", "c": "a"}.items():
            tls = Tls(authority=folder / "authority.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
            # a is connected to, and connects to nobody
            neighbors = {other: "" if name == "a" else f"tls/localhost:{ports[other]}" for other in others}
            member = Membership(name=name, listen=f"tls/localhost:{ports[name]}", neighbors=neighbors, tls=tls)
            self.carriers[name], self.boxes[name] = ZenohCarrier(member), Mailbox()
            self.carriers[name].open(self.boxes[name])
        self.present = set()

    def close(self):
        for carrier in self.carriers.values():
            carrier.close()

    def until(self, present: set[str], seconds: float) -> float:
        """How long it takes until just these are present for a, in seconds."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for event in self.boxes["a"].take(0.05):
                if isinstance(event, Presence):
                    (self.present.add if event.there else self.present.discard)(event.neighbor)
            if self.present == present:
                return time.monotonic() - began
        raise AssertionError(f"{self.present} instead of {present} after {seconds} s")

    def hears(self, name: str, seconds: float) -> bool:
        """Whether a hears what one of them says."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.carriers[name].send("a", b"hello")
            if any(isinstance(event, Arrival) and event.sender == name for event in self.boxes["a"].take(0.1)):
                return True
        return False


@pytest.fixture
def folder(tmp_path):
    certificates.create_authority(tmp_path)
    certificates.issue(tmp_path, "a")
    certificates.issue(tmp_path, "c")
    return tmp_path


def test_a_revoked_certificate_is_disconnected_and_the_others_are_not_affected(folder):
    certificates.issue(folder, "b")
    trio = Trio(folder)
    try:
        trio.until({"b", "c"}, 15.0)
        trio.carriers["a"].exclude({"b"})
        trio.present.clear()
        assert trio.until({"c"}, 10.0) < 10.0
        assert trio.hears("c", 5.0)
        assert not trio.hears("b", 2.0)
        trio.carriers["a"].exclude(set())
        trio.present.clear()
        trio.until({"b", "c"}, 10.0)
        assert trio.hears("b", 5.0)
    finally:
        trio.close()


@pytest.mark.slow
def test_a_connection_is_closed_when_its_certificate_expires(folder):
    certificates.issue(folder, "b", days=12.0 / 86400.0)
    until = certificates.valid_until(folder / "b.pem")
    trio = Trio(folder)
    try:
        trio.until({"b", "c"}, 10.0)
        trio.until({"c"}, until - time.time() + 10.0)
        assert time.time() >= until - 1.0
        assert trio.hears("c", 5.0)
        assert not trio.hears("b", 2.0)
    finally:
        trio.close()
