import math

import numpy as np
import pytest

from kernelmesh import Constant, Doubling, InverseRoot, InverseTime
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics.schedules import check_schedule, value_at

SCHEDULES = [
    Constant(3.0),
    InverseTime(scale=2.0, offset=10.0),
    InverseRoot(scale=2.0, offset=10.0),
    Doubling(start=0.01, every=200),
    Doubling(start=0.01, every=200, ceiling=0.5),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_values_are_finite_and_not_negative(schedule):
    for samples in (0, 1, 31, 32, 10**3, 10**5):
        value = schedule(samples)
        assert isinstance(value, float)
        assert 0 <= value < math.inf


def test_values_are_pinned():
    assert InverseTime(scale=3.0, offset=2.0)(4) == 0.5
    assert InverseRoot(scale=3.0, offset=5.0)(4) == 1.0
    assert [Doubling(start=1.0, every=10, ceiling=4.0)(t) for t in (0, 9, 10, 20, 30)] == [1, 1, 2, 4, 4]


def test_a_number_is_a_schedule_that_is_constant():
    assert check_schedule("Owner", "rate", np.int64(3)) == 3.0
    assert value_at(0.5, 100) == value_at(Constant(0.5), 100) == 0.5
    for wrong in (-1.0, math.nan, True, "fast", Constant, len, None):
        with pytest.raises(InvalidArgument, match="Owner: rate must be a number >= 0 or a schedule, got "):
            check_schedule("Owner", "rate", wrong)


def test_doubling_never_overflows_into_an_error():
    assert Doubling(start=1.0, every=1)(10**9) == math.inf
    assert Doubling(start=1.0, every=1, ceiling=7.0)(10**9) == 7.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(-1.0), "Constant: value"),
        (lambda: Constant(True), "Constant: value"),
        (lambda: InverseTime(scale=0.0), "InverseTime: scale"),
        (lambda: InverseRoot(scale=1.0, offset=0.0), "InverseRoot: offset"),
        (lambda: Doubling(start=0.01, every=0), "Doubling: every"),
        (lambda: Doubling(start=0.01, every=2.5), "Doubling: every"),
    ],
)
def test_invalid_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
