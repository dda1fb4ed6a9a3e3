"""The laws of learners."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kernelmesh import storage
from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument
from kernelmesh.learners import Learner
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Logistic
from kernelmesh.testing.laws import require, require_close, require_role, require_round_trip

__all__ = ["check_learner"]

_CLASSES, _BATCH, _BATCHES = 3, 16, 40


def check_learner(learner: Learner, *, agent: Agent | None = None, rng: np.random.Generator | None = None) -> None:
    """Check that a learner learns, is reproducible, does not modify its inputs, and can resume from a file.

    A model of clearly separated classes predicts them better than chance and stays finite. The same samples lead
    to the same function. A copy of a state is independent, and the state before a step stays readable. After an
    error, the state is unchanged. A state read from a file continues exactly as the stored one.
    Settings survive being saved.

    Parameters
    ----------
    learner : Learner
        The learner to check.
    agent : Agent, optional
        The agent to check it with, whose learner is replaced. By default, an agent with 2 features, 3 classes, the loss
        Logistic and a Gaussian kernel.
    rng : numpy.random.Generator, optional
        The generator that draws samples.

    Raises
    ------
    AssertionError
        Says which law is broken, and how.

    Examples
    --------
    >>> from kernelmesh import SecondOrder
    >>> check_learner(SecondOrder(budget=0.05))
    """
    owner = repr(learner)
    require_role(learner, Learner, owner)
    problem: dict[str, Any] = {"dimension": 2, "outputs": _CLASSES, "kernel": Gaussian(bandwidth=0.6), "loss": Logistic()}
    agent = Agent(**problem, learner=learner) if agent is None else replace(agent, learner=learner)
    rng = np.random.default_rng(0) if rng is None else rng
    points, targets = _samples(agent, rng)
    before = points.copy()
    half = len(points) // 2
    state = _learned(agent, agent.start(), points[:half], targets[:half])
    _check_learned(agent, owner, state, points[half:], targets[half:])
    again = _learned(agent, agent.start(), points[:half], targets[:half])
    _require_same(again, state, owner, "must learn the same function from the same samples")
    _check_states(agent, owner, state, points[half:], targets[half:])
    require(bool((points == before).all()), owner, "must not modify its samples", "points that changed")
    require_round_trip("learner", learner, owner)


def _samples(agent: Agent, rng: np.random.Generator) -> tuple[Floats, Any]:
    """Classes on a circle, or the cosines of a point's position."""
    rows = _BATCH * _BATCHES
    classes = rng.integers(agent.outputs, size=rows)
    points = 0.2 * rng.standard_normal((rows, agent.dimension))
    angle = 2.0 * math.pi * classes / agent.outputs
    points[:, 0] += np.cos(angle)
    points[:, -1] += np.sin(angle)
    if agent.loss.classifies:
        return points, classes
    return points, np.cos(points[:, :1] + np.arange(agent.outputs))


def _learned(agent: Agent, state: State, points: Floats, targets: Any) -> State:
    for start in range(0, len(points), _BATCH):
        state, _ = agent.step(state, points[start : start + _BATCH], targets[start : start + _BATCH])
    return state


def _check_learned(agent: Agent, owner: str, state: State, points: Floats, targets: Any) -> None:
    for what, f in (("show", state.function), ("send", state.sent)):
        finite = bool(np.isfinite(f.points).all() and np.isfinite(f.weights).all())
        require(finite, owner, f"must {what} a function that is finite", "one that is not finite")
    shown = agent.predict(state, points)
    loss, nothing = (float(agent.loss.value(z, targets).mean()) for z in (shown, np.zeros_like(shown)))
    require(loss < nothing, owner, "must learn: less loss on new samples than predicting 0", f"{loss:.4g} and {nothing:.4g}")


def _check_states(agent: Agent, owner: str, state: State, points: Floats, targets: Any) -> None:
    """Copies, files, errors, and outdated states."""
    stored = storage.pack(state, workspace=True)
    after = _learned(agent, state, points, targets)
    law = "must leave the state before a step readable"
    require(bool(np.isfinite(agent.predict(state, points)).all()), owner, law, "a function that is not finite")
    try:
        agent.step(state, np.full_like(points[:1], np.nan), targets[:1])
    except ValueError:
        pass
    else:
        raise AssertionError(f"{owner}: must not learn from points that are not finite, got no error")
    other = _learned(agent, state, points, targets)
    _require_same(other, after, owner, "must lead from the same state to the same function again")
    law = "must resume from a file as from the stored state: does the model have arrays, and the learner an unpack for them?"
    try:
        fresh = storage.unpack(agent, stored, name=0)
    except InvalidArgument as error:  # caused by arrays that the learner does not read
        raise AssertionError(f"{owner}: {law} Got {error}") from None
    found = agent.predict(_learned(agent, fresh, points, targets), points)
    wanted = agent.predict(after, points)
    require_close(found, wanted, owner, law, absolute=1e-5 * float(np.abs(wanted).max()))


def _require_same(left: State, right: State, owner: str, law: str) -> None:
    for one, other in ((left.function, right.function), (left.sent, right.sent)):
        require_close(one.points, other.points, owner, law)
        require_close(one.weights, other.weights, owner, law)
