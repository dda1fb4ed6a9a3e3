"""Which width of the default kernel, and which λ, suit the data: a climb over a grid, judged on the first rows.

Each candidate learns the rows once in mini-batches, and is judged by what it predicts of those in the second half before it
learns them: values by the mean loss, classes by the Brier score, the mean of ‖p − e_y‖² with p = softmax(f(x)), which goes
with the accuracy more closely than the loss does. The neighbors of a candidate in the grid have twice or half its width, or
twice or half its λ. The climb goes to the best of them until none is better. Wherever on the grid it starts, it ends at the
same place, unless the loss has several valleys: so it hardly matters which width and λ are the default.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh import Agent, Diverged, Gaussian, Logistic, State
from kernelmesh.checks import Floats, matrix
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.expansion import padded

__all__ = ["MARKS", "Beginning", "Candidate", "prefixes", "suited"]

MARKS = (128, 256, 512, 1024)
"""After how many rows width and λ are chosen anew; after the last they stay."""

_BATCH = 32
"""Rows in a mini-batch of a trial, whatever that of the estimator is."""
_FARTHEST = 6
"""How often the width, or λ, may be doubled or halved in one climb."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """The first rows of a stream, kept until the choice is final."""

    points: Floats
    targets: NDArray[Any]

    @classmethod
    def empty(cls, agent: Agent) -> Self:
        """That of a stream of which nothing was seen."""
        targets = np.empty(0, dtype=np.int64) if agent.loss.classifies else np.empty((0, agent.outputs))
        return cls(np.empty((0, agent.dimension)), targets)

    def grown(self, points: Floats, targets: NDArray[Any]) -> Self:
        """With these rows at the end."""
        return type(self)(np.concatenate([self.points, points]), np.concatenate([self.targets, targets]))

    def widened(self, features: int) -> Self:
        """The same rows with features that were 0."""
        return type(self)(padded(self.points, features), self.targets)

    def parts(self, rows: int) -> list[slice]:
        """These many new rows, in parts that end where a choice is due."""
        have = len(self.points)
        ends = [mark - have for mark in MARKS if have < mark < have + rows]
        return [slice(start, end) for start, end in zip([0, *ends], [*ends, rows], strict=True)]

    @property
    def due(self) -> bool:
        """Whether a choice is to be made with as many rows."""
        return len(self.points) in MARKS

    @property
    def complete(self) -> bool:
        """Whether no more rows are needed."""
        return len(self.points) >= MARKS[-1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a file must hold."""
        return {"beginning.points": self.points, "beginning.targets": self.targets}

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]], agent: Agent) -> Self | None:
        """That of a file, if it has one."""
        if "beginning.points" not in arrays:
            return None
        points = matrix("file", "beginning.points", arrays["beginning.points"], columns=agent.dimension)
        if len(points) >= MARKS[-1]:
            raise InvalidArgument("file", "beginning.points", f"have fewer than {MARKS[-1]} rows", len(points))
        targets = agent.loss.check("file", arrays["beginning.targets"], rows=len(points), outputs=agent.outputs)
        return cls(points, targets)


def prefixes(rows: int) -> list[int]:
    """By how many of so many rows to choose, one after the other: the climb is short where the rows are many."""
    return [*(mark for mark in MARKS if mark < rows), min(rows, MARKS[-1])] if rows >= MARKS[0] else []


class Candidate(NamedTuple):
    """An agent with a certain width and λ, its loss on the rows, and its state after them."""

    loss: float
    agent: Agent
    state: State | None


def suited(agent: Agent, points: Floats, targets: NDArray[Any], *, regularizes: bool) -> Candidate:
    """The agent with a width and, where `regularizes`, a λ that suit these rows, and its state after learning them.

    The kernel of the agent is a Gaussian. At least five candidates, or three, learn the rows once.
    """
    judged: dict[tuple[int, int], Candidate] = {}
    steps = ((1, 0), (-1, 0), (0, 1), (0, -1)) if regularizes else ((1, 0), (-1, 0))

    def loss_at(place: tuple[int, int]) -> float:
        if place not in judged:
            judged[place] = _tried(_moved(agent, *place), points, targets)
        return judged[place].loss

    here, before = (0, 0), None
    while here != before:
        near = [(here[0] + width, here[1] + strength) for width, strength in steps]
        before, here = here, min([here, *(place for place in near if max(map(abs, place)) <= _FARTHEST)], key=loss_at)
    return judged[here]


def _moved(agent: Agent, width: int, strength: int) -> Agent:
    """The agent with its width and λ doubled so many times."""
    if width == strength == 0:
        return agent
    kernel = cast(Gaussian, agent.kernel)
    bandwidth = min(max(kernel.bandwidth * 2.0**width, 1e-150), 1e150)
    regularization = cast(float, agent.regularization) * 2.0**strength
    return dataclasses.replace(agent, kernel=dataclasses.replace(kernel, bandwidth=bandwidth), regularization=regularization)


def _tried(agent: Agent, points: Floats, targets: NDArray[Any]) -> Candidate:
    """Let an agent learn the rows, and judge what it predicts."""
    state, outputs = agent.start(), []
    watched = [start for start in range(0, len(points), _BATCH) if 2 * start >= len(points)]
    try:
        for start in range(0, len(points), _BATCH):
            rows = slice(start, start + _BATCH)
            if start in watched:
                outputs.append(agent.predict(state, points[rows]))
            state, _ = agent.step(state, points[rows], targets[rows])
    except Diverged:
        return Candidate(np.inf, agent, None)
    if not outputs:
        return Candidate(np.inf, agent, state)
    predicted, known = np.concatenate(outputs), targets[watched[0] :]
    with np.errstate(over="ignore", invalid="ignore"):
        found = _brier(predicted, known) if agent.loss.classifies else float(np.mean(agent.loss.value(predicted, known)))
    return Candidate(found if np.isfinite(found) else np.inf, agent, state)


def _brier(outputs: Floats, labels: NDArray[Any]) -> float:
    """The mean of ‖p − e_y‖² = 1 + ‖p‖² − 2 p_y, p = softmax(f(x))."""
    p = Logistic().probabilities(outputs)
    return float(np.mean(1.0 + (p * p).sum(axis=1) - 2.0 * p[np.arange(len(p)), labels]))
