"""Projections onto some of a function's points: what is lost is what was reported, and no more than was allowed."""

import numpy as np
import pytest

from kernelmesh import ExactDiffusion, Expansion, Gaussian, Graph, Komp, simulate
from kernelmesh.consensus import exact_diffusion
from kernelmesh.numerics.compression import Update
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.numerics.projection import select, without
from kernelmesh.streams import ArrayStream
from test_consensus import data, make

KERNEL = Gaussian(bandwidth=1.0)


def function(rows, seed, *, dimension=3, scale=1.0):
    rng = np.random.default_rng(seed)
    return Expansion(KERNEL, rng.standard_normal((rows, dimension)), scale * rng.standard_normal((rows, 2)))


def projected(f, points):
    """By least squares, the slow way."""
    weights = np.linalg.lstsq(KERNEL(points, points), f(points), rcond=1e-13)[0]
    return Expansion(KERNEL, points, weights)


class TestWithout:
    @pytest.mark.parametrize("budget", [0.0, 0.1, 1.0, 10.0])
    def test_it_stays_within_the_budget_and_keeps_the_other_points(self, budget):
        f = function(40, 0)
        leaving = np.arange(5, 20)
        after = without(f, leaving, budget, max_left=len(leaving))
        assert after.distance(f) <= budget + 1e-6
        np.testing.assert_array_equal(after.centers[:25], np.delete(f.centers, leaving, axis=0))
        assert (after.order == 40) == (budget == 0.0)

    def test_it_is_the_projection_onto_the_points_that_are_left(self):
        f = function(40, 1)
        after = without(f, np.arange(12), 1.0, max_left=12)
        assert 28 < after.order < 40
        assert after.distance(projected(f, after.centers)) < 1e-5

    def test_a_cap_goes_before_the_budget(self):
        f = function(40, 2)
        assert without(f, np.arange(12), 0.0, max_left=3).order == 31
        assert without(f, np.arange(40), 0.0, max_left=5).order == 5

    def test_points_that_coincide_are_no_obstacle(self):
        f = function(20, 3)
        twice = Expansion(KERNEL, np.concatenate([f.centers, f.centers + 1e-13]), np.concatenate([f.weights, f.weights]))
        after = without(twice, np.arange(20, 40), 1e-3, max_left=20)
        assert after.order == 20
        assert after.distance(twice) < 1e-3


class TestSelect:
    @pytest.mark.parametrize("square_budget", [1e-3, 1.0, 1e6])
    def test_it_is_the_projection_onto_the_dictionary_and_the_points_that_are_kept(self, square_budget):
        f, g = function(30, 0), function(90, 1, scale=0.3)
        inverse = InverseGram()
        assert inverse.rebuild(KERNEL, f.centers)
        found = select(f, inverse, f.inner(f), g.centers, g.weights, 0.9, square_budget, 90)
        moved = Expansion(KERNEL, np.concatenate([f.centers, g.centers]), np.concatenate([0.9 * f.weights, g.weights]))
        points = np.concatenate([f.centers, g.centers[found.kept]])
        after = Expansion(KERNEL, points, np.concatenate([found.weights, found.coefficients]))
        assert after.distance(projected(moved, points)) < 1e-4
        assert found.square_error == pytest.approx(after.distance(moved) ** 2, rel=1e-6, abs=1e-6)
        assert found.square_error <= square_budget
        own = Expansion(KERNEL, f.centers, found.weights)
        assert found.square_norm == pytest.approx(own.inner(own), rel=1e-9)
        assert (len(found.kept) == 0) == (square_budget == 1e6)

    def test_a_cap_that_rules_out_few_is_not_worth_it(self):
        f, g = function(30, 0), function(90, 1)
        inverse = InverseGram()
        assert inverse.rebuild(KERNEL, f.centers)
        assert select(f, inverse, f.inner(f), g.centers, g.weights, 1.0, 1e-3, 75) is None
        assert select(f, inverse, f.inner(f), g.centers, g.weights, 1.0, 1e-3, 60) is not None
        assert len(select(f, inverse, f.inner(f), g.centers, g.weights, 1.0, 1e-3, 40).kept) <= 40


@pytest.mark.parametrize("max_order", [None, 60])
@pytest.mark.parametrize("budget", [0.05, 1.0, 5.0])
def test_a_neighbor_with_many_points_is_absorbed_within_the_budget(budget, max_order):
    f, g = function(60, 0), function(300, 1, scale=0.1)
    komp = Komp(budget=budget, max_order=max_order)
    model, report = komp.absorb(komp.start(f), Update(g.centers, g.weights, 0.5, shared=True), samples=0)
    both = Expansion(KERNEL, np.concatenate([f.centers, g.centers]), np.concatenate([0.5 * f.weights, g.weights]))
    assert report.error == pytest.approx(model.function.distance(both), rel=1e-3, abs=1e-5)
    assert report.over_budget == (report.error > budget * (1 + 1e-9))
    assert max_order is not None or not report.over_budget
    assert model.function.order + report.removed == 360
    assert model.square_norm == pytest.approx(model.function.inner(model.function), rel=1e-6)


def test_large_duals_stay_opposite_and_are_computed_once_for_both_ends(monkeypatch):
    calls = []

    def counted(*arguments, **named):
        calls.append(arguments[0].order)
        return without(*arguments, **named)

    monkeypatch.setattr(exact_diffusion, "without", counted)
    monkeypatch.setattr(exact_diffusion, "_FEW", 16)
    monkeypatch.setattr(exact_diffusion, "_SMALL", 64)
    agent = make(ExactDiffusion(budget=1e-3), compression=Komp(budget=1e-3, max_order=60))
    streams = [ArrayStream(*data(i, 960)) for i in range(2)]
    for round in simulate(agent, Graph.line(2), streams):
        here, there = round.states[0].edges[1].dual, round.states[1].edges[0].dual
        np.testing.assert_array_equal(here.centers, there.centers)
        np.testing.assert_array_equal(here.weights, -there.weights)
        assert here.order <= 1.5 * 120
    assert 0 < len(calls) <= 30
    assert min(calls) > 64
