"""A record of bounded size for an endless sequence."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

__all__ = ["Thinned", "evenly"]

T = TypeVar("T")


class Thinned(Generic[T]):
    """Evenly spaced items of a sequence, in order, whose total cost stays within `budget`.

    Whenever the budget is exceeded, every second item is dropped, and from then on the spacing is twice as large. The first
    and the newest item are always kept.

    Parameters
    ----------
    budget : float
        The maximum total cost of all items.
    cost : callable
        The cost of one item; by default 1, so that the budget is a count.
    items : iterable
        The first items.

    Examples
    --------
    >>> kept = Thinned(5)
    >>> for number in range(100):
    ...     kept.append(number)
    >>> kept.items
    (0, 32, 64, 96, 99)
    """

    def __init__(self, budget: float, cost: Callable[[T], float] = lambda _: 1.0, *, items: Iterable[T] = ()) -> None:
        self._budget, self._cost = budget, cost
        self._items: list[T] = []
        self._numbers: list[int] = []
        self._stride, self._count, self._total = 1, 0, 0.0
        for item in items:
            self.append(item)

    @property
    def items(self) -> tuple[T, ...]:
        """The items that are kept."""
        return tuple(self._items)

    def append(self, item: T) -> None:
        """Append an item; this may drop others."""
        if self._items and self._numbers[-1] % self._stride:  # it was kept only as the newest
            self._drop(len(self._items) - 1)
        self._items.append(item)
        self._numbers.append(self._count)
        self._total += self._cost(item)
        self._count += 1
        while self._total > self._budget and len(self._items) > 2:
            self._halve()

    def drop_after(self, last: Callable[[T], bool]) -> None:
        """Drop items from the end until `last` holds for one."""
        while self._items and not last(self._items[-1]):
            self._drop(len(self._items) - 1)

    def _drop(self, at: int) -> None:
        self._total -= self._cost(self._items.pop(at))
        self._numbers.pop(at)

    def _halve(self) -> None:
        self._stride *= 2
        for at in range(len(self._items) - 2, 0, -1):
            if self._numbers[at] % self._stride:
                self._drop(at)


def evenly(count: int, limit: int) -> Sequence[int]:
    """At most `limit` (at least two) of the numbers 0 … count − 1, evenly spaced, including the first and the last.

    >>> evenly(10, 4)
    [0, 3, 6, 9]
    """
    if count <= limit:
        return list(range(count))
    limit = max(limit, 2)
    return [round(n * (count - 1) / (limit - 1)) for n in range(limit)]
