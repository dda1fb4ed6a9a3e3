"""Exchanges in every k-th round: what happens in the others, and what stays as it was."""

import numpy as np
import pytest

from kernelmesh import Averaged, Diffusion, Doubling, Faults, Gaussian, Hilbert, Local, Penalty, simulate
from kernelmesh.metrics import accuracies
from kernelmesh.protocols import Tuning
from kernelmesh.storage import pack, unpack
from test_faults import GRAPH, one_class
from test_node import data, make, same

KINDS = {"hilbert": lambda k: Hilbert(coupling=0.01, every=k), "diffusion": lambda k: Diffusion(every=k)}


@pytest.mark.parametrize("kind", KINDS)
class TestRounds:
    @pytest.mark.parametrize("every", [1, 2, 4])
    def test_agents_exchange_in_every_kth_round_only(self, kind, every):
        sent, talked = np.zeros(6), []
        for now in simulate(make(KINDS[kind](every)), GRAPH, one_class()):
            if (now.bytes_sent > sent).all():
                talked.append(now.number)
            else:
                assert (now.bytes_sent == sent).all()
                assert all(info.heard == 0 for info in now.infos)
            sent = now.bytes_sent
        assert talked == list(range(every, now.number + 1, every))

    def test_before_the_first_exchange_every_agent_is_alone(self, kind):
        # the dictionaries are not compared bit for bit: points of samples that come twice are put together or not
        rounds = zip(*(simulate(make(protocol), GRAPH, one_class()) for protocol in (KINDS[kind](4), Local())), strict=True)
        for now, alone in (next(rounds) for _ in range(3)):
            for state, other in zip(now.states, alone.states, strict=True):
                assert state.sent.distance(other.sent) < 1e-6

    @pytest.mark.parametrize("stop", [4, 6, 7])
    def test_a_run_that_is_continued_keeps_its_rhythm(self, kind, stop):
        """Stored in the middle of a period, bit for bit."""
        agent, batches = make(KINDS[kind](4)), [list(stream) for stream in one_class(320)]
        *_, whole = simulate(agent, GRAPH, batches)
        *_, part = simulate(agent, GRAPH, [stream[:stop] for stream in batches])
        states = [unpack(agent, pack(state, workspace=True), name=i) for i, state in enumerate(part.states)]
        *_, last = simulate(agent, GRAPH, [stream[stop:] for stream in batches], states=states)
        for now, then in zip(last.states, whole.states, strict=True):
            assert now.steps == then.steps
            assert same(now.function, then.function)
            assert same(now.sent, then.sent)

    def test_an_agent_that_was_absent_keeps_the_rhythm_of_the_others(self, kind):
        faults, sent, talked = Faults(absent={2: [(3, 4)]}), np.zeros(6), []
        for now in simulate(make(KINDS[kind](4)), GRAPH, one_class(320), faults=faults):
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


def test_running_averages_learn_from_one_class_per_agent():
    *_, last = simulate(make(Diffusion(every=4), learner=Averaged(step_size=20.0)), GRAPH, one_class(1280))
    assert accuracies(last.functions, *data(99, 500)).min() > 0.85


def test_protocols_are_tuned_for_a_k():
    kernel, batches, coupling = Gaussian(bandwidth=0.6), [data(0, 32)[0]], Doubling(start=0.01, every=200)
    tuning = Tuning(step_size=2.0, coupling=coupling, limit=0.5, kernel=kernel, batches=batches, stiffness=4.0, every=5)
    assert Diffusion.tuned(tuning).every == Hilbert.tuned(tuning).every == 5
    assert Hilbert.tuned(tuning).coupling.ceiling == pytest.approx(0.5 * 2.0 / (2.0 * 4.0) / 5)
