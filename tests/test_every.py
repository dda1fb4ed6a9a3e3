"""Exchanges in every k-th round: what happens in the others, and what stays as it was."""

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    Averaged,
    Diffusion,
    Diverged,
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
    Squared,
    Uncompressed,
    UnstablePenalty,
    simulate,
)
from kernelmesh.agent import relay
from kernelmesh.consensus import Heard, Tuning
from kernelmesh.exchange import Outbox
from kernelmesh.experiments.gmm import LogisticConfig
from kernelmesh.experiments.heterogeneous import Config, cell
from kernelmesh.metrics import accuracies
from kernelmesh.numerics.schedules import Doubling
from kernelmesh.storage import pack, unpack
from kernelmesh.streams import ArrayStream, Mixture

KERNEL = Gaussian(bandwidth=0.6)
KINDS = {
    "hilbert": lambda k: Hilbert(coupling=0.01, every=k),
    "diffusion": lambda k: Diffusion(every=k),
    "exact": lambda k: ExactDiffusion(budget=0.02, every=k),
}
RING = Graph.ring(6)


def make(consensus, **changes):
    settings = {
        "dimension": 2,
        "outputs": 3,
        "kernel": KERNEL,
        "loss": Logistic(),
        "step_size": 2.0,
        "compression": Komp(budget=0.05),
        "consensus": consensus,
    }
    return Agent(**{**settings, **changes})


def data(seed, rows):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


def one_class(rows=640):
    streams = []
    for i in range(6):
        points, labels = data(i, rows)
        streams.append(ArrayStream(points[labels == i % 3][: rows // 4], labels[labels == i % 3][: rows // 4], passes=4))
    return streams


def same(f, g):
    return f.centers.tobytes() == g.centers.tobytes() and f.weights.tobytes() == g.weights.tobytes()


def total(functions):
    """The sum of all functions, as one expansion."""
    return Expansion(KERNEL, np.concatenate([f.centers for f in functions]), np.concatenate([f.weights for f in functions]))


class Indifferent(Squared):
    """A loss that pulls nowhere: what moves then is consensus alone."""

    def slope(self, z, y):
        return np.zeros_like(z)


@pytest.mark.parametrize("kind", KINDS)
class TestRounds:
    @pytest.mark.parametrize("every", [1, 2, 4])
    def test_agents_talk_in_every_kth_round_only(self, kind, every):
        sent, talked = np.zeros(6), []
        for now in simulate(make(KINDS[kind](every)), RING, one_class()):
            if (now.bytes_sent > sent).all():
                talked.append(now.number)
            else:
                assert (now.bytes_sent == sent).all()
                assert all(info.heard == 0 for info in now.infos)
            sent = now.bytes_sent
        assert talked == list(range(every, now.number + 1, every))

    def test_bytes_fall_with_k(self, kind):
        def sent(every):
            *_, last = simulate(make(KINDS[kind](every)), RING, one_class())
            return last.bytes_sent.sum()

        assert 0.35 < sent(2) / sent(1) < 0.65
        assert 0.15 < sent(4) / sent(1) < 0.35

    def test_before_the_first_exchange_everybody_is_alone(self, kind):
        # the dictionaries are not compared bit for bit: points of samples that come twice are put together or not
        rounds = zip(
            simulate(make(KINDS[kind](4)), RING, one_class()), simulate(make(Local()), RING, one_class()), strict=True
        )
        for now, alone in (next(rounds) for _ in range(3)):
            for state, other in zip(now.states, alone.states, strict=True):
                assert state.sent.distance(other.sent) < 1e-6

    def test_a_run_that_is_continued_goes_on_in_the_same_rhythm(self, kind):
        """Stored in the middle of a period, bit for bit."""
        agent, batches = make(KINDS[kind](4)), [list(stream) for stream in one_class(320)]
        whole = list(simulate(agent, RING, batches))
        for stop in (4, 6, 7):
            *_, part = simulate(agent, RING, [stream[:stop] for stream in batches])
            stored = [pack(state, RING.names, workspace=True) for state in part.states]
            states = [unpack(agent, arrays, name=i, names=RING.names) for i, arrays in enumerate(stored)]
            *_, last = simulate(agent, RING, [stream[stop:] for stream in batches], states=states)
            for now, then in zip(last.states, whole[-1].states, strict=True):
                assert now.steps == then.steps
                assert same(now.function, then.function)
                assert same(now.sent, then.sent)

    def test_who_was_away_keeps_to_the_rhythm_of_the_others(self, kind):
        faults, sent, talked = Faults(absent={2: [(3, 4)]}), np.zeros(6), []
        for now in simulate(make(KINDS[kind](4)), RING, one_class(320), faults=faults):
            talked += [now.number] if (now.bytes_sent > sent).any() else []
            if now.number == 8:
                assert now.states[2].steps == 6
                assert (now.bytes_sent > sent).all()
            sent = now.bytes_sent
        assert talked[:2] == [4, 8]

    def test_agents_must_have_the_same_k(self, kind):
        assert KINDS[kind](2).agreement != KINDS[kind](3).agreement

    @pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
    def test_refuses(self, kind, every):
        with pytest.raises((TypeError, ValueError), match="every must be an integer >= 1, got"):
            KINDS[kind](every)


def test_protocols_that_exchange_points_talk_in_every_round():
    assert all(Penalty(coupling=0.1).exchanges(step) for step in range(1, 9))
    assert [step for step in range(1, 9) if Diffusion(every=3).exchanges(step)] == [3, 6]


class TestDuals:
    @pytest.mark.parametrize("every", [2, 4])
    @pytest.mark.parametrize("budget", [0.0, 0.05])
    def test_they_are_opposite_bit_for_bit_and_sum_to_zero(self, every, budget):
        graph = Graph.random(6, probability=0.3, rng=np.random.default_rng(0))
        for now in simulate(make(ExactDiffusion(budget=budget, every=every)), graph, one_class()):
            seen = {(state.name, other): edge for state in now.states for other, edge in state.edges.items()}
            for (i, j), edge in seen.items():
                assert edge.done == now.number // every
                np.testing.assert_array_equal(edge.dual.centers, seen[j, i].dual.centers)
                np.testing.assert_array_equal(edge.dual.weights, -seen[j, i].dual.weights)
        assert total([edge.dual for edge in seen.values()]).norm() < 1e-6
        assert max(edge.dual.norm() for edge in seen.values()) > 0.1

    @pytest.mark.parametrize("every", [2, 4])
    def test_also_when_messages_are_lost(self, every):
        agent, apart = make(ExactDiffusion(budget=0.02, every=every)), 0
        faults = Faults(drop=0.3, absent={1: [(5, 9)]}, rng=np.random.default_rng(0))
        for now in simulate(agent, RING, one_class(), faults=faults):
            apart += check_duals(now.states)
        assert apart > 0
        streams = [ArrayStream(*data(i, 32 * 6 * every)) for i in range(6)]
        *_, calm = simulate(agent, RING, streams, states=now.states)
        assert check_duals(calm.states) == 0
        assert total([edge.dual for state in calm.states for edge in state.edges.values()]).norm() < 1e-6

    @pytest.mark.parametrize(("every", "part"), [(1, 0.5), (2, 0.5), (3, 1.0), (4, 1.0)])
    def test_they_act_for_k_rounds_with_one_kth_each(self, every, part):
        """And with a neighbor that falls silent no longer; averaging takes half the Metropolis weight, or all of it."""
        agent = make(
            ExactDiffusion(budget=0.0, every=every), loss=Indifferent(), regularization=0.0, compression=Uncompressed()
        )
        rng = np.random.default_rng(0)
        starts = [Expansion(KERNEL, rng.standard_normal((5, 2)), rng.standard_normal((5, 3))) for _ in range(2)]
        here, there = (agent.start(name=i, function=f) for i, f in enumerate(starts))
        x, y = rng.standard_normal((4, 2)), np.zeros((4, 3))
        offer = Outbox(agent, there, x).reply(0, 0.5, None)
        here, _ = agent.step(here, x, y, [Heard(None, offer, 0.5, 1, True, 0.5)])
        points = data(0, 20)[0]
        met = (1 - part / 2) * starts[0](points) + part / 2 * starts[1](points)
        np.testing.assert_allclose(here.function(points), met, atol=1e-9)
        moved = part / 2 * (starts[1](points) - starts[0](points)) / every
        for n in range(1, 7):
            np.testing.assert_allclose(here.sent(points), met + min(n, every) * moved, atol=1e-9)
            assert here.edges[1].acts == max(every + 1 - n, 0)
            # with samples or without
            here = relay(agent, here, []) if n % 2 else agent.step(here, x, y)[0]

    def test_without_a_loss_the_sum_of_all_functions_is_conserved(self):
        agent = make(ExactDiffusion(budget=0.0, every=3), loss=Indifferent(), regularization=0.0, compression=Uncompressed())
        rng, graph = np.random.default_rng(0), Graph.star(4)
        starts = [Expansion(KERNEL, rng.standard_normal((5, 2)), rng.standard_normal((5, 3))) for _ in range(4)]
        states = [agent.start(name=name, function=f) for name, f in zip(graph.names, starts, strict=True)]
        streams = [ArrayStream(rng.standard_normal((56, 2)), np.zeros((56, 3)), batch_size=8) for _ in range(4)]
        for now in simulate(agent, graph, streams, states=states):
            assert total([state.sent for state in now.states]).distance(total(starts)) < 1e-6 * total(starts).norm()

    def test_what_is_shown_between_exchanges_is_where_the_round_began(self):
        before = None
        for now in simulate(make(ExactDiffusion(budget=0.02, every=4)), RING, one_class(320)):
            if before is not None and now.number % 4:
                assert all(same(state.function, sent) for state, sent in zip(now.states, before, strict=True))
            before = [state.sent for state in now.states]


def check_duals(states):
    """Compare both ends of every edge; how many are one exchange apart."""
    apart = 0
    for state in states:
        for other, edge in state.edges.items():
            opposite = states[other].edges.get(state.name)
            if opposite is None:
                assert edge.done == 0
                continue
            assert abs(edge.done - opposite.done) <= 1
            if edge.done != opposite.done:
                apart += 1
            elif edge.dual is not None:
                np.testing.assert_array_equal(edge.dual.centers, opposite.dual.centers)
                np.testing.assert_array_equal(edge.dual.weights, -opposite.dual.weights)
    return apart


class TestLearning:
    @pytest.mark.parametrize("faults", [None, {"drop": 0.3}, {"absent": {1: [(5, 20)]}}], ids=str)
    @pytest.mark.parametrize("every", [2, 4])
    def test_one_class_per_agent(self, every, faults):
        faults = None if faults is None else Faults(rng=np.random.default_rng(0), **faults)
        agent = make(ExactDiffusion(budget=0.02, every=every))
        *_, last = simulate(agent, RING, one_class(1280), faults=faults)
        assert accuracies(last.functions, *data(99, 500)).min() > 0.8

    def test_running_averages_are_of_what_exchanges_lead_to(self):
        agent = make(ExactDiffusion(budget=0.1, every=4), rule=Averaged(), step_size=20.0, compression=Komp.averaging(20.0))
        *_, last = simulate(agent, RING, one_class(1280))
        assert accuracies(last.functions, *data(99, 500)).min() > 0.85


class TestHilbert:
    """What is stable falls with k, and no further."""

    def setting(self, share):
        points = [data(i, 32)[0] for i in range(6)]
        bound = Hilbert(coupling=1.0, every=4).max_stable_penalty(KERNEL, points, 2.0, RING.stiffness)
        assert bound == Hilbert(coupling=1.0).max_stable_penalty(KERNEL, points, 2.0, RING.stiffness) / 4
        agent = make(Hilbert(coupling=share * bound, every=4))
        return agent, [ArrayStream(*data(i, 3200), rng=np.random.default_rng(0)) for i in range(6)]

    def test_below_the_bound_the_network_learns_without_a_warning(self):
        agent, streams = self.setting(0.9)
        *_, last = simulate(agent, RING, streams)
        assert accuracies(last.functions, *data(99, 500)).min() > 0.8

    def test_above_it_there_is_a_warning_and_the_run_diverges(self):
        agent, streams = self.setting(2.5)
        rounds = simulate(agent, RING, streams)
        with pytest.warns(UnstablePenalty, match="Hilbert: with step size 2 in this network the penalty must"):
            next(rounds)
        with pytest.raises(Diverged):
            list(rounds)


def test_protocols_are_tuned_for_a_k():
    tuning = Tuning(
        step_size=2.0,
        coupling=Doubling(start=0.01, every=200),
        limit=0.5,
        dual_budget=0.1,
        kernel=KERNEL,
        batches=[data(0, 32)[0]],
        stiffness=4.0,
        every=5,
    )
    assert Diffusion.tuned(tuning).every == ExactDiffusion.tuned(tuning).every == Hilbert.tuned(tuning).every == 5
    assert Hilbert.tuned(tuning).coupling.ceiling == pytest.approx(0.5 * 2.0 / (2.0 * 4.0) / 5)


class TestExperiments:
    def test_a_setting_of_the_mixture(self):
        few = {"samples": 300, "held_out": 100, "agents": 5, "passes": 2, "protocol": "exact-diffusion"}
        often, seldom = (cell(Config(every=k, **few)) for k in (1, 3))
        assert 0.2 < seldom["bytes_per_sample"] / often["bytes_per_sample"] < 0.5
        assert LogisticConfig(protocol="diffusion", every=2).every == 2

    def test_the_duals_are_what_makes_the_difference(self):
        few = {"every": 8, "samples": 2000, "held_out": 1000, "agents": 10}
        plain, exact = (cell(Config(protocol=name, **few))["accuracy_worst"] for name in ("diffusion", "exact-diffusion"))
        assert exact > plain + 0.05

    def test_refused_where_nobody_reads_it(self):
        with pytest.raises(ValueError, match="heterogeneous: every must be 1 with symmetric, got 2; only protocols that"):
            Config(protocol="symmetric", every=2)
