"""Equal points of neighbors are made one, bit for bit, which changes no function."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh import Function, Gaussian
from kernelmesh.numerics.compression import Model, Update, _put_together


@given(
    seed=st.integers(0, 10_000),
    old=st.integers(0, 12),
    new=st.integers(0, 40),
    columns=st.integers(1, 3),
    kinds=st.integers(1, 4),
)
def test_as_one_by_one(seed, old, new, columns, kinds):
    rng = np.random.default_rng(seed)
    points = rng.choice([0.0, -0.0, 1.5, 1e-300][:kinds], size=(new, columns))
    known = np.unique(rng.choice([0.0, 1.5, 2.5, 3.5], size=(old, columns)), axis=0)
    f = Function(Gaussian(), known, rng.standard_normal((len(known), 2)))
    update = Update(points, rng.standard_normal((new, 2)), shrink=0.5)
    model, merged = _put_together(Model(f), update)
    expected = {row.tobytes(): 0.5 * weight for row, weight in zip(known, f.weights, strict=True)}
    for row, coefficient in zip(points, update.coefficients, strict=True):
        expected[row.tobytes()] = expected.get(row.tobytes(), 0.0) + coefficient
    g = model.function
    found = {row.tobytes(): merged.shrink * weight for row, weight in zip(g.points, g.weights, strict=True)}
    for row, coefficient in zip(merged.points, merged.coefficients, strict=True):
        found[row.tobytes()] = found.get(row.tobytes(), 0.0) + coefficient
    assert list(found) == list(expected)
    assert np.allclose(list(found.values()), list(expected.values()), rtol=0.0, atol=1e-12)
