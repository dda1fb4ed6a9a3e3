"""Which columns of a table are points and which are targets, and what a usable row is."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer
from kernelmesh.errors import InvalidArgument, InvalidRow, Verbatim
from kernelmesh.streams.base import Batch

__all__ = ["Columns", "Sifted", "Tally", "sift"]

_LOGGER = logging.getLogger("kernelmesh.streams")
_EXACT = 2**53  # beyond it, a class number that went through a float may have become another one
_SLICE = 1024  # rows that are tried at once: enough to be fast, few enough to stay small in memory
_FEW = 64  # rows among which it is cheaper to look for a bad one singly


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Turns records into samples: numbers for the point, and a class number or numbers for the target.

    With `labels` there is one target column. It holds one of `classes`, whose place in there is the class number, or, where
    these are not given, the class number itself. Without `labels`, each target column is one output. `outputs` is the number
    of classes or of target columns; where it is not given, it follows from the others or, for class numbers, is any.

    >>> columns = Columns(points=("x", "y"), targets=("kind",), classes=("cat", "dog"), labels=True)
    >>> columns.read({"x": "0.5", "y": 2, "kind": "dog"})
    ([0.5, 2.0], 1)
    >>> columns.read({"x": "0.5", "y": "?", "kind": "dog"})
    Traceback (most recent call last):
        ...
    kernelmesh.errors.InvalidRow: Columns: column 'y' must be a finite number, got '?'
    """

    points: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    labels: bool
    outputs: int | None = None

    def __post_init__(self) -> None:
        for argument in ("points", "targets") if self.classes is None else ("points", "targets", "classes"):
            object.__setattr__(self, argument, _names(argument, getattr(self, argument)))
        if not isinstance(self.labels, bool):
            raise InvalidArgument("Columns", "labels", "be True (class numbers) or False (values)", self.labels)
        if both := set(self.points) & set(self.targets):
            raise InvalidArgument("Columns", "targets", "differ from the points", sorted(both))
        if self.labels and len(self.targets) != 1:
            raise InvalidArgument("Columns", "targets", "be one column, with labels", self.targets)
        if self.classes is not None and not self.labels:
            raise InvalidArgument("Columns", "classes", "be None without labels", self.classes)
        if self.outputs is not None:
            integer("Columns", "outputs", self.outputs, minimum=1)
        known = len(self.targets) if not self.labels else None if self.classes is None else len(self.classes)
        if known is not None and self.outputs not in (None, known):
            what = "classes" if self.labels else "target columns"
            raise InvalidArgument("Columns", "outputs", f"be {known}, the number of {what}", self.outputs)
        object.__setattr__(self, "outputs", self.outputs if known is None else known)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.points + self.targets

    def read(self, record: Mapping[str, Any]) -> tuple[list[float], Any]:
        """The point and the target of one record, whose values are text or numbers; InvalidRow if it cannot be used."""
        for name in self.names:
            if name not in record:
                raise _bad(name, "be there", Verbatim(f"the columns {sorted(map(str, record))}"))
        point = [_number(name, record[name]) for name in self.points]
        if not self.labels:
            return point, [_number(name, record[name]) for name in self.targets]
        (name,) = self.targets
        return point, self._label(name, record[name])

    def _label(self, name: str, value: Any) -> int:
        if self.classes is not None:
            text = _text(value)
            if text is None or text not in self.classes:
                raise _bad(name, f"be one of {', '.join(map(repr, self.classes))}", value)
            return self.classes.index(text)
        rule = "be a class number" if self.outputs is None else f"be a class number 0..{self.outputs - 1}"
        number = _number(name, value)
        if not 0 <= number < (self.outputs or _EXACT) or number != math.floor(number):
            raise _bad(name, rule, value)
        return int(number)

    def read_all(self, table: Mapping[str, Any]) -> Batch | None:
        """The samples of many records at once, given as columns; None if `read` would refuse one of them."""
        points = self._numbers(table, self.points)
        if points is None:
            return None
        if not self.labels:
            targets = self._numbers(table, self.targets)
            return None if targets is None else Batch(points, targets)
        (name,) = self.targets
        if self.classes is not None:
            place: dict[str | None, int] = {text: number for number, text in enumerate(self.classes)}
            values = table[name]
            plain = values.tolist() if isinstance(values, np.ndarray) else values
            found = [place.get(_text(value)) for value in plain]
            return None if None in found else Batch(points, np.array(found, dtype=np.int64))
        column = self._numbers(table, self.targets)
        if column is None:
            return None
        labels = column[:, 0]
        if not ((labels >= 0) & (labels < (self.outputs or _EXACT)) & (labels == np.floor(labels))).all():
            return None
        return Batch(points, labels.astype(np.int64))

    @staticmethod
    def _numbers(table: Mapping[str, Any], names: tuple[str, ...]) -> Floats | None:
        """The named columns side by side; None if not everything in them is a finite number."""
        columns = []
        for name in names:
            column = _column(table[name])
            if column is None or not np.isfinite(column).all():
                return None
            columns.append(column)
        return np.stack(columns, axis=1)

    def pack(self, points: Sequence[Sequence[float]], targets: Sequence[Any]) -> Batch:
        """What `read` gave, row by row, as one mini-batch."""
        goal: NDArray[Any]
        if self.labels:
            goal = np.array(targets, dtype=np.int64)
        else:
            goal = np.array(targets, dtype=np.float64).reshape(len(targets), len(self.targets))
        return Batch(np.array(points, dtype=np.float64).reshape(len(points), len(self.points)), goal)


class Sifted(NamedTuple):
    """The usable ones among many rows, and which they are."""

    batch: Batch
    kept: Ints
    """The numbers of the usable rows."""
    refused: list[tuple[int, str]]
    """The numbers of the others, and why."""


def sift(
    columns: Columns,
    rows: int,
    *,
    many: Callable[[int, int], Batch | None],
    one: Callable[[int], tuple[list[float], Any] | None],
) -> Sifted:
    """Read `rows` rows: as `many` as possible at once, and `one` at a time only around those that cannot be used.

    `many(start, stop)` gives None when one of its rows is unusable; `one(row)` raises InvalidRow then, and gives None for a
    row that says nothing.

    >>> columns = Columns(points=("x",), targets=("y",), labels=False)
    >>> table = {"x": ["1", "2", "?"], "y": ["0", "0", "0"]}
    >>> one = lambda row: columns.read({name: table[name][row] for name in table})
    >>> sift(columns, 3, many=lambda start, stop: None, one=one).kept
    array([0, 1])
    """
    parts: list[Batch] = []
    kept: list[Ints] = []
    refused: list[tuple[int, str]] = []

    def singly(start: int, stop: int) -> None:
        found, points, targets = [], [], []
        for row in range(start, stop):
            try:
                sample = one(row)
            except InvalidRow as reason:
                refused.append((row, str(reason)))
                continue
            if sample is not None:
                found.append(row)
                points.append(sample[0])
                targets.append(sample[1])
        parts.append(columns.pack(points, targets))
        kept.append(np.array(found, dtype=np.int64))

    for begin in range(0, rows, _SLICE):
        end = min(begin + _SLICE, rows)
        batch = many(begin, end)
        if batch is not None:
            parts.append(batch)
            kept.append(np.arange(begin, end))
            continue
        for start in range(begin, end, _FEW):
            stop = min(start + _FEW, end)
            batch = many(start, stop)
            if batch is None:
                singly(start, stop)
            else:
                parts.append(batch)
                kept.append(np.arange(start, stop))
    if not parts:
        return Sifted(columns.pack([], []), np.zeros(0, dtype=np.int64), refused)
    whole_batch = Batch(
        np.concatenate([part.points for part in parts]), np.concatenate([part.targets for part in parts])
    )
    return Sifted(whole_batch, np.concatenate(kept), refused)


class Tally:
    """Counts rows that are lost and says so in the log: the first five, then at every power of ten, so that it stays short.

    >>> tally = Tally()
    >>> tally.add("samples.csv, line 3: left out", "no number")
    >>> tally.count
    1
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self, what: str, reason: str, *, rows: int = 1) -> None:
        """Count, and log where it is worth it."""
        before, self.count = self.count, self.count + rows
        if self.count <= 5 or len(str(self.count)) > len(str(before)):
            _LOGGER.warning("%s (%d so far): %s", what, self.count, reason)


def _names(argument: str, value: Any) -> tuple[str, ...]:
    rule = "be different names, at least one"
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidArgument("Columns", argument, rule, value)
    if not all(isinstance(name, str) for name in value) or len(set(value)) != len(value):
        raise InvalidArgument("Columns", argument, rule, value)
    return tuple(value)


def _bad(name: str, rule: str, value: object) -> InvalidRow:
    return InvalidRow(str(InvalidArgument("Columns", f"column {name!r}", rule, value)))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real | Decimal):
        raise _bad(name, "be a finite number", value)
    try:
        number = float(value)
    except ValueError:
        raise _bad(name, "be a finite number", value) from None
    except OverflowError:
        raise _bad(name, "be a finite number", Verbatim("one too large for a float")) from None
    # float reads "1_5" as 15; nobody writes data like that on purpose
    if not math.isfinite(number) or (isinstance(value, str) and "_" in value):
        raise _bad(name, "be a finite number", value)
    return number


def _column(values: Any) -> Floats | None:
    """The same as `_number` for each, or None if that would refuse one of them (but for those that are not finite)."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float64)
    kinds = set(map(type, values))
    if not (kinds <= {int, float} or (kinds == {str} and "_" not in "".join(values))):
        return None
    try:
        return np.fromiter(map(float, values), dtype=np.float64, count=len(values))
    except (ValueError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    """How a class that is not text is written: true, 3, 0.5."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else None
