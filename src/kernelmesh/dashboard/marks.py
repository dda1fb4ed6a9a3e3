"""Events of a run: when the penalty doubled, and when agents left or returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmesh.dashboard.thinning import Thinned, evenly

if TYPE_CHECKING:
    from kernelmesh.dashboard.recording import Frame

__all__ = ["Marks", "marks"]

_SHOWN, _KEPT = 24, 200


class Marks:
    """Detects events as frames arrive, before any frame is dropped; its size is bounded for runs of any length.

    Parameters
    ----------
    names : sequence of str
        The agents.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._penalty = 0.0
        self._away = np.zeros(len(names), dtype=bool)
        self._found: Thinned[dict[str, Any]] = Thinned(_KEPT)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The marks to show, each with a sentence; at most as many as a page can hold."""
        found = self._found.items
        return [found[n] for n in evenly(len(found), _SHOWN)]

    def add(self, frame: Frame) -> None:
        """Compare a frame with earlier ones."""
        penalty, samples = frame.totals["penalty"], frame.totals["samples"]
        doubled = penalty >= 2 * self._penalty * (1 - 1e-9)
        if self._penalty and doubled:
            self._append(samples, "penalty", f"The penalty doubled to {penalty:.3g}.")
        if doubled:
            self._penalty = penalty
        for agent in np.flatnonzero(frame.away != self._away).tolist():
            away = bool(frame.away[agent])
            kind, what = ("away", "went away") if away else ("back", "came back")
            self._append(samples, kind, f"{_named(self._names[agent])} {what}.")
        if len(frame.away):
            self._away = frame.away

    def _append(self, samples: float, kind: str, text: str) -> None:
        self._found.append({"samples": samples, "kind": kind, "text": text})


def marks(names: Sequence[str], frames: Iterable[Frame]) -> Marks:
    """The marks of a complete sequence of frames."""
    out = Marks(names)
    for frame in frames:
        out.add(frame)
    return out


def _named(name: str) -> str:
    """Prefix bare numbers: 3 becomes Agent 3, but agent-3 stays as it is."""
    return name if name.lower().startswith("agent") else f"Agent {name}"
