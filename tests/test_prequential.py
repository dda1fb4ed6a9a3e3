"""Test, then train: what `evaluate` measures is what a literal loop measures, and the model learns as if called by hand."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import r2_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kernelmesh import (
    ArrayStream,
    InvalidArgument,
    KernelMeshClassifier,
    Mixture,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    evaluate,
)
from kernelmesh.prequential import Record

ROWS, SIZE, WINDOW = 330, 32, 100


@pytest.fixture(scope="module")
def labeled():
    rng = np.random.default_rng(0)
    points, labels = Mixture.draw(classes=3, rng=rng).sample(ROWS, rng=rng)
    return points, np.array(["left", "middle", "right"])[labels]


@pytest.fixture(scope="module")
def valued():
    points = np.random.default_rng(1).uniform(-2, 2, (ROWS, 2))
    return points, np.stack([1000 + np.sin(3 * points[:, 0]), points[:, 1] ** 2], axis=1)


CLASSIFIERS = {
    "ours": OnlineKernelClassifier,
    "network": lambda: KernelMeshClassifier(graph=[(0, 1)]),
    "linear": lambda: SGDClassifier(random_state=0),
    "naive": GaussianNB,
}
REGRESSORS = {"ours": OnlineKernelRegressor, "linear": lambda: SGDRegressor(random_state=0)}


def by_hand(model, X, y, size=SIZE, **first):
    """The predictions of a literal loop, for all rows but those of the first mini-batch."""
    predictions = []
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        if start:
            predictions.extend(model.predict(X[rows]))
        model.partial_fit(X[rows], y[rows], **({} if start else first))
    return np.array(predictions)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_accuracy_is_that_of_a_literal_loop(name, labeled):
    X, y = labeled
    model, twin = CLASSIFIERS[name](), CLASSIFIERS[name]()
    found = evaluate(model, X, y, batch_size=SIZE, window=WINDOW)
    right = by_hand(twin, X, y, classes=np.unique(y)) == y[SIZE:]
    assert found.classifies
    assert found.complete
    assert [record.samples for record in found.records] == [*range(2 * SIZE, ROWS, SIZE), ROWS]
    for record in found.records:
        scored = right[: record.samples - SIZE]
        assert record.score == pytest.approx(scored.mean(), abs=1e-12)
        assert record.window_score == pytest.approx(scored[-WINDOW:].mean(), abs=1e-12)
        assert record.error == pytest.approx(1 - scored.mean(), abs=1e-12)
        assert record.window_error == pytest.approx(1 - scored[-WINDOW:].mean(), abs=1e-12)
    assert found.last.window_score != found.last.score  # the window is shorter than the stream
    assert (model.predict(X) == twin.predict(X)).all()


@pytest.mark.parametrize(("name", "outputs"), [("ours", 1), ("ours", 2), ("linear", 1)])
def test_squared_error_and_r2_are_those_of_a_literal_loop(name, outputs, valued):
    X, y = valued
    y = y[:, 0] if outputs == 1 else y
    model, twin = REGRESSORS[name](), REGRESSORS[name]()
    found = evaluate(model, X, y, batch_size=SIZE, window=WINDOW)
    predicted, goal = by_hand(twin, X, y), y[SIZE:]
    assert not found.classifies
    for record in found.records:
        for rows, error, score in (
            (slice(record.samples - SIZE), record.error, record.score),
            (slice(max(record.samples - SIZE - WINDOW, 0), record.samples - SIZE), record.window_error, record.window_score),
        ):
            assert error == pytest.approx(((predicted[rows] - goal[rows]) ** 2).mean(), rel=1e-9)
            assert score == pytest.approx(r2_score(goal[rows], predicted[rows]), rel=1e-9)
    assert (model.predict(X) == twin.predict(X)).all()


def test_mini_batches_as_they_come_count_as_arrays_do(labeled):
    X, y = labeled
    labels = np.unique(y, return_inverse=True)[1]
    whole = evaluate(OnlineKernelClassifier(), X[:320], labels[:320], batch_size=SIZE).last
    stream = ArrayStream(X[:320], labels[:320], batch_size=SIZE)
    batches = [(X[:0], labels[:0]), *stream]  # an empty one is nothing
    assert evaluate(OnlineKernelClassifier(), batches, classes=range(3)).last.error == whole.error
    assert evaluate(OnlineKernelClassifier(), iter(stream), classes=range(3)).last.samples == 320


def test_data_frames_lists_and_sparse_matrices_are_taken_by_position(labeled):
    X, y = labeled
    frame = pd.DataFrame(X, index=np.arange(ROWS)[::-1] + 0.5)
    expected = evaluate(GaussianNB(), X, y).last.error
    assert evaluate(GaussianNB(), frame, pd.Series(y, index=frame.index)).last.error == expected
    assert evaluate(GaussianNB(), X.tolist(), y.tolist()).last.error == expected
    expected = evaluate(SGDClassifier(random_state=0), sparse.csr_matrix(X), y).last.error
    assert evaluate(SGDClassifier(random_state=0), sparse.coo_matrix(X), y).last.error == expected


def test_seconds_and_points_are_measured(labeled):
    found = evaluate(OnlineKernelClassifier(), *labeled, batch_size=SIZE)
    for name in ("predict_seconds", "learn_seconds"):
        assert (np.diff(found.column(name)) > 0).all()
    model = KernelMeshClassifier(graph=[(0, 1)])
    assert evaluate(model, *labeled).last.points == model.model_order_.sum() > 0
    assert evaluate(GaussianNB(), *labeled).last.points is None


def test_rows_make_a_table(labeled):
    found = evaluate(GaussianNB(), *labeled, batch_size=SIZE)
    table = pd.DataFrame(found.rows())
    assert list(table) == [field.name for field in dataclasses.fields(Record)]
    assert (table["error"] == found.column("error")).all()
    with pytest.raises(InvalidArgument, match=r"name must be one of samples, score, .*, got 'loss'"):
        found.column("loss")


class Newest:
    """Predicts the newest target; partial_fit takes no classes."""

    def __init__(self, interrupt_at=math.inf):
        self.calls, self.interrupt_at = 0, interrupt_at

    def partial_fit(self, X, y):
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        self.value = y[-1]

    def predict(self, X):
        return np.full(len(X), self.value)


def test_any_object_is_a_classifier_if_classes_are_given():
    X, y = np.zeros((6, 1)), np.array([0, 0, 2, 2, 2, 0])
    assert evaluate(Newest(), X, y, batch_size=2).last.error == (4 + 4 + 0 + 4) / 4
    found = evaluate(Newest(), X, y, batch_size=2, classes=[0, 2])
    assert (found.classifies, found.last.error, found.last.score) == (True, 0.75, 0.25)


def test_a_model_keeps_the_classes_it_knows(labeled):
    X, y = labeled
    model = OnlineKernelClassifier().partial_fit(X, y, classes=["left", "middle", "right", "unseen"])
    assert evaluate(model, X, y).last.score > 0.5
    assert len(model.classes_) == 4


def test_r2_is_nan_where_targets_do_not_vary():
    found = evaluate(Newest(), np.zeros((4, 1)), np.ones(4), batch_size=2).last
    assert (found.error, math.isnan(found.score)) == (0.0, True)


@pytest.mark.parametrize(("at", "samples"), [(1, 0), (2, 2), (5, 8)])
def test_ctrl_c_returns_what_was_measured(at, samples):
    X, y = np.zeros((20, 1)), np.arange(20.0)
    found = evaluate(Newest(interrupt_at=at), X, y, batch_size=2, measure_every=3)
    assert not found.complete
    assert found.last.samples == samples
    if samples <= 2:
        assert math.isnan(found.last.error)
    else:
        assert found.last.error == evaluate(Newest(), X[:samples], y[:samples], batch_size=2).last.error


def test_progress_receives_every_record(labeled):
    seen = []
    found = evaluate(GaussianNB(), *labeled, measure_every=4, progress=seen.append)
    assert tuple(seen) == found.records

    def press(record):
        raise KeyboardInterrupt

    stopped = evaluate(GaussianNB(), *labeled, progress=press)
    assert stopped.records == (dataclasses.replace(stopped.records[0], samples=64),)
    assert not stopped.complete


X, Y = np.zeros((8, 1)), np.arange(8) % 2


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Newest(), X), {}, r"evaluate: y must be given unless X is an iterable of pairs \(X, y\), got None"),
        ((Newest(), X, Y[:7]), {}, r"evaluate: y must have 8 rows, got shape \(7,\)"),
        ((Newest(), X, Y), {}, "X must have more rows than the first mini-batch of 32, .*, got 8 rows; lower batch_size"),
        ((Newest(), X, Y), {"batch_size": 0}, "evaluate: batch_size must be an integer >= 1, got 0"),
        ((GaussianNB(), [(X, Y)]), {}, "classes must be given if y is omitted, got None; list all labels"),
        ((Newest, X, Y), {"batch_size": 2}, r"evaluate: model must be an object, got the class Newest; pass Newest\(\)"),
        (
            (make_pipeline(StandardScaler(), GaussianNB()), X, Y),
            {"batch_size": 2},
            "model must have partial_fit and predict, got an object of type Pipeline; transform X .* pass the last step",
        ),
        ((Newest(), iter([])), {}, "evaluate: X must yield at least two mini-batches, got none; the first is not scored"),
        ((Newest(), X, np.stack([Y, Y])), {}, r"y must have 8 rows, got shape \(2, 8\); transpose it: one row per sample"),
        ((Newest(), X, [[1], [2, 3]]), {}, "evaluate: y must be an array, got .*; give every row the same number of values"),
        ((Newest(), [(X, 1)]), {}, r"evaluate: X must yield as many targets as points, got shapes \(8, 1\) and \(\)"),
        ((Newest(), "text", Y), {}, r"evaluate: X must be rows of features, or an iterable of pairs \(X, y\), got 'text'"),
        (
            (GaussianNB(), np.full((8, 1), "red"), Y),
            {"batch_size": 2},
            "evaluate: X must contain numbers for this model, got 'red'; encode text as numbers",
        ),
        ((Newest(), [X]), {}, r"evaluate: X must yield pairs \(X, y\) if y is omitted, got array"),
        ((GaussianNB(), X, np.zeros((8, 2))), {"batch_size": 2}, r"one label per row for a classifier, got shape \(2, 2\)"),
        (
            (Newest(), X, Y.astype(str)),
            {"batch_size": 2},
            "contain real numbers for a regressor, got dtype <U.*; pass classes",
        ),
        ((Newest(), X, np.zeros((8, 2))), {"batch_size": 2}, r"model must predict 4 values for targets of shape \(2, 2\)"),
    ],
)
def test_invalid_calls_of_evaluate_are_refused(arguments, options, message):
    with pytest.raises(InvalidArgument, match=message):
        evaluate(*arguments, **options)
