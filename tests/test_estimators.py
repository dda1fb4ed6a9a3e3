import dataclasses
import itertools
import math
import os
import pickle
import re
import time

import networkx as nx
import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_moons
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernelmesh import (
    ArrayStream,
    Averaged,
    Diffusion,
    Diverged,
    Faults,
    Gaussian,
    Gradient,
    Graph,
    Hinge,
    InvalidArgument,
    KernelMeshClassifier,
    KernelMeshRegressor,
    Komp,
    Landmarks,
    Laplacian,
    Linear,
    Local,
    Logistic,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    Penalty,
    Polynomial,
    Relay,
    ScaleWarning,
    SecondOrder,
    Squared,
    UnreadableFile,
    register,
    registry,
    simulate,
)

CLASSIFIERS = [OnlineKernelClassifier, KernelMeshClassifier]
REGRESSORS = [OnlineKernelRegressor, KernelMeshRegressor]
STEPPING = {"Gradient": Gradient(step_size=3.0), "Averaged": Averaged(step_size=100.0)}
DIVERGING = Gradient(step_size=500.0, compression=Komp(budget=0.01))


@parametrize_with_checks([kind() for kind in CLASSIFIERS + REGRESSORS])
@pytest.mark.filterwarnings("ignore")  # the checks provoke scikit-learn's own warnings on purpose
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


def moons(rows=400, seed=0):
    return make_moons(rows, noise=0.15, random_state=seed)


def waves(rows=300):
    X = np.random.default_rng(0).uniform(-2, 2, (rows, 1))
    return X, 100 + 30 * np.sin(2 * X[:, 0])


@pytest.mark.parametrize(
    ("model", "batch", "data", "slack"),
    [
        (OnlineKernelClassifier(random_state=0), SVC(), load_breast_cancer(return_X_y=True), 0.02),
        (OnlineKernelClassifier(random_state=0), SVC(), load_wine(return_X_y=True), 0.03),
        (OnlineKernelClassifier(random_state=0), SVC(), moons(), 0.03),
        (OnlineKernelRegressor(random_state=0), SVR(C=30.0), load_diabetes(return_X_y=True), 0.05),
    ],
    ids=["breast cancer", "wine", "moons", "diabetes"],
)
def test_defaults_come_near_a_batch_svm(model, batch, data, slack):
    found, expected = (cross_val_score(make_pipeline(StandardScaler(), each), *data, cv=3).mean() for each in (model, batch))
    assert found >= expected - slack


def test_probabilities_only_with_the_logistic_loss():
    X, y = moons()
    assert not hasattr(OnlineKernelClassifier(loss=Hinge()), "predict_proba")
    model = OnlineKernelClassifier(loss=Hinge(), random_state=0).fit(X, y)
    with pytest.raises(AttributeError, match="predict_proba needs the logistic loss"):
        model.predict_proba(X)
    assert model.score(X, y) > 0.9


def test_agents_take_turns_with_single_rows():
    X, y = moons(50)
    mesh = KernelMeshClassifier()
    for row, label in zip(X, y, strict=True):
        mesh.partial_fit(row[None], [label], classes=[0, 1])
    assert [state.samples for state in mesh.states_] == [10] * 5


@pytest.mark.parametrize(
    "kernel", [Linear(offset=1.0), Polynomial(degree=3), Gaussian() + Linear(), 50 * Gaussian()], ids=str
)
@pytest.mark.parametrize(
    "model",
    [
        OnlineKernelRegressor(),
        KernelMeshRegressor(protocol=Diffusion()),
        KernelMeshRegressor(protocol=Penalty(coupling=1e-4), passes=10),
    ],
    ids=["SecondOrder", "Averaged", "Gradient"],
)
def test_defaults_suit_kernels_of_any_size(model, kernel):
    X = np.random.default_rng(0).uniform(-2, 2, (300, 1))
    model = clone(model).set_params(kernel=kernel, random_state=0)
    assert model.fit(X, 2 * X[:, 0] + 1).score(X, 2 * X[:, 0] + 1) > 0.8


def test_partial_fit_needs_the_classes_first_and_rejects_new_ones():
    X, y = moons(64)
    with pytest.raises(ValueError, match="OnlineKernelClassifier: classes must be given in the first call"):
        OnlineKernelClassifier().partial_fit(X, y)
    model = OnlineKernelClassifier().partial_fit(X, y, classes=[0, 1])
    before = model.weights_
    with pytest.raises(ValueError, match=r"OnlineKernelClassifier: y must contain only the classes \[0, 1\], got 2"):
        model.partial_fit(X, np.full(64, 2))
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.full((64, 2), np.nan), y)
    assert model.weights_ is before
    model.partial_fit(X, y)


def test_learned_attributes_of_one_learner():
    X, y = moons()
    model = OnlineKernelClassifier(random_state=0).fit(X, y)
    assert model.dictionary_.shape == model.weights_.shape == (model.model_order_, 2)
    rows = {tuple(row) for row in X}
    assert all(tuple(point) in rows for point in model.dictionary_)


def test_learned_attributes_of_a_network():
    X, y = moons()
    mesh = KernelMeshClassifier(graph=Graph.star(4), random_state=0).fit(X, y)
    assert list(mesh.agents_) == [0, 1, 2, 3]
    assert mesh.model_order_.tolist() == [f.order for f in mesh.agents_.values()]
    average = sum(f(X) for f in mesh.agents_.values()) / 4
    np.testing.assert_allclose(mesh.agents_[0].kernel(X, mesh.dictionary_) @ mesh.weights_, average, atol=1e-10)
    assert (mesh.predict(X) == mesh.classes_[average.argmax(axis=1)]).all()
    for name, f in mesh.agents_.items():
        assert (mesh.predict(X, agent=name) == mesh.classes_[f(X).argmax(axis=1)]).all()


@pytest.mark.parametrize("kind", [KernelMeshClassifier, KernelMeshRegressor])
class TestNetworks:
    graph = ((0, 1), (1, 2))

    def data(self, kind):
        return moons(240) if kind in CLASSIFIERS else waves(240)

    def test_each_agent_has_a_score_of_its_own(self, kind):
        X, y = self.data(kind)
        mesh = kind(graph=self.graph, protocol=Local(), random_state=0).fit(X, y, agents=np.digitize(X[:, 0], [-0.5, 0.5]))
        weight = np.arange(len(X), dtype=float)
        metric = accuracy_score if kind in CLASSIFIERS else r2_score
        for agent in (None, 0, 1, 2):
            found = mesh.score(X, y, weight, agent=agent)
            assert found == metric(y, mesh.predict(X, agent=agent), sample_weight=weight)
        assert len({mesh.score(X, y, agent=agent) for agent in (0, 1, 2)}) > 1
        with pytest.raises(InvalidArgument, match=f"{kind.__name__}: agent must be among"):
            mesh.score(X, y, agent=3)

    def test_traffic_is_counted(self, kind, tmp_path):
        X, y = self.data(kind)
        mesh = kind(graph=self.graph, passes=1, random_state=0)
        assert not hasattr(mesh, "bytes_sent_")
        mesh.fit(X, y)
        first = mesh.floats_sent_, mesh.bytes_sent_
        assert (first[0] > 0).all()
        assert (first[1] > 4 * first[0]).all()
        mesh.save(tmp_path / "mesh")
        mesh.partial_fit(X, y)
        assert (mesh.floats_sent_ > first[0]).all()
        assert (mesh.bytes_sent_ > first[1]).all()
        back = kind.load(tmp_path / "mesh")
        assert (back.floats_sent_.tolist(), back.bytes_sent_.tolist()) == (first[0].tolist(), first[1].tolist())
        np.testing.assert_array_equal(mesh.fit(X, y).bytes_sent_, first[1])
        assert not kind(graph=self.graph, protocol=Local(), random_state=0).fit(X, y).bytes_sent_.any()

    def test_faults_are_simulated(self, kind, tmp_path):
        X, y = self.data(kind)
        usual = kind(graph=self.graph, passes=2, tol=None, random_state=0).fit(X, y)

        def fitted(faults):
            return clone(usual).set_params(faults=faults).fit(X, y)

        away = fitted(Faults(absent={2: [(1, 1000)]}, edges=[[(0, 1)], [(1, 2)]]))
        assert away.n_iter_ == 2
        assert away.floats_sent_.sum() < usual.floats_sent_.sum()
        lossy = fitted(Faults(drop=0.9, rng=np.random.default_rng(0)))
        assert not np.array_equal(lossy.weights_, usual.weights_)
        np.testing.assert_array_equal(fitted(Faults(drop=0.9, rng=np.random.default_rng(0))).weights_, lossy.weights_)
        lossy.save(tmp_path / "mesh")
        assert kind.load(tmp_path / "mesh").faults is None
        with pytest.raises(InvalidArgument, match=f"{kind.__name__}: faults must be Faults or None, got 0.9; for example"):
            fitted(0.9)
        with pytest.raises(InvalidArgument, match="absent must name agents among"):
            fitted(Faults(absent={"west": [(1, 2)]}))


def test_rows_go_to_the_agents_that_saw_them():
    X, y = moons(90)
    graph = nx.path_graph(["north", "center", "south"])
    who = np.array(["north", "center", "south"])[(X[:, 0] > 0).astype(int) + (X[:, 0] > 1)]
    mesh = KernelMeshClassifier(graph=graph, protocol=Local(), random_state=0).fit(X, y, agents=who)
    for name, f in mesh.agents_.items():
        mine = {tuple(row) for row in X[who == name]}
        assert all(tuple(point) in mine for point in f.points)
    with pytest.raises(ValueError, match=r"KernelMeshClassifier: agents must be among .*, got 'west'"):
        mesh.fit(X, y, agents=["west"] * 90)
    with pytest.raises(ValueError, match="agents must name an agent for each of 90 rows, got 3 names"):
        mesh.fit(X, y, agents=["north"] * 3)
    with pytest.raises(ValueError, match="KernelMeshClassifier: agent must be among"):
        mesh.predict(X, agent="west")
    with pytest.raises(ValueError, match="the network must be connected, got no path from 0 to 2; add an edge"):
        KernelMeshClassifier(graph=[(0, 1), (2, 3)]).fit(X, y)


def test_an_agent_without_rows_is_reported_in_fit():
    X, y = moons(60)
    mesh = KernelMeshClassifier(graph=[(0, 2), (2, 1)], protocol=Diffusion(), passes=1, random_state=0)
    with pytest.warns(UserWarning, match="KernelMeshClassifier: no rows for agent 2: an agent without rows") as caught:
        mesh.fit(X, y, agents=y)
    assert caught[0].filename == __file__
    mesh.partial_fit(X[:8], y[:8], agents=np.zeros(8, dtype=int))  # which may bring rows for some agents only


def test_defaults_suit_any_graph():
    X, y = moons()
    for graph in (Graph.star(20), Graph.complete(12), Graph.line(3)):
        mesh = KernelMeshClassifier(graph=graph, random_state=0, passes=30).fit(X, y)
        assert mesh.score(X, y) > 0.8


@pytest.mark.parametrize("kind", REGRESSORS)
def test_regression_of_any_scale_and_several_outputs(kind):
    X, y = waves()
    assert kind(random_state=0).fit(X, y).score(X, y) > 0.85
    assert kind(random_state=0).fit(X, 1e-6 * y).score(X, 1e-6 * y) > 0.85
    both = np.stack([y, -2 * y], axis=1)
    model = kind(random_state=0).fit(X, both)
    assert model.predict(X).shape == (300, 2)
    assert model.score(X, both) > 0.85
    constant = kind(random_state=0).fit(X, np.full(300, 7.0))
    np.testing.assert_allclose(constant.predict(X), 7.0)


@pytest.mark.parametrize(
    ("model", "argument", "words"),
    [
        (OnlineKernelClassifier(loss=Squared()), "loss", "take class targets"),
        (OnlineKernelRegressor(loss=Logistic()), "loss", "take value targets"),
        (OnlineKernelClassifier(loss="hinge"), "loss", "be a loss"),
        (OnlineKernelClassifier(kernel="rbf"), "kernel", "be a kernel"),
        (OnlineKernelClassifier(batch_size=0), "batch_size", "be an integer >= 1"),
        (OnlineKernelClassifier(tol=1.0), "tol", "be a fraction >= 0 and < 1, got 1.0; use None"),
        (OnlineKernelClassifier(regularization=0.0), "regularization", "be a finite number > 0"),
        (OnlineKernelClassifier(budget=-1.0), "budget", "be a finite number >= 0"),
        (KernelMeshClassifier(max_order=math.inf), "max_order", "be an integer >= 1"),
        (OnlineKernelClassifier(half_life=0.0), "half_life", "be a number > 0"),
        (KernelMeshClassifier(protocol=Penalty(coupling=0.1), half_life=9.0), "half_life", "be omitted with .* Gradient"),
        (OnlineKernelClassifier(learner="averaged"), "learner", "be a learner, got 'averaged'; for example"),
        (OnlineKernelClassifier(learner=SecondOrder(), budget=0.1), "budget", "be omitted .* learner=SecondOrder"),
        (KernelMeshClassifier(learner=SecondOrder()), "learner", r"be one that learns from neighbors, .* protocol=Local\(\)"),
        (KernelMeshClassifier(learner=Gradient(step_size=1.0), protocol=Relay()), "protocol", "be one from whose messages"),
        (KernelMeshClassifier(protocol="all"), "protocol", "be a protocol"),
    ],
)
def test_invalid_parameters_are_rejected(model, argument, words):
    with pytest.raises(InvalidArgument, match=f"{type(model).__name__}: {argument} must {words}"):
        model.fit(*moons(64))


@pytest.mark.parametrize("kind", CLASSIFIERS + REGRESSORS)
class TestFiles:
    def fitted(self, kind):
        X, y = moons(200) if kind in CLASSIFIERS else waves(200)
        extra = {"graph": Graph.star(3)} if "Mesh" in kind.__name__ else {}
        model = kind(kernel=2.0 * Gaussian(bandwidth=0.7) + Laplacian(), random_state=0, passes=2, **extra)
        return model.fit(X, np.array(["a", "b"])[y] if kind in CLASSIFIERS else y), X, y

    def test_round_trip(self, kind, tmp_path):
        model, X, y = self.fitted(kind)
        model.save(tmp_path / "model.safetensors")
        back = kind.load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(back.predict(X), model.predict(X))
        assert {**back.get_params(), "graph": 0} == {**model.get_params(), "graph": 0}
        targets = np.array(["a", "b"])[y] if kind in CLASSIFIERS else y
        outputs, expected = (each.partial_fit(X, targets)._outputs(X, None) for each in (back, model))
        if kind is KernelMeshClassifier:  # which linearizes the rows that agents keep again, but a file has none
            assert (np.sign(outputs) == np.sign(expected)).mean() > 0.97
        else:
            np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-7)
        assert os.listdir(tmp_path) == ["model.safetensors"]

    def test_damage_is_noticed(self, kind, tmp_path):
        model, _, _ = self.fitted(kind)
        path = tmp_path / "model.safetensors"
        model.save(path)
        data = path.read_bytes()
        for damaged in (data[:-8], data[:100], b"", data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]):
            path.write_bytes(damaged)
            with pytest.raises(UnreadableFile, match=r"model\.safetensors: "):
                kind.load(path)
        path.write_bytes(re.sub(rb'"version":"\d+"', b'"version":"0"', data))
        with pytest.raises(UnreadableFile, match=r"version must be \d+, got '0'"):
            kind.load(path)
        path.write_bytes(data.replace(b"0.7", b"0.8"))
        with pytest.raises(UnreadableFile, match="contents must match their digest"):
            kind.load(path)
        path.write_bytes(data)
        other = OnlineKernelRegressor if kind is not OnlineKernelRegressor else OnlineKernelClassifier
        with pytest.raises(UnreadableFile, match=f"must hold {other.__name__}, got {kind.__name__}"):
            other.load(path)


def test_other_kernels_can_be_saved_once_registered(tmp_path, monkeypatch):
    monkeypatch.setitem(registry._known, "kernel", registry.kinds("kernel"))

    class Mine(Gaussian):
        pass

    X, y = moons(64)
    model = OnlineKernelClassifier(kernel=Mine(), passes=1).fit(X, y)
    with pytest.raises(
        InvalidArgument, match=r'must be a dataclass of a registered kind to be saved.*register\("kernel", Mine\)'
    ):
        model.save(tmp_path / "model.safetensors")
    assert os.listdir(tmp_path) == []
    register("kernel", Mine)
    model.save(tmp_path / "model.safetensors")
    back = OnlineKernelClassifier.load(tmp_path / "model.safetensors")
    assert type(back.kernel) is Mine
    np.testing.assert_array_equal(back.predict(X), model.predict(X))


def test_a_call_that_fails_changes_nothing():
    X, y = waves()
    model = OnlineKernelRegressor(learner=Gradient(step_size=0.5), random_state=0).partial_fit(X, y)
    before = model.predict(X)
    model.set_params(learner=DIVERGING)
    for call in (model.fit, model.partial_fit, model.partial_fit):
        with pytest.raises(Diverged):
            call(np.tile(X, (50, 1)), np.tile(y, 50))
        np.testing.assert_array_equal(model.predict(X), before)
    with pytest.raises(ValueError, match="batch_size"):
        model.set_params(learner=None, batch_size=0).fit(np.hstack([X, X]), y)
    np.testing.assert_array_equal(model.predict(X), before)
    fresh = OnlineKernelClassifier()
    with pytest.raises(ValueError, match="contain only the classes"):
        fresh.partial_fit(*moons(20), classes=[5, 6])
    fresh.partial_fit(*moons(20), classes=[0, 1])


def test_a_file_holds_the_fitted_model_and_not_later_parameters(tmp_path):
    X, y = moons()
    model = KernelMeshClassifier(graph=[(0, 1)], random_state=0, passes=2).fit(X, y)
    model.set_params(kernel=Gaussian(bandwidth=9.0), graph=None, learner=STEPPING["Gradient"])
    model.save(tmp_path / "model")
    back = KernelMeshClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e-100])
def test_tiny_targets_are_learned_like_others(size):
    X, y = waves()
    expected, found = (OnlineKernelRegressor(Gaussian(), random_state=0).fit(X, factor * y) for factor in (1.0, size))
    np.testing.assert_allclose(found.predict(X) / size, expected.predict(X), atol=1e-9)
    several = OnlineKernelRegressor(Gaussian(), random_state=0).fit(X, np.column_stack([size * y, y, np.zeros(len(y))]))
    np.testing.assert_allclose(
        several.target_scale_ / [size, 1.0, 1.0], [*expected.target_scale_, *expected.target_scale_, 1.0]
    )


class TestChangingParameters:
    """set_params between calls of partial_fit."""

    def test_forgetting_can_be_turned_on_and_off(self):
        X, y = moons()
        model = OnlineKernelClassifier(random_state=0).fit(X, y)
        for half_life, expected in ((500.0, 500.0), (math.inf, math.inf), (None, 10_000.0)):
            model.set_params(half_life=half_life).partial_fit(X, y)
            assert model.agent_.learner.half_life == expected

    @pytest.mark.parametrize(
        ("learner", "setting"),
        [
            (None, {"max_order": 3}),
            (None, {"budget": 0.3}),
            (None, {"batch_size": 7}),
            (SecondOrder(), {"learner": SecondOrder(novelty=0.5)}),
            (STEPPING["Gradient"], {"learner": Gradient(step_size=0.5)}),
            (STEPPING["Gradient"], {"learner": Gradient(step_size=3.0, regularization=0.1)}),
            (STEPPING["Averaged"], {"learner": Averaged(step_size=100.0, compression=Komp(budget=20.0))}),
            (STEPPING["Averaged"], {"learner": Averaged(step_size=100.0, half_life=30.0)}),
        ],
        ids=str,
    )
    def test_parameters_of_further_learning_take_effect(self, learner, setting):
        X, y = moons()
        model = OnlineKernelClassifier(learner=learner, random_state=0).partial_fit(X, y, classes=[0, 1])
        same = pickle.loads(pickle.dumps(model)).partial_fit(X, y)
        other = pickle.loads(pickle.dumps(model)).set_params(**setting).partial_fit(X, y)
        assert not np.array_equal(same.decision_function(X), other.decision_function(X))
        defaults = {"max_order": None, "budget": None, "batch_size": 32, "learner": learner}
        back = model.set_params(**setting).set_params(**defaults).partial_fit(X, y)
        np.testing.assert_array_equal(back.decision_function(X), same.decision_function(X))

    @pytest.mark.parametrize(
        ("learner", "setting"),
        [
            (None, {"kernel": Laplacian()}),
            (None, {"loss": Hinge()}),
            (None, {"regularization": 1.0}),
            (None, {"learner": SecondOrder()}),
            (SecondOrder(), {"learner": None}),
            (SecondOrder(), {"learner": SecondOrder(regularization=1.0)}),
            (SecondOrder(), {"learner": STEPPING["Averaged"]}),
        ],
        ids=str,
    )
    def test_other_parameters_must_remain_until_fit(self, learner, setting, tmp_path):
        X, y = moons()
        model = OnlineKernelClassifier(learner=learner, random_state=0).fit(X, y)
        before, name = model.decision_function(X), next(iter(setting))
        usual = getattr(model, name)
        model.set_params(**setting).save(tmp_path / "model")
        for each in (model, OnlineKernelClassifier.load(tmp_path / "model")):
            with pytest.raises(InvalidArgument, match=f"OnlineKernelClassifier: {name} must remain .* call fit to start"):
                each.partial_fit(X, y)
            np.testing.assert_array_equal(each.decision_function(X), before)
        model.set_params(**{name: usual}).partial_fit(X, y)
        assert model.set_params(**setting).fit(X, y).partial_fit(X, y).score(X, y) > 0.9

    def test_networks_keep_their_graph_and_protocol(self):
        X, y = moons()
        mesh = KernelMeshClassifier(graph=[(0, 1)], random_state=0, passes=1).fit(X, y)
        mesh.set_params(graph=[(0, 1)]).partial_fit(X, y)
        for setting in ({"graph": Graph.ring(3)}, {"protocol": Local()}):
            with pytest.raises(InvalidArgument, match="call fit"):
                mesh.set_params(**setting).partial_fit(X, y)
            mesh.set_params(graph=[(0, 1)], protocol=None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda X, y: OnlineKernelClassifier().partial_fit(X, y, classes=[]), "classes must list at least 2 classes"),
        (lambda X, y: OnlineKernelClassifier().fit(X, y, agents=["a"]), "agents must be omitted"),
        (lambda X, y: KernelMeshClassifier().fit(X, y, agents=3), "agents must name an agent for each"),
        (lambda X, y: KernelMeshClassifier(graph=[]).fit(X, y), "the network must have at least one agent"),
        (lambda X, y: OnlineKernelRegressor().fit(X, 1e200 * (y - 0.5)), "y must have a finite variance"),
    ],
)
def test_invalid_calls_are_rejected(call, words):
    with pytest.raises(ValueError, match=words):
        call(*moons(40))


@pytest.mark.parametrize(
    ("model", "learner"),
    [
        (OnlineKernelClassifier(), SecondOrder),
        (OnlineKernelRegressor(), SecondOrder),
        (KernelMeshClassifier(), Landmarks),
        (KernelMeshRegressor(protocol=Relay(every=2)), Landmarks),
        (KernelMeshClassifier(protocol=Local()), SecondOrder),
        (KernelMeshRegressor(protocol=Diffusion()), Averaged),
        (KernelMeshClassifier(protocol=Penalty(coupling=0.1)), Gradient),
    ],
    ids=str,
)
def test_the_default_learner_follows_from_the_protocol(model, learner):
    X, y = waves(100)
    model.set_params(passes=1).fit(X, y > 100 if type(model) in CLASSIFIERS else y)
    assert type(model.agent_.learner) is learner


@pytest.mark.parametrize("kind", CLASSIFIERS + REGRESSORS)
@pytest.mark.parametrize("learner", STEPPING.values(), ids=STEPPING)
def test_a_given_learner_is_used_and_saved(kind, learner, tmp_path):
    X, y = moons(200) if kind in CLASSIFIERS else waves(200)
    learner = dataclasses.replace(learner, step_size=1.0)
    model = kind(learner=learner, random_state=0, passes=2, tol=None, verbose=0).fit(X, y)
    assert model.agent_.learner is learner
    model.save(tmp_path / "model")
    back = kind.load(tmp_path / "model")
    assert back.get_params() == model.get_params()
    assert (back.n_iter_, back.agent_.learner) == (2, learner)
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    after = [each.partial_fit(X[::-1], y[::-1]).predict(X[:9]) for each in (back, model)]
    assert (after[0] == after[1]).all() if kind in CLASSIFIERS else np.allclose(*after, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"learner": STEPPING["Averaged"]}, {"batch_size": 16}], ids=str)
def test_partial_fit_takes_the_steps_of_the_agent(settings):
    """A network simulation of one agent does the same, bit for bit."""
    X, y = moons(150)
    model = OnlineKernelClassifier(Gaussian(), **settings)
    for start in range(0, 150, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50], classes=[0, 1])
    state = model.agent_.start()
    for start in range(0, 150, 50):
        stream = ArrayStream(X[start : start + 50], y[start : start + 50], batch_size=model.batch_size)
        *_, last = simulate(model.agent_, Graph.line(1), [stream], states=[state])
        (state,) = last.states
    np.testing.assert_array_equal(model.weights_, state.function.weights)
    assert model.states_[0].samples == state.samples == 150


@pytest.mark.parametrize(
    "setting", [{"regularization": 0.001}, {"budget": 0.05}, {"max_order": 4}, {"half_life": 5.0}], ids=str
)
@pytest.mark.parametrize(
    "model", [OnlineKernelClassifier(), *(KernelMeshClassifier(protocol=each) for each in (None, Local(), Diffusion()))]
)
def test_every_setting_changes_something(model, setting):
    if not setting.keys() <= model.get_params().keys():
        pytest.skip("networks have no budget")
    X, y = moons(200)
    default, other = (clone(model).set_params(random_state=0, batch_size=8, **more).fit(X, y) for more in ({}, setting))
    assert not np.array_equal(default.decision_function(X), other.decision_function(X))


def test_memory_is_bounded_by_default():
    X, y = moons(64)
    for setting, limit in ((None, 2000), (7, 7), (math.inf, None)):
        model = OnlineKernelClassifier(max_order=setting, passes=1).fit(X, y)
        assert model.agent_.learner.max_order == limit
        assert limit is None or model.model_order_ <= limit


def test_half_life_follows_a_stream_that_changes():
    X, y = moons(2000)
    scores = {}
    for half_life in (math.inf, 200.0):
        model = OnlineKernelClassifier(Gaussian(bandwidth=0.7), half_life=half_life).partial_fit(X, y, classes=[0, 1])
        model.partial_fit(X[:512], 1 - y[:512])
        scores[half_life] = model.score(X[512:], 1 - y[512:])
    assert scores[200.0] > 0.95 > 0.9 > scores[math.inf]


def test_lambda_means_the_same_for_any_number_of_passes():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y, kernel = np.sin(2 * X[:, 0]), Gaussian(bandwidth=0.4)
    ridge = kernel(X, X) @ np.linalg.solve(kernel(X, X) + 0.5 * np.eye(60), (y - y.mean()) / y.std())
    for passes in (1, 6):
        model = OnlineKernelRegressor(
            kernel, learner=SecondOrder(budget=0.0, novelty=1e-6, regularization=0.5), passes=passes, tol=None, batch_size=1
        ).fit(X, y)
        assert model.regularization_ == 0.5
        np.testing.assert_allclose((model.predict(X) - y.mean()) / y.std(), ridge, atol=1e-4)


class TestPasses:
    def test_fit_ends_when_nothing_improves(self):
        X, y = moons()
        model = OnlineKernelClassifier(learner=STEPPING["Gradient"], passes=200, random_state=0).fit(X, y)
        assert 1 < model.n_iter_ < 200
        same = OnlineKernelClassifier(learner=STEPPING["Gradient"], passes=model.n_iter_, tol=None, random_state=0).fit(X, y)
        np.testing.assert_array_equal(same.weights_, model.weights_)
        model.set_params(passes=30, tol=-math.inf).fit(X, y)
        assert model.n_iter_ == 30
        exact = OnlineKernelRegressor(learner=Gradient(step_size=1.0), random_state=0).fit(X, np.zeros(len(X)))
        assert exact.n_iter_ == 2

    def test_a_pass_is_one_of_the_agent_with_the_most_rows(self):
        X, y = moons(300)
        who = np.repeat([0, 1], [40, 260])
        mesh = KernelMeshClassifier(graph=[(0, 1)], passes=3, tol=None, random_state=0).fit(X, y, agents=who)
        assert mesh.n_iter_ == 3
        assert [state.samples for state in mesh.states_] == [120, 780]

    def test_verbose_reports_each_pass(self, capsys, monkeypatch):
        X, y = moons(320)
        OnlineKernelClassifier(passes=3, tol=None, random_state=0).fit(X, y)
        assert capsys.readouterr().out == ""
        model = OnlineKernelClassifier(passes=3, tol=None, verbose=True, random_state=0).fit(X, y)
        chosen, *lines = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"OnlineKernelClassifier: bandwidth [\d.]+, regularization [\d.]+", chosen)
        assert len(lines) == 3
        form = r"OnlineKernelClassifier: pass 3 of 3: loss [\d.e-]+, (\d+) points, [\d.]+ s"
        assert re.fullmatch(form, lines[-1])[1] == str(model.model_order_)
        clock = itertools.count(step=10)  # seconds
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        model.set_params(passes=1).fit(X, y)
        _, *lines = capsys.readouterr().out.splitlines()
        assert lines[2].startswith("OnlineKernelClassifier: pass 1 of 1, 30% of it: loss ")
        assert len(lines) == 10

    @pytest.mark.parametrize(
        ("kind", "more"), [(OnlineKernelClassifier, {}), (KernelMeshClassifier, {"protocol": Diffusion()})]
    )
    def test_ctrl_c_keeps_what_was_learned(self, kind, more):
        X, y = moons(320)
        for after, passes in ((9, 0), (23, 2)):
            loss = Interrupting(after)
            model = kind(Gaussian(bandwidth=0.7), loss, passes=9, tol=None, random_state=0, **more)
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, y)
            assert model.n_iter_ == passes
            assert model.score(X, y) > 0.75
            object.__setattr__(loss, "last", None)
            assert model.partial_fit(X, y).score(X, y) > 0.8  # also by agents that were a step ahead

    def test_ctrl_c_while_a_network_settles_keeps_what_was_learned(self, monkeypatch):
        X, y = moons(320)
        mesh = KernelMeshClassifier(random_state=0)
        rounds = itertools.count()

        def interrupted(*arguments, **options):
            for now in simulate(*arguments, **options):
                yield now
                if next(rounds) == 40:
                    raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("kernelmesh.estimators.network.simulate", interrupted)
            mesh.fit(X, y)
        assert mesh.n_iter_ == 1
        assert mesh.score(X, y) > 0.9

    @pytest.mark.parametrize("kind", CLASSIFIERS)
    def test_ctrl_c_in_partial_fit_changes_nothing(self, kind):
        X, y = moons(960)
        loss = Interrupting(None)
        model = kind(Gaussian(), loss).partial_fit(X[:480], y[:480], classes=[0, 1])
        expected = pickle.loads(pickle.dumps(model)).partial_fit(X[480:], y[480:]).decision_function(X)
        object.__setattr__(loss, "last", 7)  # within the second mini-batch or round
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X[480:], y[480:])
        object.__setattr__(loss, "last", None)
        np.testing.assert_allclose(model.partial_fit(X[480:], y[480:]).decision_function(X), expected, rtol=1e-9)

    def test_ctrl_c_before_anything_is_learned_changes_nothing(self):
        X, y = moons(320)
        model = OnlineKernelClassifier(random_state=0).fit(X, y)
        before = model.weights_
        with pytest.raises(KeyboardInterrupt):
            model.set_params(loss=Interrupting(0), kernel=Gaussian()).fit(X[:200], y[:200])
        np.testing.assert_array_equal(model.weights_, before)

    def test_the_monitored_loss_is_that_of_predict(self, capsys):
        """An average is shown, and goes on improving where the steps behind it wander about."""
        X, y = moons(320)
        mesh = KernelMeshClassifier(graph=[(0, 1)], passes=3, tol=None, verbose=True, random_state=0).fit(X, y)
        reported = re.search(r"settled: loss ([\d.e-]+),", capsys.readouterr().out)[1]
        mean = -np.log(mesh.predict_proba(X)[np.arange(320), y]).mean()
        assert float(reported) == pytest.approx(mean, rel=1e-3)


class Interrupting(Logistic):
    """Raises KeyboardInterrupt, as Ctrl-C does, in every step after the first ones."""

    def __init__(self, last):
        object.__setattr__(self, "steps", itertools.count())
        object.__setattr__(self, "last", last)

    def value_and_slope(self, z, y):
        if self.last is not None and next(self.steps) >= self.last:
            raise KeyboardInterrupt
        return Logistic().value_and_slope(z, y)

    def value(self, z, y):
        return Logistic().value(z, y)

    def slope(self, z, y):
        return Logistic().slope(z, y)


def table(rows=100, scales=(1.0, 1.0, 1.0), offset=0.0):
    return np.random.default_rng(0).normal(size=(rows, len(scales))) * scales + offset


class TestScales:
    y = np.arange(100) % 2

    @pytest.mark.parametrize(
        ("X", "words"),
        [
            (table(scales=(1.0, 200.0, 1.0)), r"range from [\d.]+ \(column [02]\) to 2\d\d \(column 1\); .*StandardScaler"),
            (table(scales=(1.0, 0.0, 1.0), offset=3.0), r"OnlineKernelClassifier: column 1 is constant; "),
            (table(scales=(0.0,) * 7 + (1.0,), offset=3.0), "columns 0, 1, 2, 3, 4 and 2 more are constant"),
            (
                pandas.DataFrame(table(scales=(1.0, 500.0)), columns=["age", "income"]),
                r"\(column 0 \('age'\)\) to \d+ .*'income'",
            ),
        ],
    )
    def test_scales_are_reported(self, X, words):
        with pytest.warns(ScaleWarning, match=words) as caught:
            OnlineKernelClassifier(passes=1).fit(X, self.y)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        OnlineKernelClassifier(kernel=Gaussian(), passes=1).fit(X, self.y)  # whoever chose a kernel knows

    def test_scales_are_reported_once_and_only_if_certain(self):
        model = OnlineKernelClassifier()
        with pytest.warns(ScaleWarning, match="range from") as caught:
            model.partial_fit(table(scales=(1.0, 200.0)), self.y, classes=[0, 1])
        assert [each.filename for each in caught] == [__file__]
        model.partial_fit(table(scales=(1.0, 300.0)), self.y)
        OnlineKernelClassifier().partial_fit(table(scales=(1.0, 0.0), offset=1.0), self.y, classes=[0, 1])

    @pytest.mark.parametrize("scales", [(50.0, 30.0), (0.03, 0.05), (1e-3, 2e-3)])
    def test_streams_that_are_not_standardized_are_reported(self, scales):
        with pytest.warns(ScaleWarning, match=r"columns have standard deviations of about [\d.]+, not 1; .*StandardScaler"):
            OnlineKernelClassifier().partial_fit(table(scales=scales), self.y, classes=[0, 1])

    @pytest.mark.parametrize(
        "scaler",
        [StandardScaler(), MinMaxScaler(), FunctionTransformer(lambda X: X / 16)],
        ids=["standard", "min-max", "pixels"],
    )
    def test_scaled_features_and_pixels_are_fine(self, scaler):
        X, y = load_digits(return_X_y=True)
        OnlineKernelClassifier().partial_fit(scaler.fit_transform(X)[:500], y[:500], classes=range(10))

    @pytest.mark.parametrize("scale", [1e-3, 0.05, 30.0])
    @pytest.mark.parametrize("kind", CLASSIFIERS)
    def test_fit_adapts_to_the_distances_of_rows(self, kind, scale):
        X, y = moons()
        expected, found = kind(random_state=0).fit(X, y), kind(random_state=0).fit(scale * X, y)
        assert found.score(scale * X, y) > 0.9
        if kind is KernelMeshClassifier:  # which points agents agree on depends on the bits of their coordinates
            assert found.score(scale * X, y) == pytest.approx(expected.score(X, y), abs=0.01)
        else:
            np.testing.assert_allclose(found.dictionary_, scale * expected.dictionary_)

    def test_a_function_without_points_is_reported(self):
        X, y = moons()
        with pytest.warns(ScaleWarning, match="OnlineKernelClassifier: no point was kept") as caught:
            model = OnlineKernelClassifier(Gaussian(bandwidth=1e6), learner=SecondOrder(budget=1.0), random_state=0).fit(X, y)
        assert model.model_order_ == 0
        assert caught[0].filename == __file__
        assert OnlineKernelRegressor().fit(X, np.full(len(X), 3.0)).model_order_ == 0  # nothing to learn, nothing to tell

    def test_few_rows_and_columns_of_zeros_are_fine(self):
        X = table(scales=(0.0, 300.0, 0.01), offset=5.0)
        OnlineKernelClassifier(passes=1).fit(X[:31], self.y[:31])  # too few to tell
        scaled = StandardScaler().fit_transform(X)
        assert not scaled[:, 0].any()
        OnlineKernelClassifier(passes=1).fit(scaled, self.y)


def test_mini_batches_may_have_a_few_of_many_classes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(64, 3)), np.arange(64) % 26
    model = OnlineKernelClassifier()
    for start in (0, 32):  # warnings are errors here
        model.partial_fit(X[start : start + 32], y[start : start + 32], classes=range(26))
    assert model.n_features_in_ == 3
