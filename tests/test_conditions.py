"""Networks whose edges come and go, that lose messages, and whose agents are away for a while."""

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    Conditions,
    Diffusion,
    ExactDiffusion,
    Expansion,
    Gaussian,
    Graph,
    Hilbert,
    Komp,
    Local,
    Logistic,
    Penalty,
    Proximal,
    Squared,
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


def halves(rounds=150):
    """Two agents, each of which sees one half of a curve."""
    streams = []
    for seed, (low, high) in enumerate(((-2.0, 0.0), (0.0, 2.0))):
        rng = np.random.default_rng(seed)
        x = rng.uniform(low, high, (32 * rounds, 1))
        streams.append(ArrayStream(x, np.sin(3 * x) + 0.5 * x + 0.1 * rng.standard_normal(x.shape)))
    return streams


def regressor():
    return Agent(
        dimension=1,
        outputs=1,
        kernel=Gaussian(bandwidth=0.35),
        loss=Squared(),
        step_size=0.5,
        compression=Komp.parsimonious(0.5),
        consensus=ExactDiffusion(budget=0.01 * 0.5**1.5),
    )


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(),
        Conditions(loss=0.5, rng=np.random.default_rng(0)),
        Conditions(loss=0.8, rng=np.random.default_rng(0)),
        Conditions(edges=[[(0, 1)], *[[]] * 7]),
        Conditions(absent={1: [(60, 150)]}),
    ],
    ids=["calm", "half lost", "most lost", "every eighth round", "long absence"],
)
def test_exact_diffusion_stays_calm_however_rare_exchanges_are(conditions):
    grid = np.linspace(-1.9, 1.9, 60)[:, None]
    truth = np.sin(3 * grid) + 0.5 * grid
    for round in simulate(regressor(), Graph.line(2), halves(), conditions=conditions):
        if round.number > 120:
            for f in round.functions:
                assert np.sqrt(((f(grid) - truth) ** 2).mean()) < 0.3


def test_an_end_that_lost_its_state_or_went_back_is_caught_up_with():
    graph, agent = Graph.line(2), regressor()
    states = {r.number: [s.copy() for s in r.states] for r in simulate(agent, graph, halves(20))}
    for old in (agent.start(name=0), states[14][0], states[18][0], states[19][0]):
        *_, last = simulate(agent, graph, halves(30), states=[old.copy(), states[20][1].copy()])
        ends = last.states[0].edges[1], last.states[1].edges[0]
        assert ends[0].done == ends[1].done > 20
        assert ends[0].epoch == ends[1].epoch == (0 if old is states[19][0] else 1)
        np.testing.assert_array_equal(ends[0].dual.weights, -ends[1].dual.weights)


def test_zeros_of_both_signs_do_not_part_the_ends():
    streams = []
    for seed in range(2):
        x = np.round(np.random.default_rng(seed).standard_normal((960, 2)))
        streams.append(ArrayStream(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)))
    for round in simulate(make(ExactDiffusion(budget=0.02)), Graph.line(2), streams):
        ends = round.states[0].edges[1], round.states[1].edges[0]
        assert ends[0].epoch == 0
        np.testing.assert_array_equal(ends[0].dual.weights, -ends[1].dual.weights)


def test_a_neighbour_that_knows_nothing_yet_counts_too():
    kernel = Gaussian(bandwidth=0.6)
    agent = Agent(
        dimension=2,
        outputs=1,
        kernel=kernel,
        loss=Squared(),
        step_size=1e-12,
        regularization=0.0,
        compression=Komp(budget=0.0),
        consensus=ExactDiffusion(budget=0.0),
    )
    f = Expansion(kernel, [[0.0, 0.0]], [[1.0]])
    states = [agent.start(name=0, function=f), agent.start(name=1)]
    streams = [ArrayStream(np.ones((4, 2)), np.zeros(4)) for _ in range(2)]
    (round,) = simulate(agent, Graph.line(2), streams, states=states)
    values = [g(np.zeros((1, 2)))[0, 0] for g in round.functions]
    assert values == pytest.approx([0.75, 0.25], abs=1e-6)


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
    for edges in ([], 5, [None], {0: 1}):
        with pytest.raises(ValueError, match="Conditions: edges must be a list of at least one edge list"):
            Conditions(edges=edges)
    for absent in ({0: (5, 10)}, {0: 5}, {0: [(0, 3)]}):
        with pytest.raises(ValueError, match=r"Conditions: absent\[0\] must be"):
            Conditions(absent=absent)
    with pytest.raises(ValueError, match="Conditions: absent must be a mapping"):
        Conditions(absent=[(1, 2)])
    streams = [ArrayStream(*data(i, 32)) for i in range(6)]
    with pytest.raises(ValueError, match="Conditions: absent must name agents"):
        simulate(make(Local()), GRAPH, streams, conditions=Conditions(absent={"nobody": [(1, 2)]}))
    with pytest.raises(ValueError, match="Conditions: each edge must be two different agents"):
        list(simulate(make(Local()), GRAPH, streams, conditions=Conditions(edges=[[(0, 0)]])))
    with pytest.raises(ValueError, match="Conditions: each edge must be two different agents"):
        list(simulate(make(Local()), GRAPH, streams, conditions=Conditions(edges=[[([0], 1)]])))
    with pytest.raises(ValueError, match="Conditions: edges must give a list of edges"):
        list(simulate(make(Local()), GRAPH, streams, conditions=Conditions(edges=lambda number: None)))


def test_edges_are_asked_for_once_in_each_round():
    asked = []
    streams = [ArrayStream(*data(i, 64)) for i in range(6)]
    conditions = Conditions(edges=lambda number: asked.append(number) or GRAPH.edges)
    list(simulate(make(Diffusion()), GRAPH, streams, conditions=conditions))
    assert asked == [1, 2]
    once = Conditions(edges=[(edge for edge in GRAPH.edges)])
    *_, last = simulate(make(Diffusion()), GRAPH, streams, conditions=once)
    assert last.infos[0].heard == 2
