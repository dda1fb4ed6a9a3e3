"""Maps the columns of a table to points and targets, and validates rows."""

import contextlib
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from kernelmesh.checks import Floats, integer
from kernelmesh.errors import InvalidArgument, InvalidRow, Verbatim, format_value
from kernelmesh.schema import did_you_mean
from kernelmesh.streams.base import Batch

__all__ = ["Columns", "plain"]


@dataclass(kw_only=True)
class Columns:
    """Converts records to samples: numbers for the point, and a class number or numbers for the target.

    Parameters
    ----------
    points : tuple of str
        The feature columns.
    targets : tuple of str
        The class column, or one column for each output.
    classes : tuple of str, optional
        The class names in the data, in the order of their numbers; by default the column contains class numbers.
    labels : bool
        Whether targets are classes (otherwise values).
    outputs : int, optional
        The number of classes or of target columns. By default it follows from the others; for class numbers, any is allowed.

    Attributes
    ----------
    names : tuple of str
        All columns that are read.

    Examples
    --------
    >>> columns = Columns(points=("x", "y"), targets=("kind",), classes=("cat", "dog"), labels=True)
    >>> columns.read({"x": "0.5", "y": 2, "kind": "dog"})
    ([0.5, 2.0], 1)
    >>> columns.read({"x": "0.5", "y": "?", "kind": "dog"})
    Traceback (most recent call last):
        ...
    kernelmesh.errors.InvalidRow: column 'y' must be a finite number, got '?'
    """

    points: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    labels: bool
    outputs: int | None = None

    def __post_init__(self) -> None:
        for argument in ("points", "targets") if self.classes is None else ("points", "targets", "classes"):
            setattr(self, argument, _names(argument, getattr(self, argument)))
        if not isinstance(self.labels, bool):
            raise InvalidArgument("Columns", "labels", "be True (class numbers) or False (values)", self.labels)
        if both := set(self.points) & set(self.targets):
            raise InvalidArgument("Columns", "targets", "differ from the points", sorted(both))
        if self.labels and len(self.targets) != 1:
            raise InvalidArgument("Columns", "targets", "be a single column when labels is True", self.targets)
        if self.classes is not None and not self.labels:
            raise InvalidArgument("Columns", "classes", "be None when labels is False", self.classes)
        if self.outputs is not None:
            integer("Columns", "outputs", self.outputs, minimum=1)
        named, what = (self.classes, "classes") if self.labels else (self.targets, "target columns")
        if named is not None and self.outputs not in (None, len(named)):
            raise InvalidArgument("Columns", "outputs", f"be {len(named)}, the number of {what}", self.outputs)
        self.outputs = self.outputs if named is None else len(named)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.points + self.targets

    def check_header(self, names: Sequence[str], *, owner: str, table: str) -> None:
        """Reject a table unless each required column appears exactly once among these names."""
        for name in self.names:
            if names.count(name) != 1:
                argument = "points" if name in self.points else "targets"
                rule, hint = f"name columns that appear only once in {table}", ""
                if name not in names:
                    rule, hint = f"name columns of {table}", did_you_mean(name, names)
                there = format_value(Verbatim(", ".join(map(repr, names)) or "none"))
                raise InvalidArgument(owner, argument, rule, name, remedy=f"{hint} its columns are {there}".strip())

    def read(self, record: Mapping[str, Any]) -> tuple[list[float], Any]:
        """The point and the target of one record, whose values are text or numbers; raises InvalidRow if it is invalid."""
        points, targets = self.read_all(self.table([record]))
        return points[0].tolist(), targets[0].tolist()

    def table(self, records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Convert records to columns; raises InvalidRow if one of them lacks a column."""
        try:
            return {name: [record[name] for record in records] for name in self.names}
        except KeyError as error:
            (name,) = error.args
            there = next(sorted(map(str, record)) for record in records if name not in record)
            columns = format_value(Verbatim(", ".join(map(repr, there)) or "none"))
            raise InvalidRow(f"column {name!r} is missing; the columns are {columns}") from None

    def read_all(self, table: Mapping[str, Any]) -> Batch:
        """The samples of many records, given as columns; raises InvalidRow for the first invalid one."""
        points = _numbers(table, self.points)
        if not self.labels:
            return Batch(points, _numbers(table, self.targets))
        (name,) = self.targets
        if self.classes is not None:
            values = plain(table[name])
            numbers_by_name: dict[str | None, int] = {text: number for number, text in enumerate(self.classes)}
            found = [numbers_by_name.get(_text(value)) for value in values]
            if None in found:
                raise _invalid(name, f"be one of {', '.join(map(repr, self.classes))}", values[found.index(None)])
            return Batch(points, np.array(found, dtype=np.int64))
        labels = _numbers(table, self.targets)[:, 0]  # exact below 2^53
        wrong = (labels < 0) | (labels >= (self.outputs or 2**53)) | (labels != np.floor(labels))
        if wrong.any():
            rule = "be a class number" if self.outputs is None else f"be a class number 0..{self.outputs - 1}"
            raise _invalid(name, rule, plain(table[name])[int(wrong.argmax())])
        return Batch(points, labels.astype(np.int64))


def _names(argument: str, value: Any) -> tuple[str, ...]:
    rule = "be one or more distinct names"
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise InvalidArgument("Columns", argument, rule, value)
    if not all(isinstance(name, str) for name in value) or len(set(value)) != len(value):
        raise InvalidArgument("Columns", argument, rule, value)
    return tuple(value)


def _invalid(name: str, rule: str, value: object) -> InvalidRow:
    return InvalidRow(f"column {name!r} must {rule}, got {format_value(value)}")


def _number(name: str, value: Any) -> float:
    # float reads "1_5" as 15, which is surely a mistake in data
    is_number = isinstance(value, str | numbers.Real | Decimal) and not isinstance(value, bool)
    number = math.nan
    try:
        number = float(value) if is_number and not (isinstance(value, str) and "_" in value) else math.nan
    except ValueError:
        pass
    except OverflowError:
        value = Verbatim("a number too large for a float")
    if not math.isfinite(number):
        raise _invalid(name, "be a finite number", value)
    return number


def _numbers(table: Mapping[str, Any], names: tuple[str, ...]) -> Floats:
    """The named columns side by side."""
    return np.stack([_column(name, table[name]) for name in names], axis=1)


def _column(name: str, values: Any) -> Floats:
    """`_number` of each value; all at once if possible."""
    kinds = set() if isinstance(values, np.ndarray) else set(map(type, values))
    if kinds <= {int, float} or (kinds == {str} and "_" not in "".join(values)):
        with contextlib.suppress(ValueError, OverflowError):
            column = np.fromiter(map(float, values), np.float64, len(values)) if kinds else np.asarray(values, np.float64)
            if np.isfinite(column).all():
                return column
    return np.array([_number(name, value) for value in plain(values)])


def plain(values: Any) -> Any:
    """The values of a column as Python objects."""
    return values.tolist() if isinstance(values, np.ndarray) else values


def _text(value: Any) -> str | None:
    """The text form of a class that is not text: true, 3, 0.5."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None
