"""The laws of carriers."""

import time
from collections.abc import Callable

from kernelmesh.runtimes.carriers import Carrier
from kernelmesh.runtimes.frames import Frame, Header, Prefix, encode_frame
from kernelmesh.runtimes.mailbox import Arrival, Event, Mailbox, Presence

__all__ = ["check_carrier"]


def check_carrier(
    pair: Callable[[], tuple[Carrier, Carrier]], *, deliver: Callable[[], None] = lambda: None, patience: float = 20.0
) -> None:
    """Check that a carrier obeys the laws of its role.

    Parameters
    ----------
    pair : callable
        Returns two new carriers that connect the agents "a" and "b".
    deliver : callable
        Delivers pending messages, for carriers that do not on their own.
    patience : float
        Seconds within which messages must arrive.

    Examples
    --------
    >>> from kernelmesh.runtimes.carriers import MemoryNetwork
    >>> network = MemoryNetwork()
    >>> check_carrier(
    ...     lambda: (network.carrier("a", ["b"]), network.carrier("b", ["a"])), deliver=lambda: network.deliver(0.0)
    ... )
    """
    a, b = pair()
    boxes = {"a": Mailbox(), "b": Mailbox()}
    kept: dict[str, list[Event]] = {"a": [], "b": []}

    def wait(name: str, law: str, found: Callable[[Event], bool]) -> None:
        deadline = time.monotonic() + patience
        while True:
            deliver()
            kept[name] += boxes[name].take(0.0)
            if any(found(event) for event in kept[name]):
                return
            assert time.monotonic() < deadline, f"{law}: not within {patience:g} s; {name} got {kept[name][:5]}"
            time.sleep(0.005)

    try:
        a.open(boxes["a"])
        b.open(boxes["b"])
        _check_messages(a, b, wait)
        began = time.monotonic()
        a.send("b", b"to nobody")
        assert time.monotonic() - began < patience, "sending must not wait for a neighbor that is gone"
    finally:
        b.close()
        a.close()
        a.close()


def _check_messages(a: Carrier, b: Carrier, wait: Callable[[str, str, Callable[[Event], bool]], None]) -> None:
    """Messages arrive both ways, and both ends hear who is there, until b closes."""
    wait("a", "a carrier must report that a neighbor is listening", lambda event: event == Presence("b", True))
    wait("b", "a carrier must report that a neighbor is listening", lambda event: event == Presence("a", True))
    for number, size in enumerate((0, 1, 1000, 100_000)):
        data = encode_frame(Frame(Prefix(7, False, number), Header(step=number), bytes(range(256)) * (size // 256 + 1)))
        a.send("b", data)
        law = f"bytes must arrive as they were sent, under the sender's name ({len(data)} bytes)"
        wait("b", law, Arrival("a", data).__eq__)
    b.send("a", encode_frame(Frame(Prefix(8, False, 1), Header(step=1), b"back")))
    wait("a", "bytes must go both ways", lambda event: isinstance(event, Arrival) and event.sender == "b")
    b.close()
    wait("a", "a carrier must report that a neighbor is gone", lambda event: event == Presence("b", False))
