"""What happened along a run: where the penalty has doubled, and where agents went away or came back."""

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
    """Notices events while frames arrive, before any frame is dropped; bounded, however long the run.

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
        """At most as many as a page can show, each with a sentence."""
        found = self._found.items
        return [found[n] for n in evenly(len(found), _SHOWN)]

    def add(self, frame: Frame) -> None:
        """Compare a frame with those before it."""
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
    """The marks of frames that are all there."""
    out = Marks(names)
    for frame in frames:
        out.add(frame)
    return out


def _named(name: str) -> str:
    """Add a word to bare numbers: Agent 3, but agent-3 as it is."""
    return name if name.lower().startswith("agent") else f"Agent {name}"
