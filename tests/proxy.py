"""A TCP proxy that delays what passes, holds it up, and cuts connections: a link that is no good."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time


class Proxy:
    """Listens on a port and passes everything on to another, in a thread; `delay` seconds each way may change at any time.

    What TCP hides from those at its ends cannot be dropped or doubled here: `stall` holds bytes up for a while, as lost
    packets do, and `cut` closes all connections.
    """

    def __init__(self, port: int, target: int, *, delay: float = 0.0, stall: float = 0.0, seed: int = 0) -> None:
        self.port, self.target, self.delay, self.stall = port, target, delay, stall
        self._rng, self._writers = random.Random(seed), set()
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(5.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10.0)

    def cut(self) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(lambda: [writer.close() for writer in list(self._writers)])

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._ready.set()
        await self._over.wait()
        server.close()
        for writer in list(self._writers):
            writer.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        self._writers -= {writer, back}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def later() -> None:
            while data := (item := await queue.get())[1]:
                await asyncio.sleep(max(item[0] - time.monotonic(), 0.0))
                writer.write(data)
                await writer.drain()
            writer.close()

        task = asyncio.ensure_future(later())
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                held = 0.3 if self._rng.random() < self.stall else 0.0
                queue.put_nowait((time.monotonic() + self.delay + held, data))
            queue.put_nowait((0.0, b""))
            await task
