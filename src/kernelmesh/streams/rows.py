"""Parses many rows, counts the invalid ones, and queues the valid ones until a mini-batch is full."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Ints
from kernelmesh.errors import InvalidRow
from kernelmesh.streams.base import Batch

__all__ = ["ParsedRows", "RowCounter", "RowQueue", "next_batch_size", "parse_rows"]

_LOGGER = logging.getLogger("kernelmesh.streams")
# How many rows are parsed at once, and how many after one of those is invalid: enough to be fast, few enough to save
# memory.
_SMALLER = {1024: 64, 64: 1}


class ParsedRows(NamedTuple):
    """The valid rows among many, and their numbers."""

    batch: Batch
    valid: Ints
    """The numbers of the valid rows."""
    invalid: list[tuple[int, str]]
    """The numbers of the invalid rows, with the reasons."""


def parse_rows(rows: int, read: Callable[[int, int], Batch]) -> ParsedRows:
    """Parse `rows` rows: as many as possible at once, and one at a time only around invalid rows.

    `read(start, stop)` raises InvalidRow if one of its rows is invalid, and skips blank rows.

    >>> from kernelmesh.streams import Columns
    >>> columns, table = Columns(points=("x",), targets=("y",), labels=False), {"x": ["1", "2", "?"], "y": ["0", "0", "0"]}
    >>> parse_rows(3, lambda start, stop: columns.read_all({name: table[name][start:stop] for name in table})).valid
    array([0, 1])
    """
    parts = [read(0, 0)]  # so that there is one
    valid: list[Ints] = [np.arange(0)]
    invalid: list[tuple[int, str]] = []

    def parse(start: int, stop: int, size: int) -> None:
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            try:
                parts.append(read(begin, end))
                valid.append(np.arange(begin, begin + len(parts[-1].points)))
            except InvalidRow as reason:
                if size > 1:
                    parse(begin, end, _SMALLER[size])
                else:
                    invalid.append((begin, str(reason)))

    parse(0, rows, max(_SMALLER))
    points, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ParsedRows(Batch(points, targets), np.concatenate(valid), invalid)


class RowCounter:
    """Counts dropped rows and logs the first five, then one at every power of ten, so that the log stays short.

    >>> counter = RowCounter()
    >>> counter.add("samples.csv, line 3: dropped", "no number")
    >>> counter.count
    1
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self, what: str, reason: str, *, rows: int = 1) -> None:
        """Count a row, and log it if due."""
        before, self.count = self.count, self.count + rows
        if self.count <= 5 or len(str(self.count)) > len(str(before)):
            _LOGGER.warning("%s (%d so far): %s", what, self.count, reason)


class RowQueue:
    """A queue of rows of several arrays, from which mini-batches are taken.

    >>> queue = RowQueue(2, endless=True)
    >>> queue.put(np.arange(3.0), np.arange(3))
    >>> queue.take(more=True), queue.rows
    ((array([0., 1.]), array([0, 1])), 1)
    """

    def __init__(self, batch_size: int, *, endless: bool) -> None:
        self._batch_size, self._endless = batch_size, endless
        self._blocks: list[tuple[NDArray[Any], ...]] = []
        self.rows = 0
        self.newest: tuple[NDArray[Any], ...] = ()
        """The last mini-batch taken, as long as it can be given back."""

    def put(self, *arrays: NDArray[Any], first: bool = False) -> None:
        """Append rows, or prepend them."""
        if arrays and len(arrays[0]):
            self._blocks.insert(0 if first else len(self._blocks), arrays)
            self.rows += len(arrays[0])

    def take(self, *, more: bool) -> tuple[NDArray[Any], ...] | None:
        """Remove and return the next mini-batch; None if there is none while `more` rows may follow."""
        size = next_batch_size(self.rows, self._batch_size, more=more, endless=self._endless and more)
        if not size:
            return None
        self.newest = self.peek(size)
        self.drop(size)
        return self.newest

    def give_back(self) -> int:
        """Put the last mini-batch back and return its number of rows; 0 if it was already put back."""
        before = self.rows
        self.put(*self.newest, first=True)
        self.newest = ()
        return self.rows - before

    def peek(self, rows: int) -> tuple[NDArray[Any], ...]:
        """A copy of the oldest rows, so that a mini-batch does not keep larger arrays alive; there must be enough rows."""
        # all blocks at once, since otherwise many small ones would be copied repeatedly
        if len(self._blocks[0][0]) < rows:
            self._blocks = [tuple(map(np.concatenate, zip(*self._blocks, strict=True)))]
        return tuple(array[:rows].copy() for array in self._blocks[0])

    def drop(self, rows: int) -> None:
        """Remove the oldest rows."""
        self.rows -= rows
        while rows:
            first = self._blocks[0]
            if len(first[0]) > rows:
                self._blocks[0] = tuple(array[rows:] for array in first)
                return
            rows -= len(first[0])
            del self._blocks[0]


def next_batch_size(waiting: int, batch_size: int, *, more: bool, endless: bool = False) -> int:
    """How many of the waiting rows form the next mini-batch, by the rule of ArrayStream; 0 if not yet known.

    While more rows may follow, half a mini-batch must wait behind a full one: fewer rows would join it at the end. If
    there is no end, mini-batches are always full.

    >>> next_batch_size(5, 4, more=True), next_batch_size(6, 4, more=True), next_batch_size(5, 4, more=False)
    (0, 4, 5)
    """
    rest = waiting - batch_size
    if endless:
        return batch_size if rest >= 0 else 0
    if more:
        return batch_size if rest >= 0 and (2 * rest >= batch_size or batch_size <= 2) else 0
    return waiting if 2 * rest < batch_size else batch_size
