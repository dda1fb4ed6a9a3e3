"""Networks whose edges come and go, that lose messages, and whose agents are away for a while."""

import numpy as np
import pytest

from kernelmesh import Agent, Diffusion, Faults, Gaussian, Graph, Hilbert, Komp, Local, Logistic, Penalty, simulate
from kernelmesh.metrics import accuracies
from kernelmesh.streams import ArrayStream, Mixture

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


def make(protocol):
    return Agent(
        dimension=2,
        outputs=3,
        kernel=Gaussian(bandwidth=0.6),
        loss=Logistic(),
        step_size=2.0,
        compression=Komp(budget=0.05),
        protocol=protocol,
    )


def data(seed, rows):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


def one_class(rows=640):
    streams = []
    for i in range(6):
        points, labels = data(i, rows)
        streams.append(ArrayStream(points[labels == i % 3][: rows // 4], labels[labels == i % 3][: rows // 4], passes=4))
    return streams


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_protocol_still_learns(fault, protocol):
    streams = [ArrayStream(*data(i, 640)) for i in range(6)]
    *_, last = simulate(make(protocol), GRAPH, streams, faults=FAULTS[fault]())
    assert last.samples == (640,) * 6  # nobody's samples are lost
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


@pytest.mark.parametrize("fault", FAULTS)
def test_diffusion_still_learns_from_one_class_per_agent(fault):
    *_, alone = simulate(make(Local()), GRAPH, one_class())
    *_, last = simulate(make(Diffusion()), GRAPH, one_class(), faults=FAULTS[fault]())
    assert accuracies(alone.functions, *data(99, 500)).max() < 0.5
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


def test_calm_conditions_change_nothing():
    for protocol in PROTOCOLS:
        runs = [
            simulate(make(protocol), GRAPH, [ArrayStream(*data(i, 96)) for i in range(6)], faults=faults)
            for faults in (None, Faults(), Faults(edges=[GRAPH.edges]))
        ]
        for rounds in zip(*runs, strict=True):
            assert len({tuple(round.bytes_sent) for round in rounds}) == 1
            for round in rounds[1:]:
                for f, g in zip(rounds[0].functions, round.functions, strict=True):
                    np.testing.assert_array_equal(f.weights, g.weights)


def test_the_same_seed_loses_the_same_messages():
    def run(seed):
        faults = Faults(drop=0.4, rng=np.random.default_rng(seed))
        streams = [ArrayStream(*data(i, 96)) for i in range(6)]
        *_, last = simulate(make(Penalty(coupling=0.1)), GRAPH, streams, faults=faults)
        return last.functions[0].weights, last.bytes_sent

    first, again, other = run(0), run(0), run(1)
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    # questions count although they are lost, answers that were never given do not
    assert (first[1] == again[1]).all()


def test_an_absent_agent_neither_learns_nor_speaks():
    streams = [ArrayStream(*data(i, 160)) for i in range(6)]
    rounds = list(simulate(make(Diffusion()), GRAPH, streams, faults=Faults(absent={1: [(2, 4)]})))
    assert [round.samples[1] for round in rounds] == [32, 32, 32, 32, 64, 96, 128, 160]
    assert [round.infos[1] is None for round in rounds[:5]] == [False, True, True, True, False]
    assert rounds[3].bytes_sent[1] == rounds[0].bytes_sent[1]
    assert rounds[1].infos[0].heard == 1


def test_refuses():
    with pytest.raises(ValueError, match="Faults: drop must be a probability"):
        Faults(drop=1.0, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="Faults: rng must be"):
        Faults(drop=0.1)
    with pytest.raises(ValueError, match="Faults: absent"):
        Faults(absent={0: [(5, 3)]})
    for edges in ([], 5, [None], {0: 1}):
        with pytest.raises(ValueError, match="Faults: edges must be a list of at least one edge list"):
            Faults(edges=edges)
    for absent in ({0: (5, 10)}, {0: 5}, {0: [(0, 3)]}):
        with pytest.raises(ValueError, match=r"Faults: absent\[0\] must be"):
            Faults(absent=absent)
    with pytest.raises(ValueError, match="Faults: absent must be a mapping"):
        Faults(absent=[(1, 2)])
    streams = [ArrayStream(*data(i, 32)) for i in range(6)]
    with pytest.raises(ValueError, match="Faults: absent must name agents"):
        simulate(make(Local()), GRAPH, streams, faults=Faults(absent={"nobody": [(1, 2)]}))
    with pytest.raises(ValueError, match="Faults: each edge must be two different agents"):
        list(simulate(make(Local()), GRAPH, streams, faults=Faults(edges=[[(0, 0)]])))
    with pytest.raises(ValueError, match="Faults: each edge must be two different agents"):
        list(simulate(make(Local()), GRAPH, streams, faults=Faults(edges=[[([0], 1)]])))
    with pytest.raises(ValueError, match="Faults: edges must give a list of edges"):
        list(simulate(make(Local()), GRAPH, streams, faults=Faults(edges=lambda number: None)))


def test_edges_are_asked_for_once_in_each_round():
    asked = []
    streams = [ArrayStream(*data(i, 64)) for i in range(6)]
    faults = Faults(edges=lambda number: asked.append(number) or GRAPH.edges)
    list(simulate(make(Diffusion()), GRAPH, streams, faults=faults))
    assert asked == [1, 2]
    once = Faults(edges=[(edge for edge in GRAPH.edges)])
    *_, last = simulate(make(Diffusion()), GRAPH, streams, faults=once)
    assert last.infos[0].heard == 2
