"""The numbers that cross an edge are those of the table in docs/consensus.md."""

import numpy as np
import pytest

from kernelmesh.exchange import Link
from kernelmesh.messages import Function, Offer, Points, Probe, Terms, Values, wire_size

TERMS = Terms(3, 2000, 1999, (1 << 63) - 1, 0.123)
SIZES = [(16, 2, 5), (50, 16, 26), (200, 16, 26), (500, 16, 26), (2000, 16, 26)]


def near(size, floats, rows=0):
    """So many numbers, each of 8 bytes, row numbers of 4, and a small frame."""
    assert size.floats == floats
    assert 0 < size.bytes - 8 * floats - 4 * rows < 120


@pytest.mark.parametrize(("order", "dimension", "outputs"), SIZES)
def test_points_and_values(order, dimension, outputs):
    points, values = np.zeros((32, dimension)), np.zeros((32, outputs))
    near(wire_size(Points(points)), 32 * dimension)
    near(wire_size(Values(values)), 32 * outputs)
    near(wire_size(Probe(points, values)), 32 * (dimension + outputs))


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize(("order", "dimension", "outputs"), SIZES)
def test_functions_whole_and_as_differences(order, dimension, outputs, numbered):
    here, there, rng = Link(), Link(), np.random.default_rng(0)
    centers, weights, changed = rng.standard_normal((order, dimension)), np.ones((order, outputs)), 5

    def message(centers):
        return Offer(centers, weights, TERMS) if numbered else Function(centers, weights)

    near(wire_size(here.pack(message(centers))), order * (dimension + outputs))
    for _ in range(3):
        there.unpack(here.pack(message(centers)))
        here.unpack(there.pack(message(centers)))
    moved = centers.copy()
    moved[:changed] += 1.0
    near(wire_size(here.pack(message(moved))), changed * dimension + order * outputs, rows=changed)


@pytest.mark.parametrize(("order", "dimension", "outputs"), SIZES[:4])
def test_statistics(order, dimension, outputs):
    offer = Offer(np.zeros((order, dimension)), np.zeros((order, outputs)), TERMS, moments=np.zeros((order, order)))
    near(wire_size(offer), order * (dimension + outputs) + order * (order + 1) // 2)
