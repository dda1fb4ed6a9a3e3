"""Streams that change, learners of other libraries, and the experiment that brings them together."""

import math
import sys

import numpy as np
import pytest
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import SGDClassifier

from kernelmesh import InvalidArgument, Mixture, OnlineKernelClassifier, evaluate
from kernelmesh.streams.drift import present_classes, recurring, relabeled, rotating
from kernelmesh_experiments import drift
from kernelmesh_experiments.base import Session
from kernelmesh_experiments.rivals.online import AfterFeatures, RiverClassifier

QUARTER = math.pi / 2
TINY = {"samples": 320, "window": 100, "measure_every": 2}


def rng():
    return np.random.default_rng(7)


@pytest.fixture
def sharp():
    """One mode per class, and next to no noise: points are their classes' centers."""
    return Mixture.draw(classes=4, modes=1, spread=1e-6, rng=rng())


@pytest.fixture
def mixture():
    return Mixture.draw(rng=rng())


def test_classes_end_rotated_by_the_angle(sharp):
    rows = 4001
    stream = rotating(sharp, rows, angle=QUARTER, rng=rng())
    centers = sharp.modes[:, 0]
    assert stream.points[0] == pytest.approx(centers[stream.labels[0]], abs=1e-4)
    turned = np.stack([-centers[:, 1], centers[:, 0]], axis=1)
    assert stream.points[-1] == pytest.approx(turned[stream.labels[-1]], abs=1e-4)
    for label in range(4):  # those of the last hundred are almost there
        late = stream.points[-100:][stream.labels[-100:] == label]
        assert np.abs(late.mean(axis=0) - turned[label]).max() < 0.05 * np.linalg.norm(turned[label])
    middle = stream.points[2000] / np.linalg.norm(centers[stream.labels[2000]])
    start = centers[stream.labels[2000]] / np.linalg.norm(centers[stream.labels[2000]])
    assert middle @ start == pytest.approx(math.cos(QUARTER / 2), abs=1e-4)
    assert (stream.best == stream.labels).all()


def test_rotating_by_nothing_is_the_mixture_itself(mixture):
    stream = rotating(mixture, 50, angle=0.0, rng=rng())
    points, labels = mixture.sample(50, rng=rng())
    assert (stream.points == points).all()
    assert (stream.labels == labels).all()
    assert (stream.best == mixture.bayes(points)).all()


def test_absent_classes_are_absent_and_return(mixture):
    phases = 5
    stream = recurring(mixture, 2000, phases=phases, absent=2, rng=rng())
    seen = [set(part.tolist()) for part in np.array_split(stream.labels, phases)]
    assert seen == [set(present_classes(5, phase, absent=2).tolist()) for phase in range(phases)]
    assert all(len(each) == 3 for each in seen)
    for label in range(5):
        there = [label in each for each in seen]
        assert any(there)
        assert not all(there)
    best = [set(part.tolist()) for part in np.array_split(stream.best, phases)]
    assert all(a <= b for a, b in zip(best, seen, strict=True))  # what is absent is never the most likely


def test_labels_of_all_classes_change_half_way(sharp):
    stream = relabeled(sharp, 400, rng=rng())
    nearest = np.linalg.norm(stream.points[:, None] - sharp.modes[:, 0], axis=2).argmin(axis=1)
    assert (stream.labels[:200] == nearest[:200]).all()
    assert (stream.labels[200:] != nearest[200:]).all()
    renamed = {(a, b) for a, b in zip(nearest[200:].tolist(), stream.labels[200:].tolist(), strict=True)}
    assert sorted(a for a, _ in renamed) == sorted(b for _, b in renamed) == [0, 1, 2, 3]  # one for one
    assert (stream.best == stream.labels).all()


@pytest.mark.parametrize("name", drift.STREAMS)
def test_streams_repeat_from_their_seed_and_nothing_beats_the_best(name):
    config = drift.Config(samples=3000)
    first, again = config.draw(name), config.draw(name)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    other = drift.Config(samples=3000, seed=1).draw(name)
    assert (first.points != other.points).any()
    assert 0.5 < (first.best == first.labels).mean() < 1


def test_absent_classes_cannot_be_all(mixture):
    with pytest.raises(InvalidArgument, match="absent must be less than the 5 classes, got 5"):
        recurring(mixture, 10, phases=2, absent=5, rng=rng())


def test_features_are_those_of_the_first_mini_batch(mixture):
    points, labels = mixture.sample(200, rng=rng())
    model = AfterFeatures(RBFSampler(random_state=0), SGDClassifier(random_state=0))
    features, twin = RBFSampler(random_state=0).fit(points[:50]), SGDClassifier(random_state=0)
    for rows in (slice(50), slice(50, 200)):
        model.partial_fit(points[rows], labels[rows], classes=range(5))
        twin.partial_fit(features.transform(points[rows]), labels[rows], classes=range(5))
    assert (model.predict(points) == twin.predict(features.transform(points))).all()


def test_rivers_learners_learn_sample_by_sample(mixture):
    naive_bayes = pytest.importorskip("river.naive_bayes")
    points, labels = mixture.sample(100, rng=rng())
    model, twin = RiverClassifier(naive_bayes.GaussianNB()), naive_bayes.GaussianNB()
    model.partial_fit(points[:60], labels[:60])
    model.partial_fit(points[60:], labels[60:])
    for (x0, x1), label in zip(points.tolist(), labels.tolist(), strict=True):
        twin.learn_one({0: x0, 1: x1}, label)
    assert model.predict(points).tolist() == [twin.predict_one({0: x0, 1: x1}) for x0, x1 in points.tolist()]


class InProcess(Session):
    """Computes some cells here, one after the other."""

    def __init__(self, folder, wanted):
        super().__init__(folder)
        self.wanted = wanted

    def compute(self, cells):
        return {name: dict(cell.function(cell.settings)) for name, cell in cells.items() if self.wanted(name)}


def expected_keys(stream, river):
    return {f"{stream}_{name}_error" for name, each in drift.CONTENDERS.items() if river or each.library != "river"}


def errors_of(summary):
    return {key for key in summary if key.endswith("_error")}


def test_every_learner_takes_part(tmp_path):
    pytest.importorskip("river")
    found = drift.run(drift.Config(**TINY), InProcess(tmp_path, lambda name: name.startswith("permute-")))
    assert errors_of(found.summary) == expected_keys("permute", river=True)
    assert found.summary["river"][0].isdigit()
    rows = found.tables["table"]
    assert [row["learner"] for row in rows] == [contender.title for contender in drift.CONTENDERS.values()]
    assert min(rows, key=lambda row: row["error"])["learner"] == "Bayes optimal"
    for row in rows:
        assert 0 < row["error"] < 0.8
        assert 0 < row["window_error"] < 1
        assert (row["points"] != "") == row["learner"].startswith("kernelmesh")
    (axes,) = found.figures["figure"].axes
    samples, errors = axes.lines[0].get_data()
    assert samples.tolist() == [96, 160, 224, 288, 320]
    assert errors[-1] == 100 * rows[0]["window_error"]


def test_without_river_a_line_says_so_and_the_rest_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)  # as if it were not installed
    found = drift.run(drift.Config(**TINY), InProcess(tmp_path, lambda name: name.startswith("rotate-")))
    assert errors_of(found.summary) == expected_keys("rotate", river=False)
    assert found.summary["river"] == "not installed; its learners are skipped (pip install river)"
    assert "its learners are skipped" in found.paragraphs[-1]


@pytest.mark.parametrize("streams", [[], ["rotate", "come_and_go"], list(drift.STREAMS)])
def test_finished_cells_are_reported(streams, tmp_path):
    found = drift.run(drift.Config(**TINY), InProcess(tmp_path, lambda name: name in {f"{each}-bayes" for each in streams}))
    assert [row["stream"] for row in found.tables["table"]] == streams
    assert [len(figure.axes) for figure in found.figures.values()] == ([len(streams)] if streams else [])


def test_the_second_order_learner_is_the_default_estimator():
    config = drift.Config(**TINY)
    stream = config.draw("rotate")
    default = evaluate(OnlineKernelClassifier(), stream.points, stream.labels, classes=range(5))
    assert drift.cell((config, "rotate", "second_order"))["error"] == default.last.error
