"""Chooses the bandwidth of the default kernel and λ by hill climbing over a grid, evaluated on the first rows.

Each candidate learns the rows once in mini-batches, and is scored by its predictions for the second half, made before it
learns them: values by the mean loss, classes by the Brier score, the mean of ‖p − e_y‖² with p = softmax(f(x)), which tracks
the accuracy more closely than the loss does. The neighbors of a candidate in the grid have twice or half its width, or
twice or half its λ. The climb moves to the best neighbor until none is better. Wherever it starts on the grid, it ends at the
same place unless the score has several local optima, so the starting width and λ hardly matter.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh import Agent, Diverged, Gaussian, Logistic, State
from kernelmesh.agent import advance
from kernelmesh.checks import Floats, matrix
from kernelmesh.errors import InvalidArgument
from kernelmesh.estimators.parameters import regularized
from kernelmesh.numerics.function import padded

__all__ = ["MARKS", "Beginning", "Candidate", "prefixes", "suited"]

MARKS = (128, 256, 512, 1024)
"""The numbers of rows after which width and λ are chosen again; after the last, they are final."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """The first rows of a stream, kept until the choice is final."""

    points: Floats
    targets: NDArray[Any]

    @classmethod
    def empty(cls, agent: Agent) -> Self:
        """The prefix of a new stream."""
        targets = np.empty(0, dtype=np.int64) if agent.loss.classifies else np.empty((0, agent.outputs))
        return cls(np.empty((0, agent.dimension)), targets)

    def grown(self, points: Floats, targets: NDArray[Any]) -> Self:
        """The prefix with these rows appended."""
        return type(self)(np.concatenate([self.points, points]), np.concatenate([self.targets, targets]))

    def widened(self, features: int) -> Self:
        """The same rows with new features that are 0."""
        return type(self)(padded(self.points, features), self.targets)

    def parts(self, rows: int) -> list[slice]:
        """Split this many new rows into parts that end where a choice is due."""
        have = len(self.points)
        ends = [mark - have for mark in MARKS if have < mark < have + rows]
        return [slice(start, end) for start, end in zip([0, *ends], [*ends, rows], strict=True)]

    @property
    def due(self) -> bool:
        """Whether a choice is due at this number of rows."""
        return len(self.points) in MARKS

    @property
    def complete(self) -> bool:
        """Whether no more rows are needed."""
        return len(self.points) >= MARKS[-1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to store."""
        return {"beginning.points": self.points, "beginning.targets": self.targets}

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]], agent: Agent) -> Self | None:
        """The prefix stored in a file, if any."""
        if "beginning.points" not in arrays:
            return None
        points = matrix("file", "beginning.points", arrays["beginning.points"], columns=agent.dimension)
        if len(points) >= MARKS[-1]:
            raise InvalidArgument("file", "beginning.points", f"have fewer than {MARKS[-1]} rows", len(points))
        targets = agent.loss.check("file", arrays["beginning.targets"], rows=len(points), outputs=agent.outputs)
        return cls(points, targets)


def prefixes(rows: int) -> list[int]:
    """The numbers of rows to use in successive climbs: the climb is short when the rows are many."""
    return [*(mark for mark in MARKS if mark < rows), min(rows, MARKS[-1])] if rows >= MARKS[0] else []


class Candidate(NamedTuple):
    """A candidate: an agent with its width and λ, its loss on the rows, and its state after them."""

    loss: float
    agent: Agent
    state: State | None


def suited(agent: Agent, points: Floats, targets: NDArray[Any], *, regularizes: bool, farthest: int = 6) -> Candidate:
    """The agent with the width and, if `regularizes`, the λ chosen for these rows, and its state after learning them.

    Both are doubled or halved at most `farthest` times. The agent's kernel must be Gaussian. At least five candidates (three
    without λ) learn the rows once.
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
        before, here = here, min([here, *(place for place in near if max(map(abs, place)) <= farthest)], key=loss_at)
    return judged[here]


def _moved(agent: Agent, width: int, strength: int) -> Agent:
    """The agent with its width and λ doubled this many times."""
    if width == strength == 0:
        return agent
    kernel = cast(Gaussian, agent.kernel)
    bandwidth = min(max(kernel.bandwidth * 2.0**width, 1e-150), 1e150)
    learner = regularized(agent.learner, agent.learner.regularization * 2.0**strength)
    return dataclasses.replace(agent, kernel=dataclasses.replace(kernel, bandwidth=bandwidth), learner=learner)


def _tried(agent: Agent, points: Floats, targets: NDArray[Any], *, batch_size: int = 32) -> Candidate:
    """Train an agent on the rows, in mini-batches of its own, and score its predictions."""
    state, outputs = agent.start(), []
    watched = [start for start in range(0, len(points), batch_size) if 2 * start >= len(points)]
    try:
        for start in range(0, len(points), batch_size):
            rows = slice(start, start + batch_size)
            if start in watched:
                outputs.append(state.function.evaluate(points[rows]))
            state, _ = advance(agent, state, points[rows], targets[rows])
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
