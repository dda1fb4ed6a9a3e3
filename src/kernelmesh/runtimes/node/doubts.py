"""Counts and logs the messages that screening rejects or clips."""

import logging
from collections import Counter
from collections.abc import Hashable, Mapping

__all__ = ["Doubts"]

_log = logging.getLogger("kernelmesh.agent")

_MILESTONES = frozenset(10**power for power in range(10))  # counts that are logged
_SERIOUS = 10  # messages from which on it is more than an accident


class Doubts:
    """Counts the messages that screening rejected or clipped, by neighbor.

    >>> doubts = Doubts()
    >>> doubts.note({"south": "has a loss of 3 on this agent's samples (limit 1)"}, {})
    >>> doubts.left_out["south"], doubts.newest["south"]
    (1, "has a loss of 3 on this agent's samples (limit 1)")
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.clipped: Counter[str] = Counter()
        self.newest: dict[str, str] = {}
        """The last finding by neighbor: why, and by how much."""

    def note(self, left_out: Mapping[Hashable, str], clipped: Mapping[Hashable, str]) -> None:
        """Record the findings of screening in a step."""
        for verb, counts, found in (("rejected", self.left_out, left_out), ("clipped", self.clipped, clipped)):
            for neighbor, reason in found.items():
                name = str(neighbor)
                counts[name] += 1
                self.newest[name] = reason
                count = counts[name]
                if count in _MILESTONES:
                    level = logging.WARNING if count >= _SERIOUS else logging.INFO
                    _log.log(level, "%s messages from %s (%d so far): the latest %s", verb, name, count, reason)
