"""The laws that are shipped: ours hold, and each broken one is named."""

from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace

from kernelmesh import (
    Agent,
    Averaged,
    Diffusion,
    Gaussian,
    Gradient,
    Hinge,
    Huber,
    Landmarks,
    Linear,
    Local,
    Penalty,
    SecondOrder,
    Squared,
    register,
    registry,
)
from kernelmesh.messages import Values
from kernelmesh.numerics.function import Function
from kernelmesh.protocols import ConsensusProtocol
from kernelmesh.testing import check_kernel, check_learner, check_loss, check_protocol


def name(value):
    return type(value).__name__


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A Gaussian with one mistake."""

    gram: object = lambda gram: gram
    diagonal: object = lambda diagonal: diagonal

    def __call__(self, left, right):
        return self.gram(Gaussian()(left, right))

    def diag(self, points):
        return self.diagonal(np.ones(len(points)))


def upset(gram):
    if gram.size:
        gram[0] *= 2
    return gram


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Broken(gram=upset), "must be symmetric, κ(x, z) = κ(z, x), got"),
        (Broken(gram=lambda gram: -gram), "must have a positive semidefinite Gram matrix, got an eigenvalue of -"),
        (Broken(diagonal=lambda diagonal: 2 * diagonal), "must have a diag that agrees with κ(x, x), got 2 and 1 at [0]"),
        (Broken(gram=lambda gram: gram * np.nan), "must be finite"),
        (Broken(gram=lambda gram: gram.astype(np.float32)), "must return float64, got float32"),
        (Broken(gram=lambda gram: gram[:, :1]), "must return a matrix of shape (30, 30) for 30 points, got (30, 1)"),
        (Broken(gram=lambda gram: gram if gram.size > 1 else 2 * gram), "must return the same value for a pair"),
        (Gaussian, "must be an instance that implements the role Kernel, got a class"),
        (np.cos, "must implement the role Kernel, got nothing called diag"),
        (type("Forgetful", (Linear,), {"__eq__": lambda self, other: False})(), "must equal a copy of itself"),
    ],
)
def test_broken_kernels_are_named(kernel, words):
    with pytest.raises(AssertionError) as caught:
        check_kernel(kernel)
    assert words in str(caught.value)
    assert str(caught.value).startswith(repr(kernel))


class WrongSign(Squared):
    def slope(self, z, y):
        return y - z


class Flipped(Squared):
    def value(self, z, y):
        return -super().value(z, y)


class Disagreeing(Hinge):
    def value_and_slope(self, z, y):
        return self.value(z, y) + 1, self.slope(z, y)


class Careless(Squared):
    def check(self, owner, y, *, rows, outputs):
        return np.asarray(y)


class Grabbing(Squared):
    def slope(self, z, y):
        z -= y
        return z


class Concave(Huber):
    def curvature(self, z, y):
        return -super().curvature(z, y)


class Eager(Huber):
    """Steps twice as far as it says."""

    def implicit_step(self, start, covariance, y, *, iterations):
        force, there = super().implicit_step(start, covariance, y, iterations=iterations)
        return force, 2 * there - start


class Uphill(Huber):
    def implicit_step(self, start, covariance, y, *, iterations):
        force = self.slope(start, y) * (1 if not covariance.any() else -5)
        return force, start - covariance @ force


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (Concave(), "must have curvatures that are finite and at least 0"),
        (Eager(), "must step to z = z₀ − T a in implicit_step"),
        (Uphill(), "must lower ℓ(z) + ½ aᵀ T a with implicit_step"),
        (WrongSign(), "must have a slope that is the derivative of its value"),
        (Flipped(), "must be convex"),
        (Disagreeing(), "must return the same values from value_and_slope as from value"),
        (Careless(), "check must reject targets that are not finite, got no error"),
        (Grabbing(), "must"),
        (Gaussian(), "must implement the role Loss, got nothing called check, classifies, slope, value, value_and_slope"),
    ],
)
def test_broken_losses_are_named(loss, words):
    with pytest.raises(AssertionError) as caught:
        check_loss(loss)
    assert words in str(caught.value)


class Talkative(Diffusion):
    reply = Values


class Jealous(Diffusion):
    """The first neighbor that is heard counts twice."""

    def move(self, inputs, heard):
        first = [replace(said, weight=2 * said.weight) for said in heard[:1]]
        return super().move(inputs, [*first, *heard[1:]])


class Restless(Penalty):
    """Pulls even where nobody disagrees."""

    def move(self, inputs, heard):
        update = super().move(inputs, heard)
        update.coefficients[:] *= 1.0 + len(heard)
        return update


@dataclass(frozen=True, kw_only=True)
class Demanding(Local):
    rate: float


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (Talkative(), "must reply with Values, as it declares, got SentFunction"),
        (Jealous(), "must not depend on the order in which neighbors are heard"),
        (Restless(coupling=0.1), "must not move equal agents, got functions"),
        (Demanding(rate=0.5), "must define tuned if settings have no default, got"),
        (Squared(), "must implement the role ConsensusProtocol"),
    ],
)
def test_broken_protocols_are_named(protocol, words):
    with pytest.raises(AssertionError) as caught:
        check_protocol(protocol)
    assert words in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Rounding(Local):
    """Settings that do not survive a file."""

    rate: float = 0.5

    def __post_init__(self):
        object.__setattr__(self, "rate", self.rate + 1.0)


def test_settings_that_change_on_the_way_through_a_file_are_named(monkeypatch):
    check_protocol(Rounding())  # nobody has registered it: it cannot be saved, which is no mistake
    monkeypatch.setitem(registry._known, "protocol", registry.kinds("protocol"))
    register("protocol", Rounding)
    with pytest.raises(AssertionError, match="must equal itself after describe and restore"):
        check_protocol(Rounding())


def test_a_protocol_needs_only_move():
    class Alone(ConsensusProtocol):
        def move(self, inputs, heard):
            return Local().move(inputs, heard)

    check_protocol(Alone())


@pytest.mark.parametrize(
    "learner", [Gradient(step_size=0.5), Averaged(step_size=3.0), SecondOrder(max_order=9), Landmarks()], ids=name
)
def test_our_learners_obey(learner):
    check_learner(learner)


def test_a_learner_is_checked_with_the_agent_that_is_given():
    gradient = Gradient(step_size=0.4)
    agent = Agent(dimension=1, outputs=2, kernel=Gaussian(), loss=Squared(), learner=gradient)
    check_learner(gradient, agent=agent, rng=np.random.default_rng(1))
    check_learner(SecondOrder(), agent=Agent(dimension=3, outputs=1, kernel=Gaussian(), loss=Huber(), learner=SecondOrder()))


class Idle(Gradient):
    def learn(self, model, inputs, move):
        after, report = super().learn(model, inputs, move)
        return after.scaled(0.0), report


class Exploding(Gradient):
    def shown(self, model):
        f = model.function
        return Function(f.kernel, f.points, f.weights * np.inf)


class Moody(Gradient):
    """Learns something else every time."""

    rng = np.random.default_rng(0)

    def learn(self, model, inputs, move):
        update = move(inputs)
        update.coefficients[:] *= self.rng.random()
        return self.compression.absorb(model, update, budget=self.budget_at(inputs.samples))


class Unpacked(SecondOrder):
    """Does not keep in a file what it knows of its weights."""

    def unpack(self, model, arrays):
        return model


class Untidy(Gradient):
    def learn(self, model, inputs, move):
        after = super().learn(model, inputs, move)
        inputs.points[:] += 1.0
        return after


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        (Idle(step_size=0.5), "must learn: less loss on new samples than predicting 0, got"),
        (Exploding(step_size=0.5), "must show a function that is finite"),
        (Moody(step_size=0.5), "must learn the same function from the same samples, got"),
        (Unpacked(), "must resume from a file as from the stored state"),
        (Untidy(step_size=0.5), "must"),
        (SecondOrder, "must be an instance that implements the role Learner, got a class"),
        (Squared(), "must implement the role Learner, got nothing called absorb"),
    ],
)
def test_broken_learners_are_named(learner, words):
    with pytest.raises(AssertionError) as caught:
        check_learner(learner)
    assert words in str(caught.value)
