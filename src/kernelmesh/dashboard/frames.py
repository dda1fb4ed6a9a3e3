"""Downsampling on the server, so that a page can hold a recording of any length."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.dashboard.recording import AGENT, EDGE, TOTALS, Frame, Subject
from kernelmesh.dashboard.thinning import evenly

__all__ = ["frame_limit", "frame_table", "frames_after", "packed"]

_NUMBERS = 450_000  # the limit that a page holds of one run
_MOST_FRAMES = 500
_NEWS = 20  # the number of frames sent at a time


def packed(array: NDArray[Any]) -> str:
    """Numbers as text: float32, little-endian, base64."""
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def frame_limit(subject: Subject) -> int:
    """The maximum number of frames that a page holds of such a network."""
    size = len(TOTALS) + len(AGENT) * len(subject.names) + len(EDGE) * len(subject.edges)
    return int(min(max(_NUMBERS // size, 100), _MOST_FRAMES))


def frame_table(subject: Subject, frames: Sequence[Frame]) -> dict[str, Any]:
    """The frames as one table for a page: at most `frame_limit`, evenly spaced, including the first and the newest."""
    limit = frame_limit(subject)
    return {"limit": limit, "recorded": len(frames), **_table(subject, [frames[n] for n in evenly(len(frames), limit)])}


def frames_after(subject: Subject, frames: Sequence[Frame], rounds: int) -> dict[str, Any]:
    """The frames after a round, as a table like that of `frame_table`."""
    news = [frame for frame in frames if frame.round > rounds]
    return _table(subject, [news[n] for n in evenly(len(news), _NEWS)])


def _table(subject: Subject, chosen: Sequence[Frame]) -> dict[str, Any]:
    agents = np.array([frame.agents for frame in chosen]).reshape(len(chosen), len(subject.names), len(AGENT))
    edges = np.array([frame.edges for frame in chosen]).reshape(len(chosen), len(subject.edges), len(EDGE))
    totals = np.array([[frame.totals[name] for name in TOTALS] for frame in chosen])
    newest = chosen[-1].round if chosen else 0
    return {
        "count": len(chosen),
        "newest": newest,
        "totals": packed(totals),
        "agents": packed(agents),
        "edges": packed(edges),
    }
