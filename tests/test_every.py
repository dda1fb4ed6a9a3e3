"""Exchanges in every k-th round: what happens in the others, and what stays as it was."""

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    Averaged,
    Diffusion,
    Diverged,
    Faults,
    Gaussian,
    Gradient,
    Graph,
    Hilbert,
    Komp,
    Local,
    Logistic,
    Penalty,
    UnstablePenalty,
    simulate,
)
from kernelmesh.metrics import accuracies
from kernelmesh.numerics.schedules import Doubling
from kernelmesh.protocols import Tuning
from kernelmesh.storage import pack, unpack
from kernelmesh.streams import ArrayStream, Mixture

KERNEL = Gaussian(bandwidth=0.6)
KINDS = {"hilbert": lambda k: Hilbert(coupling=0.01, every=k), "diffusion": lambda k: Diffusion(every=k)}
RING = Graph.ring(6)


def make(protocol, learner=None):
    learner = learner or Gradient(step_size=2.0, compression=Komp(budget=0.05))
    return Agent(dimension=2, outputs=3, kernel=KERNEL, loss=Logistic(), learner=learner, protocol=protocol)


def data(seed, rows):
    return Mixture.draw(classes=3, rng=np.random.default_rng(7)).sample(rows, rng=np.random.default_rng(seed))


def one_class(rows=640):
    streams = []
    for i in range(6):
        points, labels = data(i, rows)
        streams.append(ArrayStream(points[labels == i % 3][: rows // 4], labels[labels == i % 3][: rows // 4], passes=4))
    return streams


@pytest.mark.parametrize("kind", KINDS)
class TestRounds:
    @pytest.mark.parametrize("every", [1, 2, 4])
    def test_agents_exchange_in_every_kth_round_only(self, kind, every):
        sent, talked = np.zeros(6), []
        for now in simulate(make(KINDS[kind](every)), RING, one_class()):
            if (now.bytes_sent > sent).all():
                talked.append(now.number)
            else:
                assert (now.bytes_sent == sent).all()
                assert all(info.heard == 0 for info in now.infos)
            sent = now.bytes_sent
        assert talked == list(range(every, now.number + 1, every))

    def test_before_the_first_exchange_every_agent_is_alone(self, kind):
        # the dictionaries are not compared bit for bit: points of samples that come twice are put together or not
        rounds = zip(*(simulate(make(protocol), RING, one_class()) for protocol in (KINDS[kind](4), Local())), strict=True)
        for now, alone in (next(rounds) for _ in range(3)):
            for state, other in zip(now.states, alone.states, strict=True):
                assert state.sent.distance(other.sent) < 1e-6

    @pytest.mark.parametrize("stop", [4, 6, 7])
    def test_a_run_that_is_continued_keeps_its_rhythm(self, kind, stop):
        """Stored in the middle of a period, bit for bit."""
        agent, batches = make(KINDS[kind](4)), [list(stream) for stream in one_class(320)]
        *_, whole = simulate(agent, RING, batches)
        *_, part = simulate(agent, RING, [stream[:stop] for stream in batches])
        states = [unpack(agent, pack(state, workspace=True), name=i) for i, state in enumerate(part.states)]
        *_, last = simulate(agent, RING, [stream[stop:] for stream in batches], states=states)
        for now, then in zip(last.states, whole.states, strict=True):
            assert now.steps == then.steps
            for f, g in ((now.function, then.function), (now.sent, then.sent)):
                assert f.points.tobytes() == g.points.tobytes()
                assert f.weights.tobytes() == g.weights.tobytes()

    def test_an_agent_that_was_absent_keeps_the_rhythm_of_the_others(self, kind):
        faults, sent, talked = Faults(absent={2: [(3, 4)]}), np.zeros(6), []
        for now in simulate(make(KINDS[kind](4)), RING, one_class(320), faults=faults):
            talked += [now.number] if (now.bytes_sent > sent).any() else []
            if now.number == 8:
                assert now.states[2].steps == 6
                assert (now.bytes_sent > sent).all()
            sent = now.bytes_sent
        assert talked[:2] == [4, 8]

    @pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
    def test_refuses(self, kind, every):
        with pytest.raises((TypeError, ValueError), match="every must be an integer >= 1, got"):
            KINDS[kind](every)


def test_protocols_that_send_points_exchange_in_every_round():
    assert all(Penalty(coupling=0.1).exchanges(step) for step in range(1, 9))
    assert [step for step in range(1, 9) if Diffusion(every=3).exchanges(step)] == [3, 6]


class TestLearning:
    @pytest.mark.parametrize("faults", [None, {"drop": 0.3}, {"absent": {1: [(5, 20)]}}], ids=str)
    @pytest.mark.parametrize("every", [2, 4])
    def test_one_class_per_agent(self, every, faults):
        faults = None if faults is None else Faults(rng=np.random.default_rng(0), **faults)
        *_, last = simulate(make(Diffusion(every=every)), RING, one_class(1280), faults=faults)
        assert accuracies(last.functions, *data(99, 500)).min() > 0.8

    def test_running_averages_learn_too(self):
        *_, last = simulate(make(Diffusion(every=4), Averaged(step_size=20.0)), RING, one_class(1280))
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
        kernel=KERNEL,
        batches=[data(0, 32)[0]],
        stiffness=4.0,
        every=5,
    )
    assert Diffusion.tuned(tuning).every == Hilbert.tuned(tuning).every == 5
    assert Hilbert.tuned(tuning).coupling.ceiling == pytest.approx(0.5 * 2.0 / (2.0 * 4.0) / 5)
