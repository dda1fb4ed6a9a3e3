"""Streams that change, learners of other libraries, and the experiment that brings them together."""

import math
import sys

import numpy as np
import pytest
from kernelmesh.experiments import Session, drift, run
from kernelmesh.experiments.events import Progress
from kernelmesh.experiments.outcome import Complete, Interrupted
from kernelmesh.experiments.rivals.online import AfterFeatures, RiverClassifier
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import SGDClassifier

from kernelmesh import InvalidArgument, Mixture, OnlineKernelClassifier, evaluate
from kernelmesh.streams.drift import present_classes, recurring, relabeled, rotating

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
    config = drift.Config(stream=name, samples=3000)
    first, again = config.draw(), config.draw()
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    other = drift.Config(stream=name, samples=3000, seed=1).draw()
    assert (first.points != other.points).any()
    assert 0.5 < (first.best == first.labels).mean() < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"absent": 5}, "drift: absent must be less than the 5 classes, got 5"),
        ({"samples": 32}, "drift: batch_size must be less than the 32 samples, got 32"),
        (
            {"samples": 40, "phases": 41},
            "drift: phases must be at most the number of samples, 40, got 41; each phase needs at least one sample",
        ),
        ({"stream": "still"}, "drift: stream must be one of all, rotate, come_and_go, permute"),
    ],
)
def test_settings_that_make_no_stream_are_refused(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        drift.Config(**settings)


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
    """Computes cells here, one after the other, and stops after some."""

    def __init__(self, folder, most=99):
        super().__init__(folder)
        self.most = most

    def compute(self, cells):
        return {name: dict(cell.function(cell.settings)) for name, cell in list(cells.items())[: self.most]}


def expected_keys(stream, river):
    return {f"{stream}_{name}_error" for name, each in drift.CONTENDERS.items() if river or each.library != "river"}


def errors_of(summary):
    return {key for key in summary if key.endswith("_error")}


def test_every_learner_takes_part(tmp_path):
    pytest.importorskip("river")
    found = drift.run(drift.Config(**TINY, stream="permute"), InProcess(tmp_path))
    assert errors_of(found.summary) == expected_keys("permute", river=True)
    assert found.summary["river"][0].isdigit()
    rows = found.tables["table"]
    assert [row["learner"] for row in rows] == [contender.title for contender in drift.CONTENDERS.values()]
    assert min(rows, key=lambda row: row["error"])["learner"] == "Bayes optimal"
    for row in rows:
        assert 0 < row["error"] < 0.8
        assert 0 < row["window_error"] < 1
        assert row["kilobytes"] > 0
        assert (row["points"] != "") == row["learner"].startswith("kernelmesh")
    (axes,) = found.figures["figure"].axes
    assert len(axes.lines) == len(rows)
    for look in ("color", "marker"):  # every learner has its own
        assert len({str(getattr(line, f"get_{look}")()) for line in axes.lines}) == len(rows)
    labels = [text.get_text() for text in found.figures["figure"].legends[0].get_texts()]
    assert labels == [row["learner"] for row in rows]
    assert "kernelmesh, second-order" in labels
    assert "seed 0" in found.figures["figure"].get_suptitle()
    samples, errors = axes.lines[0].get_data()
    assert samples.tolist() == [96, 160, 224, 288, 320]
    assert errors[-1] == 100 * rows[0]["window_error"]


def test_rivers_nearest_neighbors_repeat_from_the_seed():
    pytest.importorskip("river")
    config = drift.Config(stream="rotate", contender="river_knn", samples=1500)  # it searches at random from 500 on
    assert drift.cell(config)["path"] == drift.cell(config)["path"]


def test_without_river_a_line_says_so_and_the_rest_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "river", None)  # as if it were not installed
    found = drift.table(drift.Config(**TINY, stream="rotate", seeds=2), InProcess(tmp_path))
    assert errors_of(found.summary) == expected_keys("rotate", river=False)
    assert found.summary["river"] == "not installed; its learners are skipped (pip install river)"
    assert "its learners are skipped" in found.paragraphs[-1]
    assert {row["seeds"] for row in found.tables["table"]} == {2}
    assert "means over 2 seeds" in found.figures["figure"].get_suptitle()
    ours = [row for row in found.tables["cells"] if row["learner"] == "kernelmesh, second-order"]
    assert [row["seed"] for row in ours] == [0, 1]
    assert found.summary["rotate_second_order_error"] == pytest.approx((ours[0]["error"] + ours[1]["error"]) / 2)
    with pytest.raises(InvalidArgument, match="contender must be installed, got 'river_knn'; pip install river"):
        drift.run(drift.Config(**TINY, contender="river_knn"), InProcess(tmp_path))


def test_one_learner_is_drawn_with_the_bayes_limit(tmp_path):
    found = drift.run(drift.Config(**TINY, stream="rotate", contender="averaged"), InProcess(tmp_path))
    assert [row["learner"] for row in found.tables["table"]] == ["Bayes optimal", "kernelmesh, averaged"]
    assert len(found.figures["figure"].axes[0].lines) == 2


def test_the_second_order_learner_is_the_default_estimator():
    config = drift.Config(**TINY, stream="rotate", contender="second_order")
    stream = config.draw()
    default = evaluate(OnlineKernelClassifier(), stream.points, stream.labels, classes=range(5))
    assert drift.cell(config)["error"] == default.last.error


@pytest.mark.parametrize(("most", "streams"), [(0, []), (2, ["rotate", "come_and_go"]), (3, list(drift.STREAMS))])
def test_what_is_done_is_reported(most, streams, tmp_path):
    found = drift.run(drift.Config(**TINY, contender="bayes"), InProcess(tmp_path, most))
    assert [row["stream"] for row in found.tables["table"]] == streams
    assert [len(figure.axes) for figure in found.figures.values()] == ([len(streams)] if streams else [])


@pytest.mark.slow
def test_an_interrupted_table_reports_what_is_done_and_resumes(tmp_path):
    config = drift.Config(**TINY, contender="bayes", seeds=6)
    events = []
    stopped = run(drift.EXPERIMENT, config, tmp_path, table=True, observers=(events.append,), stop=lambda: len(events) > 2)
    done = stopped.outcome.done
    assert stopped.outcome == Interrupted(done=done, total=18, unit="cells")
    assert 1 <= done < 18
    assert errors_of(stopped.report.summary) <= {f"{stream}_bayes_error" for stream in drift.STREAMS}
    assert len(stopped.report.findings.tables["cells"]) == done
    events.clear()
    finished = run(drift.EXPERIMENT, config, tmp_path, table=True, resume=True, observers=(events.append,))
    assert next(event for event in events if isinstance(event, Progress)).done == done
    assert finished.outcome == Complete()
    assert errors_of(finished.report.summary) == {f"{stream}_bayes_error" for stream in drift.STREAMS}
    assert len(finished.report.findings.figures["figure"].axes) == 3
    stream = drift.Config(**TINY, stream="rotate").draw()
    assert finished.report.findings.tables["cells"][0]["error"] == pytest.approx((stream.best != stream.labels)[32:].mean())
