"""Networks whose edges come and go, that lose messages, and whose agents are away for a while."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelmesh import (
    Agent,
    Diffusion,
    ExactDiffusion,
    Expansion,
    Faults,
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
from kernelmesh.consensus import Heard
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import Link, Outbox
from kernelmesh.messages import Function, Offer, Terms, decode, encode
from kernelmesh.metrics import accuracies
from kernelmesh.storage import pack, unpack
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
    "edges that take turns": lambda: Faults(edges=[[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 0)]]),
    "edges from a function": lambda: Faults(edges=lambda number: [(number % 6, (number + 1 + number % 4) % 6)]),
    "no edge at all at times": lambda: Faults(edges=[GRAPH.edges, []]),
    "lost messages": lambda: Faults(drop=0.3, rng=np.random.default_rng(0)),
    "absent agents": lambda: Faults(absent={0: [(3, 12)], 4: [(1, 5), (9, 9)]}),
    "everything at once": lambda: Faults(
        edges=[GRAPH.edges, [(0, 3), (1, 4)]], drop=0.2, absent={2: [(5, 11)]}, rng=np.random.default_rng(1)
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
        streams.append(ArrayStream(points[labels == i % 3][: rows // 4], labels[labels == i % 3][: rows // 4], passes=4))
    return streams


@pytest.mark.parametrize("consensus", PROTOCOLS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_protocol_still_learns(fault, consensus):
    streams = [ArrayStream(*data(i, 640)) for i in range(6)]
    *_, last = simulate(make(consensus), GRAPH, streams, faults=FAULTS[fault]())
    assert last.samples == (640,) * 6  # nobody's samples are lost
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


@pytest.mark.parametrize("fault", FAULTS)
def test_exact_diffusion_still_learns_from_one_class_per_agent(fault):
    *_, alone = simulate(make(Local()), GRAPH, one_class())
    *_, last = simulate(make(ExactDiffusion(budget=0.02)), GRAPH, one_class(), faults=FAULTS[fault]())
    assert accuracies(alone.functions, *data(99, 500)).max() < 0.5
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("budget", "every"), [(0.0, 1), (0.02, 1), (0.2, 1), (0.02, 3)])
def test_duals_stay_opposite_whatever_happens_to_messages(fault, budget, every):
    """Ends that have completed as many exchanges are opposite bit for bit; they are never more than one apart."""
    graph = Graph.random(6, probability=0.3, rng=np.random.default_rng(0))
    agent, apart, largest = make(ExactDiffusion(budget=budget, every=every)), 0, 0.0
    for last in simulate(agent, graph, one_class(), faults=FAULTS[fault]()):
        apart += check_duals(last.states)
        largest = max([largest, *(edge.dual.norm() for s in last.states for edge in s.edges.values() if edge.dual)])
    assert (apart > 0) == ("lost" in fault or "everything" in fault)
    # once messages arrive again the ends catch up, and all duals sum to zero
    streams = [ArrayStream(*data(i, 8 * 32 * every)) for i in range(6)]
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
                np.testing.assert_array_equal(edge.dual.centers, opposite.dual.centers)
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
        compression=Komp.parsimonious(0.5, parsimony=0.04),
        consensus=ExactDiffusion(budget=0.01 * 0.5**1.5),
    )


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(drop=0.5, rng=np.random.default_rng(0)),
        Faults(drop=0.8, rng=np.random.default_rng(0)),
        Faults(edges=[[(0, 1)], *[[]] * 7]),
        Faults(absent={1: [(60, 150)]}),
    ],
    ids=["calm", "half lost", "most lost", "every eighth round", "long absence"],
)
def test_exact_diffusion_stays_calm_however_rare_exchanges_are(faults):
    grid = np.linspace(-1.9, 1.9, 60)[:, None]
    truth = np.sin(3 * grid) + 0.5 * grid
    for round in simulate(regressor(), Graph.line(2), halves(), faults=faults):
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


class Mesh:
    """A network by hand: everything crosses the wire, and agents can be tampered with between rounds."""

    def __init__(self, graph, agent):
        self.graph, self.agent, self.ties = graph, agent, Faults().ties(graph, 1)
        self.states = [agent.start(name=name) for name in graph.names]
        self.past = [[state.copy() for state in self.states]]
        self.links = defaultdict(Link)
        self.rng = np.random.default_rng(0)

    def round(self, lost=(), rows=4):
        """One round in which the messages (from, to) in `lost` do not arrive; returns those that were sent."""
        samples = [self.rng.uniform(-2, 2, (rows, 1)) for _ in self.states]
        outboxes = [Outbox(self.agent, state, x) for state, x in zip(self.states, samples, strict=True)]
        talks = self.agent.consensus.exchanges(len(self.past))
        sent = {
            (i, tie.number): encode(self.links[i, tie.number].pack(outboxes[i].reply(tie.name, tie.share, None)))
            for i, ties in enumerate(self.ties)
            for tie in ties
            if talks
        }
        heard = [
            [
                Heard(None, self.arrived(sent, tie.number, i, lost), tie.weight, tie.name, tie.is_first, tie.share)
                for tie in ties
                if talks
            ]
            for i, ties in enumerate(self.ties)
        ]
        for i, (x, said) in enumerate(zip(samples, heard, strict=True)):
            # neighbors see curves that are 2 apart: without duals they cannot agree
            self.states[i], _ = self.agent.step(self.states[i], x, np.sin(3 * x) + 1 - 2 * (i % 2), said)
        self.past.append([state.copy() for state in self.states])
        return {pair: decode(data) for pair, data in sent.items()}

    def arrived(self, sent, j, i, lost):
        try:
            return None if (j, i) in lost else self.links[i, j].unpack(decode(sent[j, i]))
        except RefusedMessage:
            return None

    def restart(self, i, state):
        for pair in [pair for pair in self.links if pair[0] == i]:
            del self.links[pair]
        self.states[i] = state

    def forget(self, i, _):
        self.restart(i, self.agent.start(name=self.graph.names[i]))

    def go_back(self, i, rounds):
        """To a file that was written so many rounds ago."""
        names = self.graph.names
        old = self.past[max(0, len(self.past) - 1 - rounds)][i]
        self.restart(i, unpack(self.agent, pack(old, names), name=names[i], names=names))

    def round_off(self, i, _):
        """What another BLAS makes of the exchanges that have just been completed."""
        self.tamper(i, lambda dual: (dual.centers, dual.weights * (1 + 2**-50)))

    def prune(self, i, row):
        """Another BLAS again: the rounding tipped the scales, and another point was left out."""
        self.tamper(i, lambda dual: [np.delete(a, row % len(a), axis=0) for a in (dual.centers, dual.weights)])

    def tamper(self, i, change):
        edges = {
            name: replace(edge, dual=Expansion(edge.dual.kernel, *change(edge.dual)))
            if edge.acts == self.agent.consensus.every and edge.dual.order
            else edge
            for name, edge in self.states[i].edges.items()
        }
        self.states[i] = replace(self.states[i], edges=edges)

    def ends(self):
        """Both ends of every edge, the lower first."""
        names = self.graph.names
        for i, j in self.graph.edges:
            i, j = min(i, j), max(i, j)
            yield self.states[i].edges[names[j]], self.states[j].edges[names[i]]

    def check_opposite(self):
        for lower, upper in self.ends():
            assert (lower.epoch, lower.done) == (upper.epoch, upper.done)
            np.testing.assert_array_equal(lower.dual.centers, upper.dual.centers)
            np.testing.assert_array_equal(lower.dual.weights, -upper.dual.weights)


def repairs(message):
    """Whether a message hands over a dual."""
    return isinstance(message, Offer) and message.dual is not None


def coarse(every=1):
    return replace(regressor(), compression=Komp(budget=0.2), consensus=ExactDiffusion(budget=0.05, every=every))


def stories(graph, agents):
    """In each round, messages that are lost, and perhaps something that happens to one of the agents after it."""
    messages = [pair for i, j in graph.edges for pair in ((i, j), (j, i))]
    happenings = st.tuples(
        st.sampled_from([Mesh.forget, Mesh.go_back, Mesh.round_off, Mesh.prune]), st.sampled_from(agents), st.integers(0, 9)
    )
    return st.lists(st.tuples(st.sets(st.sampled_from(messages)), st.none() | happenings), min_size=2, max_size=12)


PAIR, RING = Graph.line(2), Graph.ring(4)
QUIET = 6
"""Rounds without a fault after which all is well: links recover, ends catch up, compare, begin an epoch, complete it."""

FEWER = settings(max_examples=settings.default.max_examples // 3)  # each of them runs a network


@pytest.mark.parametrize(("graph", "every"), [(PAIR, 1), (RING, 1), (PAIR, 2)], ids=["pair", "ring", "every second round"])
def test_whatever_happened_the_duals_are_soon_opposite_again(graph, every):
    @FEWER
    @given(story=stories(graph, range(len(graph))))
    def law(story):
        mesh = Mesh(graph, coarse(every))
        for lost, happening in story:
            mesh.round(lost)
            if happening is not None:
                happens, *what = happening
                happens(mesh, *what)
        for _ in range(QUIET * every):
            mesh.round()
        mesh.check_opposite()
        for _ in range(every):
            mesh.round()
        mesh.check_opposite()

    law()


@FEWER
@given(story=stories(PAIR, [1]))
def test_whatever_the_upper_end_loses_the_lower_end_keeps_its_dual_and_hands_it_on(story):
    mesh = Mesh(PAIR, coarse())
    for lost, happening in [*story, *[((), None)] * QUIET]:
        before = mesh.states[0].edges.get(1)
        mesh.round(lost)
        after = mesh.states[0].edges[1]
        if before is not None and after.epoch > before.epoch:
            assert after.handed is before.dual
        if before is not None and not after.acts:
            assert after.dual is before.dual
        if happening is not None:
            happens, *what = happening
            happens(mesh, *what)
    mesh.check_opposite()
    assert mesh.states[1].edges[0].dual.order > 0


@pytest.mark.parametrize("fault", [Mesh.forget, Mesh.go_back, Mesh.round_off, Mesh.prune])
@pytest.mark.parametrize("losses", [(), ((0, 1),), ((1, 0),)], ids=["calm", "repair lost", "reply lost"])
def test_the_dual_of_the_lower_end_survives_and_the_repair_is_sent_until_it_arrives(fault, losses):
    mesh = Mesh(PAIR, regressor())
    for _ in range(20):
        mesh.round(rows=32)
    dual = mesh.states[0].edges[1].dual
    fault(mesh, 1, 5)
    mesh.round()  # in which the lower end notices
    lower, _ = next(mesh.ends())
    assert lower.dual is lower.handed is dual
    assert lower.epoch == 1
    for _ in range(3):
        sent = mesh.round(losses)
        assert repairs(sent[0, 1]) == (lower.done == 0 or (lower.done == 1 and lower.behind))
        if repairs(sent[0, 1]):
            np.testing.assert_array_equal(sent[0, 1].dual.centers, dual.centers)
            np.testing.assert_array_equal(sent[0, 1].dual.weights, dual.weights)
        lower, _ = next(mesh.ends())
    for _ in range(QUIET):
        sent = mesh.round()
        assert not repairs(sent[1, 0])
    mesh.check_opposite()
    lower, _ = next(mesh.ends())
    assert lower.epoch == 1  # the digests fit: both ends have gone on from this dual
    assert lower.done > 3
    assert lower.handed is None
    assert not repairs(sent[0, 1])


def test_when_the_lower_end_has_lost_everything_both_begin_with_nothing():
    mesh = Mesh(PAIR, regressor())
    for _ in range(20):
        mesh.round(rows=32)
    mesh.forget(0, 0)
    for _ in range(QUIET):
        assert not any(repairs(message) for message in mesh.round(rows=32).values())
    mesh.check_opposite()
    lower, upper = next(mesh.ends())
    assert (lower.epoch, lower.handed, upper.handed) == (1, None, None)


@pytest.mark.parametrize("other", [0, 1], ids=["lower", "upper"])
@pytest.mark.parametrize("tampering", [Mesh.round_off, Mesh.prune])
def test_hosts_that_never_round_alike_exchange_regularly_and_learn(other, tampering):
    mesh = Mesh(PAIR, regressor())
    silent = 0
    grid = np.linspace(-1.9, 1.9, 60)[:, None]
    truth = np.sin(3 * grid)
    for number in range(150):
        mesh.round(rows=32)
        lower, upper = next(mesh.ends())
        silent = 0 if lower.acts and upper.acts else silent + 1
        assert silent < 3
        tampering(mesh, other, number)
        if number > 120:
            for state in mesh.states:
                assert np.sqrt(((state.function(grid) - truth) ** 2).mean()) < 0.3
    assert lower.epoch > 45


def test_a_file_keeps_what_is_handed_over():
    mesh = Mesh(PAIR, coarse())
    for _ in range(4):
        mesh.round()
    mesh.round_off(1, 0)
    mesh.round()
    for _ in range(2):  # once the exchange is open, then when the lower end has completed it and the other has not
        before = mesh.states[0].edges[1].handed
        mesh.go_back(0, 0)
        after = mesh.states[0].edges[1].handed
        np.testing.assert_array_equal(before.centers, after.centers)
        np.testing.assert_array_equal(before.weights, after.weights)
        mesh.round(lost={(0, 1)})
    assert mesh.states[0].edges[1].done == 1
    for _ in range(QUIET):
        mesh.round()
    mesh.check_opposite()
    assert mesh.states[0].edges[1].epoch == 1


def test_an_agent_refuses_a_repair_that_does_not_fit():
    agent, x = regressor(), np.zeros((2, 1))
    for centers, weights, complaint in (
        ((3, 2), (3, 1), "centers with 1 columns"),
        ((3, 1), (3, 2), "weights with 1 columns"),
    ):
        repair = Offer(x, x, Terms(1, 1, 0, 0, 0.5), Function(np.zeros(centers), np.zeros(weights)))
        with pytest.raises(ValueError, match=f"Agent.step: heard: dual must have {complaint}"):
            agent.step(agent.start(), x, x, [Heard(None, repair, 0.5, 1, False, 0.5)])


def test_zeros_of_both_signs_do_not_part_the_ends():
    streams = []
    for seed in range(2):
        x = np.round(np.random.default_rng(seed).standard_normal((960, 2)))
        streams.append(ArrayStream(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)))
    for round in simulate(make(ExactDiffusion(budget=0.02)), Graph.line(2), streams):
        ends = round.states[0].edges[1], round.states[1].edges[0]
        assert ends[0].epoch == 0
        np.testing.assert_array_equal(ends[0].dual.weights, -ends[1].dual.weights)


def test_a_neighbor_that_knows_nothing_yet_counts_too():
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
            simulate(make(consensus), GRAPH, [ArrayStream(*data(i, 96)) for i in range(6)], faults=faults)
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
