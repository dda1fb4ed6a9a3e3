"""Differences instead of functions: what arrives is what was sent, whatever is lost on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh.links import Link
from kernelmesh.messages import Difference, Function, Offer, OfferDifference, Points, Refused, decode, encode, weigh


def same(left, right):
    assert type(left) is type(right)
    for name in left.names:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    for name in left.scalars:
        assert getattr(left, name) == getattr(right, name)


def altered(rng, centres):
    """The centres after a step: some leave, some are replaced, some are new, in an order of their own."""
    kept = centres[rng.random(len(centres)) < 0.9]
    fresh = rng.standard_normal((rng.integers(0, 3), centres.shape[1]))
    out = np.concatenate([kept, fresh])
    return rng.permutation(out) if rng.random() < 0.2 else out


@given(seed=st.integers(0, 2**32 - 1), loss=st.sampled_from([0.0, 0.3, 0.8]), offers=st.booleans(), wire=st.booleans())
def test_what_arrives_is_what_was_sent_whatever_is_lost(seed, loss, offers, wire):
    rng = np.random.default_rng(seed)
    ends = [Link(), Link()]
    centres = [rng.standard_normal((6, 3)) for _ in ends]
    for number in range(25):
        said = []
        for i in range(2):
            centres[i] = altered(rng, centres[i])
            weights = rng.standard_normal((len(centres[i]), 2))
            said.append(Offer(centres[i], weights, number, number, 0.25) if offers else Function(centres[i], weights))
        packed = [end.pack(message) for end, message in zip(ends, said, strict=True)]
        for i in range(2):
            if rng.random() >= loss:
                data = encode(packed[i])
                assert weigh(packed[i])[1] == len(data) <= len(encode(said[i])) + 100
                same(ends[1 - i].unpack(decode(data) if wire else packed[i]), said[i])


def test_a_settled_dictionary_sends_weights_alone():
    here, there = Link(), Link()
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((20, 30))
    sizes = []
    for _ in range(5):
        out, back = (end.pack(Function(centres, rng.standard_normal((20, 2)))) for end in (here, there))
        there.unpack(out)
        here.unpack(back)
        sizes.append(weigh(out))
    # whole until the other end has said that it has something: it says so one round after it arrived
    assert [floats for floats, _ in sizes] == [640, 640, 40, 40, 40]
    assert sizes[-1][1] < 0.15 * sizes[0][1]


def test_an_end_that_forgot_everything_is_sent_whole_functions_again():
    rng = np.random.default_rng(0)
    here, there = Link(), Link()
    centres = rng.standard_normal((20, 3))

    def exchange():
        out, back = (end.pack(Function(centres, rng.standard_normal((20, 2)))) for end in (here, there))
        here.unpack(back)
        return out, there.unpack(out)

    for _ in range(4):
        exchange()
    there = Link()  # restarted
    with pytest.raises(Refused, match="must build on a function that has arrived"):
        exchange()
    out, _ = exchange()
    assert isinstance(out, Function)
    exchange()
    assert isinstance(exchange()[0], Difference)


def test_what_is_not_a_function_passes_through():
    message = Points(np.zeros((2, 2)))
    assert Link().unpack(Link().pack(message)) is message


@pytest.mark.parametrize(("rows", "order"), [([3], 3), ([-1], 3), ([1, 1], 3), ([2, 1], 3), ([0], 6)], ids=str)
def test_forged_differences_are_refused(rows, order):
    here, there = Link(), Link()
    for _ in range(2):
        out, back = (end.pack(Function(np.zeros((4, 2)), np.zeros((4, 1)))) for end in (here, there))
        there.unpack(out)
        here.unpack(back)
    stamp = here.pack(Function(np.zeros((4, 2)), np.zeros((4, 1)))).stamp
    table = np.array(rows, dtype=np.int32)[:, None]
    for forged in (
        Difference(table, np.zeros((len(rows), 2)), np.zeros((order, 1)), stamp),
        OfferDifference(table, np.zeros((len(rows), 2)), np.zeros((order, 1)), 1, 0, 0.5, stamp),
    ):
        with pytest.raises(Refused, match="message: "):
            there.unpack(decode(encode(forged)))
