"""Counts and logs invalid messages, and ignores repeat offenders for increasing times."""

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

from kernelmesh.errors import KernelMeshError

__all__ = ["Guard"]


_log = logging.getLogger("kernelmesh.agent")


@dataclass(slots=True)
class _Record:
    offenses: int = 0
    pause: float = 0.0
    until: float = 0.0


class Guard:
    """Records offenders, each by name and the token of its process.

    The first `free` offenses have no consequences. After each further one, the sender is ignored, for `first` seconds, and
    then for twice as long each time, up to `longest`.

    An impostor that uses a neighbor's name without its token can only get itself ignored.

    >>> from kernelmesh.errors import RefusedMessage
    >>> guard = Guard()
    >>> for _ in range(4):
    ...     guard.offend("south", 7, RefusedMessage("message: must be one of format 1"), now=0.0)
    >>> guard.ignores("south", 7, now=0.5), guard.ignores("south", 8, now=0.5), guard.ignores("south", 7, now=1.5)
    (True, False, False)
    """

    def __init__(self, *, free: int = 3, first: float = 1.0, longest: float = 300.0, most: int = 200) -> None:
        self._free, self._first, self._longest, self._most = free, first, longest, most
        self.refused: Counter[str] = Counter()
        """Messages refused so far, by the name that was used."""
        self._records: OrderedDict[tuple[str, int], _Record] = OrderedDict()
        self._logged: set[tuple[str, str]] = set()

    def offend(self, name: str, token: int, error: KernelMeshError, *, now: float) -> None:
        """Record that a message from this sender was refused."""
        name = name[:64]
        self.refused[name if name in self.refused or len(self.refused) < self._most else "others"] += 1
        record = self._records.setdefault((name, token), _Record())
        self._records.move_to_end((name, token))
        if len(self._records) > self._most:
            self._records.popitem(last=False)
        record.offenses += 1
        if self._new(name, str(getattr(error, "rule", error))):
            _log.warning("refused a message from %s: %s (further ones of this kind are only counted)", name, error)
        count = self.refused[name]
        if count >= 10 and str(count).strip("0") == "1" and self._new(name, f"{count} so far"):
            _log.warning("%d messages from %s have been refused so far", count, name)
        if record.offenses > self._free and now >= record.until:
            record.pause = min(max(2.0 * record.pause, self._first), self._longest)
            record.until = now + record.pause
            if self._new(name, f"ignored for {record.pause}"):
                _log.warning("ignoring %s for %.0f s after %d refused messages", name, record.pause, record.offenses)

    def accept(self, name: str, token: int) -> None:
        """Record that a message from this sender was in order, which makes up for one that was refused."""
        record = self._records.get((name[:64], token))
        if record is None:
            return
        record.offenses -= 1
        if not record.offenses:
            del self._records[name[:64], token]

    def _new(self, name: str, kind: str) -> bool:
        """Whether this has not been logged yet; the number of log entries is limited, because names can be made up."""
        if (name, kind) in self._logged or len(self._logged) >= self._most:
            return False
        self._logged.add((name, kind))
        return True

    def ignores(self, name: str, token: int, *, now: float) -> bool:
        """Whether a sender is currently ignored."""
        if not self._records:
            return False
        record = self._records.get((name[:64], token))
        return record is not None and now < record.until

    @property
    def total(self) -> int:
        """Messages refused so far."""
        return self.refused.total()
