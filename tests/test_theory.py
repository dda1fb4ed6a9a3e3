"""The paper's guarantees, on a small scale."""

import numpy as np
import pytest
from kernelmesh.experiments import theory
from kernelmesh.experiments.theory import model_order, theorem_1, theorem_2
from kernelmesh.experiments.theory.convergence import converge

SMALL = theory.Config(samples=30, passes=150, stream=3200)


def test_proposition_1_holds_in_every_round():
    found = model_order.order((SMALL, 0.04))
    gaps = np.array(found["gaps"])
    assert len(gaps) == 100
    assert (gaps[:, 1] <= gaps[:, 2] * (1 + 1e-9)).all()
    assert gaps[:, 1].max() > 0.1 * gaps[:, 2].max()  # the bound is not met by doing nothing
    assert max(point[1] for point in found["path"]) < found["bound"]


def test_falling_steps_approach_the_minimizer():
    path = np.array(converge((SMALL, 0.0))["path"])
    assert path[-1, 1] < 0.35 * path[0, 1]


@pytest.mark.slow
def test_falling_steps_come_nearer_to_the_minimizer_than_constant_ones():
    config = theory.Config(samples=30, passes=1500)
    falling, constant = (np.array(converge((config, step))["path"]) for step in (0.0, 1.0))
    assert falling[-1, 1] < constant[-1, 1]


@pytest.mark.slow
def test_the_radius_of_theorem_1_shrinks_with_the_step_and_stays_within_its_bound():
    config = theory.Config(samples=30, passes=800)
    done = {f"converge-{step:g}": converge((config, step)) for step in theorem_1._STEPS}
    numbers, _ = theorem_1.summarize(config, done)
    assert numbers["theorem_1_radius_over_bound"] < 1
    assert 0.2 < numbers["theorem_1_exponent"] < 1.0


@pytest.mark.slow
def test_the_minimizer_agrees_more_as_the_penalty_grows():
    small, large = (theorem_2.agreement((SMALL, coupling)) for coupling in (0.1, 100.0))
    assert large["minimizer"] < 0.5 * small["minimizer"]
    assert large["penalty"] < 0.5 * small["penalty"]


def test_packing_counts_cells():
    grid = np.array([[0.0, 0.0], [0.0, 0.001], [5.0, 5.0]])
    assert model_order._packing(grid, bandwidth=0.6, reach=0.05) == 2
