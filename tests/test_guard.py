"""Offenders are ignored for a growing while, nobody else is, and no flood fills the memory or the log."""

import logging

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kernelmesh.errors import RefusedMessage
from kernelmesh.runtimes.guard import Guard

PAUSES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0, 300.0]


def offend(guard, *, times=4, name="south", token=7, now=0.0):
    for _ in range(times):
        guard.offend(name, token, RefusedMessage("message: must be one of format 4"), now=now)


def pause(guard, now, name="south", token=7):
    """For how long a sender is ignored from now on, to a quarter of a second."""
    return next(wait for wait in np.arange(0.0, 1000.0, 0.25) if not guard.ignores(name, token, now=now + wait))


@given(st.floats(0.0, 1e6), st.integers(0, 5))
def test_each_pause_is_twice_the_one_before_up_to_five_minutes(start, idle):
    guard, now = Guard(), start
    offend(guard, times=3, now=now)
    for expected in PAUSES:
        offend(guard, times=1, now=now)
        assert guard.ignores("south", 7, now=now)
        assert guard.ignores("south", 7, now=now + 0.99 * expected)
        assert not guard.ignores("south", 7, now=now + 1.01 * expected)
        now += 1.01 * expected + idle


@given(st.lists(st.floats(0.0, 0.999), max_size=30))
def test_offenses_while_ignored_are_counted_and_do_not_prolong_it(times):
    guard = Guard()
    offend(guard)
    for now in sorted(times):
        offend(guard, times=1, now=now)
    assert not guard.ignores("south", 7, now=1.0)
    assert guard.refused["south"] == 4 + len(times)


def test_valid_messages_make_up_for_invalid_ones():
    guard = Guard()
    for _ in range(100):
        offend(guard, times=3)
        for _ in range(3):
            guard.accept("south", 7)
    assert not guard.ignores("south", 7, now=0.0)
    assert guard.total == 300
    offend(guard, times=3)
    guard.accept("south", 8)
    offend(guard, times=1)
    assert guard.ignores("south", 7, now=0.0)


NAMES = st.sampled_from(["north", "south", "east"])


@given(st.lists(st.tuples(NAMES, st.integers(0, 3), st.floats(0.0, 20.0)), max_size=60), NAMES, st.integers(0, 3))
def test_nobody_else_can_get_a_sender_ignored(offences, name, token):
    """Whether a sender is ignored depends on its own offences alone."""
    guard, alone = Guard(), Guard()
    for other, other_token, now in sorted(offences, key=lambda offence: offence[2]):
        guard.offend(other, other_token, RefusedMessage("some reason"), now=now)
        if (other, other_token) == (name, token):
            alone.offend(name, token, RefusedMessage("some reason"), now=now)
        assert guard.ignores(name, token, now=now) == alone.ignores(name, token, now=now)
    for now in np.arange(20.0, 400.0, 1.0):
        assert guard.ignores(name, token, now=now) == alone.ignores(name, token, now=now)
    assert guard.total == len(offences)


@pytest.mark.parametrize("made_up", ["names", "tokens", "both", "reasons"])
def test_a_flood_of_made_up_senders_takes_no_more_memory_than_a_few(made_up, caplog):
    guard, rng, flood = Guard(), np.random.default_rng(0), 100_000
    offend(guard, name="honest-once", times=3)
    with caplog.at_level(logging.WARNING, "kernelmesh.agent"):
        for number in rng.integers(0, 2**62, flood).tolist():
            name = f"{number:x}" * 8 if made_up in ("names", "both") else "south"
            token = number if made_up in ("tokens", "both") else 7
            reason = f"reason {number}" if made_up == "reasons" else "reason"
            guard.offend(name, token, reason, now=0.0)
    assert guard.total == flood + 3
    assert sum(len(held) for held in vars(guard).values() if hasattr(held, "__len__")) < 1000
    assert max(len(name) for name in guard.refused) <= 64
    assert len(caplog.records) <= 200


def test_each_kind_is_logged_once_for_each_sender(caplog):
    guard = Guard()
    with caplog.at_level(logging.WARNING, "kernelmesh.agent"):
        for number in range(3):
            for name in ("north", "south"):
                for kind in ("frame: must be at most 53 bytes", "message: must be one of format 4"):
                    guard.offend(name, number, RefusedMessage(kind, number), now=0.0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told)) == 4
    assert sum("north" in line for line in told) == 2


def test_each_length_of_a_pause_is_logged_once(caplog):
    guard, now = Guard(), 0.0
    offend(guard, times=3)
    with caplog.at_level(logging.WARNING, "kernelmesh.agent"):
        for expected in PAUSES:
            offend(guard, times=3, now=now)
            now += expected
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("ignoring")]
    assert [line.split(" for ")[1].split(" s ")[0] for line in told] == [f"{wait:.0f}" for wait in PAUSES[:-2]]
    assert pause(guard, now - PAUSES[-1]) == 300.0


def test_a_long_name_is_ignored_like_any_other():
    guard, name = Guard(), "n" * 100
    offend(guard, name=name)
    assert guard.ignores(name, 7, now=0.5)
