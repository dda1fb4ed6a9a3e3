"""Differences instead of functions: what arrives is what was sent, whatever is lost on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh.errors import RefusedMessage
from kernelmesh.exchange import Link, MissingBase
from kernelmesh.messages import Difference, Function, Offer, Points, Revision, Terms, decode, encode, wire_size


def same(left, right):
    assert type(left) is type(right)
    for name in (*left.inputs, *left.outputs):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert left.revision == right.revision
    if isinstance(left, Offer):
        assert left.terms == right.terms
        assert (left.dual is None) == (right.dual is None)
        if left.dual is not None:
            same(left.dual, right.dual)


def altered(rng, centers):
    """The centers after a step: some leave, some are replaced, some are new, in an order of their own."""
    kept = centers[rng.random(len(centers)) < 0.9]
    fresh = rng.standard_normal((rng.integers(0, 3), centers.shape[1]))
    out = np.concatenate([kept, fresh])
    return rng.permutation(out) if rng.random() < 0.2 else out


@given(seed=st.integers(0, 2**32 - 1), drop=st.sampled_from([0.0, 0.3, 0.8]), offers=st.booleans(), wire=st.booleans())
def test_what_arrives_is_what_was_sent_whatever_is_lost(seed, drop, offers, wire):
    rng = np.random.default_rng(seed)
    ends = [Link(), Link()]
    centers = [rng.standard_normal((6, 3)) for _ in ends]
    for number in range(25):
        said = []
        for i in range(2):
            centers[i] = altered(rng, centers[i])
            weights = rng.standard_normal((len(centers[i]), 2))
            terms = Terms(1, number, number, 77, 0.25)
            said.append(Offer(centers[i], weights, terms) if offers else Function(centers[i], weights))
        packed = [end.pack(message) for end, message in zip(ends, said, strict=True)]
        for i in range(2):
            if rng.random() >= drop:
                data = encode(packed[i])
                assert wire_size(packed[i]).bytes == len(data) <= len(encode(said[i])) + 40
                same(ends[1 - i].unpack(decode(data) if wire else packed[i]), said[i])


def test_a_settled_dictionary_sends_weights_alone():
    here, there = Link(), Link()
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((20, 30))
    sizes = []
    for _ in range(5):
        out, back = (end.pack(Function(centers, rng.standard_normal((20, 2)))) for end in (here, there))
        there.unpack(out)
        here.unpack(back)
        sizes.append(wire_size(out))
    # whole until the other end has said that it has something: it says so one round after it arrived
    assert [floats for floats, _ in sizes] == [640, 640, 40, 40, 40]
    assert sizes[-1][1] < 0.15 * sizes[0][1]


def test_an_end_that_forgot_everything_is_sent_whole_functions_again():
    rng = np.random.default_rng(0)
    here, there = Link(), Link()
    centers = rng.standard_normal((20, 3))

    def exchange():
        out, back = (end.pack(Function(centers, rng.standard_normal((20, 2)))) for end in (here, there))
        here.unpack(back)
        return out, there.unpack(out)

    for _ in range(4):
        exchange()
    there = Link()  # restarted
    with pytest.raises(MissingBase, match="must be based on a function that has arrived"):
        exchange()
    assert there.lost
    out, _ = exchange()
    assert isinstance(out, Function)
    exchange()
    assert isinstance(exchange()[0], Difference)


def test_lost_acknowledgements_do_not_block_a_link_for_ever():
    rng = np.random.default_rng(0)
    here, there = Link(), Link()
    base, weights = rng.standard_normal((20, 8)), np.ones((20, 1))
    there.unpack(here.pack(Function(base, weights)))
    here.unpack(there.pack(Function(base, weights)))  # it is known that the first has arrived
    for _ in range(30):  # nothing of what the other end says arrives any more
        there.unpack(here.pack(Function(rng.standard_normal((20, 8)), weights)))
    same(there.unpack(here.pack(Function(base, weights))), Function(base, weights))
    for _ in range(3):
        out, back = here.pack(Function(base, weights)), there.pack(Function(base, weights))
        here.unpack(back)
        same(there.unpack(out), Function(base, weights))
    assert isinstance(out, Difference)


def test_a_restart_is_never_mistaken():
    """The new first function was lost; «I have your first» then means the one before the restart."""
    rng = np.random.default_rng(0)
    weights = np.ones((20, 1))
    here, there = Link(), Link()
    there.unpack(here.pack(Function(rng.standard_normal((20, 8)), weights)))
    here = Link()
    new = rng.standard_normal((20, 8))
    here.pack(Function(new, weights))
    here.unpack(there.pack(Function(new, weights)))
    with pytest.raises(RefusedMessage):
        there.unpack(here.pack(Function(new, weights)))
    here.unpack(there.pack(Function(new, weights)))
    same(there.unpack(here.pack(Function(new, weights))), Function(new, weights))


def test_memory_is_bounded_and_arrays_may_change_afterwards():
    here, there = Link(), Link()
    centers, weights = np.zeros((4, 8)), np.ones((4, 1))
    for _ in range(3):
        out, back = here.pack(Function(centers, weights)), there.pack(Function(centers, weights))
        there.unpack(decode(encode(out)))
        here.unpack(back)
        centers[0] += 1.0  # in place
        same(there.unpack(decode(encode(here.pack(Function(centers, weights))))), Function(centers, weights))
    for number in range(2000, 0, -1):
        there.unpack(Function(centers, weights, Revision(number)))
    assert len(there._got) < 20


def test_zeros_of_both_signs_are_different():
    here, there = Link(), Link()
    for value in (0.0, 0.0, 0.0, -0.0):
        centers = np.full((4, 8), value)
        out, back = (end.pack(Function(centers, np.ones((4, 1)))) for end in (here, there))
        arrived = there.unpack(out)
        here.unpack(back)
        assert (np.signbit(arrived.centers) == np.signbit(centers)).all()


def test_what_is_not_a_function_passes_through():
    message = Points(np.zeros((2, 2)))
    assert Link().unpack(Link().pack(message)) is message


def test_an_end_that_is_told_so_sends_whole_functions():
    here, there = Link(), Link()
    function = Function(np.zeros((20, 8)), np.ones((20, 1)))
    for _ in range(3):
        out, back = here.pack(function), there.pack(function)
        there.unpack(out)
        here.unpack(back)
    assert isinstance(out, Difference)
    assert not here.lost
    here.forget()
    assert isinstance(here.pack(function), Function)


def test_a_repair_in_between_does_not_disturb_a_link():
    here, there = Link(), Link()
    rng = np.random.default_rng(0)
    centers, weights = rng.standard_normal((20, 8)), np.ones((20, 1))
    offer = Offer(centers, weights, Terms(1, 2, 1, 0, 0.5))
    repair = Offer(centers, weights, Terms(2, 1, 0, 0, 0.5), Function(centers[:5], weights[:5]))
    for said in (offer, offer, repair, offer):
        out, back = here.pack(said), there.pack(offer)
        same(there.unpack(decode(encode(out))), said)
        same(here.unpack(decode(encode(back))), offer)
    assert isinstance(out, Difference)
    assert out.terms == offer.terms


@pytest.mark.parametrize(("rows", "order"), [([3], 3), ([-1], 3), ([1, 1], 3), ([2, 1], 3), ([0], 6)], ids=str)
def test_forged_differences_are_refused(rows, order):
    here, there = Link(), Link()
    for _ in range(2):
        out, back = (end.pack(Function(np.zeros((4, 2)), np.zeros((4, 1)))) for end in (here, there))
        there.unpack(out)
        here.unpack(back)
    revision = here.pack(Function(np.zeros((4, 2)), np.zeros((4, 1)))).revision
    assert revision.base
    numbers = np.array(rows, dtype=np.int32)
    for terms in (None, Terms(0, 1, 0, 0, 0.5)):
        forged = Difference(numbers, np.zeros((len(rows), 2)), np.zeros((order, 1)), revision, terms)
        with pytest.raises(RefusedMessage, match="message: "):
            there.unpack(decode(encode(forged)))
