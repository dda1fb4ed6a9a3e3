import numpy as np
import pytest

import oracle
from kernelmesh import Agent, Function, Gaussian, Gradient, Graph, Komp, Logistic, Penalty, Squared, simulate
from kernelmesh.metrics import (
    accuracies,
    disagreement,
    edge_disagreements,
    errors,
    losses,
    measure,
    measure_agents,
    projection_gap,
    summarize,
)
from kernelmesh.streams import ArrayStream, Mixture

KERNEL = Gaussian(bandwidth=0.6)


def functions(count=4, outputs=3):
    rng = np.random.default_rng(0)
    return [
        Function.of(KERNEL, rng.standard_normal((m, 2)), rng.standard_normal((m, outputs))) for m in rng.integers(0, 6, count)
    ]


def test_disagreement_counts_both_directions_of_every_edge():
    fs, graph = functions(), Graph.star(4)
    along = edge_disagreements(fs, graph)
    for (i, j), found in zip(graph.edges, along, strict=True):
        literal = oracle.rkhs_distance(KERNEL, fs[i].points, fs[i].weights, fs[j].points, fs[j].weights) ** 2
        assert found == pytest.approx(literal, abs=1e-9)
    assert disagreement(fs, graph) == pytest.approx(2 * along.sum())
    assert disagreement([fs[0]] * 4, graph) == pytest.approx(0, abs=1e-12)


def test_held_out_numbers():
    fs = functions()
    rng = np.random.default_rng(1)
    points, labels = rng.standard_normal((40, 2)), rng.integers(3, size=40)
    for f, loss, accuracy in zip(fs, losses(fs, Logistic(), points, labels), accuracies(fs, points, labels), strict=True):
        assert loss == pytest.approx(Logistic().value(f(points), labels).mean())
        assert accuracy == np.mean(f(points).argmax(axis=1) == labels)
    goal = rng.standard_normal((40, 3))
    assert errors(fs, points, goal)[0] == pytest.approx(np.sqrt(((fs[0](points) - goal) ** 2).mean()))


def run(loss, outputs, targets):
    rng = np.random.default_rng(0)
    agent = Agent(
        dimension=2,
        outputs=outputs,
        kernel=KERNEL,
        loss=loss,
        learner=Gradient(step_size=1.0, regularization=1e-2, compression=Komp(budget=0.1)),
        protocol=Penalty(coupling=0.1),
    )
    points, labels = Mixture.draw(classes=3, rng=rng).sample(400, rng=rng)
    graph = Graph.ring(4)
    streams = [ArrayStream(points[i::4], targets(points, labels)[i::4], batch_size=16) for i in range(4)]
    return agent, graph, list(simulate(agent, graph, streams)), points, targets(points, labels)


def test_measures_of_a_classification_run():
    agent, graph, rounds, points, labels = run(Logistic(), 3, lambda x, y: y)
    for round in rounds:
        gap, bound = projection_gap(round)
        assert 0 <= gap <= bound == pytest.approx(4 * 0.1)
    last = measure(rounds[-1], agent=agent, graph=graph, points=points, targets=labels)
    fs = rounds[-1].functions
    assert last.objective == pytest.approx(losses(fs, Logistic(), points, labels).sum())
    norms = sum(f.norm() ** 2 for f in fs)
    assert last.regularized_objective == pytest.approx(last.objective + 0.5 * 1e-2 * norms)
    assert last.score_worst == accuracies(fs, points, labels).min() > 0.5
    assert last.disagreement == pytest.approx(disagreement(fs, graph))
    assert last.order_max == max(f.order for f in fs)
    assert last.floats_per_sample == pytest.approx(2 * (2 + 3))
    assert last.samples == 100


def test_measures_of_a_regression_run():
    agent, graph, rounds, points, values = run(Squared(), 1, lambda x, y: x[:, 0])
    last = measure(rounds[-1], agent=agent, graph=graph, points=points, targets=values)
    assert last.score_worst == pytest.approx(errors(rounds[-1].functions, points, values).max())
    assert last.score_worst >= last.score_mean


def test_measures_sum_up_what_was_measured_of_each_agent():
    agent, graph, rounds, points, labels = run(Logistic(), 3, lambda x, y: y)
    last = rounds[-1]
    numbers = measure(last, agent=agent, graph=graph, points=points, targets=labels)
    each = measure_agents(last, agent=agent, graph=graph, points=points, targets=labels)
    np.testing.assert_allclose(each.losses, losses(last.functions, Logistic(), points, labels))
    np.testing.assert_array_equal(each.scores, accuracies(last.functions, points, labels))
    assert (numbers.score_mean, numbers.score_worst) == (pytest.approx(each.scores.mean()), each.scores.min())
    assert numbers.disagreement == pytest.approx(2 * each.disagreements.sum())
    assert summarize(last, each, agent=agent) == numbers
    # without faults every byte crosses an edge of the graph
    assert last.edge_bytes.sum() == last.bytes_sent.sum() > 0
    assert last.edge_bytes.shape == (len(graph.edges),)


def test_a_sample_estimates_the_whole_network_and_all_agents_give_the_exact_value():
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(classes=3, rng=rng)
    graph = Graph.ring(40)
    learner = Gradient(step_size=1.0, compression=Komp(budget=0.1))
    agent = Agent(dimension=2, outputs=3, kernel=Gaussian(), loss=Logistic(), learner=learner)
    streams = [ArrayStream(*mixture.sample(64, rng=rng)) for _ in range(40)]
    *_, now = simulate(agent, graph, streams)
    points, labels = mixture.sample(100, rng=rng)
    held_out = {"agent": agent, "graph": graph, "points": points, "targets": labels}
    exact = measure(now, **held_out)
    assert measure(now, **held_out, sample=40) == exact
    assert exact.disagreement == pytest.approx(disagreement(now.functions, graph))
    some = measure(now, **held_out, sample=20)
    assert some == measure(now, **held_out, sample=20)  # the same sample
    assert some != exact
    for name in ("objective", "regularized_objective", "disagreement", "score_mean"):
        assert getattr(some, name) == pytest.approx(getattr(exact, name), rel=0.3)
    assert some.score_worst >= exact.score_worst
    assert (some.bytes_per_sample, some.samples) == (exact.bytes_per_sample, exact.samples)
    with pytest.raises(ValueError, match="measure: sample must be an integer >= 1"):
        measure(now, **held_out, sample=0)
