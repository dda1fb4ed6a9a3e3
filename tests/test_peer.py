"""The table of a neighbor's states: nothing else can happen, everything in it does, and nobody is lost in it."""

import itertools

import pytest

from kernelmesh import Diffusion, Graph, Landmarks, Penalty, Relay
from kernelmesh.runtimes.name_list import NameList
from kernelmesh.runtimes.node.peer import TRANSITIONS, Event, IllegalTransition, Peer, PeerState
from test_node import ArraySource, data, make, memberships, run_with, saying
from virtual import World


def reachable(start):
    found, new = set(), {start}
    while new:
        found |= new
        new = {after for state in new for after in TRANSITIONS[state].values()} - found
    return found


def test_every_state_is_reached_and_none_is_a_dead_end():
    assert TRANSITIONS.keys() == set(PeerState)
    assert all(reachable(state) == set(PeerState) for state in PeerState)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PeerState, Event)))
def test_what_is_not_in_the_table_cannot_happen(state, event):
    peer = Peer("b", state)
    if event in TRANSITIONS[state]:
        peer.on(event)
        assert peer.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(IllegalTransition, match=f"b: {event.name} cannot happen in the state {state.name}"):
            peer.on(event)
        assert peer.state is state


def test_everything_in_the_table_happens(tmp_path, monkeypatch):
    seen, on = set(), Peer.on

    def watched(peer, event):
        seen.add((peer.state, event))
        on(peer, event)

    monkeypatch.setattr(Peer, "on", watched)
    learner = {"learner": Landmarks(max_order=20)}
    agents = [make(Diffusion()), make(Penalty(coupling=0.05)), make(Relay(every=2), **learner)]
    for number, (agent, lock_step) in enumerate(itertools.product(agents, (False, True))):
        world, path = World(seed=number, loss=0.1, absence=0.2, delay=0.3, garbage=0.1), tmp_path / f"{number}.txt"
        for i, member in enumerate(memberships(Graph.ring(3), lock_step=lock_step, patience=0.05)):
            world.add(agent, member, ArraySource(*data(i, 400)), quarantine=NameList(path))
        for second in range(2, 20):
            names = "agent-0\nagent-2\n" if second % 4 == 2 else ""
            world.at(float(second), lambda path=path, names=names: path.write_text(names))
        world.run(seconds=20.0)
    run_with(agents[0], saying(b"noise"))
    anytime = {Event.LISTENS, Event.GONE, Event.QUARANTINED}  # which do not depend on what agents do
    expected = {(state, event) for state in PeerState for event in TRANSITIONS[state] if event not in anytime}
    assert {f"{state.name} {event.name}" for state, event in expected - seen} == set()
    assert anytime <= {event for _, event in seen}
