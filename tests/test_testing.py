"""The laws that are shipped: ours hold, and each broken one is named."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from kernelmesh import Diffusion, Gaussian, Hinge, Linear, Local, Penalty, Squared, register, registry
from kernelmesh.consensus import Consensus, Exchange
from kernelmesh.messages import Function, Points, Values
from kernelmesh.testing import check_consensus, check_kernel, check_loss


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
        (Broken(gram=lambda gram: gram.astype(np.float32)), "must give float64, got float32"),
        (Broken(gram=lambda gram: gram[:, :1]), "must give a matrix of shape (30, 30) for 30 points, got (30, 1)"),
        (Broken(gram=lambda gram: gram if gram.size > 1 else 2 * gram), "must give the same for a pair as for a block"),
        (Gaussian, "must be an instance that plays the role Kernel, got a class"),
        (np.cos, "must play the role Kernel, got nothing called diag"),
    ],
)
def test_broken_kernels_are_named(kernel, words):
    with pytest.raises(AssertionError) as caught:
        check_kernel(kernel)
    assert words in str(caught.value)
    assert str(caught.value).startswith(repr(kernel))


class Forgetful(Linear):
    """Two of these are never equal."""

    def __eq__(self, other):
        return False

    __hash__ = Linear.__hash__


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


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (WrongSign(), "must have a slope that is the derivative of its value"),
        (Flipped(), "must be convex"),
        (Disagreeing(), "must give the same values with value_and_slope as with value"),
        (Careless(), "check must refuse targets that are not finite, got no error"),
        (Grabbing(), "must"),
        (Gaussian(), "must play the role Loss, got nothing called check, classifies, slope, value, value_and_slope"),
    ],
)
def test_broken_losses_are_named(loss, words):
    with pytest.raises(AssertionError) as caught:
        check_loss(loss)
    assert words in str(caught.value)


def test_a_kernel_that_does_not_equal_a_copy_of_itself_is_named():
    with pytest.raises(AssertionError, match="must equal a copy of itself"):
        check_kernel(Forgetful())


class Silent(Local):
    """Declares points for values, but asks with something else."""

    exchange: ClassVar[Exchange] = Exchange(question=Points, replies=(Values,))

    def ask(self, function, points):
        return Values(points)


class Talkative(Diffusion):
    exchange: ClassVar[Exchange] = Exchange(replies=(Values,))


class Jealous(Diffusion):
    """The first neighbor that is heard counts twice."""

    def move(self, inputs, heard, edges):
        first = [said._replace(weight=2 * said.weight) for said in heard[:1]]
        return super().move(inputs, [*first, *heard[1:]], edges)


class Restless(Penalty):
    """Pulls even where nobody disagrees."""

    def move(self, inputs, heard, edges):
        update = super().move(inputs, heard, edges)
        update.coefficients[:] *= 1.0 + len(heard)
        return update


@dataclass(frozen=True, kw_only=True)
class Demanding(Local):
    rate: float


class Garbled(Diffusion):
    def tell(self, function, edge, share, there=None):
        return Function(function.centers, function.weights * np.nan)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (Talkative(), "must say Values, as its exchange declares, got Function"),
        (Jealous(), "must not depend on the order in which neighbors are heard"),
        (Restless(coupling=0.1), "must not pull equal agents, got functions"),
        (Demanding(rate=0.5), "must define tuned where settings have no default, got"),
        (Squared(), "must play the role Consensus"),
    ],
)
def test_broken_protocols_are_named(protocol, words):
    with pytest.raises(AssertionError) as caught:
        check_consensus(protocol)
    assert words in str(caught.value)


@pytest.mark.parametrize("protocol", [Silent(), Garbled()])
def test_protocols_that_send_nonsense_do_not_pass(protocol):
    with pytest.raises((AssertionError, ArithmeticError, AttributeError, ValueError)):
        check_consensus(protocol)


@dataclass(frozen=True, kw_only=True)
class Rounding(Local):
    """Settings that do not survive a file."""

    rate: float = 0.5

    def __post_init__(self):
        object.__setattr__(self, "rate", self.rate + 1.0)


def test_settings_that_change_on_the_way_through_a_file_are_named(monkeypatch):
    check_consensus(Rounding())  # nobody has registered it: it cannot be saved, which is no mistake
    monkeypatch.setitem(registry._known, "consensus", registry.kinds("consensus"))
    register("consensus", Rounding)
    with pytest.raises(AssertionError, match="must equal itself after describe and restore"):
        check_consensus(Rounding())


def test_the_role_needs_only_move_and_an_exchange():
    class Alone(Consensus):
        def move(self, inputs, heard, edges):
            return Local().move(inputs, heard, edges)

    check_consensus(Alone())
