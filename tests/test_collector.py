"""The garbage collector rests during a round, and a large round leaves it little to do."""

import gc
import weakref

import pytest

from kernelmesh.runtimes import collector
from kernelmesh.runtimes.collector import paused


class Node:
    def __init__(self):
        self.itself = self


@pytest.fixture
def scanned():
    """The generations that the collector has scanned since the test began."""
    seen = []

    def note(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def many():
    return [[] for _ in range(2 * collector._MANY)]


def test_what_a_large_round_has_made_is_not_scanned_when_the_round_ends(scanned, monkeypatch):
    monkeypatch.setattr(collector, "_large_pauses", iter(range(1, 100)))
    with paused():
        made = many()
    assert gc.get_count()[0] < 1000
    assert gc.isenabled()
    assert not scanned
    assert len(made) == 2 * collector._MANY
    assert gc.get_freeze_count() == 0


def test_cycles_are_freed_in_the_end(monkeypatch):
    monkeypatch.setattr(collector, "_large_pauses", iter(range(1, 1000)))
    lost = Node()
    ghost = weakref.ref(lost)
    del lost
    rounds = 0
    while ghost() is not None:
        with paused():
            made = many()
        rounds += 1
        assert rounds <= collector._EVERY
        del made


def test_small_rounds_are_left_to_the_collector(scanned):
    gc.collect()
    with paused():
        made = [[] for _ in range(2000)]
    kept = [[] for _ in range(10)]  # the next allocations are those that it sees
    assert 0 in scanned
    assert len(made) + len(kept) == 2010


def test_objects_that_were_frozen_before_stay_frozen(monkeypatch):
    monkeypatch.setattr(collector, "_large_pauses", iter(range(1, 100)))
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with paused():
            made = many()
        assert gc.get_freeze_count() > 0.5 * frozen
        assert made
    finally:
        gc.unfreeze()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with paused():
            made = many()
        assert not gc.isenabled()
        assert made
    finally:
        gc.enable()
