"""Warnings before certificates expire."""

import datetime
import logging
import math
import time
from collections.abc import Callable

__all__ = ["WARN_DAYS", "Expiry"]

_log = logging.getLogger("kernelmesh.agent")

WARN_DAYS = 14.0
"""The number of days before expiry from which an agent warns."""


class Expiry:
    """The expiry times of an agent's certificates, in seconds since 1970, by description.

    >>> Expiry({"the certificate of north": 86400.0}, wall=lambda: 0.0).days
    1.0
    """

    def __init__(self, until: dict[str, float], *, wall: Callable[[], float] = time.time) -> None:
        self._what, self._until = min(until.items(), key=lambda item: item[1])
        self._wall, self._warned = wall, -math.inf

    @property
    def days(self) -> float:
        """Days until the first of them expires; negative afterwards."""
        return (self._until - self._wall()) / 86400.0

    def warn(self, now: float) -> None:
        """Log a warning once a day if a certificate is about to expire."""
        if self.days > WARN_DAYS or now - self._warned < 86400.0:
            return
        self._warned = now
        when = datetime.datetime.fromtimestamp(self._until, datetime.UTC)
        if self.days < 0:
            _log.error("%s has expired (%s UTC): issue a new one and restart the agent", self._what, f"{when:%Y-%m-%d %H:%M}")
        else:
            text = "%s expires in %.1f days (%s UTC): issue a new one and restart the agent"
            _log.warning(text, self._what, self.days, f"{when:%Y-%m-%d %H:%M}")
