"""Nothing that one message brings can stop an agent: limits before the journal, steps taken back, poison set aside."""

import contextlib
import logging
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from kernelmesh import Diffusion, Hilbert, Penalty
from kernelmesh.agent import State
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import read_question, read_reply
from kernelmesh.messages import Points, SentFunction, Values, encode
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node import attempt as module
from kernelmesh.runtimes.node.attempt import attempt, within, without
from test_node import ArraySource, data, function, kind, make, restarted, run_with, same, saying
from virtual import World

LIMIT = Membership.max_points
TELLING = [Diffusion(), Hilbert(coupling=0.02), Diffusion(every=2)]


class TestLimits:
    @pytest.mark.parametrize("protocol", TELLING, ids=kind)
    @pytest.mark.parametrize("order", [LIMIT + 1, 250_000])
    def test_a_function_of_too_many_points_is_refused_and_never_recorded(self, protocol, order, tmp_path, caplog):
        agent, huge = make(protocol), encode(SentFunction(*function(order)))
        store = CheckpointStore(tmp_path, agent=agent, every=1000)
        with caplog.at_level(logging.WARNING, "kernelmesh.agent"):
            run = run_with(agent, saying(huge), store=store)
        status = run.runner.status(1.0)
        assert status.samples == 80
        assert status.refused == status.neighbors["b"].refused > 0
        assert any(f"at most {LIMIT} points" in line or "at most 16777216 bytes" in line for line in caplog.messages)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 200_000

    def test_functions_and_questions_are_limited_and_answers_to_a_large_own_mini_batch_are_not(self):
        penalty, points = make(Penalty(coupling=0.05)), encode(Points(np.zeros((11, 2))))
        function_reader = partial(read_reply, make(Diffusion()), encode(SentFunction(*function(11))), rows=None)
        for read in (function_reader, partial(read_question, penalty, points)):
            with pytest.raises(RefusedMessage, match="at most 10 points"):
                read(max_bytes=1 << 20, max_points=10)
            assert read(max_bytes=1 << 20, max_points=11) is not None
        values = encode(Values(np.zeros((11, 3))))
        assert read_reply(penalty, values, rows=11, max_bytes=1 << 20, max_points=10).values.shape == (11, 3)


class TestWithin:
    """All neighbors together may not add too many points to a step, and each has its turn."""

    def state(self, steps=0):
        return State(name="a", model=make(Diffusion()).start().model, steps=steps)

    def heard(self, *orders):
        rng = np.random.default_rng(0)
        return [Heard(SentFunction(rng.normal(size=(n, 2)), np.ones((n, 3))), 0.3, f"n{i}") for i, n in enumerate(orders)]

    def test_all_messages_are_used_if_they_fit(self):
        heard = self.heard(5, 5)
        assert within(heard, self.state(), 10) == (heard, [])

    def test_what_does_not_fit_waits_and_neighbors_take_turns(self):
        heard, late = self.heard(6, 6, 6), set()
        for steps in range(3):
            out, names = within(heard, self.state(steps), 12)
            assert len(names) == 1
            assert [said.reply is None for said in out] == [said.neighbor in names for said in out]
            late |= set(names)
        assert late == {"n0", "n1", "n2"}

    def test_common_points_count_once(self):
        one = self.heard(6)[0]
        heard = [replace(one, neighbor=f"n{i}") for i in range(4)]
        assert within(heard, self.state(), 6) == (heard, [])


class TestAttempt:
    def take(self, bad, together=99):
        def take(state, heard):
            spoke = [said.neighbor for said in heard if said.reply is not None]
            if bad & set(spoke) or len(spoke) >= together:
                raise MemoryError("too much")
            return spoke

        return take

    def heard(self, count=4):
        return [Heard(Values(np.zeros((1, 1))), 0.2, f"n{i}") for i in range(count)]

    @pytest.mark.parametrize("bad", [set(), {"n0"}, {"n1", "n3"}, {"n0", "n1", "n2", "n3"}])
    def test_exactly_the_offenders_are_excluded(self, bad):
        heard = self.heard()
        trial = attempt(self.take(bad), make(Diffusion()).start(), heard)
        assert set(trial.offenders) == bad
        assert set(trial.result) == {"n0", "n1", "n2", "n3"} - bad
        assert trial.heard == without(heard, bad)

    def test_neighbors_that_fail_only_together_are_all_excluded(self):
        trial = attempt(self.take(set(), together=3), make(Diffusion()).start(), self.heard())
        assert trial.result == []
        assert len(trial.offenders) == 4

    def test_an_error_without_offenders_is_raised(self):
        with pytest.raises(MemoryError):
            attempt(self.take(set(), together=0), make(Diffusion()).start(), self.heard())
        with pytest.raises(MemoryError):
            attempt(self.take(set(), together=0), make(Diffusion()).start(), [])


@pytest.mark.parametrize("error", [MemoryError("no room"), FloatingPointError("nan"), np.linalg.LinAlgError("singular")])
def test_a_step_that_fails_is_taken_without_the_offender(error, tmp_path, caplog, monkeypatch):
    """Whatever the error; the agent that was killed after that resumes in the same state."""
    agent, bad = make(Diffusion()), encode(SentFunction(*function(7)))

    def failing(agent, state, points, targets, heard=(), *, advance=module.advance, **options):
        if any(said.reply is not None and len(said.reply.weights) == 7 for said in heard):
            raise error
        return advance(agent, state, points, targets, heard, **options)

    monkeypatch.setattr(module, "advance", failing)
    store, world = CheckpointStore(tmp_path, agent=agent, every=1000), World()
    world.at(0.5, lambda: world.kill(world.newest("a")))
    with caplog.at_level(logging.WARNING, "kernelmesh.agent"):
        first = run_with(agent, saying(bad), store=store, stay=True, world=world)
    assert first.node.state.samples == 80
    assert first.runner.status(1.0).neighbors["b"].refused > 0
    assert any("refused a message from b: step: must not fail" in line for line in caplog.messages)
    with contextlib.closing(CheckpointStore(tmp_path, agent=agent, every=1000)) as store:
        again = restarted(agent, first.runner.membership, ArraySource(*data(0, 80)), store)
    assert same(again.state.function, first.node.state.function)


def test_a_step_that_cannot_be_taken_again_ends_the_replay(tmp_path, monkeypatch):
    agent, world = make(Diffusion()), World()

    def kill(runner, turn):
        if turn.number == 8:
            world.kill(world.newest("a"))

    store = CheckpointStore(tmp_path, agent=agent, every=1000)
    before = run_with(agent, saying(b""), store=store, stay=True, world=world, each=kill).node

    def failing(agent, state, *rest, advance=module.advance, **options):
        if state.steps == 4:
            raise MemoryError
        return advance(agent, state, *rest, **options)

    monkeypatch.setattr(module, "advance", failing)
    with contextlib.closing(CheckpointStore(tmp_path, agent=agent, every=1000)) as store:
        again = restarted(agent, before.membership, ArraySource(*data(0, 80)), store)
    assert again.state.steps == 4 < before.state.steps
    assert [path.name for path in tmp_path.glob("poisoned-*")] == ["poisoned-000000005.bin"]
