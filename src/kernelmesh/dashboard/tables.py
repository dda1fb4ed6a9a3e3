"""What a page receives: JSON, and frames as tables, downsampled so that it can hold a recording of any length."""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints
from kernelmesh.dashboard.recording import AGENT, EDGE, TOTALS, Frame, Subject
from kernelmesh.dashboard.thinning import evenly

__all__ = ["frame_limit", "frame_table", "packed", "positions", "to_json"]

_NUMBERS = 450_000  # the limit that a page holds of one run, in at most this many frames:
_MOST_FRAMES = 500
_NEWS = 20  # the number of frames sent at a time
_ITERATIONS = 250  # after which positions hardly change


def to_json(value: Any) -> bytes:
    """As JSON, with null for infinity and NaN."""
    return msgspec.json.encode(value, enc_hook=float)  # for NumPy's floats


def packed(array: NDArray[Any]) -> str:
    """Numbers as text: float32, little-endian, base64."""
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def frame_limit(subject: Subject) -> int:
    """The maximum number of frames that a page holds of such a network."""
    size = len(TOTALS) + len(AGENT) * len(subject.names) + len(EDGE) * len(subject.edges)
    return int(min(max(_NUMBERS // size, 100), _MOST_FRAMES))


def frame_table(subject: Subject, frames: Sequence[Frame], *, after: int | None = None) -> dict[str, Any]:
    """The frames as one table: at most `frame_limit`, evenly spaced with both ends, or fewer of those after a round."""
    news = frames if after is None else [frame for frame in frames if frame.round > after]
    limit = frame_limit(subject)
    chosen = [news[n] for n in evenly(len(news), limit if after is None else _NEWS)]
    return {
        "limit": limit,
        "recorded": len(frames),
        "count": len(chosen),
        "newest": chosen[-1].round if chosen else 0,
        "totals": packed(np.array([[frame.totals[name] for name in TOTALS] for frame in chosen])),
        "agents": packed(np.array([frame.agents for frame in chosen])),
        "edges": packed(np.array([frame.edges for frame in chosen])),
    }


def positions(count: int, edges: Ints) -> Floats:
    """Positions of agents in [0, 1]² after Fruchterman and Reingold: neighbors attract, all repel; equal for equal graphs.

    >>> positions(1, np.zeros((0, 2), dtype=int)).tolist()
    [[0.5, 0.5]]
    """
    angles = 2 * np.pi * np.arange(count) / max(count, 1)
    at = np.column_stack((np.sin(angles), -np.cos(angles)))
    ideal = 1.6 / np.sqrt(count)
    for step in np.linspace(0.2, 0.002, _ITERATIONS if count > 1 else 0):
        apart = at[:, None] - at[None]
        distances = np.sqrt((apart**2).sum(axis=2)) + np.eye(count)
        force = (apart * (ideal**2 / distances**2)[..., None]).sum(axis=1)
        pull = at[edges[:, 0]] - at[edges[:, 1]]
        pull *= np.sqrt((pull**2).sum(axis=1))[:, None] / ideal
        np.add.at(force, edges[:, 0], -pull)
        np.add.at(force, edges[:, 1], pull)
        length = np.sqrt((force**2).sum(axis=1))[:, None] + 1e-12
        at = at + force / length * np.minimum(length, step)
    low, high = at.min(axis=0), at.max(axis=0)
    return np.asarray((at - (low + high) / 2) / max((high - low).max(), 1e-9) + 0.5)
