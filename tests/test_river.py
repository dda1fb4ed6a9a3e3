"""The river face: river's own checks, the same numbers as `partial_fit`, and columns and classes that appear later."""

import copy
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from river import base, checks, compose, datasets, preprocessing

from kernelmesh import (
    Function,
    Gaussian,
    Hinge,
    InvalidArgument,
    Laplacian,
    Linear,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    ScaleWarning,
    SecondOrder,
)
from kernelmesh.estimators.river import KernelClassifier, KernelRegressor

pytestmark = pytest.mark.filterwarnings("ignore::kernelmesh.ScaleWarning")  # river's checks do not scale

LEARNERS = (KernelClassifier, KernelRegressor)
RULES = ("second-order", "averaged", "gradient")


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
def test_rivers_own_checks(kind, number):
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


@pytest.mark.parametrize("settings", [{}, {"kernel": Laplacian(), "half_life": 300.0}, {"learner": "averaged"}])
def test_learn_one_is_partial_fit_of_one_row_bit_for_bit(settings):
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
def test_a_regressor_holds_32_rows_back_and_then_is_partial_fit_bit_for_bit(settings):
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
def test_learn_many_is_partial_fit_with_that_batch_size(batch_size):
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


@pytest.mark.parametrize("learner", RULES)
@pytest.mark.parametrize("kernel", [Gaussian(bandwidth=1.5), Laplacian(bandwidth=2.0), 0.5 * Linear() + Gaussian()], ids=str)
def test_a_feature_that_appears_later_was_0_before(rule, kernel):
    points, y = two_rings(160)
    points[:70, 2] = 0.0
    points[:40, 1] = 0.0
    known, later = (KernelClassifier(kernel, rule=rule) for _ in range(2))
    for i, (x, label) in enumerate(zip(rows_of(points), y.tolist(), strict=True)):
        known.learn_one(x, label)
        later.learn_one({name: value for name, value in x.items() if value}, label)
        if i % 20 == 19:
            unseen = {**x, 2: 0.7}  # before row 70, of one who has never learned the feature
            np.testing.assert_allclose(
                list(later.predict_proba_one(unseen).values()), list(known.predict_proba_one(unseen).values()), rtol=1e-6
            )
    assert later.model_order == known.model_order > 3


@pytest.mark.parametrize("held", [10, 60])
def test_features_of_a_regressor_appear_later_too(held):
    points, y = waves(120)
    points[:held, 2] = 0.0
    known, later = KernelRegressor(Gaussian(bandwidth=1.5)), KernelRegressor(Gaussian(bandwidth=1.5))
    for x, value in zip(rows_of(points), y.tolist(), strict=True):
        known.learn_one(x, value)
        later.learn_one({name: value for name, value in x.items() if value}, value)
    for x in rows_of(waves(20, seed=1)[0]):
        assert later.predict_one(x) == pytest.approx(known.predict_one(x), rel=1e-8)


def test_the_width_is_chosen_by_rows_that_were_narrower():
    """The rows that the choice goes by are kept with the features they had."""
    points, y = two_rings(300)
    points[:100, 2] = 0.0
    model = KernelClassifier()
    for x, label in zip(rows_of(points), y.tolist(), strict=True):
        model.learn_one({name: value for name, value in x.items() if value}, label)
    kept = model._learner._beginning.points
    order = [model._columns._places[name] for name in range(3)]
    np.testing.assert_array_equal(kept[:, order], points)


@pytest.mark.parametrize(
    ("learner", "loss"), [*((rule, None) for rule in RULES), ("averaged", Hinge()), ("gradient", Hinge())]
)
def test_the_second_class_gives_what_a_learner_has_that_knew_of_it(rule, loss):
    points, y = two_rings(80)
    y[:25] = 0
    model = KernelClassifier(Gaussian(), loss, rule=rule)
    same = OnlineKernelClassifier(Gaussian(), loss, rule=rule)
    for i, (x, label) in enumerate(zip(rows_of(points), y.tolist(), strict=True)):
        if 0 < i < 25:
            assert model.predict_one(x) == 0
        model.learn_one(x, label)
        same.partial_fit(points[i : i + 1], y[i : i + 1], classes=[0, 1])
    assert [model.predict_one(x) for x in rows_of(points)] == same.predict(points).tolist()


@pytest.mark.parametrize("learner", RULES)
def test_a_third_class_is_0_everywhere_at_first_and_leaves_the_others_alone(rule):
    points, y = two_rings(100)
    model = KernelClassifier(Gaussian(), rule=rule)
    for x, label in zip(rows_of(points), y.tolist(), strict=True):
        model.learn_one(x, label)
    before = model._learner.decision_function(points)
    wider = copy.deepcopy(model._learner)._widen(features=3, outputs=3)
    wider.classes_ = np.arange(3)
    after = wider.decision_function(points)
    np.testing.assert_array_equal(after[:, 2], 0.0)
    np.testing.assert_allclose(after[:, 1] - after[:, 0], before, rtol=1e-12)
    model.learn_one({0: 4.0, 1: 4.0, 2: 4.0}, "new")
    assert list(model.predict_proba_one({0: 4.0, 1: 4.0, 2: 4.0})) == [*dict.fromkeys(y.tolist()), "new"]
    assert model.predict_one({0: 4.0, 1: 4.0, 2: 4.0}) == "new"


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("learner", RULES)
def test_copies_go_on_bit_for_bit(copied, rule):
    """Also when their workspace has to grow."""
    points, y = two_rings(180)
    model = KernelClassifier(Gaussian(bandwidth=0.3), rule=rule)
    for x, label in zip(rows_of(points[:40]), y[:40].tolist(), strict=True):
        model.learn_one(x, label)
    twin = copied(model)
    for x, label in zip(rows_of(points[40:]), y[40:].tolist(), strict=True):
        model.learn_one(x, label)
        twin.learn_one(x, label)
    assert [twin.predict_proba_one(x) for x in rows_of(points)] == [model.predict_proba_one(x) for x in rows_of(points)]
    assert model.model_order > 64


def test_a_widened_function_has_the_values_of_the_literal_sum():
    rng = np.random.default_rng(0)
    f = Function.of(Gaussian(), rng.normal(size=(5, 2)), rng.normal(size=(5, 2)))
    wider, x = f.widened(dimension=4, outputs=3), rng.normal(size=(6, 4))
    centers = np.hstack([f.points, np.zeros((5, 2))])
    for point, found in zip(x, wider(x), strict=True):
        literal = sum(np.exp(-np.sum((point - d) ** 2) / 2.0) * w for d, w in zip(centers, f.weights, strict=True))
        np.testing.assert_allclose(found[:2], literal, rtol=1e-12)
    np.testing.assert_array_equal(wider(x)[:, 2], 0.0)


def test_it_works_in_pipelines_with_text():
    text = compose.SelectType(str) | preprocessing.OneHotEncoder()
    numeric = compose.SelectType(float) | preprocessing.StandardScaler()
    model = (text + numeric) | KernelClassifier()
    colors = ["red", "green", "blue", "gray"]
    rng = np.random.default_rng(0)
    for i in range(120):
        color = colors[min(i // 20, 3)]  # each is a new column
        size = float(rng.normal())
        model.learn_one({"color": color, "size": size}, color in ("green", "gray"))
    assert [model.predict_one({"color": color, "size": 0.0}) for color in colors] == [False, True, False, True]
    assert isinstance(model, base.Classifier)


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
        (lambda: KernelClassifier(rule="nonsense").learn_one({"a": 1.0}, 0), "rule must be a learning rule or one of"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_a_remedy(act, message):
    with pytest.raises(InvalidArgument, match=message):
        act()


def test_a_refused_row_leaves_no_trace():
    model = KernelClassifier()
    model.learn_one({"a": 1.0}, 0)
    before = pickle.dumps(model)
    for x, y in (({"a": 1.0, "b": "red"}, 1), ({"b": 2.0}, None)):
        with pytest.raises(InvalidArgument):
            model.learn_one(x, y)
    assert pickle.dumps(model) == before


def test_a_kernel_that_weighs_features_by_their_number_refuses_new_ones():
    model = KernelClassifier(Stretched())
    model.learn_one({"a": 1.0, "b": 0.0}, 0)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="kernel must be invariant to zero-padding"):
            model.learn_one({"c": 1.0}, 1)
    model.learn_one({"a": 2.0, "b": 1.0}, 1)  # as if they had never been
    assert list(model.predict_proba_one({"a": 1.0, "b": 0.0})) == [0, 1]


def test_a_learner_whose_settings_are_refused_has_learned_nothing():
    model = KernelClassifier(rule="nonsense")
    for label in (0, 1, 2):
        with pytest.raises(InvalidArgument):
            model.learn_one({"a": 1.0}, label)
    assert model.predict_one({"a": 1.0}) is None
    assert model.predict_proba_one({"a": 1.0}) == {}


def test_river_is_imported_only_when_asked_for_and_its_extra_is_named():
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


def test_scales_are_warned_of():
    points, y = waves(40)
    with pytest.warns(ScaleWarning, match="standard deviations of about"):
        KernelRegressor().learn_many(pd.DataFrame(1000.0 * points), pd.Series(y))
