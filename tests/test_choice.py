"""How the width of the default kernel, and λ, are chosen by the first rows."""

import pickle

import numpy as np
import pytest
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
from kernelmesh.estimators import choice
from kernelmesh.estimators.defaults import defaults_of

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
    known = {"classes": np.unique(y)} if isinstance(model, OnlineKernelClassifier) and not hasattr(model, "states_") else {}
    for first in range(start, len(X), size):
        model.partial_fit(X[first : first + size], y[first : first + size], **known)
        known = {}
    return model


def outputs(model, X):
    return model.decision_function(X) if hasattr(model, "classes_") else model.predict(X)


def agent_for(kind, *, bandwidth, factor=1.0):
    """With the default λ times a factor."""
    classifies = kind is OnlineKernelClassifier
    usual = defaults_of(SecondOrder, classifies=classifies)
    return Agent(
        dimension=2,
        outputs=2 if classifies else 1,
        kernel=Gaussian(bandwidth=bandwidth),
        loss=Logistic() if classifies else Squared(),
        learner=SecondOrder(regularization=factor * usual.regularization, **usual.settings),
    )


def rows_for(kind, rows):
    X, y = DATA[kind](rows)
    return (X, y) if kind is OnlineKernelClassifier else (X, y[:, None])


@KINDS
def test_where_the_choice_starts_does_not_matter(kind):
    X, y = rows_for(kind, 256)
    expected = choice.suited(agent_for(kind, bandwidth=1.0), X, y, regularizes=True).agent
    for bandwidth, factor in ((0.5, 1.0), (2.0, 1.0), (4.0, 1.0), (1.0, 0.5), (1.0, 2.0)):
        found = choice.suited(agent_for(kind, bandwidth=bandwidth, factor=factor), X, y, regularizes=True).agent
        assert found.kernel.bandwidth == pytest.approx(expected.kernel.bandwidth, rel=1e-12)
        assert found.learner.regularization == pytest.approx(expected.learner.regularization, rel=1e-12)


@KINDS
def test_the_choice_is_better_than_its_neighbors(kind):
    X, y = rows_for(kind, 256)
    found = choice.suited(agent_for(kind, bandwidth=9.0), X, y, regularizes=True)
    width, unit = found.agent.kernel.bandwidth, agent_for(kind, bandwidth=1.0).learner.regularization
    strength = found.agent.learner.regularization / unit
    assert found.loss == pytest.approx(literal(found.agent, X, y), rel=1e-9)
    for factor in (0.5, 2.0):
        assert literal(agent_for(kind, bandwidth=factor * width, factor=strength), X, y) >= found.loss
        assert literal(agent_for(kind, bandwidth=width, factor=factor * strength), X, y) >= found.loss
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


def test_the_choice_does_not_depend_on_how_rows_are_split_into_calls():
    X, y = moons(1200)
    one = OnlineKernelClassifier().partial_fit(X, y, classes=[0, 1])
    many = streamed(OnlineKernelClassifier(), X, y)
    assert (one.kernel_, one.regularization_) == (many.kernel_, many.regularization_)
    np.testing.assert_array_equal(one.decision_function(X), many.decision_function(X))


@KINDS
def test_files_and_pickles_continue_choosing(kind, tmp_path):
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


@pytest.mark.parametrize("damage", ["columns", "rows", "labels", "too many"])
def test_a_file_with_invalid_first_rows_is_rejected(damage, tmp_path):
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


def test_given_settings_are_not_chosen():
    X, y = moons()
    for kernel in (Gaussian(bandwidth=0.3), Laplacian()):
        model = OnlineKernelClassifier(kernel, random_state=0).fit(X, y)
        assert (model.kernel_, model.regularization_) == (kernel, 0.05)
    for settings in ({"regularization": 0.3}, {"learner": SecondOrder(regularization=0.3)}):
        model = streamed(OnlineKernelClassifier(**settings), X, y)
        assert model.regularization_ == model.agent_.learner.regularization == 0.3
        assert model.kernel_.bandwidth != OnlineKernelClassifier(**settings).fit(X[:100], y[:100]).kernel_.bandwidth
        fitted = OnlineKernelClassifier(**settings, passes=3, random_state=0).fit(X, y)
        assert (fitted.regularization_, fitted.agent_.learner.regularization) == (0.3, pytest.approx(0.9))


@pytest.mark.parametrize(
    ("learner", "rows"), [(Gradient(step_size=3.0), 256), (None, 127)], ids=["other learner", "few rows"]
)
def test_the_default_is_kept_with_other_learners_and_few_rows(learner, rows):
    X, y = moons(rows)
    model = OnlineKernelClassifier(learner=learner, random_state=0).fit(X, y)
    factor, expected = (1.0, 1e-6) if learner else (0.7, 0.05)
    assert model.kernel_.bandwidth == pytest.approx(factor * np.sqrt(X.var(axis=0).sum() / 2))
    assert model.regularization_ == expected


def test_networks_agree_on_scales_instead():
    X, y = moons(256)
    units = np.array([1.0, 100.0])
    plain, scaled = (KernelMeshClassifier(passes=1, random_state=0).fit(points, y) for points in (X, X * units))
    assert plain.kernel_.kernel == scaled.kernel_.kernel == Gaussian(bandwidth=0.7)
    np.testing.assert_allclose(plain.kernel_.weights, scaled.kernel_.weights * units)
    assert (scaled.predict(X * units) == plain.predict(X)).mean() > 0.98  # which samples become points may differ
