"""Access control: by default only this machine may read a page, and never another page in the same browser."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["COOKIE", "HEADERS", "Guard", "Policy", "is_loopback"]

COOKIE = "kernelmesh-token"
"""The prefix of the cookie's name; the port follows, because browsers share cookies between the ports of a host."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with every response: the page loads nothing from elsewhere, and no other page can embed, read or cache it."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host == "localhost" or _is(host, "is_loopback")


def _is(host: str, kind: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host.strip("[]")), kind))
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Where a server listens, and the token that it requires; None if it requires none."""

    host: str
    port: int
    token: str | None = None

    @classmethod
    def choose(cls, host: str, port: int) -> Policy:
        """Require a token if other machines can reach the address."""
        return cls(host=host, port=port, token=None if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def url(self) -> str:
        """The URL to open on this machine."""
        return self._url(("::1" if ":" in self.host else "127.0.0.1") if _is(self.host, "is_unspecified") else self.host)

    @property
    def remote_url(self) -> str:
        """The URL to open on other machines."""
        return self._url(socket.gethostname() if _is(self.host, "is_unspecified") else self.host)

    def _url(self, host: str) -> str:
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds the token."""
        return f"{COOKIE}-{self.port}"

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused, or None.

        Without a token, the Host header must name this machine, which prevents DNS rebinding. Requests from other sites are
        refused, except for following a link to the page itself.
        """
        headers, host = request.headers, request.headers.get("host", "")
        if self.token is None and host not in self._names():
            return "The Host header does not name this machine."
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return "Requests from other origins are refused."
        if request.url.path != "/" and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "Requests from other sites are refused."
        return None

    def _names(self) -> set[str]:
        hosts = {"localhost", "127.0.0.1", "[::1]", f"[{self.host}]" if ":" in self.host else self.host}
        return {f"{host}:{self.port}" for host in hosts} | (hosts if self.port == 80 else set())

    def admits(self, given: str | None) -> bool:
        """Whether a token is correct."""
        return self.token is None or (given is not None and secrets.compare_digest(given.encode(), self.token.encode()))


class Guard:
    """An ASGI middleware that enforces a policy: read-only methods, host, origin, token, and strict headers.

    Parameters
    ----------
    app : ASGIApp
        The application to guard.
    policy : Policy
        The policy to enforce.
    """

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the server treats WebSocket requests as plain ones
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._check(Request(scope)) or self._app)(scope, receive, send_guarded)

    def _check(self, request: Request) -> Response | None:
        policy, given = self._policy, request.query_params.get("token")
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("The dashboard is read-only.", status_code=405, headers={"Allow": "GET, HEAD"})
        if reason := policy.refusal(request):
            return PlainTextResponse(reason, status_code=403)
        if policy.admits(request.cookies.get(policy.cookie)):
            return None
        if not policy.admits(given):
            text = "This dashboard requires its token. Open the address that it printed, with ?token=… at the end."
            return PlainTextResponse(text, status_code=401)
        if request.url.path != "/":
            return None
        # move the token to a cookie, so that it does not stay in the URL and the history
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(policy.cookie, given or "", httponly=True, samesite="strict")
        return response
