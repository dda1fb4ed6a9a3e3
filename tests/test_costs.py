"""What public calls cost: Python calls, and time beside the work that they wrap.

Times are ratios within one run, of CPU time, with limits that noise does not reach but a call that doubles in cost does.
"""

import copy
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import kernelmesh
from kernelmesh import (
    Agent,
    ArrayStream,
    Gaussian,
    Graph,
    Landmarks,
    Local,
    Logistic,
    Mixture,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    Relay,
    simulate,
)
from kernelmesh.agent import advance

OURS = str(Path(kernelmesh.__file__).parent)
# Loops compiled by numba run no Python, but announce calls of it to a profiler.
COMPILED = ("numba", str(Path(OURS, "numerics", "compiled")))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8192, 8))
LABELS = (X[:, 0] * X[:, 1] > 0).astype(int)


# -- calls ---------------------------------------------------------------------------------------------------------------


def calls_of(act, *without):
    """The calls of Python functions by file, except those of these functions and of everything that they call."""
    calls, inside = Counter(), []

    def profile(frame, event, _):
        code = frame.f_code
        if event == "return" and inside and inside[-1] is frame:
            inside.pop()
        elif event == "call" and not inside:
            if code.co_name in without:
                inside.append(frame)
            elif not any(each in code.co_filename for each in COMPILED):
                calls[code.co_filename] += 1

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("kind", "targets"), [(OnlineKernelClassifier, LABELS), (OnlineKernelRegressor, X[:, 0])], ids=["classes", "values"]
)
def test_calls_of_partial_fit(kind, targets):
    first = {"classes": [0, 1]} if kind is OnlineKernelClassifier else {}
    model = kind().partial_fit(X[:2048], targets[:2048], **first)
    for start in range(2048, 2560, 32):  # some exchange points, others do not
        rows = slice(start, start + 32)
        twin = copy.copy(model)
        around = calls_of(lambda twin=twin, rows=rows: twin.partial_fit(X[rows], targets[rows]), "validate_data", "advance")
        assert sum(around.values()) <= 30
        found = calls_of(lambda rows=rows: model.partial_fit(X[rows], targets[rows]), "validate_data")
        own = {name: count for name, count in found.items() if name.startswith(OURS)}
        assert sum(own.values()) <= 130
        assert len(own) <= 15, sorted(own)


# -- time ----------------------------------------------------------------------------------------------------------------


def cost(*acts, times):
    """The lower quartile of the CPU time of each, in seconds, measured in turn so that disturbances meet all alike."""
    taken = []
    for i in range(times):
        row = []
        for act in acts:
            began = time.process_time_ns()
            act(i)
            row.append(time.process_time_ns() - began)
        taken.append(row)
    return np.quantile(np.array(taken), 0.25, axis=0) * 1e-9


class Steps:
    """The bare steps from where a model is."""

    def __init__(self, model):
        self.agent, (self.state,) = model.agent_, model.states_

    def __call__(self, points, targets):
        self.state, _ = advance(self.agent, self.state, points, targets)


def rows(i, size=32):
    return slice(2048 + size * i, 2048 + size * (i + 1))


def test_time_of_partial_fit():
    """Beside the step, there is scikit-learn's validation of rows and labels."""
    model = OnlineKernelClassifier().partial_fit(X[:2048], LABELS[:2048], classes=[0, 1])
    step = Steps(model)
    whole, bare = cost(
        lambda i: model.partial_fit(X[rows(i)], LABELS[rows(i)]), lambda i: step(X[rows(i)], LABELS[rows(i)]), times=150
    )
    assert whole <= 2.0 * bare


def test_time_of_learn_one():
    river = pytest.importorskip("kernelmesh.estimators.river")
    model, samples = river.KernelClassifier(), [dict(enumerate(row)) for row in X.tolist()]
    for x, label in zip(samples[:2048], LABELS[:2048].tolist(), strict=True):
        model.learn_one(x, label)
    same = OnlineKernelClassifier(batch_size=1).partial_fit(X[:2048], LABELS[:2048], classes=[0, 1])
    step, f, labels = Steps(same), same.states_[0].function, LABELS.tolist()
    one, bare, predicted, value = cost(
        lambda i: model.learn_one(samples[2048 + i], labels[2048 + i]),
        lambda i: step(X[rows(i, 1)], LABELS[rows(i, 1)]),
        lambda i: model.predict_one(samples[i]),
        lambda i: f(X[i : i + 1]),
        times=600,
    )
    assert one <= 1.8 * bare
    assert predicted <= 2.8 * value


def test_time_of_predict():
    model = OnlineKernelClassifier().partial_fit(X[:2048], LABELS[:2048], classes=[0, 1])
    f = model.states_[0].function
    whole, bare = cost(lambda i: model.predict(X[i : i + 2000]), lambda i: f(X[i : i + 2000]), times=50)
    assert whole <= 2.4 * bare


# -- rounds --------------------------------------------------------------------------------------------------------------


class TestRounds:
    """A round of 20 agents with the default protocol, after their network stands: 68 edges, 136 messages."""

    WARM, MEASURED = 100, 32

    def agents(self):
        rng = np.random.default_rng(0)
        mixture, graph = Mixture.draw(classes=3, rng=rng), Graph.geometric(20, degree=6.8, rng=rng)
        common = {"dimension": 2, "outputs": 3, "kernel": Gaussian(bandwidth=0.6), "loss": Logistic(), "learner": Landmarks()}
        agents = [Agent(**common, protocol=protocol) for protocol in (Relay(), Local())]
        streams = [ArrayStream(*mixture.sample(32 * (self.WARM + 2 * self.MEASURED), rng=rng)) for _ in range(20)]
        return *agents, graph, streams

    def test_a_round_makes_few_calls(self):
        agent, _, graph, streams = self.agents()
        run = simulate(agent, graph, streams)
        for _ in range(self.WARM):
            now = next(run)
        assert all(now.infos)  # the network stands
        calls = calls_of(lambda: [next(run) for _ in range(self.MEASURED)])
        assert sum(calls.values()) / self.MEASURED <= 3000

    def test_a_round_costs_little_more_than_its_steps(self):
        agent, alone, graph, streams = self.agents()
        run, state, batches = simulate(agent, graph, streams), alone.start(), list(streams[0])
        round_seconds, step_seconds = [], []
        for number, batch in zip(range(self.WARM + self.MEASURED), batches, strict=False):
            began = time.process_time()
            next(run)
            between = time.process_time()
            state, _ = alone.step(state, *batch)
            if number >= self.WARM:
                round_seconds.append(between - began)
                step_seconds.append(time.process_time() - between)
        assert np.median(round_seconds) <= 3 * 20 * np.median(step_seconds)
