"""Bad agents in simulation: what they say instead of the truth, and that it is noticed where it could not be sent."""

from dataclasses import replace

import numpy as np
import pytest

from kernelmesh import ArrayStream, Diffusion, Faults, Gradient, Graph, Komp, Landmarks, Mixture, Penalty, Relay, simulate
from kernelmesh.errors import InvalidArgument
from kernelmesh.messages import SentFunction, Values
from kernelmesh.runtimes.attacks import ATTACKS, FarPoints, NotFinite, Replay, Scaled
from kernelmesh.runtimes.faults import Lie
from test_node import make

BAD, FIRST, LAST, ROUNDS = 3, 10, 15, 40
GRAPH = Graph.complete(5)
HONEST = [i for i in range(5) if i != BAD]
MIXTURE = Mixture.draw(classes=3, rng=np.random.default_rng(1))
OPPOSITE, TRUE = Scaled(factor=-1.0), Scaled(factor=1.0)


def name(value):
    return type(value).__name__


def rounds(protocol, attack):
    faults = Faults(byzantine={BAD: [(attack, FIRST, LAST)]}, rng=np.random.default_rng(5))
    streams = [ArrayStream(*MIXTURE.sample(16 * ROUNDS, rng=np.random.default_rng([3, i])), batch_size=16) for i in range(5)]
    agent = make(protocol, learner=Gradient(step_size=3.0, compression=Komp(budget=0.2)))
    return list(simulate(agent, GRAPH, streams, faults=faults))


@pytest.mark.parametrize("protocol", [Penalty(coupling=0.05), Diffusion()], ids=name)
def test_only_the_rounds_of_an_attack_are_changed(protocol):
    for one, other in zip(rounds(protocol, TRUE), rounds(protocol, OPPOSITE), strict=True):
        alike = [np.array_equal(one.functions[i].weights, other.functions[i].weights) for i in HONEST]
        assert all(alike) if one.number < FIRST else not any(alike)


def test_an_attack_does_harm_and_honest_agents_recover():
    calm, lied = rounds(Diffusion(), TRUE), rounds(Diffusion(), OPPOSITE)

    def gap(number):
        return np.mean([lied[number - 1].functions[i].distance(calm[number - 1].functions[i]) for i in HONEST])

    assert gap(LAST) > 0.1 * calm[LAST - 1].functions[0].norm()
    assert gap(ROUNDS) < 0.5 * gap(LAST)


FUNCTION, VALUES = SentFunction(np.zeros((4, 2)), np.ones((4, 3))), Values(np.ones((4, 3)))


@pytest.mark.parametrize("attack", ATTACKS, ids=name)
@pytest.mark.parametrize("message", [FUNCTION, VALUES], ids=name)
def test_every_attack_says_something_of_the_same_kind(attack, message):
    said = Lie(attack, 3, 1, 0).told(message, message, 0, 1)
    assert type(said) is type(message)
    assert [getattr(said, part).shape[1] for part in said.tables] == [getattr(message, part).shape[1] for part in said.tables]


@pytest.mark.parametrize("attack", [Replay(), FarPoints()], ids=name)
def test_attacks_with_points_leave_values_as_they_are(attack):
    assert Lie(attack, 3, 1, 0).told(VALUES, Values(np.zeros((2, 3))), 0, 1) is VALUES


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Values(np.zeros((4, 3))), "return a message of the same type, SentFunction, got Values"),
        (replace(FUNCTION, weights=np.ones((3, 3))), r"distort: weights must have shape \(4, 3\)"),
        (replace(FUNCTION, points=np.ones((4, 1))), r"distort: points must have shape \(4, 2\)"),
    ],
    ids=["type", "rows", "columns"],
)
def test_attacks_must_return_what_could_be_sent(said, reason):
    class Odd(NotFinite):
        def distort(self, message, first, age, rng):
            return said

    with pytest.raises(InvalidArgument, match=reason):
        Lie(Odd(), 3, 1, 0).told(FUNCTION, FUNCTION, 0, 1)


@pytest.mark.parametrize(
    "spans", [[(OPPOSITE, 0, 3)], [(OPPOSITE, 5, 3)], [(Scaled, 1, 3)], [("Scaled", 1, 3)], [(1, 3)], 7], ids=str
)
def test_refuses_spans(spans):
    with pytest.raises(InvalidArgument, match=r"Faults: byzantine\[0\]"):
        Faults(byzantine={0: spans}, rng=np.random.default_rng(0))


def test_refuses():
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidArgument, match="byzantine must be a mapping"):
        Faults(byzantine=[1], rng=rng)
    with pytest.raises(InvalidArgument, match="Faults: rng"):
        Faults(byzantine={0: [(OPPOSITE, 1, 2)]})
    streams = [ArrayStream(*MIXTURE.sample(16, rng=rng)) for _ in range(2)]
    faults = {name: Faults(byzantine={name: [(OPPOSITE, 1, 2)]}, rng=rng) for name in (0, 9)}
    with pytest.raises(InvalidArgument, match="byzantine must name agents"):
        simulate(make(Diffusion()), Graph.line(2), streams, faults=faults[9])
    with pytest.raises(InvalidArgument, match="faults must have no byzantine agents with the protocol Relay, got some"):
        simulate(make(Relay(), learner=Landmarks()), Graph.line(2), streams, faults=faults[0])
