"""Who has sent what cannot be used: counted, told once per kind, after a few times ignored for a growing while."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

__all__ = ["Guard"]

_FREE = 3  # offences that have no consequences
_FIRST, _LONGEST = 1.0, 300.0  # seconds
_MOST = 256  # offenders remembered
_MOST_TOLD = 200

_log = logging.getLogger("kernelmesh.agent")


@dataclass(slots=True)
class _Record:
    offences: int = 0
    pause: float = 0.0
    until: float = 0.0


class Guard:
    """Keeps the record of offenders, each by name and the token of its process.

    Whoever uses a neighbor's name without its token can only get itself ignored.

    >>> guard = Guard()
    >>> for _ in range(4):
    ...     guard.offend("south", 7, "message: header must be JSON", now=0.0)
    >>> guard.ignores("south", 7, now=0.5), guard.ignores("south", 8, now=0.5), guard.ignores("south", 7, now=1.5)
    (True, False, False)
    """

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        """Messages refused so far, by the name that was used."""
        self._records: OrderedDict[tuple[str, int], _Record] = OrderedDict()
        self._told: set[tuple[str, str]] = set()

    def offend(self, name: str, token: int, reason: str, *, now: float) -> None:
        """Something of this sender was refused."""
        name = name[:64]
        self.refused[name if name in self.refused or len(self.refused) < _MOST else "others"] += 1
        record = self._records.setdefault((name, token), _Record())
        self._records.move_to_end((name, token))
        if len(self._records) > _MOST:
            self._records.popitem(last=False)
        record.offences += 1
        if self._new(name, reason.partition(", got")[0]):
            _log.warning("refused a message from %s: %s (further ones of this kind are only counted)", name, reason)
        if record.offences > _FREE and now >= record.until:
            record.pause = min(max(2.0 * record.pause, _FIRST), _LONGEST)
            record.until = now + record.pause
            if self._new(name, f"ignored for {record.pause}"):
                _log.warning("ignoring %s for %.0f s after %d refused messages", name, record.pause, record.offences)

    def _new(self, name: str, kind: str) -> bool:
        """Whether this has not been told yet; there is an end to what is told, because names can be made up."""
        if (name, kind) in self._told or len(self._told) >= _MOST_TOLD:
            return False
        self._told.add((name, kind))
        return True

    def ignores(self, name: str, token: int, *, now: float) -> bool:
        """Whether a sender is not being listened to at the moment."""
        record = self._records.get((name[:64], token))
        return record is not None and now < record.until

    @property
    def total(self) -> int:
        """Messages refused so far."""
        return self.refused.total()
