import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from kernelmesh import Hinge, Huber, Logistic, Squared, SquaredHinge
from kernelmesh.testing import check_loss

CLASSES = [Logistic(), Hinge(), SquaredHinge()]
VALUES = [Squared(), Huber(threshold=0.7)]


@pytest.mark.parametrize("loss", CLASSES + VALUES, ids=str)
@given(seed=st.integers(0, 10_000), outputs=st.integers(1, 6))
def test_laws(loss, seed, outputs):
    outputs = max(outputs, 2) if loss.classifies else outputs
    check_loss(loss, outputs=outputs, rows=8, rng=np.random.default_rng(seed))


def test_hinge_kinks_are_pinned():
    y = np.array([0])
    # exactly at the margin: value 0 and slope 0
    z = np.array([[1.0, 0.0, -3.0]])
    assert Hinge().value(z, y)[0] == 0
    assert (Hinge().slope(z, y) == 0).all()
    # two equal rivals: the first one is moved
    assert Hinge().slope(np.array([[0.0, 0.5, 0.5]]), y).tolist() == [[-1.0, 1.0, 0.0]]
    # a rival never is the right class, even when that has the largest output
    assert Hinge().slope(np.array([[0.4, 0.0, 0.1]]), y).tolist() == [[-1.0, 0.0, 1.0]]
    assert SquaredHinge().slope(np.array([[0.0, 0.0]]), y).tolist() == [[-2.0, 2.0]]


def test_huber_kink_is_pinned():
    loss = Huber(threshold=1.0)
    z, y = np.array([[1.0], [-1.0], [3.0]]), np.zeros((3, 1))
    assert loss.value(z, y).tolist() == [0.5, 0.5, 2.5]
    assert loss.slope(z, y).ravel().tolist() == [1.0, -1.0, 1.0]


def test_logistic_survives_large_outputs():
    z = np.array([[1000.0, -1000.0], [-1000.0, 1000.0]])
    y = np.array([0, 0])
    np.testing.assert_allclose(Logistic().value(z, y), [0.0, 2000.0])
    np.testing.assert_allclose(Logistic().slope(z, y), [[0, 0], [-1, 1]], atol=1e-300)
    np.testing.assert_allclose(Logistic().probabilities(z), [[1, 0], [0, 1]], atol=1e-300)


def test_logistic_agrees_with_the_definition():
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((6, 4)), rng.integers(4, size=6)
    np.testing.assert_allclose(Logistic().slope(z, y), oracle.logistic_slope(z, y), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(Logistic().probabilities(z).sum(axis=1), 1.0)


def test_refuses():
    with pytest.raises(ValueError, match="Huber: threshold must be a finite number > 0, got 0"):
        Huber(threshold=0)
