"""How the width of the default kernel, and λ, are chosen by the first rows."""

import dataclasses
import pickle
from unittest import mock

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons

from kernelmesh import (
    Agent,
    Gaussian,
    Gradient,
    KernelMeshClassifier,
    Laplacian,
    Logistic,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    SecondOrder,
    Squared,
    UnreadableFile,
    storage,
)
from kernelmesh.estimators import choice, defaults

BATCH = 32


def moons(rows=320):
    X, y = make_moons(rows, noise=0.3, random_state=1)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def waves(rows=320):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=rows)


DATA = {OnlineKernelClassifier: moons, OnlineKernelRegressor: waves}
KINDS = pytest.mark.parametrize("kind", list(DATA))


def streamed(model, X, y, size=BATCH, start=0):
    known = {"classes": np.unique(y)} if isinstance(model, OnlineKernelClassifier) and not hasattr(model, "_states") else {}
    for first in range(start, len(X), size):
        model.partial_fit(X[first : first + size], y[first : first + size], **known)
        known = {}
    return model


def outputs(model, X):
    return model.decision_function(X) if hasattr(model, "classes_") else model.predict(X)


def tables(**factors):
    usual = defaults.defaults_of(SecondOrder)
    changed = {
        name: defaults.ByTargets(*(factor * each for each in getattr(usual, name))) for name, factor in factors.items()
    }
    return mock.patch.object(defaults, "_SECOND_ORDER", dataclasses.replace(usual, **changed))


@KINDS
@pytest.mark.parametrize(
    "factors", [{"width": 0.5}, {"width": 2.0}, {"regularization": 0.5}, {"regularization": 2.0}], ids=str
)
def test_halving_or_doubling_width_or_lambda_changes_nothing(kind, factors):
    X, y = DATA[kind]()
    expected = [streamed(kind(), X, y), kind(random_state=0).fit(X, y)]
    with tables(**factors):
        found = [streamed(kind(), X, y), kind(random_state=0).fit(X, y)]
    for one, other in zip(expected, found, strict=True):
        assert one.kernel_.bandwidth == pytest.approx(other.kernel_.bandwidth, rel=1e-12)
        np.testing.assert_allclose(outputs(other, X), outputs(one, X), atol=1e-6)


@KINDS
def test_a_far_better_width_is_found(kind):
    X, y = DATA[kind]()
    with tables(width=4.0):
        assert streamed(kind(), X, y).kernel_.bandwidth < 2.0
        assert kind(random_state=0).fit(X, y).kernel_.bandwidth < 2.0


@pytest.mark.parametrize("classifies", [True, False])
def test_what_is_found_is_better_than_its_neighbors(classifies):
    X, y = moons(256) if classifies else waves(256)
    y = y if classifies else y[:, None]
    loss = Logistic() if classifies else Squared()
    agent = Agent(
        dimension=2, outputs=2 if classifies else 1, kernel=Gaussian(bandwidth=9.0), loss=loss, learner=SecondOrder()
    )
    found = choice.suited(agent, X, y, regularizes=True)
    width, strength = found.agent.kernel.bandwidth, found.agent.regularization
    assert found.loss == pytest.approx(literal(found.agent, X, y), rel=1e-9)
    for factor in (0.5, 2.0):
        wider = dataclasses.replace(found.agent, kernel=Gaussian(bandwidth=factor * width))
        assert literal(wider, X, y) >= found.loss
        assert literal(dataclasses.replace(found.agent, regularization=factor * strength), X, y) >= found.loss
    assert found.state.samples == 256


def literal(agent, X, y):
    """The mean score of what is predicted of each row in the second half before it is learned."""
    state, scores = agent.start(), []
    for start in range(0, len(X), BATCH):
        batch = slice(start, start + BATCH)
        for z, target in zip(state.function(X[batch]), y[batch], strict=True):
            p = np.exp(z) / np.exp(z).sum()
            scores.append(
                ((p - np.eye(len(p))[target]) ** 2).sum() if agent.loss.classifies else 0.5 * ((z - target) ** 2).sum()
            )
        state, _ = agent.step(state, X[batch], y[batch])
    return np.mean(scores[len(X) // 2 :])


def test_how_rows_are_cut_into_calls_does_not_matter():
    X, y = moons(1200)
    one = OnlineKernelClassifier().partial_fit(X, y, classes=[0, 1])
    many = streamed(OnlineKernelClassifier(), X, y)
    assert (one.kernel_, one.regularization_) == (many.kernel_, many.regularization_)
    np.testing.assert_array_equal(one.decision_function(X), many.decision_function(X))


@KINDS
def test_the_first_rows_are_kept_until_the_choice_is_final(kind):
    X, y = DATA[kind](1100)
    model = streamed(kind(), X[:992], y[:992])
    assert len(model._beginning.points) == 992
    assert streamed(model, X[992:], y[992:])._beginning is None
    assert kind().fit(X, y)._beginning is None


@KINDS
def test_files_and_pickles_go_on_choosing(kind, tmp_path):
    X, y = DATA[kind]()
    model = streamed(kind(), X[:192], y[:192])
    model.save(tmp_path / "model")
    loaded, copied = kind.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))
    assert loaded.regularization_ == model.regularization_
    for other in (model, loaded, copied):
        streamed(other, X, y, start=192)
    for other in (loaded, copied):
        assert (other.kernel_, other.regularization_) == (model.kernel_, model.regularization_)
        np.testing.assert_allclose(outputs(other, X), outputs(model, X), atol=1e-6)
    assert not hasattr(clone(model), "_beginning")


@pytest.mark.parametrize("damage", ["columns", "rows", "labels", "too many"])
def test_a_file_whose_first_rows_do_not_fit_is_refused(damage, tmp_path):
    X, y = moons(96)
    OnlineKernelClassifier().partial_fit(X, y, classes=[0, 1]).save(tmp_path / "model")
    arrays, settings = storage.read(tmp_path / "model", kind="OnlineKernelClassifier")
    points, targets = arrays["beginning.points"], arrays["beginning.targets"]
    arrays["beginning.points"], arrays["beginning.targets"] = {
        "columns": (np.hstack([points, points]), targets),
        "rows": (points[1:], targets),
        "labels": (points, targets + 2),
        "too many": (np.tile(points, (11, 1)), np.tile(targets, 11)),
    }[damage]
    storage.write(tmp_path / "model", kind="OnlineKernelClassifier", arrays=arrays, settings=settings)
    with pytest.raises(UnreadableFile, match="file"):
        OnlineKernelClassifier.load(tmp_path / "model")


def test_what_was_given_is_not_chosen():
    X, y = moons()
    for kernel in (Gaussian(bandwidth=0.3), Laplacian()):
        model = OnlineKernelClassifier(kernel, random_state=0).fit(X, y)
        assert (model.kernel_, model.regularization_, model._beginning) == (kernel, 0.05, None)
    with tables(width=8.0):
        model = streamed(OnlineKernelClassifier(regularization=0.3), X, y)
        assert model.regularization_ == model._agent.regularization == 0.3
        assert model.kernel_.bandwidth < 2.0
        fitted = OnlineKernelClassifier(regularization=0.3, passes=3, random_state=0).fit(X, y)
        assert (fitted.regularization_, fitted._agent.regularization) == (0.3, pytest.approx(0.9))


def test_other_rules_take_the_default():
    X, y = moons(256)
    model = OnlineKernelClassifier(learner=Gradient()).fit(X, y)
    assert model.kernel_ == Gaussian(bandwidth=np.sqrt(X.var(axis=0).sum() / 2))
    assert (model._beginning, model.regularization_) == (None, 1e-6)


def test_the_agents_of_a_network_agree_on_scales_in_place_of_it():
    X, y = moons(256)
    units = np.array([1.0, 100.0])
    plain, scaled = (KernelMeshClassifier(passes=1, random_state=0).fit(points, y) for points in (X, X * units))
    assert plain._beginning is None
    assert plain.kernel_.kernel == scaled.kernel_.kernel == Gaussian(bandwidth=0.7)
    np.testing.assert_allclose(plain.kernel_.weights, scaled.kernel_.weights * units)
    assert (scaled.predict(X * units) == plain.predict(X)).mean() > 0.98  # which samples become points may differ


def test_few_rows_choose_nothing():
    X, y = moons(127)
    model = OnlineKernelClassifier(random_state=0).fit(X, y)
    assert model.kernel_.bandwidth == pytest.approx(0.7 * np.sqrt(X.var(axis=0).sum() / 2))
    assert model.regularization_ == 0.05


def test_a_call_that_fails_leaves_the_choice_as_it_was(monkeypatch):
    X, y = moons(320)
    model = streamed(OnlineKernelClassifier(), X[:96], y[:96])
    expected = streamed(pickle.loads(pickle.dumps(model)), X, y, start=96)
    with monkeypatch.context() as patch:
        patch.setattr("kernelmesh.estimators.base.suited", mock.Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            model.partial_fit(X[96:160], y[96:160])
    assert len(model._beginning.points) == 96
    streamed(model, X, y, start=96)
    np.testing.assert_array_equal(model.decision_function(X), expected.decision_function(X))
