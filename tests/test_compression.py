import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import oracle
from kernelmesh import Function, Gaussian, Komp, Laplacian, Linear, Matern52, Polynomial, Uncompressed, compress
from kernelmesh.numerics.compression import Update

KERNELS = st.sampled_from([Gaussian(bandwidth=0.6), Laplacian(), Matern52(), Polynomial(degree=2), Linear(offset=0.5)])
BUDGETS = st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-3, 3.0))


@st.composite
def clouds(draw, minimum=1, most=11):
    """Points with weights: generic, duplicated, nearly duplicated, on a line, with zero weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    n, p, c = draw(st.integers(minimum, most)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    points, weights = rng.standard_normal((n, p)), rng.standard_normal((n, c))
    kind = draw(st.sampled_from(["generic", "duplicates", "near duplicates", "collinear", "zero weights"]))
    if n > 1:
        some = rng.integers(n, size=max(1, n // 3))
        if kind == "duplicates":
            points[some] = points[0]
        elif kind == "near duplicates":
            points[some] = points[0] + 10.0 ** draw(st.integers(-4, -2)) * rng.standard_normal((len(some), p))
        elif kind == "collinear":
            points = rng.standard_normal((n, 1)) * rng.standard_normal(p)
        elif kind == "zero weights":
            weights[some] = 0.0
    return points, weights


def check_against_oracle(kernel, points, weights, budget, centers, new_weights, error, *, accuracy=1e-6):
    """The laws of a compression, and equality with the literal algorithm wherever its choices were clear."""
    size = oracle.rkhs_norm(kernel, points, weights)
    true_error = oracle.rkhs_distance(kernel, points, weights, centers, new_weights)
    assert len(centers) <= len(points)
    assert error == pytest.approx(true_error, rel=accuracy, abs=accuracy * size)
    assert error <= budget + accuracy * size
    expected = oracle.komp(kernel, points, weights, budget)
    clear = expected.margin > 1e-5
    event("clear choices" if clear else "near ties")
    assume(clear)
    assert oracle.rkhs_distance(kernel, points[expected.kept], expected.weights, centers, new_weights) <= 1e-6 * size
    assert error == pytest.approx(expected.error, rel=accuracy, abs=accuracy * size)
    if len(np.unique(points, axis=0)) == len(points):
        assert sorted(map(tuple, centers)) == sorted(map(tuple, points[expected.kept]))


@given(cloud=clouds(), kernel=KERNELS, budget=BUDGETS)
def test_compress_equals_algorithm_2(cloud, kernel, budget):
    points, weights = cloud
    centers, new_weights, error = compress(kernel, points, weights, budget)
    check_against_oracle(kernel, points, weights, budget, centers, new_weights, error)


@given(first=clouds(), seed=st.integers(0, 10_000), batch=st.integers(1, 9), kernel=KERNELS, budget=BUDGETS)
def test_a_step_equals_algorithm_2(first, seed, batch, kernel, budget):
    """A mini-batch (often larger than the dictionary) on top of what is remembered, with points that return."""
    points, weights = first
    rng = np.random.default_rng(seed)
    komp = Komp(budget=budget)
    model = komp.start(Function.of(kernel, points.copy(), weights.copy()))
    before = model.function
    new, push = rng.standard_normal((batch, points.shape[1])), rng.standard_normal((batch, weights.shape[1]))
    if seed % 2 and before.order:
        new[0] = before.points[0]
    stacked = np.vstack([before.points, new]), np.vstack([0.9 * before.weights, push])
    model, pruned = komp.absorb(model, Update(new, push, 0.9), budget=budget)
    f = model.function
    # dictionaries of near duplicates, which no pruned function has, leave the tally of errors fewer digits
    check_against_oracle(kernel, *stacked, budget, f.points, f.weights, pruned.error, accuracy=1e-5)
    assert model.square_norm == pytest.approx(f.norm() ** 2, rel=1e-6, abs=1e-7 * oracle.rkhs_norm(kernel, *stacked) ** 2)


@pytest.mark.parametrize("budget", [0.05, 0.2, 1.0])
def test_many_steps_stay_equal_to_algorithm_2(budget):
    rng = np.random.default_rng(0)
    kernel, komp = Gaussian(bandwidth=0.6), Komp(budget=budget)
    model = komp.start(Function.zero(kernel, dimension=2, outputs=3))
    for _ in range(40):
        new, push = rng.standard_normal((5, 2)), 0.4 * rng.standard_normal((5, 3))
        f = model.function
        points, weights = np.vstack([f.points, new]), np.vstack([0.95 * f.weights, push])
        model, pruned = komp.absorb(model, Update(new, push, 0.95), budget=budget)
        expected = oracle.komp(kernel, points, weights, budget)
        assert pruned.error == pytest.approx(expected.error, rel=1e-6)
        gap = model.function.distance(Function.of(kernel, points[expected.kept], expected.weights))
        assert gap <= 1e-7 * model.function.norm()


def test_extreme_budgets():
    points, weights = np.arange(4.0)[:, None], np.ones((4, 1))
    everything = compress(Gaussian(), points, weights, 0.0)
    assert len(everything[0]) == 4
    assert everything[2] == 0
    nothing = compress(Gaussian(), points, weights, math.inf)
    assert len(nothing[0]) == 0
    assert nothing[2] == pytest.approx(oracle.rkhs_norm(Gaussian(), points, weights))
    assert len(compress(Gaussian(), points, np.zeros((4, 1)), 0.0)[0]) == 0
    centers, weights, _ = compress(Gaussian(), [[0.0], [9.0]], [1.0, 2.0], 0.1)  # vectors of weights stay vectors
    assert (centers.shape, weights.shape) == ((2, 1), (2,))


def test_the_order_cap_holds_and_is_reported():
    rng = np.random.default_rng(0)
    komp = Komp(max_order=10)
    model = komp.start(Function.zero(Gaussian(), dimension=2, outputs=1))
    reports = []
    for _ in range(20):
        model, pruned = komp.absorb(model, Update(rng.standard_normal((8, 2)), rng.standard_normal((8, 1))), budget=1e-3)
        reports.append(pruned.over_budget)
        assert model.function.order <= 10
    assert any(reports)
    # with room to spare the cap changes nothing
    far = np.array([[0.0], [10.0]])
    assert compress(Gaussian(), far, [1.0, 1.0], 0.0, max_order=5)[2] == 0


def drift(model):
    f = model.function
    return np.abs(model.inverse.matrix @ f.kernel(f.points, f.points) - np.eye(f.order)).sum(axis=1).max()


def test_four_thousand_mini_batches_with_duplicates_do_not_drift():
    """‖P K − I‖∞ stays below 1e-6 on a stream in which 1 % of the samples are exact repetitions."""
    rng = np.random.default_rng(0)
    kernel, komp = Gaussian(bandwidth=0.6), Komp(budget=0.2)
    model = komp.start(Function.zero(kernel, dimension=2, outputs=5))
    past = rng.standard_normal((1000, 2))
    worst = 0.0
    exchanges = 0
    for step in range(4000):
        new = rng.standard_normal((32, 2))
        again = rng.random(32) < 0.01
        new[again] = past[rng.integers(1000, size=again.sum())]
        past[rng.integers(1000, size=4)] = new[:4]
        before = model.inverse.changes
        model, pruned = komp.absorb(model, Update(new, 0.1 * rng.standard_normal((32, 5)), 0.98), budget=0.2)
        exchanges += model.inverse.changes != before
        assert np.isfinite(model.function.weights).all()
        assert pruned.error <= 0.2 * (1 + 1e-9)
        if step % 100 == 99:
            worst = max(worst, drift(model))
    assert exchanges > 400, "the stream must make the dictionary change for this to mean anything"
    assert worst <= 1e-6


def test_drift_is_noticed_and_repaired():
    rng = np.random.default_rng(0)
    komp = Komp(watch=1)
    model = komp.start(Function.zero(Gaussian(), dimension=2, outputs=1))
    for _ in range(10):
        model, _ = komp.absorb(model, Update(rng.standard_normal((4, 2)), rng.standard_normal((4, 1))), budget=0.05)
    model = replace(model, inverse=replace(model.inverse, matrix=1.001 * model.inverse.matrix))
    repairs = []
    for _ in range(3):
        model, pruned = komp.absorb(model, Update(rng.standard_normal((4, 2)), rng.standard_normal((4, 1))), budget=0.05)
        repairs.append(pruned.repaired)
    assert any(repairs)
    assert drift(model) <= 1e-9


def test_points_too_close_for_double_precision_stay_harmless():
    """With a budget of 0 nothing may be thrown away, yet a thousand points in a small box are numerically dependent."""
    rng = np.random.default_rng(0)
    kernel, komp = Gaussian(bandwidth=1.0), Komp(budget=0.0)
    model = komp.start(Function.zero(kernel, dimension=1, outputs=1))
    literal_points, literal_weights = np.zeros((0, 1)), np.zeros((0, 1))
    for _ in range(50):
        new, push = rng.uniform(-1, 1, (20, 1)), rng.standard_normal((20, 1))
        model, _ = komp.absorb(model, Update(new, push), budget=0.0)
        literal_points, literal_weights = np.vstack([literal_points, new]), np.vstack([literal_weights, push])
    grid = np.linspace(-1, 1, 50)[:, None]
    expected = kernel(grid, literal_points) @ literal_weights
    assert model.function.order < 40
    np.testing.assert_allclose(model.function(grid), expected, atol=1e-3 * np.abs(expected).max())


def test_a_sum_that_is_nearly_0_is_compressed_to_nearly_nothing():
    rng = np.random.default_rng(2)
    points, weights = 1e-10 * rng.normal(size=(10, 1)), rng.normal(size=10)
    kept, _, error = compress(Gaussian(), points, weights - weights.mean(), 0.1)
    assert len(kept) <= 1
    assert error <= 0.1


def test_without_compression_every_sample_stays():
    rng = np.random.default_rng(0)
    plain = Uncompressed()
    model = plain.start(Function.zero(Gaussian(), dimension=2, outputs=2))
    for step in range(5):
        new = np.zeros((3, 2)) if step % 2 else rng.standard_normal((3, 2))
        model, pruned = plain.absorb(model, Update(new, rng.standard_normal((3, 2)), 0.9), budget=0.0)
        assert pruned.error == 0
    assert model.function.order == 15
    assert model.square_norm == pytest.approx(model.function.norm() ** 2)
    with pytest.raises(FloatingPointError, match="no longer finite"):
        plain.absorb(model, Update(np.ones((1, 2)), np.full((1, 2), 1e200)), budget=0.0)
    taken_over, _ = Komp().absorb(model, Update(np.ones((1, 2)), np.ones((1, 2))), budget=0.1)
    assert drift(taken_over) < 1e-8


def test_restoring_a_function_keeps_it():
    rng = np.random.default_rng(0)
    f = Function.of(Gaussian(), rng.standard_normal((20, 2)), rng.standard_normal((20, 3)))
    model = Komp(budget=0.1).start(f)
    assert model.function is f
    assert drift(model) < 1e-8
    twice = Function.of(Gaussian(), np.vstack([f.points, f.points]), np.vstack([f.weights, f.weights]))
    folded = Komp(budget=0.1).start(twice)
    assert folded.function.order == 20
    assert folded.function.distance(twice) < 1e-6 * twice.norm()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Komp(budget=-0.1), "Komp: budget must be a number >= 0 or a schedule, got -0.1"),
        (lambda: Komp(budget=math.nan), "Komp: budget"),
        (lambda: Komp(max_order=0), "Komp: max_order must be an integer >= 1, got 0"),
        (lambda: compress(Gaussian(), [[0.0]], [1.0], -1.0), "compress: budget must be a number >= 0, got -1.0"),
        (lambda: compress(Gaussian(), [[math.nan]], [1.0], 0.1), "compress: points must be finite"),
        (lambda: compress(Gaussian(), [[0.0]], [1.0, 2.0], 0.1), "compress: weights must have 1 rows"),
        (lambda: compress(Gaussian(), [0.0], [1.0], 0.1), "compress: points must have 2 dimensions"),
        (lambda: compress("rbf", [[0.0]], [1.0], 0.1), "compress: kernel must be a kernel, got 'rbf'"),
    ],
)
def test_invalid_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_dictionary_that_was_emptied_starts_clean():
    rng = np.random.default_rng(0)
    model = Komp(budget=0.01).start(Function.zero(Gaussian(), dimension=2, outputs=1))
    for step in range(60):
        loud = 1.0 if step % 20 < 10 else 0.0
        change = Update(rng.standard_normal((32, 2)), loud * rng.standard_normal((32, 1)), 1.0 if loud else 1e-3)
        model, pruned = Komp().absorb(model, change, budget=0.01)
        assert math.isfinite(pruned.error)
        assert np.isfinite(model.inverse.matrix).all()
        if model.function.order == 0:
            assert model.square_norm == 0
    assert model.function.order == 0
