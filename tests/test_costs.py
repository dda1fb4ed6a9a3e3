"""What a round costs: numbers and bytes that cross an edge, Python calls, and CPU time."""

import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Landmarks, Local, Logistic, Mixture, Relay, simulate
from kernelmesh.messages import Hello, ListPart, News, Points, Rows, SentFunction, Values, encode, packed, wire_size
from kernelmesh.numerics.sums import Sums

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


COUNTS = st.integers(0, (1 << 62) - 1)


@st.composite
def sums(draw, order, trials=()):
    outputs, features = draw(st.integers(1, 4)), draw(st.sampled_from([np.empty((0, 0)), np.zeros((2, 3))]))
    roll = draw(st.integers(0, (1 << 600) - 1))
    return Sums(np.ones(order * (order + 1) // 2), np.ones((order, outputs)), draw(st.floats(0, 1e6)), roll, features, trials)


@st.composite
def news(draw):
    """Short and long messages: the lengths of 256 and 65,536 bytes are where the encoding of a length grows."""
    hello = Hello(*draw(st.tuples(st.integers(0, 65535), COUNTS, st.integers(0, 65535), COUNTS)), 3, -1, draw(COUNTS))
    orders = st.sampled_from([0, 1, 5, 6, 7, 40, 90, 130, 200])
    bits = draw(st.sampled_from([16, 32, 64]))
    trials = tuple(draw(st.lists(sums(draw(orders)), max_size=2)))
    wire = draw(st.none() | orders.flatmap(lambda order: sums(order, trials)).map(lambda each: packed(each, bits=bits)))
    rows = st.none() | st.integers(0, 5000).map(lambda many: Rows.of(np.zeros((many, 2))))
    tail = draw(rows)
    part = tail and ListPart(0, 1, 2, 1.0, 3, bytes(16), bytes(8 * (len(tail.data) // 16)), tail)
    standing = draw(st.none() | st.dictionaries(st.integers(0, 65535), st.integers(1, 1 << 30), max_size=20))
    return News(hello, draw(st.integers(0, 8191)), draw(st.integers(0, (1 << 32) - 1)), wire, part, draw(rows), standing)


@given(news())
def test_sizes_of_news_are_found_without_encoding_them(message):
    assert wire_size(message).bytes == len(encode(message))


class TestRounds:
    """A round of 20 agents with the default protocol, after their network stands: 68 edges, 136 messages."""

    WARM, MEASURED = 100, 32

    def agents(self):
        rng = np.random.default_rng(0)
        mixture, graph = Mixture.draw(classes=3, rng=rng), Graph.geometric(20, degree=6.8, rng=rng)
        settings = {"dimension": 2, "outputs": 3, "kernel": Gaussian(bandwidth=0.6), "loss": Logistic()}
        agents = [Agent(**settings, learner=Landmarks(), protocol=protocol) for protocol in (Relay(), Local())]
        streams = [ArrayStream(*mixture.sample(32 * (self.WARM + 2 * self.MEASURED), rng=rng)) for _ in range(20)]
        return *agents, graph, streams

    def test_a_round_makes_few_calls(self):
        agent, _, graph, streams = self.agents()
        run, calls = simulate(agent, graph, streams), 0

        def count(frame, event, _):
            nonlocal calls
            calls += event == "call"

        for _ in range(self.WARM):
            now = next(run)
        assert all(now.infos)  # the network stands
        sys.setprofile(count)
        for _ in range(self.MEASURED):
            next(run)
        sys.setprofile(None)
        assert calls / self.MEASURED <= 3000

    def test_a_round_costs_little_more_than_its_steps(self):
        agent, alone, graph, streams = self.agents()
        run, state, batches = simulate(agent, graph, streams), alone.start(), list(streams[0])
        round_seconds, step_seconds = [], []
        for number, batch in zip(range(self.WARM + self.MEASURED), batches, strict=False):
            began = time.process_time()
            next(run)
            between = time.process_time()
            state, _ = alone.step(state, *batch)
            if number >= self.WARM:
                round_seconds.append(between - began)
                step_seconds.append(time.process_time() - between)
        assert np.median(round_seconds) <= 3 * 20 * np.median(step_seconds)
