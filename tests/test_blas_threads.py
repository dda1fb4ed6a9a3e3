"""Small matrices are computed by one thread, whatever the BLAS would take, and nothing of that stays."""

from typing import ClassVar

import numpy as np
import pytest
from kernelmesh.runtimes.blas_threads import BlasThreads
from threadpoolctl import ThreadpoolController, threadpool_limits

from kernelmesh import Agent, ArrayStream, Diverged, Gaussian, Graph, Landmarks, Logistic, Mixture, Relay, simulate
from kernelmesh.runtimes import blas_threads


def threads():
    return {pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info()}


class Watching(Gaussian):
    """A Gaussian that notes how many threads there are when it is computed."""

    seen: ClassVar = set()

    def __call__(self, left, right):
        Watching.seen |= threads()
        return super().__call__(left, right)


@pytest.fixture(autouse=True)
def two():
    with threadpool_limits(2):
        BlasThreads()  # SciPy's BLAS is loaded
        with threadpool_limits(2):
            yield


@pytest.mark.parametrize(("order", "wanted"), [(0, {1}), (blas_threads._LARGE - 1, {1}), (blas_threads._LARGE, {2})])
def test_large_matrices_have_all_threads(order, wanted):
    with BlasThreads().limited(order):
        assert threads() == wanted
    assert threads() == {2}


def test_threads_come_back_after_an_error():
    with pytest.raises(Diverged), BlasThreads().limited(1):
        raise Diverged(agent=0, samples=0, step_size=0.0, penalty=0.0, reason="of a test")
    assert threads() == {2}


@pytest.mark.parametrize("large", [1000, 1])
def test_a_simulation_has_one_thread_within_a_round_and_all_of_them_between_rounds(large, monkeypatch):
    monkeypatch.setattr(blas_threads, "_LARGE", large)
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(classes=3, rng=rng)
    agent = Agent(
        dimension=2, outputs=3, kernel=Watching(bandwidth=0.6), loss=Logistic(), learner=Landmarks(), protocol=Relay()
    )
    streams = [ArrayStream(*mixture.sample(640, rng=rng)) for _ in range(3)]
    watched, orders = 0, [0]
    for now in simulate(agent, Graph.ring(3), streams):
        assert threads() == {2}
        if min(orders) > 0 and any(now.infos):  # the agents have points, and learn
            assert Watching.seen == ({1} if large > 1 else {2})
            watched += 1
        orders = [function.order for function in now.functions]
        Watching.seen.clear()
    assert watched >= 5
