"""What an agent on a thin link may send, and when."""

from collections import deque

from kernelmesh.agent import Agent
from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.frames import FRAME_BYTES

__all__ = ["HELLO_BYTES", "Allowance", "check_rate"]

HELLO_BYTES = FRAME_BYTES + 100
"""A hello with its frame, at most, unless members have been forgotten."""
_WINDOW = 10.0  # seconds over which the rate is an average
_CONTENT = 0.5  # the least part of the rate that is for sums and points; hellos may use the rest


def check_rate(agent: Agent, rate: float) -> None:
    """Reject a rate at which the largest sums could never be sent."""
    settings, outputs = agent.relay_settings, agent.outputs
    order = settings.max_order
    sums = settings.bits // 8 * order * (order + 1) // 2 + settings.bits // 8 * order * outputs + 4 * (order + outputs)
    points = 8 * order * (agent.dimension + 1)
    least = (max(sums, points) + 10 * HELLO_BYTES) / (_CONTENT * _WINDOW)
    if rate < least:
        rule = f"be at least {least:.0f}, so that sums over max_order = {order} points can be sent within {_WINDOW:g} seconds"
        remedy = "lower the learner's max_order, or send fewer bits (the protocol can have bits = 16)"
        raise InvalidArgument("Membership", "max_bytes_per_second", rule, rate, remedy=remedy)


class Allowance:
    """At most `rate` bytes per second, on average over any ten seconds.

    Nothing is ever queued: what may not be sent now is dropped, and something newer is said instead of it later. Hellos are
    spaced so that they use at most half of the rate.

    >>> allowance = Allowance(1000.0, neighbors=2)
    >>> allowance.takes(4000, now=0.0), allowance.takes(4000, now=5.0), allowance.takes(4000, now=10.0)
    (True, False, True)
    """

    def __init__(self, rate: float, *, neighbors: int) -> None:
        self._rate, self._neighbors = rate, neighbors
        self._sent: deque[tuple[float, int, bool]] = deque()
        self._total = self._content = 0

    def pause(self, size: int) -> float:
        """Seconds between two hellos of this size to the same neighbor."""
        return size * self._neighbors / ((1.0 - _CONTENT) * self._rate)

    def takes(self, size: int, *, now: float, is_hello: bool = False) -> bool:
        """Whether so many bytes may be sent now; if so, they are."""
        while self._sent and self._sent[0][0] <= now - _WINDOW:
            _, before, was_hello = self._sent.popleft()
            self._total -= before
            self._content -= 0 if was_hello else before
        limit = _WINDOW * self._rate
        if self._total + size > limit or (not is_hello and self._content + size > _CONTENT * limit):
            return False
        self._sent.append((now, size, is_hello))
        self._total += size
        self._content += 0 if is_hello else size
        return True
