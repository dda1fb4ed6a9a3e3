import numpy as np
import pytest

from kernelmesh import Gaussian, Laplacian, Linear, Matern32, Matern52, Polynomial
from kernelmesh.numerics.distances import squared_distances
from kernelmesh.testing import check_kernel

KERNELS = [
    Gaussian(bandwidth=0.7),
    Laplacian(bandwidth=0.7),
    Matern32(bandwidth=0.7),
    Matern52(bandwidth=0.7),
    Polynomial(degree=3, offset=0.5),
    Linear(offset=0.2),
    Gaussian(bandwidth=0.5) + Linear(),
    Gaussian(bandwidth=0.5) * Polynomial(degree=2),
    2.5 * Matern52(bandwidth=1.0),
    Laplacian() * 3,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dimension", [1, 3, 40])
def test_laws(kernel, dimension):
    check_kernel(kernel, dimension=dimension)


@pytest.mark.parametrize(
    ("kernel", "value"),
    [
        (Gaussian(bandwidth=2.0), np.exp(-25 / 8)),
        (Laplacian(bandwidth=2.0), np.exp(-2.5)),
        (Matern32(bandwidth=2.0), (1 + np.sqrt(3) * 2.5) * np.exp(-np.sqrt(3) * 2.5)),
        (Matern52(bandwidth=2.0), (1 + np.sqrt(5) * 2.5 + 5 * 2.5**2 / 3) * np.exp(-np.sqrt(5) * 2.5)),
    ],
)
def test_formulas_are_pinned_at_distance_five(kernel, value):
    assert kernel(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]))[0, 0] == pytest.approx(value, rel=1e-14)


def test_algebra_is_pointwise():
    x, z = np.random.default_rng(0).standard_normal((2, 4, 3))
    g, p = Gaussian(), Polynomial(degree=2)
    np.testing.assert_allclose((g + p)(x, z), g(x, z) + p(x, z))
    np.testing.assert_allclose((g * p)(x, z), g(x, z) * p(x, z))
    np.testing.assert_allclose((3 * g)(x, z), 3 * g(x, z))
    assert g + p == Gaussian() + Polynomial(degree=2)
    with pytest.raises(TypeError):
        g + 1.0


@pytest.mark.parametrize("dimension", [2, 12, 13, 200])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_of_near_duplicates_keep_their_digits(dimension, offset):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, dimension)) + offset
    shift = 1e-3 * rng.standard_normal((6, dimension))
    near = x + shift
    exact = ((near - x) ** 2).sum(axis=1)
    np.testing.assert_allclose(np.diag(squared_distances(x, near)), exact, rtol=1e-9)
    assert (np.diag(squared_distances(x, x)) == 0).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gaussian(bandwidth=-1), "Gaussian: bandwidth must be a finite number > 0, got -1"),
        (lambda: Matern32(bandwidth=float("nan")), "Matern32: bandwidth"),
        (lambda: Gaussian(bandwidth=1e-200), "Gaussian: bandwidth must be between 1e-150 and 1e150, got 1e-200"),
        (lambda: Polynomial(degree=0), "Polynomial: degree must be an integer >= 1, got 0"),
        (lambda: Polynomial(offset=-0.1), "Polynomial: offset"),
        (lambda: Linear(offset=float("inf")), "Linear: offset"),
        (lambda: 0 * Gaussian(), "Scaled: factor"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        make()


@pytest.mark.parametrize("kernel", [Gaussian(), Laplacian(), Matern32(), Matern52()], ids=str)
def test_points_that_are_as_far_away_as_can_be_have_no_influence(kernel):
    with np.errstate(over="ignore"):
        assert kernel(np.array([[1e160]]), np.array([[0.0], [-1e300]])).tolist() == [[0.0, 0.0]]
