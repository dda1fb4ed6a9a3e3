"""The paper's guarantees, on a small scale."""

import re

import numpy as np
import pytest

from kernelmesh import InvalidArgument
from kernelmesh_experiments import theory
from kernelmesh_experiments.base import Session
from kernelmesh_experiments.exact import ProblemConfig
from kernelmesh_experiments.theory import model_order, theorem_1, theorem_2
from kernelmesh_experiments.theory.convergence import converge

SMALL = theory.Config(samples=30, stream=3200)


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


def test_proposition_2_holds_for_the_exact_minimizer():
    problem = ProblemConfig(agents=3, samples=12).problem()
    optimum, together = problem.minimize(np.inf)
    assert problem.violation(together) == 0
    lowest = 0.0
    for coupling in (0.01, 1.0, 100.0):
        value, functions = problem.minimize(coupling)
        assert 0 < problem.violation(functions) <= optimum / coupling
        assert lowest <= value <= optimum  # ψ_c rises to p* with c
        lowest = value


def test_every_claim_is_summarized_if_its_cells_are_there(tmp_path):
    path, gaps = [[100.0 * t, 3.0 / t, 5.0] for t in range(1, 41)], [[32.0 * t, 0.5, 1.0] for t in range(1, 9)]
    result = {"path": path, "gaps": gaps, "noise": 1.0, "bound": 900, "minimizer": 1.0, "penalty": 2.0}
    result |= {"violation": 1e-3, "diverged": False}

    class Canned(Session):
        missing = ()

        def compute(self, cells):
            def canned(name):
                number = float(name.split("-")[-1])
                return {
                    **result,
                    "parsimony": number,
                    "coupling": number,
                    "protocol": name.split("-", 1)[1].rpartition("-")[0],
                }

            return {name: canned(name) for name in cells if name not in self.missing}

    session = Canned(tmp_path)
    found = theory.run(theory.Config(), session)
    assert set(found.figures) == {claim.name for claim in theory.CLAIMS}
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in found.summary)
    assert found.summary["theorem_1_exponent_expected"] == 0.5
    session.missing = ("converge-1",)  # only what needs it is left out
    assert set(theory.run(theory.Config(), session).figures) == set(found.figures) - {"theorem-1"}
    assert set(theory.run(theory.Config(claim="theorem-2"), session).figures) == {"theorem-2"}
    with pytest.raises(InvalidArgument, match="theory: claim must be one of all, proposition-1"):
        theory.run(theory.Config(claim="theorem-3"), session)


def test_packing_counts_cells():
    grid = np.array([[0.0, 0.0], [0.0, 0.001], [5.0, 5.0]])
    assert model_order._packing(grid, bandwidth=0.6, reach=0.05) == 2
