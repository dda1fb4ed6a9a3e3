"""The simulation against the printed equations, and what it promises: rounds, traffic, states, warnings and errors."""

import itertools

import numpy as np
import pytest

import oracle
import test_node
from kernelmesh import (
    Agent,
    Averaged,
    Doubling,
    Gradient,
    Graph,
    Komp,
    Landmarks,
    Local,
    Penalty,
    Relay,
    SecondOrder,
    simulate,
)
from kernelmesh.messages import Points, Values, encode
from kernelmesh.runtimes.engines import Processes
from kernelmesh.streams import ArrayStream
from test_node import same

LEARNER = Gradient(step_size=1.0, compression=Komp(budget=0.1), regularization=1e-3)


def make(protocol, learner=LEARNER, **changes):
    return test_node.make(protocol, learner=learner, **changes)


def samples(seed, rows):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((rows, 2))
    return points, rng.integers(3, size=rows)


@pytest.mark.parametrize("graph", [Graph.ring(4), Graph.star(4), Graph.complete(3)], ids=["ring", "star", "complete"])
def test_penalty_equals_the_printed_equations_step_by_step(graph):
    """Algorithm 1 by hand: each equation written out, each compression by least squares."""
    coupling = Doubling(start=0.05, every=6)
    agent = make(Penalty(coupling=coupling))
    data = [samples(i, 15) for i in range(len(graph))]
    functions = [(np.zeros((0, 2)), np.zeros((0, 3))) for _ in data]
    streams = [ArrayStream(*own, batch_size=3) for own in data]
    for number, round in enumerate(simulate(agent, graph, streams)):
        rows = slice(3 * number, 3 * number + 3)
        rates = {"eta": 1.0, "lam": 1e-3, "c": coupling(3 * number)}
        tilde = [
            oracle.penalty_step(agent.kernel, functions, graph.neighbors, i, points[rows], labels[rows], **rates)
            for i, (points, labels) in enumerate(data)
        ]
        for i, (centers, weights) in enumerate(tilde):
            expected = oracle.komp(agent.kernel, centers, weights, 0.1)
            functions[i] = centers[expected.kept], expected.weights
            ours = round.functions[i]
            # √eps: what a norm can show
            assert oracle.rkhs_distance(agent.kernel, *functions[i], ours.points, ours.weights) < 1e-7
            assert round.infos[i].error == pytest.approx(expected.error, abs=1e-9)
            assert round.infos[i].penalty == coupling(3 * number)
    assert number == 4


def test_one_agent_equals_the_centralized_learner():
    points, labels = samples(0, 64)
    alone = make(Local())
    state = alone.start()
    for batch in ArrayStream(points, labels, batch_size=8):
        state, _ = alone.step(state, batch.points, batch.targets)
    for protocol in (Local(), Penalty(coupling=7.0)):
        *_, last = simulate(make(protocol), Graph.line(1), [ArrayStream(points, labels, batch_size=8)])
        assert same(last.functions[0], state.function)


def test_streams_of_unequal_length():
    agent = make(Penalty(coupling=0.1))
    streams = [ArrayStream(*samples(i, rows), batch_size=8) for i, rows in enumerate((40, 8, 0, 21))]
    rounds = list(simulate(agent, Graph.ring(4), streams))
    counts = [(8, 8, 0, 8), (16, 8, 0, 16), (24, 8, 0, 21), (32, 8, 0, 21), (40, 8, 0, 21)]
    assert [(round.number, round.samples) for round in rounds] == list(enumerate(counts, start=1))
    assert [round.infos[3].batch_size for round in rounds[:3]] == [8, 8, 5]
    assert rounds[-1].infos[1] is None
    assert rounds[-1].infos[0].heard == 2  # those whose streams have ended still answer
    assert rounds[-1].functions[1] is rounds[0].functions[1]


def test_streams_are_read_one_mini_batch_at_a_time():
    read = []

    def stream(i):
        for batch in ArrayStream(*samples(i, 24), batch_size=8):
            read.append(i)
            yield batch

    run = simulate(make(Local()), Graph.line(2), [stream(0), stream(1)])
    assert read == []
    next(run)
    assert sorted(read) == [0, 1]


def test_rounds_never_change_and_runs_can_be_continued():
    agent, graph = make(Penalty(coupling=0.1)), Graph.ring(3)
    data = [samples(i, 48) for i in range(3)]
    whole, seen = [], []
    for now in simulate(agent, graph, [ArrayStream(*own, batch_size=8) for own in data]):
        whole.append(now)
        seen.append(now.functions[0](data[0][0]))
    *_, middle = simulate(agent, graph, [ArrayStream(x[:24], y[:24], batch_size=8) for x, y in data])
    rest = [ArrayStream(x[24:], y[24:], batch_size=8) for x, y in data]
    *_, end = simulate(agent, graph, rest, states=middle.states)
    assert same(end.functions[2], whole[-1].functions[2])
    assert end.samples == (48, 48, 48)
    for now, values in zip(whole, seen, strict=True):  # nothing that was yielded has changed since
        np.testing.assert_array_equal(now.functions[0](data[0][0]), values)


def test_traffic_is_the_size_of_the_encoded_messages():
    agent, graph = make(Penalty(coupling=0.1)), Graph.star(4)
    streams = [ArrayStream(*samples(i, 8), batch_size=8) for i in range(4)]
    (round,) = simulate(agent, graph, streams)
    question, answer = len(encode(Points(np.zeros((8, 2))))), len(encode(Values(np.zeros((8, 3)))))
    degrees = np.array([3, 1, 1, 1])
    assert (round.floats_sent == degrees * (8 * 2 + 8 * 3)).all()
    assert (round.bytes_sent == degrees * (question + answer)).all()
    assert (round.edge_bytes == 2 * (question + answer)).all()
    (silent,) = simulate(make(Local()), graph, streams)
    assert silent.bytes_sent.sum() == silent.floats_sent.sum() == 0


def test_a_network_that_does_not_settle_is_warned_of(monkeypatch):
    monkeypatch.setattr(Agent, "is_settled", lambda *_: False)
    agent = make(Relay(every=1), learner=Landmarks())

    def last(settle=None):
        *_, end = simulate(agent, Graph.line(2), [ArrayStream(*samples(i, 64)) for i in range(2)], settle=settle)
        return end.number

    with pytest.warns(RuntimeWarning, match="agents still differ 300 rounds after their streams have ended; continue from"):
        unlimited = last()
    assert last(settle=5) == unlimited - 295


def test_bad_arguments_are_refused_before_the_first_round():
    agent, graph = make(Local()), Graph.ring(3)
    streams = [ArrayStream(*samples(0, 8))] * 3
    for changes, reason in (
        ({"streams": streams[:2]}, "streams must be one for each of 3 agents, got 2 streams"),
        ({"states": [agent.start()]}, "states must be one for each of 3 agents"),
        ({"agent": None}, "agent must be an Agent, got None"),
        ({"streams": None}, "streams must be a sequence of streams, got None"),
        ({"streams": [None] * 3}, r"streams\[0\] must be an iterable of mini-batches, got None; for example"),
        ({"engine": "ray"}, "engine must be an engine or None, got 'ray'; for example Processes"),
        ({"engine": Processes}, "engine must be an engine or None, got <class"),
        ({"faults": 0.1}, r"faults must be a Faults or None, got 0\.1; for example"),
        ({"states": [1, 2, 3]}, r"states\[0\] must be a State, got 1; Agent.start"),
        ({"settle": -1}, "settle must be an integer >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"simulate: {reason}"):
            simulate(**{"agent": agent, "graph": graph, "streams": streams, **changes})


def test_states_of_another_learner_are_refused():
    """A covariance is of no use to another learner."""
    agents = [make(Local(), learner=each) for each in (Gradient(step_size=1.0), Averaged(step_size=1.0), SecondOrder())]
    points, labels = np.zeros((1, 2)), np.zeros(1, dtype=int)
    for agent, other in itertools.permutations(agents, 2):
        reason = f"Agent.step: state must come from the learner {type(agent.learner).__name__}, got one with .*start from"
        with pytest.raises(ValueError, match=reason):
            agent.step(other.start(), points, labels)
        assert agent.step(agent.start(function=other.start().function), points, labels)


def test_a_bad_sample_leaves_the_whole_network_as_it_was():
    agent, graph = make(Penalty(coupling=0.1)), Graph.ring(3)
    good = [samples(i, 16) for i in range(3)]
    *_, before = simulate(agent, graph, [ArrayStream(*own, batch_size=8) for own in good])
    bad = [(x, y) if i < 2 else (x, y + 5) for i, (x, y) in enumerate(good)]
    with pytest.raises(ValueError, match=r"Agent: y must be class numbers 0\.\.2"):
        list(simulate(agent, graph, [ArrayStream(*own, batch_size=8) for own in bad], states=before.states))
    *_, after = simulate(agent, graph, [ArrayStream(*own, batch_size=8) for own in good], states=before.states)
    assert after.samples == (32, 32, 32)


@pytest.mark.parametrize(
    ("targets", "batch_size", "reason"),
    [(np.zeros(2), 1, "targets must have 3 rows"), (np.zeros(3), 0, "batch_size must be an integer >= 1, got 0")],
)
def test_streams_refuse_what_does_not_fit(targets, batch_size, reason):
    with pytest.raises(ValueError, match=f"ArrayStream: {reason}"):
        ArrayStream(np.zeros((3, 1)), targets, batch_size=batch_size)


def test_streams_refuse_points_that_are_not_finite():
    with pytest.raises(ValueError, match="ArrayStream: points must be finite"):
        ArrayStream(np.full((3, 1), np.nan), np.zeros(3))
