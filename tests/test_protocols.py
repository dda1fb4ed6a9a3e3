"""Laws that every protocol obeys, and what sets each of them apart."""

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    Diffusion,
    Diverged,
    Doubling,
    Function,
    Gaussian,
    Gradient,
    Graph,
    Hilbert,
    InverseTime,
    Komp,
    Local,
    Logistic,
    Penalty,
    Squared,
    Uncompressed,
    UnstablePenalty,
    simulate,
)
from kernelmesh.agent import listen
from kernelmesh.exchange import Outbox
from kernelmesh.messages import SentFunction, Values, decode, encode
from kernelmesh.metrics import accuracies, disagreement
from kernelmesh.protocols import Heard
from kernelmesh.streams import ArrayStream, Mixture

PROTOCOLS = [Local(), Penalty(coupling=0.05), Penalty(coupling=2.0, implicit=True), Hilbert(coupling=0.02), Diffusion()]
KERNEL = Gaussian(bandwidth=0.6)


def make(protocol, *, loss=None, outputs=3, **changes):
    learner = Gradient(**{"step_size": 2.0, "compression": Komp(budget=0.05), **changes})
    return Agent(dimension=2, outputs=outputs, kernel=KERNEL, loss=loss or Logistic(), learner=learner, protocol=protocol)


def data(seed, rows, classes=3):
    rng = np.random.default_rng(seed)
    return Mixture.draw(classes=classes, rng=np.random.default_rng(7)).sample(rows, rng=rng)


class Indifferent(Squared):
    """A loss that pulls nowhere: what moves then is protocol alone."""

    def slope(self, z, y):
        return np.zeros_like(z)


def total(functions):
    """The sum of all functions, as one expansion."""
    return Function.of(KERNEL, np.concatenate([f.points for f in functions]), np.concatenate([f.weights for f in functions]))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
class TestLaws:
    def test_one_agent_alone_learns_as_if_there_were_no_protocol(self, protocol):
        points, labels = data(0, 160)
        *_, alone = simulate(make(Local()), Graph.line(1), [ArrayStream(points, labels)])
        *_, last = simulate(make(protocol), Graph.line(1), [ArrayStream(points, labels)])
        sent = last.states[0].model.function  # what a protocol shows may be one mini-batch behind what it has learned
        assert sent.distance(alone.functions[0]) < 1e-6 * alone.functions[0].norm()

    def test_agents_that_are_equal_stay_equal(self, protocol):
        points, labels = data(0, 96)
        streams = [ArrayStream(points, labels) for _ in range(4)]
        *_, alone = simulate(make(Local(), compression=Uncompressed()), Graph.line(1), streams[:1])
        *_, last = simulate(make(protocol, compression=Uncompressed()), Graph.complete(4), streams)
        assert disagreement(last.functions, Graph.complete(4)) < 1e-6
        sent = last.states[0].model.function
        assert sent.distance(alone.functions[0]) < 1e-5 * alone.functions[0].norm()

    def test_a_network_learns(self, protocol):
        graph = Graph.ring(5)
        streams = [ArrayStream(*data(i, 640)) for i in range(5)]
        *_, last = simulate(make(protocol), graph, streams)
        assert accuracies(last.functions, *data(99, 500)).min() > 0.8

    def test_every_message_survives_the_wire(self, protocol):
        agent = make(protocol)
        *_, last = simulate(agent, Graph.ring(3), [ArrayStream(*data(i, 96)) for i in range(3)])
        asking, answering = (Outbox(agent, last.states[i], data(5 + i, 8)[0]) for i in range(2))
        for message in (asking.question, answering.reply(asking.question)):
            if message is not None:
                arrived = decode(encode(message))
                assert type(arrived) is type(message)
                for name in (*message.inputs, *message.outputs):
                    np.testing.assert_array_equal(getattr(arrived, name), getattr(message, name))


@pytest.mark.parametrize("protocol", [Hilbert(coupling=0.02), Diffusion()], ids=str)
def test_no_function_is_sent_to_an_agent_whose_stream_has_ended(protocol):
    graph = Graph.line(3)
    streams = [ArrayStream(*data(i, rows)) for i, rows in enumerate((160, 64, 160))]
    rounds = list(simulate(make(protocol), graph, streams))
    sent = np.diff([round.bytes_sent for round in rounds], axis=0, prepend=0)
    assert (sent[:2] > 0).all()
    # from the third round on the outer two could only send to the one in the middle; that one still speaks
    assert (sent[2:, [0, 2]] == 0).all()
    assert (sent[2:, 1] > 0).all()
    assert rounds[-1].samples == (160, 64, 160)


def test_averaging_conserves_the_sum_of_all_functions():
    rng = np.random.default_rng(0)
    graph = Graph.star(4)
    agent = make(Diffusion(), loss=Indifferent(), regularization=0.0, compression=Uncompressed())
    starts = [Function.of(KERNEL, rng.standard_normal((5, 2)), rng.standard_normal((5, 3))) for _ in range(4)]
    states = [agent.start(name=name, function=f) for name, f in zip(graph.names, starts, strict=True)]
    streams = [ArrayStream(rng.standard_normal((24, 2)), np.zeros((24, 3)), batch_size=8) for _ in range(4)]
    before = disagreement(starts, graph)
    for round in simulate(agent, graph, streams, states=states):
        assert total(round.functions).distance(total(starts)) < 1e-6 * total(starts).norm()
        now = disagreement(round.functions, graph)
        assert now <= before * (1 + 1e-9)
        before = now


@pytest.mark.parametrize("protocol", [Penalty(coupling=1e6, implicit=True), Diffusion()], ids=str)
def test_stable_where_the_printed_update_diverges(protocol):
    graph = Graph.complete(5)
    streams = [ArrayStream(*data(i, 960)) for i in range(5)]
    with pytest.warns(UnstablePenalty), pytest.raises(Diverged):
        list(simulate(make(Penalty(coupling=20.0)), graph, streams))
    *_, local = simulate(make(Local()), graph, streams)
    *_, last = simulate(make(protocol), graph, streams)
    assert disagreement(last.functions, graph) < 0.2 * disagreement(local.functions, graph)
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


def test_the_printed_schedule_is_stable_when_solved_implicitly():
    streams = [ArrayStream(*data(i, 3200)) for i in range(5)]
    schedule = Doubling(start=0.01, every=200)
    *_, last = simulate(make(Penalty(coupling=schedule, implicit=True), step_size=3.0), Graph.complete(5), streams)
    assert last.infos[0].penalty > 300
    assert accuracies(last.functions, *data(99, 500)).min() > 0.8


def test_the_implicit_step_is_the_explicit_one_to_first_order():
    agent = make(Local())
    state = agent.start()
    for seed in range(4):
        state, _ = agent.step(state, *data(seed, 16))
    points, labels = data(9, 16)
    heard = [Heard(Values(np.random.default_rng(i).standard_normal((16, 3)))) for i in range(3)]

    def gap(coupling):
        after = [
            make(Penalty(coupling=coupling, implicit=implicit), compression=Uncompressed()).step(
                state, points, labels, heard
            )[0]
            for implicit in (False, True)
        ]
        return np.abs(agent.predict(after[0], points) - agent.predict(after[1], points)).max()

    # the difference is of second order: a tenth of the coupling leaves a tenth of it or so (the loss sees the moved value)
    assert gap(0.0) == 0
    assert gap(1e-4) < 0.2 * gap(1e-3) < 0.04 * gap(1e-2)


@pytest.mark.parametrize("kind", [Penalty, Hilbert])
@pytest.mark.parametrize(
    "graph", [Graph.ring(6), Graph.star(6), Graph.complete(5), Graph.line(2)], ids=["ring", "star", "complete", "pair"]
)
class TestStability:
    """The bound of docs/consensus.md, ηcμτ < 2: tight from both sides."""

    def setting(self, kind, graph, share):
        rng = np.random.default_rng(0)
        bound = kind(coupling=1.0).max_stable_penalty(
            KERNEL, [data(i, 32)[0] for i in range(len(graph))], 2.0, graph.stiffness
        )
        agent = make(kind(coupling=share * bound))
        return agent, [ArrayStream(*data(i, 3200), rng=rng) for i in range(len(graph))]

    def test_below_the_bound_the_network_learns_without_a_warning(self, kind, graph):
        agent, streams = self.setting(kind, graph, 0.9)
        *_, last = simulate(agent, graph, streams)
        assert accuracies(last.functions, *data(99, 500)).min() > 0.8

    def test_above_it_there_is_a_warning_and_the_run_diverges(self, kind, graph):
        agent, streams = self.setting(kind, graph, 1.8)
        rounds = simulate(agent, graph, streams)
        with pytest.warns(UnstablePenalty, match=f"{kind.__name__}: with step size 2 in this network the penalty must"):
            next(rounds)
        with pytest.raises(Diverged):
            list(rounds)


def test_the_warning_looks_ahead_at_schedules_and_step_sizes():
    graph = Graph.ring(4)
    streams = [ArrayStream(*data(i, 1600)) for i in range(4)]
    rising = Penalty(coupling=Doubling(start=0.01, every=100))
    with pytest.warns(UnstablePenalty, match=r"it reaches [\d.]+ after [1-9]\d+ samples; .*Doubling has a ceiling"):
        next(simulate(make(rising), graph, streams))
    next(simulate(make(rising), graph, [ArrayStream(*data(i, 300)) for i in range(4)]))  # too short to get there
    next(simulate(make(Penalty(coupling=Doubling(start=0.01, every=100, ceiling=0.3))), graph, streams))
    next(simulate(make(rising, step_size=InverseTime(scale=2.0, offset=1.0)), graph, streams))
    next(simulate(make(Penalty(coupling=1e6, implicit=True)), graph, streams))


def test_an_agent_without_samples_goes_where_diffusion_would_take_it():
    """Relaying is diffusion without a loss: g = a_ii f + Σ_j a_ij f_j."""
    rng = np.random.default_rng(0)
    agent = make(Diffusion(), compression=Uncompressed())
    f, g = (Function.of(KERNEL, rng.standard_normal((5, 2)), rng.standard_normal((5, 3))) for _ in range(2))
    after = listen(agent, agent.start(function=f), [Heard(SentFunction(g.points, g.weights), 0.25), Heard(None, 0.5)])
    points = data(0, 20)[0]
    np.testing.assert_allclose(after.function(points), 0.75 * f(points) + 0.25 * g(points), atol=1e-12)
    assert (after.samples, after.steps) == (0, 1)


def test_invalid_settings_are_named():
    with pytest.raises(ValueError, match="Penalty: coupling must be a number >= 0 or a schedule, got -1"):
        Penalty(coupling=-1)
    with pytest.raises(ValueError, match="Penalty: implicit must be True or False, got 1"):
        Penalty(coupling=1.0, implicit=1)
