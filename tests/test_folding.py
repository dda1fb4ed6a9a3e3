"""Equal points are made one: compared with a search through all of them, one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh.numerics.compiled import folding


def literal(points, old, coefficients):
    """What `fold` says, by comparing bytes."""
    known = {row.tobytes(): i for i, row in reversed(list(enumerate(points[:old])))}
    fresh, sums, touches = [], [np.zeros(coefficients.shape[1]) for _ in range(old)], False
    for i, (point, values) in enumerate(zip(points[old:], coefficients, strict=True)):
        key = point.tobytes()
        if key not in known:
            known[key] = len(sums)
            fresh.append(i)
            sums.append(np.zeros(coefficients.shape[1]))
        touches = touches or known[key] < old
        sums[known[key]] = sums[known[key]] + values
    return fresh, np.array(sums).reshape(-1, coefficients.shape[1]), touches


@given(
    seed=st.integers(0, 10_000),
    old=st.integers(0, 60),
    new=st.integers(0, 200),
    columns=st.integers(1, 3),
    kinds=st.integers(1, 200),
)
def test_folding_equals_a_search_one_by_one(seed, old, new, columns, kinds):
    rng = np.random.default_rng(seed)
    points = rng.choice([0.0, -0.0, 1.5, 1e-300, *rng.standard_normal(196)][:kinds], size=(old + new, columns))
    coefficients = rng.standard_normal((new, 2))
    fresh, sums, touches = folding.fold(points.view(np.uint64), old, coefficients)
    expected, total, touched = literal(points, old, coefficients)
    assert fresh.tolist() == expected
    if len(expected) < new:
        assert sums.tobytes() == total.tobytes()
        assert touches == touched
