"""Validation of external input; violations raise `InvalidArgument`."""

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.errors import InvalidArgument, Verbatim

__all__ = ["Floats", "Ints", "class_labels", "finite", "generator", "integer", "matrix", "non_negative"]
__all__ += ["positive"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _real(owner: str, argument: str, rule: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidArgument(owner, argument, rule, value)
    return float(value)


def positive(owner: str, argument: str, value: object, *, infinite: bool = False) -> float:
    """A number > 0, finite unless `infinite` allows otherwise."""
    rule = "be a number > 0" if infinite else "be a finite number > 0"
    found = _real(owner, argument, rule, value)
    if not found > 0 or (math.isinf(found) and not infinite):
        raise InvalidArgument(owner, argument, rule, value)
    return found


def non_negative(owner: str, argument: str, value: object, *, infinite: bool = False) -> float:
    """A number ≥ 0, finite unless `infinite` allows otherwise."""
    rule = "be a number >= 0" if infinite else "be a finite number >= 0"
    found = _real(owner, argument, rule, value)
    if not found >= 0 or (math.isinf(found) and not infinite):
        raise InvalidArgument(owner, argument, rule, value)
    return found


def integer(owner: str, argument: str, value: object, *, minimum: int) -> int:
    """An integer ≥ `minimum`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < minimum:
        raise InvalidArgument(owner, argument, f"be an integer >= {minimum}", value)
    return int(value)


def matrix(owner: str, argument: str, value: Any, *, columns: int | None = None, rows: int | None = None) -> Floats:
    """A C-contiguous matrix of finite float64 with the given number of columns and rows."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidArgument(owner, argument, "have rows of equal length", value) from None
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(owner, argument, "contain real numbers", Verbatim(f"dtype {array.dtype}"))
    if array.ndim != 2:
        raise InvalidArgument(owner, argument, "have 2 dimensions (rows, columns)", Verbatim(f"shape {array.shape}"))
    if columns is not None and array.shape[1] != columns:
        raise InvalidArgument(owner, argument, f"have {columns} columns", Verbatim(f"shape {array.shape}"))
    if rows is not None and array.shape[0] != rows:
        raise InvalidArgument(owner, argument, f"have {rows} rows", Verbatim(f"shape {array.shape}"))
    array = np.ascontiguousarray(array, dtype=np.float64)
    if not finite(array):
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InvalidArgument(owner, argument, "be finite", Verbatim(f"{array[row, column]} at row {row}, column {column}"))
    return array


def finite(array: Floats) -> bool:
    """Whether every number is finite.

    >>> finite(np.array([1.0, 2.0])), finite(np.array([1.0, np.nan]))
    (True, False)
    """
    each = np.isfinite(array)
    # searching bytes is several times faster than .all(), unless there are many
    return b"\0" not in each.tobytes() if each.size <= 10_000 else bool(each.all())


def generator(owner: str, value: object) -> np.random.Generator:
    """A numpy generator, so that everything random is reproducible."""
    if not isinstance(value, np.random.Generator):
        raise InvalidArgument(
            owner, "rng", "be a numpy.random.Generator", value, remedy="for example np.random.default_rng(0)"
        )
    return value


def class_labels(owner: str, argument: str, value: Any, *, classes: int, rows: int) -> Ints:
    """A vector of `rows` class numbers 0 … classes − 1."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise InvalidArgument(owner, argument, "contain integers (class numbers)", Verbatim(f"dtype {array.dtype}"))
    if array.shape != (rows,):
        raise InvalidArgument(owner, argument, f"have shape ({rows},)", Verbatim(f"shape {array.shape}"))
    array = np.ascontiguousarray(array, dtype=np.int64)
    if rows and np.maximum.reduce(array.view(np.uint64)) >= classes:  # a negative number is huge when read as unsigned
        outside = (array < 0) | (array >= classes)
        raise InvalidArgument(owner, argument, f"be class numbers 0..{classes - 1}", array[outside][0])
    return array
