"""Nothing that one message brings can stop an agent: limits before the journal, steps taken back, poison set aside."""

import contextlib
import logging

import numpy as np
import pytest
from msgspec.structs import replace

from kernelmesh import Diffusion, Hilbert, Penalty
from kernelmesh.agent import State
from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import read_question, read_reply
from kernelmesh.messages import Points, SentFunction, Values, encode
from kernelmesh.protocols import Heard
from kernelmesh.runtimes import journal
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.frames import Header
from kernelmesh.runtimes.mailbox import Arrival, Request
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node.attempt import attempt, within, without
from test_node import ArraySource, data, function, kind, make, restarted, run_with, same, saying
from virtual import World, question

LIMIT = Membership.max_points
TELLING = [Diffusion(), Hilbert(coupling=0.02), Diffusion(every=2)]


class TestLimits:
    @pytest.mark.parametrize("protocol", TELLING, ids=kind)
    @pytest.mark.parametrize("order", [LIMIT + 1, 3000, 15_000, 250_000])
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

    def test_functions_are_limited(self):
        agent, words = make(Diffusion()), encode(SentFunction(*function(11)))
        with pytest.raises(RefusedMessage, match="at most 10 points"):
            read_reply(agent, words, rows=None, max_bytes=1 << 20, max_points=10)
        assert len(read_reply(agent, words, rows=None, max_bytes=1 << 20, max_points=11).weights) == 11

    def test_questions_are_limited(self):
        agent, asked = make(Penalty(coupling=0.05)), encode(Points(np.zeros((11, 2))))
        with pytest.raises(RefusedMessage, match="at most 10 points"):
            read_question(agent, asked, max_bytes=1 << 20, max_points=10)
        assert read_question(agent, asked, max_bytes=1 << 20, max_points=11) is not None

    def test_answers_to_a_large_mini_batch_of_ones_own_pass(self):
        values = encode(Values(np.zeros((11, 3))))
        agent = make(Penalty(coupling=0.05))
        assert read_reply(agent, values, rows=11, max_bytes=1 << 20, max_points=10).values.shape == (11, 3)

    def test_a_client_that_asks_for_too_much_is_told_so(self):
        refusals = []
        request = Request("predict", encode(Points(np.zeros(((1 << 17) + 1, 2)))), refusals.append, refusals.append)
        run_with(make(Diffusion()), saying(b""), at=[(0.0, request)])
        assert refusals == ["request: must have at most 131072 points, got 131073"]


class TestWithin:
    """All neighbors together may not add too many points to a step, and each has its turn."""

    def state(self, steps=0, order=0):
        agent = make(Diffusion())
        return State(name="a", model=agent.start().model, steps=steps)

    def heard(self, *orders, seed=0):
        rng = np.random.default_rng(seed)
        return [Heard(SentFunction(rng.normal(size=(n, 2)), np.ones((n, 3))), 0.3, f"n{i}") for i, n in enumerate(orders)]

    def test_what_fits_is_left_alone(self):
        heard = self.heard(5, 5)
        assert within(heard, self.state(), 10) == (heard, [])

    def test_the_rest_waits_and_everybody_has_a_turn(self):
        heard, late = self.heard(6, 6, 6), set()
        for steps in range(3):
            out, names = within(heard, self.state(steps), 12)
            assert len(names) == 1
            assert [said.reply is None for said in out] == [said.neighbor in names for said in out]
            late |= set(names)
        assert late == {"n0", "n1", "n2"}

    def test_points_that_several_have_count_once(self):
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
    def test_exactly_the_offenders_are_left_out(self, bad):
        heard = self.heard()
        trial = attempt(self.take(bad), make(Diffusion()).start(), heard)
        assert set(trial.offenders) == bad
        assert set(trial.result) == {"n0", "n1", "n2", "n3"} - bad
        assert trial.heard == without(heard, bad)

    def test_who_are_only_together_too_much_are_all_left_out(self):
        trial = attempt(self.take(set(), together=3), make(Diffusion()).start(), self.heard())
        assert trial.result == []
        assert len(trial.offenders) == 4

    def test_what_is_nobodys_fault_is_raised(self):
        with pytest.raises(MemoryError):
            attempt(self.take(set(), together=0), make(Diffusion()).start(), self.heard())
        with pytest.raises(MemoryError):
            attempt(self.take(set(), together=0), make(Diffusion()).start(), [])


@pytest.mark.parametrize("error", [MemoryError("no room"), FloatingPointError("nan"), np.linalg.LinAlgError("singular")])
def test_a_step_that_fails_is_taken_without_the_offender(error, tmp_path, caplog, monkeypatch):
    """Whatever the error; the agent that was killed after that resumes in the same state."""
    from kernelmesh.runtimes.node import attempt as module

    agent = make(Diffusion())
    bad = encode(SentFunction(*function(7)))

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


class TestPoisonedJournal:
    MEMBER = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""}, patience=0.05)

    def crashed(self, agent, folder, words):
        """A folder in which an agent has left a journal, as a process does that is killed."""
        store, world = CheckpointStore(folder, agent=agent, every=1000), World()

        def kill(runner, turn):
            if turn.number == 8:
                world.kill(world.newest("a"))

        return run_with(agent, saying(words), store=store, stay=True, world=world, each=kill).node.state

    def start(self, agent, folder, **changes):
        member = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""}, patience=0.05, **changes)
        with contextlib.closing(CheckpointStore(folder, agent=agent, every=1000)) as store:
            return restarted(agent, member, ArraySource(*data(0, 80)), store)

    def test_words_that_are_too_large_now_are_set_aside(self, tmp_path, caplog):
        agent = make(Diffusion())
        before = self.crashed(agent, tmp_path, encode(SentFunction(*function(9))))
        again = self.start(agent, tmp_path, max_points=8)
        assert again.state.samples == before.samples
        aside = sorted(tmp_path.glob("poisoned-*.bin"))
        assert aside
        assert any(len(said.reply.weights) == 9 for record in journal.read(aside[0]) for said in record.entry.heard)
        assert any("set aside" in line for line in caplog.messages)
        caplog.clear()
        third = self.start(agent, tmp_path, max_points=8)
        assert same(third.state.function, again.state.function)
        assert not any("set aside" in line for line in caplog.messages), "a restart must not fail again"

    def test_a_step_that_cannot_be_taken_again_ends_the_replay(self, tmp_path, monkeypatch):
        agent = make(Diffusion())
        before = self.crashed(agent, tmp_path, b"")
        from kernelmesh.runtimes.node import attempt as module

        def failing(agent, state, *rest, advance=module.advance, **options):
            if state.steps == 4:
                raise MemoryError
            return advance(agent, state, *rest, **options)

        monkeypatch.setattr(module, "advance", failing)
        again = self.start(agent, tmp_path)
        assert again.state.steps == 4 < before.steps
        assert [path.name for path in tmp_path.glob("poisoned-*")] == ["poisoned-000000005.bin"]

    def test_a_step_that_kills_processes_is_taken_without_words_and_then_not_at_all(self, tmp_path, monkeypatch):
        agent = make(Diffusion())
        before = self.crashed(agent, tmp_path, encode(SentFunction(*function(3))))

        class Killed(BaseException):
            """As sudden as the end of a process."""

        from kernelmesh.runtimes.node import AskingNode as Node

        def replay(node, entry, *, replay=Node.replay):
            if entry.step == 5 and any(said.reply for said in entry.heard):
                raise Killed
            return replay(node, entry)

        monkeypatch.setattr(Node, "replay", replay)
        for _ in range(3):
            with pytest.raises(Killed):
                self.start(agent, tmp_path)
        again = self.start(agent, tmp_path)
        assert again.state.steps == before.steps
        assert [path.name for path in tmp_path.glob("poisoned-*")] == ["poisoned-000000005.bin"]
        assert not (tmp_path / "replaying").exists()


def test_hostile_questions_are_counted_by_neighbor():
    asked = Arrival("b", question(Header(step=1, share=0.5), encode(SentFunction(*function(9)))))
    asks = [(0.0, asked)] * 3
    run = run_with(make(Diffusion()), saying(b""), at=asks)
    assert run.runner.status(1.0).neighbors["b"].refused == 3
