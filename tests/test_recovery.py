"""An agent that finds its own function absurd goes back to its last good checkpoint, says so, and goes on."""

import contextlib
import dataclasses
import errno
import logging

import numpy as np
import pytest

from kernelmesh import Diffusion, Diverged, Penalty, storage
from kernelmesh.deploy.watching import _status_remarks
from kernelmesh.numerics.function import Function
from kernelmesh.runtimes.checkpoints import CheckpointStore
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.node import attempt as module
from test_node import ArraySource, data, kind, make, restarted, same, silent
from virtual import World

MEMBER = Membership(name="a", listen="tcp/127.0.0.1:1", neighbors={"b": ""})


def poisoned(runner, scale):
    """Give the agent a function that is no good, whoever may have brought it there."""
    state, agent = runner.state, runner.agent
    points, _ = data(5, 30)
    weights = scale * np.random.default_rng(0).normal(size=(30, 3))
    bad = agent.start(name="a", function=Function.of(agent.kernel, points, weights))
    runner.node.recover(dataclasses.replace(state, model=bad.model, shown=bad.shown and bad.function), 0.0)


def accuracy(state):
    points, labels = data(99, 2000)
    return float((state.function(points).argmax(axis=1) == labels).mean())


def run(agent, folder, *, scale=None, at=90, rows=2400, every=25):
    """An agent with a silent neighbor, poisoned after so many steps."""
    world = World()
    world.puppet("b", ["a"], silent)
    store = CheckpointStore(folder, agent=agent, every=every)

    def poison(runner, turn):
        if turn.number == at and scale is not None:
            poisoned(runner, scale)

    runner = world.add(agent, MEMBER, ArraySource(*data(0, rows)), store=store, each=poison, stay=False)
    world.run(seconds=60.0)
    return runner


@pytest.mark.parametrize("protocol", [Penalty(coupling=0.05), Diffusion()], ids=kind)
@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_a_diverged_agent_returns_to_a_checkpoint(protocol, scale, tmp_path, caplog):
    """1e3: its loss is far above that of predicting nothing; 1e30: no step can be taken at all."""
    agent = make(protocol, explosion=1e6)
    calm = run(agent, tmp_path / "calm")
    with caplog.at_level(logging.WARNING, "kernelmesh.agent"):
        runner = run(agent, tmp_path / "poisoned", scale=scale)
    status = runner.status(1.0)
    assert (status.recoveries, status.samples, status.steps) == (1, 2400, calm.status(1.0).steps)
    assert accuracy(runner.state) >= accuracy(calm.state) - 0.02
    assert any("going back to the checkpoint of step 75" in line for line in caplog.messages)
    assert "went back" in " ".join(_status_remarks(status, stale=False))


def test_without_a_good_checkpoint_it_starts_from_scratch_and_its_own_restart_is_good(tmp_path, caplog):
    agent = make(Diffusion(), explosion=1e6)
    runner = run(agent, tmp_path, scale=1e3, at=10)
    assert any("starting from scratch" in line for line in caplog.messages)
    assert accuracy(runner.state) > 0.8
    with contextlib.closing(CheckpointStore(tmp_path, agent=agent, every=25)) as store:
        again = restarted(agent, MEMBER, ArraySource(*data(0, 2400)), store).state
    assert again.samples == 2400
    assert same(again.function, runner.state.function)


def test_with_unstable_settings_it_ends_after_a_few_attempts(tmp_path, caplog, monkeypatch):
    def failing(agent, state, *rest, advance=module.advance, **options):
        if state.steps >= 40:
            raise Diverged(agent="a", samples=state.samples, step_size=1.0, penalty=0.0, reason="the settings are wrong")
        return advance(agent, state, *rest, **options)

    monkeypatch.setattr(module, "advance", failing)
    with pytest.raises(Diverged, match="the settings are wrong"):
        run(make(Diffusion()), tmp_path)
    told = [line for line in caplog.messages if "absurd" in line]
    assert ["checkpoint of step 25" in line for line in told] == [True, False, False]


def test_a_change_of_the_stream_is_no_divergence(tmp_path):
    """A stream that changes from one moment to the next raises the loss, but not that far."""
    agent, world = make(Diffusion()), World()
    world.puppet("b", ["a"], silent)
    points, labels = data(0, 1600)
    labels = np.concatenate([labels[:800], (labels[800:] + 1) % 3])
    runner = world.add(agent, MEMBER, ArraySource(points, labels), store=CheckpointStore(tmp_path, agent=agent), stay=False)
    world.run(seconds=60.0)
    assert runner.status(1.0).recoveries == 0


def test_an_agent_learns_on_while_checkpoints_cannot_be_written(tmp_path, monkeypatch, caplog):
    agent, world, trouble, write = make(Diffusion()), World(), [], storage.write

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    world.puppet("b", ["a"], silent)
    store = CheckpointStore(tmp_path, agent=agent, every=10)
    runner = world.add(agent, MEMBER, ArraySource(*data(0, 800), world=world, seconds=0.2), store=store)
    world.at(3.0, lambda: monkeypatch.setattr(storage, "write", full))
    world.at(8.0, lambda: trouble.append(runner.status().trouble))
    world.at(8.0, lambda: monkeypatch.setattr(storage, "write", write))
    world.run(seconds=30.0)
    assert "No space left on device" in trouble[0]
    assert (runner.status().trouble, runner.state.samples) == ("", 800)
    assert sum("checkpoints" in line for line in caplog.messages) == 2  # at the beginning and at the end of it
