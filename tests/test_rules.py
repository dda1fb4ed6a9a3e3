"""Learning rules against their literal oracles."""

import numpy as np
import pytest

from kernelmesh import Agent, Averaged, Expansion, Gaussian, Komp, Logistic, SecondOrder, Squared, Uncompressed


def _points(rows, dimension=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dimension))


def test_second_order_with_squared_loss_is_ridge_regression_on_the_dictionary():
    kernel, weight = Gaussian(bandwidth=1.0), 0.3
    dictionary, points = _points(12), _points(400, seed=1)
    targets = np.stack([np.sin(2 * points[:, 0]), points[:, 1] ** 2], axis=1)
    rule = SecondOrder(novelty=1.0)  # nothing is new to the dictionary
    agent = Agent(dimension=2, outputs=2, kernel=kernel, loss=Squared(), rule=rule, regularization=weight)
    state = agent.start(function=Expansion(kernel, dictionary, np.zeros((12, 2))))
    for start in range(0, 400, 32):
        state, _ = agent.step(state, points[start : start + 32], targets[start : start + 32])
    cross = kernel(points, dictionary)
    wanted = np.linalg.solve(weight * kernel(dictionary, dictionary) + cross.T @ cross, cross.T @ targets)
    np.testing.assert_allclose(state.function.weights, wanted, rtol=1e-8, atol=1e-8)


def test_second_order_without_compression_is_ridge_regression_on_all_points():
    kernel, weight = Gaussian(bandwidth=0.4), 0.3
    points = _points(60)
    targets = np.sin(2 * points[:, :1])
    agent = Agent(
        dimension=2,
        outputs=1,
        kernel=kernel,
        loss=Squared(),
        rule=SecondOrder(budget=0.0, novelty=1e-9),
        regularization=weight,
    )
    state = agent.start()
    for i in range(60):
        state, _ = agent.step(state, points[i : i + 1], targets[i : i + 1])
    assert state.function.order == 60
    wanted = np.linalg.solve(kernel(points, points) + weight * np.eye(60), targets)
    new = _points(50, seed=2)
    np.testing.assert_allclose(agent.predict(state, new), kernel(new, points) @ wanted, atol=1e-7)


def test_averaged_without_compression_equals_its_oracle():
    kernel, eta, weight = Gaussian(), 5.0, 0.01
    points, labels = _points(40), np.random.default_rng(1).integers(0, 3, size=40)
    agent = Agent(
        dimension=2,
        outputs=3,
        kernel=kernel,
        loss=Logistic(),
        rule=Averaged(),
        step_size=eta,
        regularization=weight,
        compression=Uncompressed(),
    )
    state = agent.start()
    f, average = np.zeros((40, 3)), np.zeros((40, 3))
    for i in range(40):
        state, _ = agent.step(state, points[i : i + 1], labels[i : i + 1])
        z = kernel(points[i : i + 1], points) @ f
        f *= 1 - eta * weight
        f[i] -= eta * Logistic().slope(z, labels[i : i + 1])[0]
        average += 2 / (i + 2) * (f - average)
    np.testing.assert_allclose(state.function.weights, average, atol=1e-12)
    np.testing.assert_allclose(state.sent.weights, f, atol=1e-12)


@pytest.mark.parametrize("rule", [Averaged(), SecondOrder()], ids=lambda rule: type(rule).__name__)
def test_an_old_state_cannot_be_stepped_again(rule):
    settings = {} if isinstance(rule, SecondOrder) else {"step_size": 30.0, "compression": Komp.averaging(30.0)}
    agent = Agent(dimension=2, outputs=2, kernel=Gaussian(), loss=Logistic(), rule=rule, **settings)
    points, labels = _points(96), np.arange(96) % 2
    state, _ = agent.step(agent.start(), points[:32], labels[:32])
    newer, _ = agent.step(state, points[32:64], labels[32:64])
    with pytest.raises(RuntimeError, match="already stepped"):
        agent.step(state, points[64:], labels[64:])
    agent.step(newer, points[64:], labels[64:])
