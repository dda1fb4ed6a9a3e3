import math

import pytest

from kernelmesh import Constant, Doubling, InverseRoot, InverseTime, Power

SCHEDULES = [
    Constant(3.0),
    InverseTime(scale=2.0, offset=10.0),
    InverseRoot(scale=2.0, offset=10.0),
    Doubling(start=0.01, every=200),
    Doubling(start=0.01, every=200, ceiling=0.5),
    Power(of=InverseTime(scale=2.0), scale=0.04, exponent=1.5),
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
    assert Power(of=Constant(4.0), scale=0.5, exponent=1.5)(0) == 4.0
    assert Power(of=Constant(0.1), exponent=2.0)(7) == pytest.approx(0.01)


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
        (lambda: Power(of=3.0), "Power: of must be a schedule"),
        (lambda: Power(of=Constant(1.0), exponent=-1.0), "Power: exponent"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ValueError, match=words):
        make()
