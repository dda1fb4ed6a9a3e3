"""Networks whose edges come and go, that lose messages, and whose agents are away for a while."""

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    Conditions,
    Diffusion,
    ExactDiffusion,
    Gaussian,
    Graph,
    Hilbert,
    Komp,
    Local,
    Logistic,
    Penalty,
    Proximal,
    Symmetric,
    simulate,
)
from kernelmesh.metrics import accuracies
from kernelmesh.streams import ArrayStream, Mixture

PROTOCOLS = [
    Local(),
    Penalty(coupling=0.05),
    Proximal(coupling=2.0),
    Symmetric(coupling=2.0),
    Hilbert(coupling=0.02),
    Diffusion(),
    ExactDiffusion(budget=0.02),
]
GRAPH = Graph.ring(6)
FAULTS = {
    "edges that take turns": lambda: Conditions(edges=[[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 0)]]),
    "edges from a function": lambda: Conditions(edges=lambda number: [(number % 6, (number + 1 + number % 4) % 6)]),
    "no edge at all at times": lambda: Conditions(edges=[GRAPH.edges, []]),
    "lost messages": lambda: Conditions(loss=0.3, rng=np.random.default_rng(0)),
    "absent agents": lambda: Conditions(absent={0: [(3, 12)], 4: [(1, 5), (9, 9)]}),
    "everything at once": lambda: Conditions(
        edges=[GRAPH.edges, [(0, 3), (1, 4)]], loss=0.2, absent={2: [(5, 11)]}, rng=np.random.default_rng(1)
    ),
}


def make(consensus):
    return Agent(
        dimension=2,
        outputs=3,
        kernel=Gaussian(bandwidth=0.6),
        loss=Logistic(),
        step_size=2.0,
        compression=Komp(budget=0.05),
        consensus=consensus,
    )


def data(seed, rows):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


def one_class(rows=640):
    streams = []
    for i in range(6):
        points, labels = data(i, rows)
        streams.append(
            ArrayStream(points[labels == i % 3][: rows // 4], labels[labels == i % 3][: rows // 4], passes=4)
        )
    return streams


@pytest.mark.parametrize("consensus", PROTOCOLS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_protocol_still_learns(fault, consensus):
    streams = [ArrayStream(*data(i, 640)) for i in range(6)]
    *_, last = simulate(make(consensus), GRAPH, streams, conditions=FAULTS[fault]())
    assert last.samples == (640,) * 6  # nobody's samples are lost
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


@pytest.mark.parametrize("fault", FAULTS)
def test_exact_diffusion_still_learns_from_one_class_per_agent(fault):
    *_, alone = simulate(make(Local()), GRAPH, one_class())
    *_, last = simulate(make(ExactDiffusion(budget=0.02)), GRAPH, one_class(), conditions=FAULTS[fault]())
    assert accuracies(alone.functions, *data(99, 500)).max() < 0.5
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("budget", [0.0, 0.02, 0.2])
def test_duals_stay_opposite_whatever_happens_to_messages(fault, budget):
    """Ends that have completed as many exchanges are opposite bit for bit; they are never more than one apart."""
    graph = Graph.random(6, probability=0.3, rng=np.random.default_rng(0))
    agent, apart, largest = make(ExactDiffusion(budget=budget)), 0, 0.0
    for last in simulate(agent, graph, one_class(), conditions=FAULTS[fault]()):
        apart += check_duals(last.states)
        largest = max(largest, *(edge.dual.norm() for s in last.states for edge in s.edges.values() if edge.dual))
    assert (apart > 0) == ("lost" in fault or "everything" in fault)
    # once messages arrive again the ends catch up, and all duals sum to zero
    streams = [ArrayStream(*data(i, 8 * 32)) for i in range(6)]
    *_, calm = simulate(agent, graph, streams, states=last.states)
    assert check_duals(calm.states, but=lambda i, j: (i, j) not in graph.edges and (j, i) not in graph.edges) == 0
    assert largest > 0.1


def check_duals(states, but=lambda i, j: False):
    """Compare both ends of every edge; how many are one exchange apart."""
    apart = 0
    for state in states:
        for other, edge in state.edges.items():
            opposite = states[other].edges.get(state.name)
            if but(state.name, other) or (opposite is None and edge.done <= 1):
                continue
            assert abs(edge.done - opposite.done) <= 1
            if edge.done != opposite.done:
                apart += 1
            elif edge.dual is not None:
                np.testing.assert_array_equal(edge.dual.centres, opposite.dual.centres)
                np.testing.assert_array_equal(edge.dual.weights, -opposite.dual.weights)
    return apart


def test_calm_conditions_change_nothing():
    for consensus in PROTOCOLS:
        runs = [
            simulate(make(consensus), GRAPH, [ArrayStream(*data(i, 96)) for i in range(6)], conditions=conditions)
            for conditions in (None, Conditions(), Conditions(edges=[GRAPH.edges]))
        ]
        for rounds in zip(*runs, strict=True):
            assert len({tuple(round.bytes_sent) for round in rounds}) == 1
            for round in rounds[1:]:
                for f, g in zip(rounds[0].functions, round.functions, strict=True):
                    np.testing.assert_array_equal(f.weights, g.weights)


def test_the_same_seed_loses_the_same_messages():
    def run(seed):
        conditions = Conditions(loss=0.4, rng=np.random.default_rng(seed))
        streams = [ArrayStream(*data(i, 96)) for i in range(6)]
        *_, last = simulate(make(Penalty(coupling=0.1)), GRAPH, streams, conditions=conditions)
        return last.functions[0].weights, last.bytes_sent

    first, again, other = run(0), run(0), run(1)
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    # questions count although they are lost, answers that were never given do not
    assert (first[1] == again[1]).all()


def test_an_absent_agent_neither_learns_nor_speaks():
    streams = [ArrayStream(*data(i, 160)) for i in range(6)]
    rounds = list(simulate(make(Diffusion()), GRAPH, streams, conditions=Conditions(absent={1: [(2, 4)]})))
    assert [round.samples[1] for round in rounds] == [32, 32, 32, 32, 64, 96, 128, 160]
    assert [round.infos[1] is None for round in rounds[:5]] == [False, True, True, True, False]
    assert rounds[3].bytes_sent[1] == rounds[0].bytes_sent[1]
    assert rounds[1].infos[0].heard == 1


def test_refuses():
    with pytest.raises(ValueError, match="Conditions: loss must be a probability"):
        Conditions(loss=1.0, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="Conditions: rng must be"):
        Conditions(loss=0.1)
    with pytest.raises(ValueError, match="Conditions: absent"):
        Conditions(absent={0: [(5, 3)]})
    with pytest.raises(ValueError, match="Conditions: edges must have at least one edge list"):
        Conditions(edges=[])
    streams = [ArrayStream(*data(i, 32)) for i in range(6)]
    with pytest.raises(ValueError, match="Conditions: absent must name agents"):
        simulate(make(Local()), GRAPH, streams, conditions=Conditions(absent={"nobody": [(1, 2)]}))
    with pytest.raises(ValueError, match="Conditions: each edge must be two different agents"):
        list(simulate(make(Local()), GRAPH, streams, conditions=Conditions(edges=[[(0, 0)]])))
