"""Learners against their literal oracles, over tables, and under attack."""

import contextlib
import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from kernelmesh import (
    Agent,
    Averaged,
    Diffusion,
    Diverged,
    Function,
    Gaussian,
    Gradient,
    Graph,
    Hinge,
    Huber,
    InverseTime,
    Komp,
    Linear,
    Logistic,
    Matern32,
    Mixture,
    Penalty,
    Polynomial,
    Relay,
    SecondOrder,
    Squared,
    SquaredHinge,
    Uncompressed,
    simulate,
    storage,
)
from kernelmesh.agent import listen
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import SentFunction
from kernelmesh.numerics import compiled
from kernelmesh.numerics import losses as losses_module
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.protocols import Heard
from kernelmesh.streams import ArrayStream

LOSSES = [Logistic(), Hinge(), SquaredHinge(), Squared(), Huber(threshold=0.7)]
GRADIENT = Gradient(step_size=2.0, compression=Komp(budget=0.1))
AVERAGED = Averaged(step_size=30.0)
LEARNERS = [GRADIENT, AVERAGED, SecondOrder()]


def name(value):
    return type(value).__name__


def draw(rows, dimension=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dimension))


def samples(loss, rows, *, outputs=3, seed=0):
    """Samples of a mixture: labels, or values of a smooth function with noise."""
    rng = np.random.default_rng(seed)
    points, labels = Mixture.draw(classes=max(outputs, 2), rng=np.random.default_rng(7)).sample(rows, rng=rng)
    if loss.classifies:
        return points, labels
    phases = np.arange(outputs)
    return points, np.sin(2 * points[:, :1] + phases) + points[:, 1:] + 0.1 * rng.normal(size=(rows, outputs))


def make(learner=None, loss=None, **changes):
    options = {"dimension": 2, "outputs": 3, "kernel": Gaussian(bandwidth=0.6)}
    return Agent(**{**options, "loss": loss or Logistic(), "learner": learner or SecondOrder(), **changes})


def run(agent, points, targets, *, batch=32, state=None):
    """The state after a stream, and what there is to know about its steps."""
    state = agent.start() if state is None else state
    infos = []
    for start in range(0, len(points), batch):
        state, info = agent.step(state, points[start : start + batch], targets[start : start + batch])
        infos.append(info)
    return state, infos


def within_limits(state, regularization):
    """R is symmetric and 0 < R ≤ P / λ, as far as rounding can tell."""
    r, gram = state.model.covariance.matrix, state.function.kernel(state.function.points, state.function.points)
    assert np.isfinite(state.function.weights).all()
    if not len(r):
        return
    np.testing.assert_allclose(r, r.T, atol=1e-12 * np.abs(r).max())
    root = np.linalg.cholesky(gram)
    values = regularization * np.linalg.eigvalsh(root.T @ r @ root)
    assert values[0] > 0
    assert values[-1] <= 1 + 1e-6


# Each learner, one sample at a time and without compression, is its formula.


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_second_order_without_compression_equals_its_oracle(loss, monkeypatch):
    monkeypatch.setattr(losses_module, "_SETTLED", 1e-13)
    points, targets = samples(loss, 40)
    agent = make(SecondOrder(regularization=0.3, budget=0.0, novelty=1e-9, iterations=400), loss)
    exact = oracle.Newton.start(agent.kernel, loss, 0.3, dimension=2, outputs=3)
    state, new = agent.start(), draw(30, seed=3)
    for i in range(len(points)):
        one = points[i : i + 1], targets[i : i + 1]
        state, info = agent.step(state, *one)
        exact = exact.extended(one[0]).learned(*one)
        np.testing.assert_allclose(agent.predict(state, new), exact(new), atol=1e-7)
        assert info.error == 0.0
    r = np.linalg.inv(exact.quadratic)
    spread = agent.kernel(new, exact.points) @ r @ agent.kernel(exact.points, new)
    cross = agent.kernel(new, state.function.points)
    if loss.classifies and not isinstance(loss, Logistic):
        return  # samples beyond the margin become no points, and the prior is then another one
    np.testing.assert_allclose(cross @ state.model.covariance.matrix @ cross.T, spread, atol=1e-6)


@pytest.mark.parametrize(("loss", "cap"), [*((loss, None) for loss in LOSSES), (Squared(), 6)], ids=str)
def test_second_order_with_compression_equals_its_oracle(loss, cap):
    points, targets = samples(loss, 800)
    agent = make(SecondOrder(max_order=cap), loss)

    def implicit(loss, start, covariance, y):
        return loss.implicit_step(start, np.ascontiguousarray(covariance), y, iterations=5)

    exact = oracle.Newton.start(agent.kernel, loss, 0.1, dimension=2, outputs=3, implicit=implicit)
    state, new, over = agent.start(), draw(30, seed=3), 0
    for start in range(0, len(points), 16):
        batch = points[start : start + 16], targets[start : start + 16]
        state, info = agent.step(state, *batch)
        review = cap is None and start > 0 and start // 16 % 8 == 0
        exact, rise = exact.step(*batch, budget=16 * 0.02, novelty=0.01, review=review, max_order=cap)
        assert sorted(map(tuple, state.function.points)) == sorted(map(tuple, exact.points))
        np.testing.assert_allclose(agent.predict(state, new), exact(new), atol=1e-6)
        assert info.error == pytest.approx(rise, rel=1e-6, abs=1e-8)
        assert info.over_budget == (info.error > info.budget * (1 + 1e-9))
        assert info.order <= (cap or math.inf)
        over += info.over_budget
    assert bool(over) == (cap is not None)


def test_gradient_without_compression_equals_its_oracle():
    points, labels = samples(Logistic(), 40)
    agent = make(Gradient(step_size=2.0, compression=Uncompressed(), regularization=0.01))
    state, kernel, f = agent.start(), agent.kernel, (np.zeros((0, 2)), np.zeros((0, 3)))
    for i in range(0, 40, 4):
        rows = slice(i, i + 4)
        state, _ = agent.step(state, points[rows], labels[rows])
        f = oracle.penalty_step(kernel, [f], [()], 0, points[rows], labels[rows], eta=2.0, lam=0.01, c=0.0)
    np.testing.assert_array_equal(state.function.points, f[0])
    np.testing.assert_allclose(state.function.weights, f[1], atol=1e-12)


@pytest.mark.parametrize("half_life", [math.inf, 20.0, 0.1])
@pytest.mark.parametrize("batch", [1, 7])
def test_averaged_without_compression_equals_its_oracle(half_life, batch):
    points, labels = samples(Logistic(), 42)
    agent = make(Averaged(step_size=5.0, compression=Uncompressed(), regularization=0.01, half_life=half_life))
    state, kernel = agent.start(), agent.kernel
    f, average = np.zeros((42, 3)), np.zeros((42, 3))
    for t, start in enumerate(range(0, 42, batch), 1):
        rows = slice(start, start + batch)
        state, _ = agent.step(state, points[rows], labels[rows])
        slope = Logistic().slope(kernel(points[rows], points) @ f, labels[rows])
        f *= 1 - 5.0 * 0.01
        f[rows] -= 5.0 / batch * slope
        weight = max(4 / (t + 3), 1 - 0.5 ** (batch / half_life))
        average += weight * (f - average)
    np.testing.assert_allclose(state.function.weights, average, atol=1e-12)
    np.testing.assert_allclose(state.sent.weights, f, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("weight", [1e-4, 0.3, 100.0])
@pytest.mark.parametrize("kernel", [Gaussian(bandwidth=1.0), Matern32(), Polynomial(degree=3), Linear(offset=1.0)], ids=name)
def test_the_quadratic_case_is_ridge_regression_on_the_dictionary(kernel, weight, outputs):
    points, targets = samples(Squared(), 400, outputs=outputs, seed=1)
    dictionary = draw(3 if isinstance(kernel, Linear) else 8)
    learner = SecondOrder(regularization=weight, budget=0.0, novelty=1.0)
    agent = make(learner, Squared(), outputs=outputs, kernel=kernel)
    start = agent.start(function=Function.of(kernel, dictionary, np.zeros((len(dictionary), outputs))))
    state, _ = run(agent, points, targets, state=start)
    np.testing.assert_array_equal(state.function.points, dictionary)
    cross = kernel(points, dictionary)
    wanted = np.linalg.solve(weight * kernel(dictionary, dictionary) + cross.T @ cross, cross.T @ targets)
    np.testing.assert_allclose(agent.predict(state, points), cross @ wanted, atol=1e-8 * max(1.0, np.abs(targets).max()))


# What the compiled loops claim.


class Exchange:
    """A dictionary with P and R, a mini-batch with candidates, and an exchange of points."""

    def __init__(self, seed, *, order=None, candidates=None):
        rng = self.rng = np.random.default_rng(seed)
        self.order = int(rng.integers(0, 9)) if order is None else order
        self.new = int(rng.integers(0 if self.order else 1, 5)) if candidates is None else candidates
        self.outputs, self.weight = int(rng.integers(1, 4)), 0.3
        kernel = self.kernel = Gaussian(bandwidth=0.5)
        self.dictionary, self.points = rng.normal(size=(self.order, 2)), rng.normal(size=(6, 2))
        self.rows = rng.permutation(6)[: self.new]
        self.weights = rng.normal(size=(self.order, self.outputs))
        self.gram = kernel(self.dictionary, self.dictionary)
        self.cross = kernel(self.points, self.dictionary)
        seen = kernel(rng.normal(size=(20, 2)), self.dictionary)
        self.quadratic = self.weight * self.gram + seen.T @ seen  # A
        self.inverse, self.covariance = (self._inverse(matrix) for matrix in (self.gram, self.quadratic))
        self.lifted = self.cross[self.rows] @ self.inverse.matrix
        at = self.cross[self.rows]
        self.schur = kernel(self.points, self.points[self.rows]) - self.cross @ np.linalg.inv(self.gram) @ at.T

    @staticmethod
    def _inverse(matrix):
        inverse = np.linalg.inv(matrix)
        return InverseGram((inverse + inverse.T) / 2)

    def dense(self):
        """A over all points, before any of them leaves."""
        z = self.lifted
        spread = np.vstack([np.eye(self.order), z])
        quadratic = spread @ self.quadratic @ spread.T
        quadratic[self.order :, self.order :] += self.weight * self.schur[self.rows]
        return quadratic


@given(seed=st.integers(0, 100_000))
@settings(max_examples=60)
def test_new_samples_shrink_the_covariance_by_their_curvature(seed):
    case = Exchange(seed)
    r, cross = case.covariance, case.cross
    root = case.rng.random(6) * (case.rng.random(6) < 0.8)  # some samples say nothing
    lifted = cross @ r.matrix
    spread, _ = compiled.newton.covariance(cross, lifted, np.full(len(cross), np.inf))
    np.testing.assert_allclose(spread, cross @ np.linalg.inv(case.quadratic) @ cross.T, atol=1e-8)
    r = r.less(compiled.newton.lost(spread, root, lifted))
    wanted = np.linalg.inv(case.quadratic + cross.T @ (root[:, None] ** 2 * cross))
    np.testing.assert_allclose(r.matrix, wanted, atol=1e-8)


@given(seed=st.integers(0, 100_000), budget=st.sampled_from([0.0, 0.1, 1.0, 1e9]), capped=st.booleans())
@settings(max_examples=60)
def test_chosen_points_equal_greedy_removal_by_trial(seed, budget, capped):
    case = Exchange(seed)
    order, root = case.order, np.sqrt(case.rng.random(6))
    max_order = int(case.rng.integers(1, 4)) if capped else order + case.new
    lifted = case.cross @ case.covariance.matrix
    prior, spread, added = compiled.newton.prior(np.ascontiguousarray(case.schur), case.rows, case.weight)
    covariance = compiled.newton.covariance(case.cross, lifted, np.full(len(case.cross), np.inf))[0] + added
    force = case.rng.normal(size=(6, case.outputs))
    lower = compiled.newton.factorize(covariance, root)
    stays, cost = compiled.newton.choose(
        case.covariance.matrix, lifted, case.lifted, prior, spread, lower, root, force, case.weights, budget, max_order
    )  # fmt: skip
    everything = np.hstack([case.cross, case.kernel(case.points, case.points[case.rows])])
    before = case.dense()
    weights = np.vstack([case.weights, np.zeros((case.new, case.outputs))])
    weights -= np.linalg.solve(before, everything.T @ force)
    after = before + everything.T @ (root[:, None] ** 2 * everything)
    centers = np.vstack([case.dictionary, case.points[case.rows]])
    model = oracle.Newton(case.kernel, None, case.weight, centers, weights, after)
    kept, rise = model.pruned(budget, max_order)
    assert np.flatnonzero(stays).tolist() == kept
    assert cost == pytest.approx(rise, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge(), Squared(), Huber(threshold=0.7)], ids=name)
@given(seed=st.integers(0, 100_000))
@settings(max_examples=15)
def test_the_gain_of_new_points_is_within_its_bound(loss, seed):
    """The minimum of Σ ℓ(z) + ½ (z − z₀)ᵀ T⁻¹ (z − z₀) without and with the new points; hinges take steps that have none."""
    outputs = 2 if isinstance(loss, SquaredHinge) else 3  # where two rivals are equal, it has a kink
    case, (_, y) = Exchange(seed), samples(loss, 6, outputs=outputs, seed=seed)
    rng = case.rng
    z0 = 3 * rng.normal(size=(6, outputs))
    spread = case.cross @ np.linalg.inv(case.quadratic) @ case.cross.T
    rows = np.sort(rng.permutation(6)[: max(case.new, 1)])

    def least(t):
        force, there = oracle.implicit_step(loss, z0, t, y, iterations=300)
        return loss.value(there, y).sum() + 0.5 * np.sum(force * (t @ force)), force

    without, force = least(spread)
    schur = case.kernel(case.points, case.points[rows])
    lifted = case.cross[rows] @ case.inverse.matrix
    chosen, bound = compiled.newton.novel(schur, rows, case.cross, lifted, np.ones(6), 0.01, force)
    part = schur[:, chosen]
    added = part @ np.linalg.solve(part[rows[chosen]], part.T) / case.weight if len(chosen) else np.zeros((6, 6))
    gain = without - least(spread + added)[0]
    assert -1e-6 <= gain <= bound / case.weight + 1e-6


@pytest.mark.parametrize("loss", [Squared(), Huber(threshold=0.7), Logistic()], ids=name)
@pytest.mark.parametrize("weight", [0.1, 10.0, 1000.0])
@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-3, 0.3])
def test_the_cost_of_overlooked_samples_is_within_its_bound(loss, weight, distance):
    """Their slopes add up: together they gain up to B times what each could gain alone."""
    many, limit = 64, 0.5 * 64 * 0.02
    rng = np.random.default_rng(0)
    points = distance * rng.normal(size=(many, 2))
    gram = Gaussian(bandwidth=0.6)(points, points)
    y = np.ones(many, dtype=np.int64) if loss.classifies else np.full((many, 2), 0.9 * np.sqrt(0.02 * weight / 2))
    z0 = np.tile([0.0, 3.0], (many, 1)) if loss.classifies else np.zeros((many, 2))
    slope = loss.slope(z0, y)
    rows, cost = compiled.newton.overlook(slope, gram, weight, limit)
    assert cost <= limit
    left = np.setdiff1d(np.arange(many), rows)
    assert len(left) > 0
    assert cost == pytest.approx(0.5 * np.sum(slope[left] * (gram[np.ix_(left, left)] @ slope[left])) / weight)
    t = gram[np.ix_(left, left)] / weight
    force, there = oracle.implicit_step(loss, z0[left], t, y[left], iterations=300)
    gain = loss.value(z0[left], y[left]).sum() - loss.value(there, y[left]).sum() - 0.5 * np.sum(force * (t @ force))
    assert gain <= cost + 1e-9


# What a long stream, rounding, a crash or an error leave behind.


def nearly_repeating(rng, rows):
    """Points of which most are old ones again, or 1e-9 … 1e-3 from one, while the scale drifts."""
    anchors = rng.normal(size=(12, 2))
    away = 10.0 ** rng.uniform(-9, -3, size=(rows, 1)) * (rng.random((rows, 1)) < 0.8)
    fresh = rng.random((rows, 1)) < 0.02
    points = anchors[rng.integers(12, size=rows)] + away * rng.normal(size=(rows, 2))
    points = np.where(fresh, rng.normal(size=(rows, 2)), points)
    return points * np.linspace(1.0, 1.5, rows)[:, None]


@pytest.mark.parametrize("half_life", [math.inf, 2000.0])
@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=name)
@pytest.mark.parametrize("batches", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_mini_batches_with_near_duplicates(loss, half_life, batches):
    points = nearly_repeating(np.random.default_rng(0), 2 * batches)
    targets = (points[:, 0] > 0) * 1 if loss.classifies else np.sin(points[:, :1])
    learner = SecondOrder(max_order=16, budget=1e-3, novelty=1e-4, half_life=half_life)
    agent = make(learner, loss, outputs=2 if loss.classifies else 1)
    state, repaired = agent.start(), 0
    for number in range(batches):
        state, info = agent.step(state, points[2 * number : 2 * number + 2], targets[2 * number : 2 * number + 2])
        repaired += info.repaired
        if number % 500 == 499:
            within_limits(state, 0.1)
    assert repaired <= 2
    f = state.function
    assert max(state.model.inverse.drift(f.kernel, f.points, j) for j in range(f.order)) < 1e-6
    shown = agent.predict(state, points[-200:])
    if loss.classifies:
        assert (shown.argmax(axis=1) == targets[-200:]).mean() > 0.97
    else:
        assert np.abs(shown - targets[-200:]).mean() < 0.1


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("covariance", lambda matrix: matrix + 100.0 * np.eye(len(matrix), k=1)),
        ("covariance", np.negative),
        ("covariance", lambda matrix: 1e4 * matrix),
        ("covariance", lambda matrix: matrix * np.nan),
        ("inverse", lambda matrix: 1.5 * matrix),
        ("inverse", lambda matrix: matrix * np.nan),
    ],
)
def test_damage_is_noticed_and_repaired(part, damage):
    points, labels = samples(Logistic(), 6000)
    agent = make()
    state, _ = run(agent, points[:2000], labels[:2000])
    matrix = getattr(state.model, part)
    damaged = dataclasses.replace(matrix, matrix=damage(matrix.matrix))
    state = dataclasses.replace(state, model=dataclasses.replace(state.model, **{part: damaged}))
    after, infos = run(agent, points[2000:], labels[2000:], state=state)
    assert any(info.repaired for info in infos)
    assert not any(info.repaired for info in infos[-20:])
    within_limits(after, 0.1)
    undamaged, _ = run(agent, points, labels)
    new, truth = samples(Logistic(), 2000, seed=1)
    accuracy = [(agent.predict(each, new).argmax(axis=1) == truth).mean() for each in (after, undamaged)]
    assert accuracy[0] > accuracy[1] - 0.02


@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_after_an_error_the_state_is_as_it_was(learner):
    calls = [math.inf]

    def failing(name):
        def method(self, *arguments, **options):
            """Fails when it is called for the n-th time."""
            calls[0] -= 1
            if calls[0] < 0:
                raise ZeroDivisionError("this loss fails")
            return getattr(Logistic, name)(self, *arguments, **options)

        return method

    methods = ("value_and_slope", "curvature", "implicit_step")
    loss = type("Failing", (Logistic,), {name: failing(name) for name in methods})()
    points, labels = samples(Logistic(), 640)
    agent, sound = make(learner, loss), make(learner)
    state, _ = run(agent, points[:96], labels[:96])
    wanted, _ = run(sound, points, labels)
    with pytest.raises(ValueError, match="points must be finite"):
        agent.step(state, np.full((1, 2), np.nan), labels[:1])
    with pytest.raises(ValueError, match="y must be class numbers"):
        agent.step(state, points[:1], labels[:1] + 7)
    for allowed in range(5):
        calls[0] = allowed
        with contextlib.suppress(ZeroDivisionError):
            agent.step(state, points[96:128], labels[96:128])
    calls[0] = math.inf
    after, infos = run(agent, points[96:], labels[96:], state=state)
    assert not any(info.repaired for info in infos)
    np.testing.assert_array_equal(after.function.weights, wanted.function.weights)


@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_a_state_is_a_value(learner):
    """It can be stepped again, whatever has been made of it."""
    agent = make(learner)
    points, labels = samples(Logistic(), 320)
    state, _ = run(agent, points[:160], labels[:160])
    wanted, _ = run(agent, points[160:], labels[160:], state=state)
    run(agent, points[:160], 2 - labels[:160], state=state)
    again, _ = run(agent, points[160:], labels[160:], state=state)
    np.testing.assert_array_equal(again.function.weights, wanted.function.weights)
    with pytest.raises(ValueError, match="read-only"):
        state.model.inverse.matrix[0, 0] = 1.0


# Forgetting.


@pytest.mark.parametrize("learner", [SecondOrder(half_life=500.0), dataclasses.replace(AVERAGED, half_life=500.0)], ids=name)
def test_a_half_life_follows_a_change(learner):
    points, labels = samples(Logistic(), 6000)
    moved = np.concatenate([labels[:4500], (labels[4500:] + 1) % 3])
    state, _ = run(make(learner), points, moved)
    stubborn, _ = run(make(dataclasses.replace(learner, half_life=math.inf)), points, moved)
    new, truth = samples(Logistic(), 2000, seed=1)
    accuracy = [(make(learner).predict(each, new).argmax(axis=1) == (truth + 1) % 3).mean() for each in (state, stubborn)]
    assert accuracy[0] > 0.85
    assert accuracy[0] > accuracy[1]


def test_after_forgetting_the_covariance_is_the_prior():
    points, labels = samples(Hinge(), 640)
    agent = make(SecondOrder(half_life=50.0), Hinge())
    state, _ = run(agent, points, labels)
    certain = Function.of(agent.kernel, state.function.points, 1e3 * state.function.weights)
    sure = dataclasses.replace(state, model=dataclasses.replace(state.model, function=certain))
    right = agent.predict(sure, points).argmax(axis=1)
    far = np.sort(agent.predict(sure, points), axis=1)
    margin = far[:, -1] - far[:, -2] > 1.0  # the hinge is 0 there: samples say nothing
    after, _ = run(agent, np.tile(points[margin], (5, 1)), np.tile(right[margin], 5), state=sure)
    np.testing.assert_array_equal(after.function.weights, certain.weights)
    prior = after.model.inverse.matrix / 0.1
    np.testing.assert_allclose(after.model.covariance.matrix, prior, atol=1e-9 * np.abs(prior).max())


# Files.


FORGETTING = [*LEARNERS, SecondOrder(half_life=300.0), dataclasses.replace(AVERAGED, half_life=300.0)]


@pytest.mark.parametrize("learner", FORGETTING, ids=str)
def test_a_state_from_a_file_goes_on_bit_for_bit(learner):
    points, labels = samples(Logistic(), 1920)
    agent = make(learner)
    state, _ = run(agent, points[:960], labels[:960])
    again = storage.unpack(agent, storage.pack(state, workspace=True), name=state.name)
    np.testing.assert_array_equal(again.function.weights, state.function.weights)
    wanted, told = run(agent, points[960:], labels[960:], state=state)
    found, infos = run(agent, points[960:], labels[960:], state=again)
    np.testing.assert_array_equal(found.function.points, wanted.function.points)
    np.testing.assert_array_equal(found.function.weights, wanted.function.weights)
    np.testing.assert_array_equal(found.sent.weights, wanted.sent.weights)
    assert repr(infos) == repr(told)  # a norm that nobody knows is NaN, which equals nothing
    shorter = storage.unpack(agent, storage.pack(state, workspace=False), name=state.name)
    found, _ = run(agent, points[960:], labels[960:], state=shorter)
    np.testing.assert_allclose(agent.predict(found, points), agent.predict(wanted, points), atol=1e-6)


# Averaged in networks.


@pytest.mark.parametrize("every", [1, 2])
def test_averaged_sends_what_gradient_sends_and_predicts_with_the_average(every):
    graph, data = Graph.ring(4), [samples(Logistic(), 32, seed=i) for i in range(4)]
    protocol, new = Diffusion(every=every), draw(30, seed=9)

    def rounds(kind):
        agent = make(kind(step_size=2.0, regularization=1e-3, compression=Uncompressed()), protocol=protocol)
        return simulate(agent, graph, [ArrayStream(*own, batch_size=8) for own in data])

    average = np.zeros((4, 30, 3))
    for number, (one, other) in enumerate(zip(rounds(Averaged), rounds(Gradient), strict=True), 1):
        for i in range(4):
            ours, theirs = one.states[i], other.states[i]
            np.testing.assert_allclose(ours.sent(new), theirs.sent(new), atol=1e-9)
            average[i] += 4 / (number + 3) * (theirs.function(new) - average[i])
            np.testing.assert_allclose(ours.function(new), average[i], atol=1e-9)
    assert number == 4


def test_an_agent_without_samples_averages_the_functions_of_its_neighbors():
    (points, labels), graph = samples(Logistic(), 64), Graph.line(2)
    agent = make(Averaged(step_size=2.0, compression=Uncompressed()), protocol=Diffusion())
    *_, last = simulate(agent, graph, [ArrayStream(points, labels, batch_size=8)] * 2)
    state, other = last.states
    heard = [Heard(SentFunction(other.sent.points, other.sent.weights), weight=0.5, neighbor=1)]
    there = 0.5 * state.sent(points) + 0.5 * other.sent(points)
    after = listen(agent, state, heard)
    expected = state.function(points) + 4 / (9 + 3) * (there - state.function(points))
    np.testing.assert_allclose(after.function(points), expected, atol=1e-9)


def test_averaged_with_penalty_learns_from_the_averages_of_its_neighbors():
    graph, data = Graph.ring(3), [samples(Logistic(), 24, seed=i) for i in range(3)]
    learner = Averaged(step_size=2.0, regularization=1e-3, compression=Uncompressed())
    agent = make(learner, protocol=Penalty(coupling=0.05))
    kernel, everything = agent.kernel, np.concatenate([own[0] for own in data])
    f, average = np.zeros((2, 3, 72, 3))
    for number, round in enumerate(simulate(agent, graph, [ArrayStream(*own, batch_size=8) for own in data])):
        before, shown = f.copy(), average.copy()
        for i in range(3):
            rows, place = slice(8 * number, 8 * number + 8), 24 * i + 8 * number
            x, y = data[i][0][rows], data[i][1][rows]
            cross = kernel(x, everything)
            push = Logistic().slope(cross @ before[i], y)
            for j in graph.neighbors[i]:
                push += 0.05 * (cross @ before[i] - cross @ shown[j])
            f[i] = (1 - 2e-3) * before[i]
            f[i, place : place + 8] -= 2.0 / 8 * push
            average[i] += 4 / (number + 4) * (f[i] - average[i])
            state = round.states[i]
            np.testing.assert_allclose(state.sent(everything), kernel(everything, everything) @ f[i], atol=1e-9)
            np.testing.assert_allclose(state.function(everything), kernel(everything, everything) @ average[i], atol=1e-9)
    assert number == 2


# Settings that do not fit each other.


class Plain:
    """A loss that has no curvature."""

    classifies = False
    check, value, slope, value_and_slope = Squared().check, Squared().value, Squared().slope, Squared().value_and_slope


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": Diffusion()}, "Agent: protocol must be one from whose messages, SentFunction, the learner SecondOrder"),
        ({"protocol": Relay()}, "Agent: protocol must be one from whose messages, News, the learner SecondOrder can learn"),
        ({"loss": Plain()}, "Agent: loss must have curvature and implicit_step with the learner SecondOrder"),
        ({"learner": SecondOrder}, "Agent: learner must be a learner, got "),
        ({"learner": "gradient"}, "Agent: learner must be a learner, got 'gradient'; for example SecondOrder()"),
    ],
)  # fmt: skip
def test_combinations_that_do_not_fit_are_named(changes, words):
    with pytest.raises(InvalidArgument) as caught:
        make(**changes)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("learner", "power", "parsimony"), [(GRADIENT, 1.5, 0.04), (AVERAGED, 0.5, 0.06)], ids=name)
def test_the_budget_follows_the_step_size(learner, power, parsimony):
    halved = dataclasses.replace(learner, step_size=InverseTime(scale=4.0, offset=1.0), compression=Komp())
    assert halved.budget_at(0) == pytest.approx(parsimony * 4.0**power)
    assert halved.budget_at(1) == pytest.approx(parsimony * 2.0**power)
    finer = dataclasses.replace(halved, compression=Komp(parsimony=0.01))
    assert finer.budget_at(0) == pytest.approx(0.01 * 4.0**power)
    assert dataclasses.replace(halved, compression=Komp(budget=0.3)).budget_at(7) == 0.3


class Bent(losses_module.ValueTargets):
    """The squared loss with a curvature, or a bound of it, that is given."""

    value, slope = Squared().value, Squared().slope

    def __init__(self, **methods):
        self.curvature = self.curvature_bound = lambda z, y: np.ones(len(z))
        vars(self).update(methods)


@pytest.mark.parametrize("method", ["curvature", "curvature_bound"])
@pytest.mark.parametrize(
    ("curvature", "found"),
    [
        (lambda z: 1.0, "shape ()"),
        (lambda z: np.ones_like(z), "shape (32, 3)"),
        (lambda z: np.where(np.arange(32) == 3, np.nan, 1.0), "values from nan to nan"),
        (lambda z: np.where(np.arange(32) == 3, -1.0, 2.0), "values from -1 to 2"),
    ],
    ids=["scalar", "matrix", "nan", "negative"],
)
def test_invalid_curvatures_of_a_loss_are_named(method, curvature, found):
    points, targets = samples(Squared(), 32)
    agent = make(SecondOrder(), Bent(**{method: lambda z, y: curvature(z)}))
    words = f"Bent: {method} must return one finite number >= 0 for each of 32 rows, got {found}"
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        agent.step(agent.start(), points, targets)


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        (Gradient, "step_size", -1.0),
        (Gradient, "step_size", math.inf),
        (Gradient, "compression", None),
        (Gradient, "regularization", -1.0),
        (Gradient, "radius", 0.0),
        (Averaged, "fidelity", 0.0),
        (Averaged, "half_life", -1.0),
        (SecondOrder, "regularization", 0.0),
        (SecondOrder, "budget", -0.1),
        (SecondOrder, "budget", math.inf),
        (SecondOrder, "max_order", 0),
        (SecondOrder, "novelty", 0.0),
        (SecondOrder, "half_life", 0.0),
        (SecondOrder, "half_life", math.nan),
        (SecondOrder, "iterations", 0),
    ],
)
def test_learners_reject_settings_by_name(kind, setting, value):
    needed = {"step_size": 1.0} if kind in (Gradient, Averaged) else {}
    with pytest.raises(InvalidArgument, match=f"{kind.__name__}: {setting} must be "):
        kind(**{**needed, setting: value})


# Under attack.

POINTS, LABELS = samples(Logistic(), 640)
VALUES = samples(Squared(), 640)[1]
ATTACKS = {
    "small points": {"points": 1e-8 * POINTS},
    "large points": {"points": 1e8 * POINTS},
    "large points, cubic": {"points": 1e8 * POINTS, "kernel": Polynomial(degree=3)},
    "larger points, linear": {"points": 1e150 * POINTS, "kernel": Linear()},
    "a polynomial of degree 8": {"points": 100 * POINTS, "kernel": Polynomial(degree=8)},
    "the origin": {"points": 0 * POINTS, "kernel": Linear()},
    "the origin now and then": {"points": POINTS * (np.arange(640)[:, None] % 3 > 0), "kernel": Linear()},
    "few points": {"points": np.tile(POINTS[:8], (80, 1))},
    "one class": {"targets": 0 * LABELS},
    "50 classes": {"targets": np.arange(640) % 50, "outputs": 50},
    "one sample at a time": {"batch": 1},
    "all at once": {"batch": 640},
    "hardly regularized": {"learner": SecondOrder(regularization=1e-9)},
    "regularized to death": {"learner": SecondOrder(regularization=1e6)},
    "one center": {"learner": SecondOrder(max_order=1)},
    "no budget, nothing old": {"learner": SecondOrder(budget=0.0, novelty=1e-12)},
    "any budget": {"learner": SecondOrder(budget=1e12)},
    "no memory": {"learner": SecondOrder(half_life=1e-3)},
}
VALUE_ATTACKS = {
    "small targets": {"targets": 1e-8 * VALUES},
    "large targets": {"targets": 1e8 * VALUES},
    "huge targets": {"targets": 1e150 * VALUES},
    "equal targets": {"targets": 0 * VALUES + 1e6},
}
ATTACKED = [
    pytest.param(loss, options, id=f"{name(loss)}-{attack}")
    for loss in LOSSES
    for attack, options in (ATTACKS if loss.classifies else VALUE_ATTACKS).items()
]


@pytest.mark.parametrize(("loss", "options"), ATTACKED)
def test_second_order_stays_finite(loss, options):
    options = {"points": POINTS, "targets": LABELS if loss.classifies else VALUES, "batch": 32, **options}
    points, targets, batch = (options.pop(key) for key in ("points", "targets", "batch"))
    agent = make(loss=loss, **options)
    state = agent.start()
    for start in range(0, len(points), batch):
        state, info = agent.step(state, points[start : start + batch], targets[start : start + batch])
        assert np.isfinite(state.function.weights).all()
        assert np.isfinite(state.model.covariance.matrix).all()
        assert np.isfinite(info.error)
        assert info.order <= (agent.learner.max_order or math.inf)
    assert np.isfinite(agent.predict(state, points)).all()


def test_a_covariance_that_rounding_made_indefinite_is_factorized():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(32, 32)))[0]
    spread = np.geomspace(1e10, 1e27, 32)
    spread[0] = -1e15
    covariance = (basis * spread) @ basis.T
    lower = compiled.newton.factorize(0.5 * (covariance + covariance.T), np.full(32, 0.7))
    assert np.isfinite(lower).all()
    np.testing.assert_allclose(lower @ lower.T, 0.49 * covariance, atol=1e-6 * spread[-1])


def test_a_kernel_that_overflows_is_named():
    agent = make(loss=Squared(), kernel=Polynomial(degree=3))
    state = agent.start()
    with np.errstate(over="ignore"), pytest.raises(Diverged, match=r"κ\(x, x\) of the new samples is not finite"):
        agent.step(state, 1e120 * POINTS[:32], VALUES[:32])
    state, _ = agent.step(state, POINTS[:32], VALUES[:32])
    assert np.isfinite(state.function.weights).all()


def test_targets_beyond_all_bounds_are_divergence_and_leave_the_state_as_it_was():
    points, targets = samples(Squared(), 320)
    agent = make(SecondOrder(), Squared())
    state, _ = run(agent, points, targets)
    before = agent.predict(state, points)
    with pytest.raises(Diverged, match="the loss on the newest samples is inf; raise the regularization"):
        agent.step(state, points[:16], targets[:16] * 1e200)
    np.testing.assert_array_equal(agent.predict(state, points), before)
    agent.step(state, points[:16], targets[:16])
