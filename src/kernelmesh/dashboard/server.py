"""The web application: pages, data and a stream of events. Everything is read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelmesh.dashboard import assets
from kernelmesh.dashboard.animation import animation
from kernelmesh.dashboard.security import Guard, Policy
from kernelmesh.dashboard.sources import Source
from kernelmesh.dashboard.tables import to_json
from kernelmesh.errors import KernelMeshError

__all__ = ["application", "changes"]


def application(sources: Sequence[Source], policy: Policy, *, closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The dashboard of one or two sources; event streams end once `closing()` is true."""
    views = _Views(tuple(sources), closing)
    routes = [
        Route("/", views.page),
        Route("/static/{name}", views.static),
        Route("/api/runs", views.runs),
        Route("/api/runs/{run}/frames", views.frames),
        Route("/api/runs/{run}/function", views.function),
        Route("/api/runs/{run}/animation.gif", views.animation),
        Route("/api/runs/{run}/figures/{name}", views.figure),
        Route("/api/events", views.events),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, policy=policy)])


class _Views:
    """The handlers of all routes."""

    def __init__(self, sources: Sequence[Source], closing: Callable[[], bool]) -> None:
        self._sources, self._closing = sources, closing

    def page(self, _: Request) -> Response:
        return Response(assets.page(), media_type="text/html")

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == assets.PLOTLY:
            return FileResponse(assets.plotly())
        if name not in (*assets.SCRIPTS, "style.css"):
            raise HTTPException(404)
        return Response(assets.read(name), media_type="text/css" if name.endswith("css") else "text/javascript")

    def runs(self, _: Request) -> Response:
        return _json([source.describe() for source in self._sources])

    def frames(self, request: Request) -> Response:
        return _json(self._source(request).frames())

    def function(self, request: Request) -> Response:
        agent, rounds = (_integer(request.query_params.get(name, "")) for name in ("agent", "round"))
        try:
            return _json(_there(self._source(request).function(agent, rounds)))
        except KernelMeshError as error:  # a missing package, or a function that cannot be evaluated
            return PlainTextResponse(str(error), status_code=503)

    def animation(self, request: Request) -> Response:
        return Response(_there(animation(self._source(request).shown.recording)), media_type="image/gif")

    def figure(self, request: Request) -> Response:
        """A figure from the run's folder, looked up by name among those that the page lists, never by path."""
        listed = {path.name: path for path in self._source(request).shown.documents.figures}
        path: Path = _there(listed.get(request.path_params["name"]))
        if path.resolve().parent != path.parent.resolve():  # a symbolic link out of the folder
            raise HTTPException(404)
        return FileResponse(path)

    async def events(self, request: Request) -> Response:
        kind: dict[str, Any] = {"media_type": "text/event-stream", "headers": {"X-Accel-Buffering": "no"}}
        if request.method == "HEAD":  # a response to HEAD must end
            return Response(**kind)
        return StreamingResponse(changes(self._sources, self._closing), **kind)

    def _source(self, request: Request) -> Source:
        run = _integer(request.path_params["run"])
        _there(self._sources[run:] or None)
        return self._sources[run]


async def changes(sources: Sequence[Source], closing: Callable[[], bool], *, tick: float = 0.25) -> AsyncIterator[bytes]:
    """Server-sent events: each source's status when it changes, with the new frames; sources are polled every `tick` s."""
    yield b"retry: 1000\n\n"
    last: list[Any] = [None] * len(sources)
    sent = [0] * len(sources)
    silent = 0.0
    while not closing():
        for run, source in enumerate(sources):
            news = await run_in_threadpool(source.news)
            if news == last[run]:
                continue
            message: dict[str, Any] = {"run": run, **vars(news)}
            if last[run] is None or news.generation != last[run].generation:
                frames = source.shown.recording.frames
                sent[run] = frames[-1].round if frames else 0
            elif news.version != last[run].version:
                table = message["frames"] = await run_in_threadpool(source.frames, after=sent[run])
                message["marks"] = await run_in_threadpool(lambda shown: shown.marks, source.shown)
                sent[run] = max(sent[run], table["newest"])
            message["newest"] = sent[run]
            last[run], silent = news, 0.0
            yield b"data: %b\n\n" % to_json(message)
        await asyncio.sleep(tick)
        silent += tick
        if silent >= 15.0:  # seconds
            silent = 0.0
            yield b": still there\n\n"


def _integer(text: str) -> int:
    return int(_there(text if text.isascii() and text.isdigit() and len(text) < 12 else None))


def _there(value: Any) -> Any:
    if value is None:
        raise HTTPException(404)
    return value


def _json(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json")
