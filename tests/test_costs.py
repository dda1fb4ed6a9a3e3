"""The numbers that cross an edge are those of the table in docs/consensus.md."""

import numpy as np
import pytest

from kernelmesh.messages import Points, SentFunction, Values, wire_size

SIZES = [(16, 2, 5), (50, 16, 26), (200, 16, 26), (500, 16, 26), (2000, 16, 26)]


def near(size, floats):
    """So many numbers, each of 8 bytes, and a small frame."""
    assert size.floats == floats
    assert 0 < size.bytes - 8 * floats < 120


@pytest.mark.parametrize(("order", "dimension", "outputs"), SIZES)
def test_points_values_and_functions(order, dimension, outputs):
    points, values = np.zeros((32, dimension)), np.zeros((32, outputs))
    near(wire_size(Points(points)), 32 * dimension)
    near(wire_size(Values(values)), 32 * outputs)
    function = SentFunction(np.zeros((order, dimension)), np.zeros((order, outputs)))
    near(wire_size(function), order * (dimension + outputs))
