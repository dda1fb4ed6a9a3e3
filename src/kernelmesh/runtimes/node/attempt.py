"""Takes a step, and retries a failed one without the messages that made it fail."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kernelmesh.agent import State
from kernelmesh.checks import Floats
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import check_points
from kernelmesh.protocols import Heard

__all__ = ["Attempt", "attempt", "oversized", "within", "without"]

T = TypeVar("T")


class Attempt(NamedTuple, Generic[T]):
    """What became of a step."""

    result: T
    heard: list[Heard]
    """The messages that were used in the end: without those of offenders."""
    offenders: tuple[str, ...] = ()
    """The neighbors whose messages made the step fail."""
    error: Exception | None = None
    """How it failed with them."""


def without(heard: Sequence[Heard], names: Collection[object]) -> list[Heard]:
    """The same without the messages of some neighbors, who still count as present."""
    return [replace(said, reply=None) if said.neighbor in names else said for said in heard]


def attempt(take: Callable[[State, Sequence[Heard]], T], state: State, heard: list[Heard]) -> Attempt[T]:
    """Take a step from a state; if it fails, find the messages that make it fail, and take it without those.

    Each neighbor is tried alone, on a copy. If only the combination fails, all are excluded. If the step fails without
    any of them, the error is raised: no message caused it.
    """
    try:
        return Attempt(take(state, heard), heard)
    except Exception as error:  # whatever numerics, memory or somebody's protocol makes of numbers from outside
        first = error
    spoke = list(dict.fromkeys(said.neighbor for said in heard if said.reply is not None))
    if not spoke:
        raise first
    guilty = spoke
    if len(spoke) > 1:
        alone = {name: without(heard, [other for other in spoke if other != name]) for name in spoke}
        guilty = [name for name in spoke if not _works(take, state, alone[name])] or spoke
    for offenders in (guilty, spoke) if guilty != spoke else (spoke,):
        quiet = without(heard, offenders)
        try:
            return Attempt(take(state, quiet), quiet, tuple(map(str, offenders)), first)
        except Exception as error:
            first = error
    raise first


def _works(take: Callable[[State, Sequence[Heard]], T], state: State, heard: list[Heard]) -> bool:
    try:
        take(state.copy(), heard)
    except Exception:
        return False
    return True


def oversized(heard: Sequence[Heard], max_points: int) -> tuple[str, ...]:
    """The neighbors whose words would not be let in now: they are from a time when the limit was another."""
    found = []
    for said in heard:
        try:
            if said.reply is not None:
                check_points("journal", said.reply, max_points)
        except RefusedMessage:
            found.append(str(said.neighbor))
    return tuple(found)


def within(heard: list[Heard], state: State, max_points: int) -> tuple[list[Heard], list[str]]:
    """What fits into one step, and whose words must wait: those with which neighbors would add too many points in all.

    Points that the agent has already, or that several neighbors have, count once. Who is asked first changes with every step.
    """
    dimension = state.sent.dimension
    tables = {said.neighbor: _centers(said, dimension) for said in heard}
    if sum(map(len, tables.values())) <= max_points:
        return heard, []
    names = list(tables)
    first = state.steps % len(names)
    known, late = _rows(state.sent.points), []
    start = len(known)
    for name in (*names[first:], *names[:first]):
        more = np.union1d(known, _rows(tables[name]))
        if len(more) - start > max_points:
            late.append(name)
        else:
            known = more
    return without(heard, late), [str(name) for name in late]


def _centers(said: Heard, dimension: int) -> Floats:
    """The points that a neighbor's words would bring into the step."""
    centers: Floats = getattr(said.reply, "points", np.empty((0, dimension)))
    return centers


def _rows(points: Floats) -> NDArray[np.void]:
    """The different rows, each as one value that can be compared."""
    return np.unique(np.ascontiguousarray(points).view(np.dtype((np.void, 8 * points.shape[1]))).ravel())
