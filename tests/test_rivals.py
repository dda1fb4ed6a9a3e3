"""The methods that the baselines compare with must be sound themselves."""

import time

import numpy as np
import pytest

from kernelmesh import Graph, Logistic
from kernelmesh.streams import Mixture
from kernelmesh_experiments import baselines
from kernelmesh_experiments.base import Session
from kernelmesh_experiments.rivals import d4l as dictionary_learning
from kernelmesh_experiments.rivals.base import Data, Record


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    mixture = Mixture.draw(classes=3, rng=rng)
    points, labels = mixture.sample(1600, rng=rng)
    held_points, held_labels = mixture.sample(600, rng=rng)
    return Data(
        points=points,
        labels=labels,
        held_points=held_points,
        held_labels=held_labels,
        classes=3,
        graph=Graph.ring(4),
        bandwidth=0.6,
        batch_size=32,
        epochs=2,
        seed=0,
    )


@pytest.mark.parametrize("name", baselines.methods(baselines.Config()))
def test_every_method_learns(name, data):
    method = baselines.methods(baselines.Config())[name]
    chosen = {"step": 0.5} if name == "d4l" else method.tune(data)  # tuning that one takes long
    score = method.solve(data, **chosen)
    limit = baselines.svm(data).accuracy_mean
    assert limit > 0.85
    least = {"linear": 0.5, "d4l": 0.6, "budgeted": 0.5}.get(name, limit - 0.06)
    assert score.accuracy_worst >= least
    assert score.accuracy_worst <= score.accuracy_mean <= 1
    assert score.stored_floats > 0
    assert (score.bytes_per_sample > 0) == (method.network and name != "local")
    assert 0 < score.points <= len(data.points)
    assert score.cpu_seconds > 0


def test_tuning_sees_training_samples_only(data):
    split = data.validation(500)
    rows = {tuple(point) for point in data.points}
    kept, held = ({tuple(point) for point in points} for points in (split.points, split.held_points))
    assert (len(kept), len(held)) == (400, 100)
    assert kept | held <= rows
    assert not kept & held


def test_tuning_takes_the_best_of_the_grid(data):
    seen = {}

    def solve(split, *, step):
        record = Record(split)
        seen[step] = len(split.points)
        return record.finish(lambda: [1 - abs(step - 4.0)], points=1, stored=1)

    method = baselines.Method("guess", solve, {"step": (1.0, 4.0, 9.0)})
    assert method.tune(data) == {"step": 4.0}
    assert seen == {1.0: 1280, 4.0: 1280, 9.0: 1280}
    assert method.tuning({"step": 4.0}) == {"tuned": "step: 4", "tried": "step: 1, 4, 9", "at_end": False}
    assert [method.tuning({"step": step})["at_end"] for step in (1.0, 9.0)] == [True, True]


def test_the_clock_stands_still_while_a_method_is_measured(data):
    def slow():
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        return [0.25, 0.75]

    score = Record(data).finish(slow, points=4, stored=9)
    assert score.cpu_seconds < 0.2
    assert (score.accuracy_mean, score.accuracy_worst) == (0.5, 0.25)


def test_the_report_has_every_method_with_its_grid(tmp_path):
    class Here(Session):
        def compute(self, cells):
            wanted = ("mixture_polk", "mixture_svm", "mixture_linear")
            return {name: dict(cell.function(cell.settings)) for name, cell in cells.items() if name in wanted}

    found = baselines.run(baselines.Config(samples=192, mixture_agents=3), Here(tmp_path))
    assert set(found.figures) == {"mixture"}
    grids = {row["method"]: row["tried"] for row in found.tables["table"]}
    assert grids["batch kernel SVM"] == "c: 1, 10, 100, 1000"
    assert grids["POLK, centralized"] == ""
    assert set(found.summary) == {"seed", "task", *(f"mixture_{name}_accuracy" for name in ("svm", "polk", "linear"))}


def test_the_dictionary_gradient_is_the_derivative_of_the_loss():
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((6, 5)), rng.integers(3, size=6)
    dictionary = dictionary_learning._in_ball(rng.standard_normal((5, 7)))
    classifier = rng.standard_normal((7, 3))

    def codes(d):
        # far enough for differences to show
        out = x @ d * 0
        gram, rate = d.T @ d, 1.0 / (np.linalg.norm(d.T @ d, 2) + 0.1)
        for _ in range(20_000):
            moved = out - rate * (out @ gram - x @ d + 0.1 * out)
            out = np.sign(moved) * np.maximum(np.abs(moved) - rate * 0.1, 0.0)
        return out

    def loss(d):
        return Logistic().value(codes(d) @ classifier, labels).mean()

    alpha = codes(dictionary)
    push = Logistic().slope(alpha @ classifier, labels) / len(x)
    beta = dictionary_learning._through(alpha, push @ classifier.T, dictionary, 0.1)
    slope = -dictionary @ (beta.T @ alpha) + (x - alpha @ dictionary.T).T @ beta
    for i, j in ((0, 0), (2, 3), (4, 6)):
        nudge = np.zeros_like(dictionary)
        nudge[i, j] = 1e-5
        measured = (loss(dictionary + nudge) - loss(dictionary - nudge)) / 2e-5
        assert slope[i, j] == pytest.approx(measured, rel=1e-3, abs=1e-7)


def test_fast_codes_are_the_minimizers():
    rng = np.random.default_rng(0)
    x, dictionary = rng.standard_normal((10, 5)), dictionary_learning._in_ball(rng.standard_normal((5, 8)))
    found = dictionary_learning._codes(x, dictionary, 0.1, 0.1)
    slope = found @ dictionary.T @ dictionary - x @ dictionary + 0.1 * found
    inside = found == 0
    assert (np.abs(slope[inside]) <= 0.1 + 1e-3).all()
    np.testing.assert_allclose(slope[~inside], -0.1 * np.sign(found[~inside]), atol=1e-3)


def test_kernel_logistic_regression_is_at_its_minimum(data):
    score = baselines.kernel_logistic(data)
    assert score.stored_floats == data.points.size + len(data.points) * 3
    assert score.accuracy_mean > 0.85
