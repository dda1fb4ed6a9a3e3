"""Networks whose edges come and go, that lose messages, and whose agents are away for a while."""

import numpy as np
import pytest

from kernelmesh import Diffusion, Faults, Graph, Hilbert, Local, Penalty, simulate
from kernelmesh.metrics import accuracies
from kernelmesh.streams import ArrayStream
from test_node import data, make

PROTOCOLS = [Local(), Penalty(coupling=0.05), Penalty(coupling=2.0, implicit=True), Hilbert(coupling=0.02), Diffusion()]
GRAPH = Graph.ring(6)
FAULTS = {
    "edges that take turns": lambda: Faults(edges=[[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 0)]]),
    "edges from a function": lambda: Faults(edges=lambda number: [(number % 6, (number + 1 + number % 4) % 6)]),
    "no edge at all at times": lambda: Faults(edges=[GRAPH.edges, []]),
    "lost messages": lambda: Faults(drop=0.3, rng=np.random.default_rng(0)),
    "absent agents": lambda: Faults(absent={0: [(3, 12)], 4: [(1, 5), (9, 9)]}),
    "everything at once": lambda: Faults(
        edges=[GRAPH.edges, [(0, 3), (1, 4)]], drop=0.2, absent={2: [(5, 11)]}, rng=np.random.default_rng(1)
    ),
}


def run(protocol, streams, faults=None):
    return simulate(make(protocol), GRAPH, streams, faults=faults)


def all_classes(rows):
    return [ArrayStream(*data(i, rows)) for i in range(6)]


def one_class(rows=640):
    streams = []
    for i in range(6):
        points, labels = data(i, rows)
        streams.append(ArrayStream(points[labels == i % 3][: rows // 4], labels[labels == i % 3][: rows // 4], passes=4))
    return streams


@pytest.mark.parametrize("protocol", PROTOCOLS[1:], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_protocol_still_learns(fault, protocol):
    *_, last = run(protocol, all_classes(640), FAULTS[fault]())
    assert last.samples == (640,) * 6  # nobody's samples are lost
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


SELDOM = [(fault, every) for fault in ("lost messages", "absent agents") for every in (2, 4)]


@pytest.mark.parametrize(("fault", "every"), [*((fault, 1) for fault in FAULTS), *SELDOM])
def test_diffusion_still_learns_from_one_class_per_agent(fault, every):
    *_, last = run(Diffusion(every=every), one_class(640 * min(every, 2)), FAULTS[fault]())
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


def test_alone_agents_do_not_learn_from_one_class_each():
    *_, alone = run(Local(), one_class())
    assert accuracies(alone.functions, *data(99, 500)).max() < 0.5


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_no_faults_are_the_same_as_none_given(protocol):
    runs = [run(protocol, all_classes(96), faults) for faults in (None, Faults(), Faults(edges=[GRAPH.edges]))]
    for first, *others in zip(*runs, strict=True):
        for other in others:
            np.testing.assert_array_equal(other.edge_bytes, first.edge_bytes)
            for f, g in zip(first.functions, other.functions, strict=True):
                np.testing.assert_array_equal(f.weights, g.weights)


def test_lost_messages_count_as_sent():
    """All questions and all functions count; answers to questions that were lost are never given."""

    def sent(protocol, drop):
        *_, last = run(protocol, all_classes(96), Faults(drop=drop, rng=np.random.default_rng(0)))
        return last.floats_sent.sum()

    steps, neighbors = 3, 12
    questions, answers = 32 * 2 * steps * neighbors, 32 * 3 * steps * neighbors
    assert sent(Penalty(coupling=0.1), 0.0) == questions + answers
    assert questions < sent(Penalty(coupling=0.1), 0.4) < questions + 0.8 * answers


def test_an_absent_agent_neither_learns_nor_speaks():
    rounds = list(run(Diffusion(), all_classes(160), Faults(absent={1: [(2, 4)]})))
    assert [round.samples[1] for round in rounds] == [32, 32, 32, 32, 64, 96, 128, 160]
    assert [round.infos[1] is None for round in rounds[:5]] == [False, True, True, True, False]
    assert rounds[3].bytes_sent[1] == rounds[0].bytes_sent[1]
    assert rounds[1].infos[0].heard == 1


def test_edges_are_asked_for_once_in_each_round():
    asked = []
    list(run(Diffusion(), all_classes(64), Faults(edges=lambda number: asked.append(number) or GRAPH.edges)))
    assert asked == [1, 2]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"drop": 1.0, "rng": np.random.default_rng(0)}, "drop must be a probability"),
        ({"drop": 0.1}, "rng must be"),
        *(({"edges": each}, "edges must be a list of at least one edge list") for each in ([], 5, [None], {0: 1})),
        ({"edges": [iter(GRAPH.edges)]}, "edges must be a list of at least one edge list"),
        *(({"absent": {0: each}}, r"absent\[0\] must be") for each in ((5, 10), 5, [(0, 3)], [(5, 3)])),
        ({"absent": [(1, 2)]}, "absent must be a mapping"),
    ],
)
def test_refuses(settings, reason):
    with pytest.raises(ValueError, match=f"Faults: {reason}"):
        Faults(**settings)


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (Faults(absent={"nobody": [(1, 2)]}), "absent must name agents"),
        (Faults(edges=[[(0, 0)]]), "each edge must be two different agents"),
        (Faults(edges=[[([0], 1)]]), "each edge must be two different agents"),
        (Faults(edges=lambda number: None), "edges must give a list of edges"),
    ],
    ids=["nobody", "loop", "unhashable", "none"],
)
def test_faults_that_do_not_fit_the_network_are_refused(faults, reason):
    with pytest.raises(ValueError, match=f"Faults: {reason}"):
        list(run(Local(), all_classes(32), faults))
