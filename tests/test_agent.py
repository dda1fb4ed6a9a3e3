import math

import numpy as np
import pytest

from kernelmesh import (
    Agent,
    ArrayStream,
    Constant,
    Diffusion,
    Diverged,
    Doubling,
    Function,
    Gaussian,
    Gradient,
    Graph,
    Hinge,
    Huber,
    InverseTime,
    Komp,
    Local,
    Logistic,
    Penalty,
    Squared,
    SquaredHinge,
    simulate,
)
from kernelmesh.errors import InvalidArgument
from kernelmesh.exchange import Outbox
from kernelmesh.messages import Points, Values
from kernelmesh.protocols import Heard


def make(protocol=None, *, loss=None, outputs=3, kernel=None, **changes):
    """An agent whose learner is `Gradient` with these changes."""
    learner = Gradient(**{"step_size": 1.0, "compression": Komp(budget=0.05), **changes})
    return Agent(
        dimension=2,
        outputs=outputs,
        kernel=kernel or Gaussian(bandwidth=0.6),
        loss=loss or Logistic(),
        learner=learner,
        protocol=protocol or Penalty(coupling=0.1),
    )


def batch(seed=0, rows=16, outputs=3):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((rows, 2))
    return points, (points[:, 0] > 0).astype(int) + (points[:, 1] > 0.5)


def learned(agent, steps=5):
    state = agent.start(name="a")
    for seed in range(steps):
        state, _ = agent.step(state, *batch(seed))
    return state


@pytest.mark.parametrize("loss", [Logistic(), Hinge(), SquaredHinge(), Squared(), Huber(threshold=0.5)], ids=str)
def test_learns(loss):
    agent = make(loss=loss, step_size=0.5, compression=Komp(budget=0.02), protocol=Local())
    state = agent.start()
    for seed in range(60 if loss.classifies else 250):
        points, labels = batch(seed, rows=32)
        state, info = agent.step(state, points, labels if loss.classifies else np.eye(3)[labels])
    points, labels = batch(1000, rows=500)
    assert (agent.predict(state, points).argmax(axis=1) == labels).mean() > 0.9
    assert info.error <= info.budget


def test_a_constant_step_keeps_a_finite_order_over_fifty_thousand_samples():
    agent = make(step_size=3.0, compression=Komp(), protocol=Local())
    state = agent.start()
    rng = np.random.default_rng(0)
    orders = []
    while state.samples < 50_000:
        points = rng.standard_normal((32, 2))
        state, info = agent.step(state, points, (points[:, 0] > 0).astype(int) + (points[:, 1] > 0.5))
        orders.append(info.order)
    assert max(orders) < 60
    assert max(orders[-300:]) <= max(orders[:300]) + 5


def test_the_ball_of_corollary_1_holds():
    agent = make(radius=0.5)
    state = agent.start()
    for seed in range(20):
        state, info = agent.step(state, *batch(seed))
        assert state.function.norm() <= 0.5 * (1 + 1e-9)
    assert info.norm == pytest.approx(0.5)
    free = learned(make(), steps=20)
    assert free.function.norm() > 0.5


def test_diminishing_steps():
    agent = make(step_size=InverseTime(scale=200.0, offset=100.0), compression=Komp())
    state = learned(agent, steps=30)
    _, info = agent.step(state, *batch(31))
    assert info.step_size == pytest.approx(200 / (100 + 480))
    assert info.budget == pytest.approx(0.04 * info.step_size**1.5)


def test_answers_are_the_function_and_labels_never_leave():
    agent = make()
    state = learned(agent)
    points, _ = batch(9)
    outbox = Outbox(agent, state, points)
    assert isinstance(outbox.question, Points)
    assert (outbox.question.points == points).all()
    answer = outbox.reply(outbox.question)
    assert isinstance(answer, Values)
    np.testing.assert_array_equal(answer.values, agent.predict(state, points))
    silent = Outbox(make(protocol=Local()), state, points)
    assert silent.question is silent.reply(None) is None


def test_equal_functions_exert_no_force():
    strong, none = make(protocol=Penalty(coupling=5.0)), make(protocol=Local())
    state = learned(none)
    points, labels = batch(9)
    same = Values(none.predict(state, points))
    pulled, _ = strong.step(state, points, labels, [Heard(same)] * 2)
    free, _ = none.step(state, points, labels)
    np.testing.assert_allclose(pulled.function.points, free.function.points, rtol=0, atol=0)
    np.testing.assert_allclose(pulled.function.weights, free.function.weights, rtol=0, atol=1e-12)


def test_a_neighbor_pulls_toward_itself():
    agent = make(protocol=Penalty(coupling=0.5))
    state = learned(agent)
    points, labels = batch(9)
    there = Values(np.full((16, 3), 4.0))
    alone, _ = agent.step(state, points, labels)
    pulled, info = agent.step(state, points, labels, [Heard(there)])
    assert info.heard == 1
    assert np.abs(agent.predict(pulled, points) - 4).mean() < np.abs(agent.predict(alone, points) - 4).mean()


def test_every_option_changes_something():
    base = learned(make()).function
    for change in (
        {"kernel": Gaussian(bandwidth=0.3)},
        {"loss": Hinge()},
        {"step_size": 0.7},
        {"regularization": 0.1},
        {"compression": Komp(budget=0.5)},
        {"compression": Komp(budget=0.05, max_order=3)},
        {"radius": 0.3},
    ):
        other = learned(make(**change)).function
        same_kernel = Function.of(base.kernel, other.points, other.weights)
        assert base.distance(same_kernel) > 1e-6, change


BAD_BATCHES = {
    "wrong width": (np.zeros((4, 3)), np.zeros(4, int), r"Agent: points must have 2 columns, got shape \(4, 3\)"),
    "a vector": (np.zeros(4), np.zeros(4, int), "Agent: points must have 2 dimensions"),
    "no rows": (np.zeros((0, 2)), np.zeros(0, int), "Agent: points must have at least one row"),
    "nan": (np.array([[0.0, math.nan]]), np.zeros(1, int), "Agent: points must be finite, got nan at row 0, column 1"),
    "text": (np.array([["a", "b"]]), np.zeros(1, int), "Agent: points must contain real numbers"),
    "unknown class": (np.zeros((2, 2)), np.array([0, 3]), r"Agent: y must be class numbers 0\.\.2, got 3"),
    "float class": (np.zeros((1, 2)), np.array([0.5]), "Agent: y must contain integers"),
    "too few labels": (np.zeros((3, 2)), np.zeros(2, int), r"Agent: y must have shape \(3,\)"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_samples_leave_the_state_as_it_was(name):
    points, labels, words = BAD_BATCHES[name]
    agent = make()
    state = learned(agent)
    before = state.function
    with pytest.raises(ValueError, match=words):
        agent.step(state, points, labels)
    assert state.function is before
    after, _ = agent.step(state, *batch(7))
    assert after.samples == state.samples + 16
    expected, _ = agent.step(learned(agent), *batch(7))
    np.testing.assert_array_equal(after.function.weights, expected.function.weights)


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        (Values(np.zeros((4, 3))), r"Agent.step: heard must have values with 3 columns and 16 rows, got shape \(4, 3\)"),
        (Values(np.full((16, 3), math.nan)), "Agent.step: heard values must be finite"),
    ],
)
def test_bad_answers_leave_the_state_as_it_was(heard, words):
    agent = make()
    state = learned(agent)
    with pytest.raises(ValueError, match=words):
        agent.step(state, *batch(7), [Heard(heard)])
    agent.step(state, *batch(7))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": "rbf"}, "Agent: kernel must be a kernel, got 'rbf'"),
        ({"loss": "hinge"}, "Agent: loss must be a loss, got 'hinge'"),
        ({"protocol": "local"}, "Agent: protocol must be a protocol"),
        ({"outputs": 1}, "Agent: outputs must be >= 2 with a classification loss, got 1"),
    ],
)
def test_settings_are_checked(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        make(**changes)


def test_a_step_size_beyond_the_limit_is_named():
    with pytest.raises(InvalidArgument, match=r"Gradient: step_size must be < 1/regularization = 10 at sample 0, got 10\.0"):
        make(step_size=10.0, regularization=0.1)
    with pytest.raises(InvalidArgument, match=r"step_size must be < 1/regularization = 5 at sample 1e\+18, got 8"):
        make(step_size=Doubling(start=1.0, every=16, ceiling=8.0), regularization=0.2)

    def rises_and_falls(samples):
        return 8.0 if samples == 48 else 1.0

    agent = make(step_size=rises_and_falls, regularization=0.2)
    state = learned(agent, steps=3)
    with pytest.raises(InvalidArgument, match="step_size must be < 1/regularization = 5 at sample 48, got 8"):
        agent.step(state, *batch(9))


def test_divergence_names_agent_sample_and_remedy():
    agent = make(loss=Squared(), outputs=1, step_size=2.0, protocol=Penalty(coupling=Constant(50.0)))
    state = agent.start(name="north")
    points = np.random.default_rng(0).standard_normal((16, 2))
    neighbor = Values(np.zeros((16, 1)))
    with pytest.raises(Diverged) as caught:
        for _ in range(100):
            before = state
            state, _ = agent.step(state, points, points[:, :1], [Heard(neighbor)])
            assert np.isfinite(state.function.weights).all()
    text = str(caught.value)
    assert "agent 'north' diverged at sample" in text
    assert "step size 2 and penalty 50" in text
    assert "lower or cap the penalty" in text
    assert caught.value.samples == before.samples == state.samples
    for _ in range(2):  # the state is as it was
        with pytest.raises(Diverged):
            agent.step(state, points, points[:, :1], [Heard(neighbor)])


def test_learning_continues_from_a_given_function():
    agent = make()
    first = learned(agent)
    again = agent.start(name="b", function=first.function)
    points, labels = batch(9)
    a, _ = agent.step(first, points, labels)
    b, _ = agent.step(again, points, labels)
    assert a.function.distance(b.function) < 1e-7
    with pytest.raises(ValueError, match=r"Agent\.start: function must have dimension 2, outputs 3"):
        agent.start(function=Function.zero(Gaussian(bandwidth=0.6), dimension=2, outputs=4))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"outputs": 4}, "dimension 2 and 3 outputs, got dimension 2 and 4"),
        ({"kernel": Gaussian(bandwidth=1.0)}, "kernel Gaussian"),
    ],
)
def test_a_state_of_another_agent_is_refused(other, words):
    with pytest.raises(ValueError, match=rf"Agent\.step: state must have {words}"):
        make().step(make(**other).start(), *batch())


def test_numpy_numbers_are_numbers():
    changes = {"step_size": np.int64(1), "regularization": np.float64(1e-6)}
    agent, other = make(protocol=Penalty(coupling=np.float32(0.5)), **changes), make(protocol=Penalty(coupling=0.5))
    np.testing.assert_array_equal(learned(agent).function.weights, learned(other).function.weights)


def test_targets_that_are_all_zero_are_no_sign_of_divergence():
    """What neighbors make of an agent's points is then infinitely worse than predicting 0, and nothing is wrong with that."""
    agent = make(loss=Squared(), outputs=1, step_size=0.5, protocol=Diffusion())
    rng = np.random.default_rng(0)
    points = [rng.standard_normal((64, 2)) for _ in range(2)]
    streams = [ArrayStream(points[0], np.zeros(64), batch_size=8), ArrayStream(points[1], np.ones(64), batch_size=8)]
    *_, last = simulate(agent, Graph.line(2), streams)
    assert last.samples == (64, 64)


def test_ctrl_c_inside_compiled_code_is_ctrl_c(monkeypatch):
    """Numba makes a SystemError of it, and sometimes another one of that."""
    agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))

    def interrupted(*arguments, **options):
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                raise SystemError("unpickle") from error
        except SystemError as error:
            raise SystemError("choose") from error

    monkeypatch.setattr(Komp, "absorb", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.step(agent.start(), np.array([[0.0]]), np.array([1.0]))
