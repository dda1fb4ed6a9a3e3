"""Serving: a server that listens in this thread until Ctrl-C, or in a background thread during a run."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any, Self

from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument, MissingExtra, Verbatim

try:
    import uvicorn

    from kernelmesh.dashboard.server import application
except ModuleNotFoundError as error:
    if (error.name or "").startswith("kernelmesh"):
        raise
    raise MissingExtra("dashboards", "dashboard") from error

from kernelmesh.dashboard.assets import plotly
from kernelmesh.dashboard.security import Policy
from kernelmesh.dashboard.sources import Source

__all__ = ["PORT", "Dashboard"]

PORT = 8765


class _Server(uvicorn.Server):
    """A server that shuts down without logging about unfinished responses."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


class Dashboard:
    """A server for sources: as a context manager in a background thread, or with `serve` in this one.

    Parameters
    ----------
    sources : sequence of Source
        One, or two to compare.
    host : str
        The address to listen on; a token is required if other machines can reach it.
    port : int
        The port; 0 chooses a free one.
    """

    def __init__(self, sources: Sequence[Source], *, host: str = "127.0.0.1", port: int = PORT) -> None:
        integer("dashboard", "--port", port, minimum=0)
        plotly()  # fail now if it is missing, not later in the browser
        self._socket = _listen(host, port)
        self.policy = Policy.choose(host, self._socket.getsockname()[1])
        self._stopping = False
        app = application(sources, self.policy, closing=lambda: self._stopping or self._server.should_exit)
        quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False, "proxy_headers": False}
        settings = uvicorn.Config(app, **quiet, ws="none", lifespan="off", timeout_graceful_shutdown=1)
        self._server = _Server(settings)
        self._thread = threading.Thread(target=self.serve, daemon=True, name="kernelmesh-dashboard")

    @property
    def url(self) -> str:
        """The URL to open in a browser."""
        return self.policy.url

    def serve(self) -> None:
        """Serve until Ctrl-C or `stop`."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Make `serve` return."""
        self._stopping = self._server.should_exit = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(timeout=5.0)
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, or raise an error that explains the problem."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OverflowError:
        raise InvalidArgument("dashboard", "--port", "be below 65536", port) from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            rule = f"be an address to listen on ({error.strerror})"
            raise InvalidArgument("dashboard", "--host", rule, host) from None
        found, remedy = Verbatim(f"{port}, which is in use"), "another dashboard may be running; --port 0 picks a free port"
        raise InvalidArgument("dashboard", "--port", "be free", found, remedy=remedy) from None
