"""The web application: pages, data and a stream of events. Everything is read-only."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelmesh.dashboard import assets
from kernelmesh.dashboard.animation import animation
from kernelmesh.dashboard.security import Guard, Policy
from kernelmesh.dashboard.sources import RecordedSource, Source
from kernelmesh.errors import KernelMeshError

__all__ = ["application", "changes"]

_TICK = 0.25  # seconds between polls of the sources
_ALIVE = 15.0  # seconds after which an idle stream sends a keep-alive


def application(sources: Sequence[Source], policy: Policy, *, closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The dashboard of one or two sources; event streams end once `closing()` is true."""
    return Starlette(routes=_Views(sources, closing).routes(), middleware=[Middleware(Guard, policy=policy)])


class _Views:
    """The handlers of all routes."""

    def __init__(self, sources: Sequence[Source], closing: Callable[[], bool]) -> None:
        self._sources, self._closing = tuple(sources), closing

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/static/{name}", self.static),
            Route("/api/runs", self.runs),
            Route("/api/runs/{run}/frames", self.frames),
            Route("/api/runs/{run}/function", self.function),
            Route("/api/runs/{run}/animation.gif", self.animation),
            Route("/api/runs/{run}/figures/{name}", self.figure),
            Route("/api/events", self.events),
        ]

    def page(self, _: Request) -> Response:
        return Response(assets.page(), media_type="text/html")

    def static(self, request: Request) -> Response:
        found = assets.find(request.path_params["name"])
        if found is None:
            return _nothing()
        return Response(*found) if isinstance(found, tuple) else FileResponse(found)

    def runs(self, _: Request) -> Response:
        return _json([source.describe() for source in self._sources])

    def frames(self, request: Request) -> Response:
        source = self._source(request)
        return _nothing() if source is None else _json(source.frames())

    def function(self, request: Request) -> Response:
        source = self._source(request)
        agent, rounds = (_integer(request.query_params.get(name)) for name in ("agent", "round"))
        if source is None or agent is None or rounds is None:
            return _nothing()
        try:
            found = source.function(agent, rounds)
        except KernelMeshError as error:  # a missing package, or a function that cannot be evaluated
            return PlainTextResponse(str(error), status_code=503)
        return _nothing() if found is None else _json(found)

    def animation(self, request: Request) -> Response:
        source = self._source(request)
        recording = source.recording if isinstance(source, RecordedSource) else None
        data = animation(recording) if recording else None
        if data is None:
            return _nothing()
        return Response(data, media_type="image/gif")

    def figure(self, request: Request) -> Response:
        """A figure from the run's folder, looked up by name among those that the page lists, never by path."""
        source = self._source(request)
        listed = {path.name: path for path in (source.figures() if source else ())}
        path = listed.get(request.path_params["name"])
        return FileResponse(path) if path is not None and _inside(path) else _nothing()

    async def events(self, request: Request) -> Response:
        kind: dict[str, Any] = {"media_type": "text/event-stream", "headers": {"X-Accel-Buffering": "no"}}
        if request.method == "HEAD":  # a response to HEAD must end
            return Response(**kind)
        return StreamingResponse(changes(self._sources, self._closing), **kind)

    def _source(self, request: Request) -> Source | None:
        run = _integer(request.path_params["run"])
        return self._sources[run] if run is not None and run < len(self._sources) else None


async def changes(sources: Sequence[Source], closing: Callable[[], bool], *, tick: float = _TICK) -> AsyncIterator[str]:
    """Server-sent events: the status of each source whenever it changes, and new frames of those in progress."""
    yield "retry: 1000\n\n"
    last: list[Any] = [None] * len(sources)
    sent = [0] * len(sources)
    silent = 0.0
    while not closing():
        for run, source in enumerate(sources):
            news = await run_in_threadpool(source.news)
            if news == last[run]:
                continue
            fresh = last[run] is not None and news.generation == last[run].generation
            message: dict[str, Any] = {"run": run, **vars(news)}
            if fresh and news.version != last[run].version:
                message["frames"] = await run_in_threadpool(source.frames_after, sent[run])
                message["marks"] = source.marks()
                sent[run] = max(sent[run], message["frames"]["newest"])
            elif not fresh:
                sent[run] = await run_in_threadpool(_newest_round, source)
            message["newest"] = sent[run]
            last[run], silent = news, 0.0
            yield f"data: {json.dumps(_finite(message))}\n\n"
        await asyncio.sleep(tick)
        silent += tick
        if silent >= _ALIVE:
            silent = 0.0
            yield ": still there\n\n"


def _newest_round(source: Source) -> int:
    recording = source.recording if isinstance(source, RecordedSource) else None
    frames = recording.frames if recording else ()
    return frames[-1].round if frames else 0


def _inside(path: Path) -> bool:
    """Whether a listed file is in its folder even after following symbolic links."""
    return path.resolve().parent == path.parent.resolve()


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 12 else None


def _nothing() -> Response:
    return PlainTextResponse("Not found.", status_code=404)


def _json(value: Any) -> Response:
    return JSONResponse(_finite(value))


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
