"""Takes a step, and retries a failed one without the messages that made it fail."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kernelmesh.agent import Agent, Info, State, advance, listen
from kernelmesh.checks import Floats
from kernelmesh.protocols import Heard
from kernelmesh.streams import Batch

__all__ = ["Attempt", "Result", "attempt", "reason", "take_step", "within", "without"]

T = TypeVar("T")
Result = tuple[State, Info | None]
"""What a step leads to; there is no info on a step without samples."""


class Attempt(NamedTuple, Generic[T]):
    """What became of a step."""

    result: T
    heard: list[Heard]
    """The messages that were used in the end: without those of offenders."""
    offenders: tuple[str, ...] = ()
    """The neighbors whose messages made the step fail."""
    error: Exception | None = None
    """How it failed with them."""


def take_step(agent: Agent, batch: Batch | None, state: State, heard: Sequence[Heard]) -> Result:
    """Take a step, with a mini-batch or without."""
    return (listen(agent, state, heard), None) if batch is None else advance(agent, state, *batch, heard)


def reason(error: Exception | None) -> str:
    """What an error says, without the state that it is about."""
    return str(getattr(error, "reason", f"{type(error).__name__}: {error}"))


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
        take(state, heard)
    except Exception:
        return False
    return True


def within(heard: list[Heard], state: State, max_points: int) -> tuple[list[Heard], list[str]]:
    """What fits into one step, and the neighbors whose messages would add too many points in all and must wait.

    Points that the agent has already, or that several neighbors have, count once. Who comes first changes with every step.
    """
    tables: list[Floats] = [getattr(said.reply, "points", state.sent.points[:0]) for said in heard]
    if sum(map(len, tables)) <= max_points:
        return heard, []
    known, late, first = _rows(state.sent.points), [], state.steps % len(heard)
    start = len(known)
    for number in (*range(first, len(heard)), *range(first)):
        more = np.union1d(known, _rows(tables[number]))
        if len(more) - start > max_points:
            late.append(str(heard[number].neighbor))
        else:
            known = more
    return without(heard, late), late


def _rows(points: Floats) -> NDArray[np.void]:
    """The different rows, each as one value that can be compared."""
    return np.unique(np.ascontiguousarray(points).view(np.dtype((np.void, 8 * points.shape[1]))).ravel())
