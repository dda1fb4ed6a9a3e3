"""A member that does as it likes: it has an agent's name, address and certificate, and answers whatever the test wants."""

from __future__ import annotations

import threading
import time

from kernelmesh.deploy.config import read
from kernelmesh.runtimes.frames import Frame, Header, Prefix, decode_frame, encode_frame
from kernelmesh.runtimes.mailbox import Arrival, Mailbox
from kernelmesh.runtimes.zenoh import ZenohCarrier


class Hostile:
    """Listens in place of the agent whose file this is, in a thread; `answer(neighbor, frame)` has the bytes of each reply.

    None keeps silent. `sent` counts replies.
    """

    def __init__(self, file, answer, *, token=5):
        config = read(file)
        self.membership, self._answer, self._token = config.membership, answer, token
        self.mailbox, self.carrier, self.sent = Mailbox(), ZenohCarrier(config.membership), 0
        self._model = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Hostile:
        self.carrier.open(self.mailbox)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        self.carrier.close()

    def flood(self, neighbors, words, *, count: int, rng) -> int:
        """Ask so many questions of all kinds, each as another process or as the same; returns how many."""
        for number in range(count):
            choice = rng.integers(4)
            token = int(rng.integers(1 << 60)) if choice else self._token
            header = Header(step=int(rng.integers(1 << 40)), share=float(rng.random()), model=self._model)
            payload = words[int(rng.integers(len(words)))] if choice > 1 else b""
            data = encode_frame(Frame(Prefix(token, False, number), header, payload)) if choice < 3 else payload
            self.carrier.send(neighbors[number % len(neighbors)], data)
        return count

    def _run(self) -> None:
        while not self._over.is_set():
            for event in self.mailbox.take(0.1):
                if isinstance(event, Arrival):
                    self._reply(event)

    def _reply(self, event: Arrival) -> None:
        frame = decode_frame(event.data, max_bytes=1 << 26)
        if frame.prefix.is_reply:
            return
        self._model = frame.header.model
        words = b"" if frame.header.ping else self._answer(event.sender, frame)
        if words is not None:
            header = Header(step=frame.header.step, share=0.5, model=self._model)
            self.carrier.send(
                event.sender, encode_frame(Frame(Prefix(self._token, True, frame.prefix.ticket), header, words))
            )
            self.sent += not frame.header.ping


def memory(pid: int) -> float:
    """The resident memory of a process, in MB."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def slowest_status(mesh, names, seconds: float) -> float:
    """Ask these agents for their status for a while; the longest that one took to answer, in seconds."""
    slowest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        for name in names:
            began = time.monotonic()
            assert mesh.clients[name].status() is not None
            slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.05)
    return slowest
