"""The river estimators: river's own checks, the same numbers as `partial_fit`, features and classes that appear later."""

import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from river import checks, datasets, preprocessing

from kernelmesh import (
    Averaged,
    Gaussian,
    Gradient,
    Hinge,
    InvalidArgument,
    Laplacian,
    Linear,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    SecondOrder,
)
from kernelmesh.estimators.river import KernelClassifier, KernelRegressor

pytestmark = pytest.mark.filterwarnings("ignore::kernelmesh.ScaleWarning")  # river's checks do not scale

LEARNERS = (KernelClassifier, KernelRegressor)
# the default, and learners with a step size
OTHERS = {"SecondOrder": None, "Averaged": Averaged(step_size=100.0), "Gradient": Gradient(step_size=3.0)}
EACH_LEARNER = pytest.mark.parametrize("learner", OTHERS.values(), ids=OTHERS)


def river_checks():
    """All of them by number, because there is one for each data set; long streams, and more of the same kind, are slow."""
    for kind in LEARNERS:
        seen = Counter()
        for number, check in enumerate(checks.yield_checks(kind())):
            seen[check.__name__] += 1
            slow = check.__name__ == "check_bounded_memory_growth" or seen[check.__name__] == 2
            name = f"{kind.__name__}-{check.__name__}-{seen[check.__name__]}"
            yield pytest.param(kind, number, id=name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("kind", "number"), list(river_checks()))
def test_river_checks_pass(kind, number):
    assert kind()._unit_test_skips() == set()
    check = list(checks.yield_checks(kind()))[number]  # data sets are iterated over once
    check(kind())


def rows_of(points):
    return [dict(enumerate(row)) for row in points.tolist()]


def two_rings(n, seed=0):
    points = np.random.default_rng(seed).normal(size=(n, 3))
    return points, (np.square(points[:, :2]).sum(axis=1) > 1.4).astype(int)


def waves(n, seed=0):
    points = np.random.default_rng(seed).normal(size=(n, 3))
    return points, 50.0 + 9.0 * np.sin(2.0 * points[:, 0]) + points[:, 1]


@pytest.mark.parametrize(
    "settings", [{}, {"kernel": Laplacian(), "half_life": 300.0}, {"learner": Averaged(step_size=100.0)}]
)
def test_learn_one_equals_partial_fit_of_one_row(settings):
    points, y = two_rings(300)
    y[0] = 0  # classes are numbered as they appear
    model, same = KernelClassifier(**settings), OnlineKernelClassifier(**settings)
    for i, (x, label) in enumerate(zip(rows_of(points), y.tolist(), strict=True)):
        if i > 20:
            assert model.predict_one(x) == same.predict(points[i : i + 1])[0]
            assert list(model.predict_proba_one(x).values()) == same.predict_proba(points[i : i + 1])[0].tolist()
        model.learn_one(x, label)
        same.partial_fit(points[i : i + 1], y[i : i + 1], classes=[0, 1])
    assert model.model_order == same.model_order_ > 5


@pytest.mark.parametrize("settings", [{}, {"kernel": Gaussian(), "learner": SecondOrder(half_life=100.0)}])
def test_a_regressor_collects_32_rows_and_then_equals_partial_fit(settings):
    points, y = waves(200)
    model, same = KernelRegressor(**settings), OnlineKernelRegressor(batch_size=1, **settings)
    for i, (x, value) in enumerate(zip(rows_of(points), y.tolist(), strict=True)):
        expected = same.predict(points[i : i + 1])[0] if i >= 32 else np.mean(y[:i]) if i else 0.0
        assert model.predict_one(x) == expected
        model.learn_one(x, value)
        if i >= 31:
            now = slice(0 if i == 31 else i, i + 1)
            same.partial_fit(points[now], y[now])


@pytest.mark.parametrize("batch_size", [1, 32])
def test_learn_many_equals_partial_fit(batch_size):
    points, y = two_rings(200)
    y[:2] = [0, 1]
    frame = pd.DataFrame(points)
    model = KernelClassifier(batch_size=batch_size)
    model.learn_one(frame.iloc[0].to_dict(), 0)
    same = OnlineKernelClassifier(batch_size=batch_size).partial_fit(points[:1], y[:1], classes=[0, 1])
    for rows in (slice(1, 2), slice(2, 150)):  # a class that is new begins a mini-batch
        model.learn_many(frame[rows], pd.Series(y[rows]))
        same.partial_fit(points[rows], y[rows])
    assert model.predict_many(frame[150:]).tolist() == same.predict(points[150:]).tolist()
    found = model.predict_proba_many(frame[150:])
    np.testing.assert_array_equal(found.to_numpy(), same.predict_proba(points[150:]))
    assert list(found.columns) == [0, 1]
    assert list(found.index) == list(range(150, 200))


@pytest.mark.parametrize(
    ("kernel", "learner"),
    [
        (None, None),  # the rows by which the bandwidth is chosen were narrower, too
        (Laplacian(bandwidth=2.0), None),
        (0.5 * Linear() + Gaussian(), None),
        (Gaussian(bandwidth=1.5), OTHERS["Averaged"]),
        (Gaussian(bandwidth=1.5), OTHERS["Gradient"]),
    ],
    ids=str,
)
def test_a_feature_that_appears_later_was_0_before(kernel, learner):
    points, y = two_rings(300)
    points[:70, 2] = 0.0
    points[:40, 1] = 0.0
    known, later = (KernelClassifier(kernel, learner=learner) for _ in range(2))
    for i, (x, label) in enumerate(zip(rows_of(points), y.tolist(), strict=True)):
        sparse = {name: value for name, value in x.items() if value}
        known.learn_one(x if i else sparse, label)  # the first row determines the bandwidth to start from
        later.learn_one(sparse, label)
        if i % 20 == 19:
            unseen = {**x, 2: 0.7}  # before row 70, of a model that has never seen the feature
            np.testing.assert_allclose(
                list(later.predict_proba_one(unseen).values()), list(known.predict_proba_one(unseen).values()), rtol=1e-6
            )
    assert later.model_order == known.model_order > 3


@pytest.mark.parametrize("held", [10, 60])
def test_features_of_a_regressor_may_appear_later(held):
    points, y = waves(120)
    points[:held, 2] = 0.0
    known, later = KernelRegressor(Gaussian(bandwidth=1.5)), KernelRegressor(Gaussian(bandwidth=1.5))
    for x, value in zip(rows_of(points), y.tolist(), strict=True):
        known.learn_one(x, value)
        later.learn_one({name: value for name, value in x.items() if value}, value)
    for x in rows_of(waves(20, seed=1)[0]):
        assert later.predict_one(x) == pytest.approx(known.predict_one(x), rel=1e-8)


@EACH_LEARNER
@pytest.mark.parametrize("loss", [None, Hinge()])
def test_a_second_class_may_come_late(learner, loss):
    points, y = two_rings(80)
    y[:25] = 0
    model = KernelClassifier(Gaussian(), loss, learner=learner)
    same = OnlineKernelClassifier(Gaussian(), loss, learner=learner)
    for i, (x, label) in enumerate(zip(rows_of(points), y.tolist(), strict=True)):
        if 0 < i < 25:
            assert model.predict_one(x) == 0
        model.learn_one(x, label)
        same.partial_fit(points[i : i + 1], y[i : i + 1], classes=[0, 1])
    assert [model.predict_one(x) for x in rows_of(points)] == same.predict(points).tolist()


@EACH_LEARNER
def test_new_features_and_outputs_of_a_state_are_0(learner):
    points, y = two_rings(100)
    model = OnlineKernelClassifier(Gaussian(), learner=learner).partial_fit(points, y, classes=[0, 1])
    f = model.states_[0].function
    wider = model.states_[0].widened(dimension=4, outputs=3).function
    x = np.random.default_rng(0).normal(size=(6, 4))
    distances = ((x[:, None] - np.hstack([f.points, np.zeros((f.order, 1))])) ** 2).sum(axis=2)
    np.testing.assert_allclose(wider(x)[:, :2], np.exp(-distances / 2.0) @ f.weights, rtol=1e-9)
    np.testing.assert_array_equal(wider(x)[:, 2], 0.0)


def test_classes_that_appear_later_are_learned():
    scaler, model, right = preprocessing.StandardScaler(), KernelClassifier(), 0
    rows = list(datasets.ImageSegments().take(700))
    rows.sort(key=lambda row: row[1] == "path")  # one of the seven comes last
    assert all(y == "path" for _, y in rows[-50:])
    for x, y in rows:
        scaler.learn_one(x)
        x = scaler.transform_one(x)
        right += model.predict_one(x) == y
        model.learn_one(x, y)
    assert right > 0.85 * len(rows)


class Stretched:
    """A kernel that weighs every feature differently, and the last one most."""

    def __call__(self, left, right):
        weights = np.linspace(0.5, 2.0, left.shape[1])
        return Gaussian()(left * weights, right * weights)

    def diag(self, points):
        return np.ones(len(points))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: KernelClassifier().learn_one({"a": 1.0, "b": "red"}, 0),
            r"KernelClassifier: x\['b'\] must be a number, got 'red'; .*OneHotEncoder.*SelectType",
        ),
        (lambda: KernelClassifier().predict_one({"b": None}), r"x\['b'\] must be a number, got None"),
        (lambda: KernelRegressor().learn_one({"a": float("nan")}, 1.0), r"x\['a'\] must be finite, got nan; omit a missing"),
        (lambda: KernelRegressor().learn_one({"a": 1.0}, "high"), "y must be a finite number, got 'high'"),
        (lambda: KernelClassifier().learn_one({"a": 1.0}, None), "y must be a class, got None"),
        (lambda: KernelClassifier().learn_many(np.ones((2, 2)), [0, 1]), "X must be a data frame"),
        (
            lambda: KernelClassifier().learn_many(pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), [0, 1]),
            r"x\['b'\] must be a number, got 'x'",
        ),
        (lambda: KernelRegressor().learn_many(pd.DataFrame({"a": [1.0, 2.0]}), [0.0]), "y must have 2 rows, got 1"),
        (lambda: KernelClassifier(learner="nonsense").learn_one({"a": 1.0}, 0), "learner must be a learner"),
    ],
)
def test_invalid_input_is_rejected(act, message):
    with pytest.raises(InvalidArgument, match=message):
        act()


def test_a_rejected_row_changes_nothing():
    model = KernelClassifier()
    model.learn_one({"a": 1.0}, 0)
    before = pickle.dumps(model)
    for x, y in (({"a": 1.0, "b": "red"}, 1), ({"b": 2.0}, None)):
        with pytest.raises(InvalidArgument):
            model.learn_one(x, y)
    assert pickle.dumps(model) == before


def test_new_features_are_rejected_by_kernels_that_depend_on_their_number():
    model = KernelClassifier(Stretched())
    model.learn_one({"a": 1.0, "b": 0.0}, 0)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="kernel must be invariant to zero-padding"):
            model.learn_one({"c": 1.0}, 1)
    model.learn_one({"a": 2.0, "b": 1.0}, 1)  # as if they had never been
    assert list(model.predict_proba_one({"a": 1.0, "b": 0.0})) == [0, 1]


def test_river_is_optional():
    script = (
        "import sys, kernelmesh.estimators\n"
        "assert 'river' not in sys.modules\n"
        "sys.modules['river'] = None\n"
        "try:\n"
        "    import kernelmesh.estimators.river\n"
        "except kernelmesh.MissingExtra as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'kernelmesh[river]'" in found
    assert found.startswith("The river estimators need")
