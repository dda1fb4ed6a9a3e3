"""A tick, first half: take note of what neighbors have said, and decide whose sums count, and in which coordinates."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import ListPart, News, unpacked
from kernelmesh.numerics.basis import Basis
from kernelmesh.numerics.sums import Sums, added
from kernelmesh.protocols.base import Heard
from kernelmesh.protocols.relay.agreement import CANDIDATES, scaled
from kernelmesh.protocols.relay.memory import REREAD, Memory, Peer, Received
from kernelmesh.protocols.relay.point_list import PointList, merged
from kernelmesh.protocols.relay.settings import PATIENCE, POOL, Settings
from kernelmesh.protocols.relay.tree import Neighbor, grow, heeded

__all__ = ["exclude", "forget", "hear"]


def hear(settings: Settings, memory: Memory, basis: Basis, heard: Iterable[Heard]) -> tuple[Memory, Basis]:
    """The memory after a tick, and the basis over the list of points that holds now."""
    memory = memory.copied()
    lists = [] if memory.next_points is None else [memory.next_points]
    memory.next_points = None
    tree, numbers = memory.tree, memory.numbers
    for said in heard:
        name, news = said.neighbor, said.reply
        if not isinstance(news, News):
            continue
        number = news.hello.name
        if numbers.get(name) != number:
            if number == tree.name or number in numbers.values():
                continue  # every member must have another number
            numbers[name] = number
            memory.peers.setdefault(number, Peer(Neighbor()))
        peer = memory.peers[number]
        has_returned = tree.clock > peer.link.until
        if peer.excluded or not heeded(tree, peer.link, news.hello):
            continue
        peer.length, peer.digest = news.length, news.digest
        if has_returned or news.sums or news.part or news.proposals or news.standing:
            _receive(settings, memory, peer, news, lists, has_returned=has_returned)
    links = memory.links
    grow(tree, links)
    for points in lists:
        if points.is_newer(memory.points):
            basis = _adopt(settings, memory, basis, points)
    clock, near = tree.clock, tree.near(links)
    _part_with_others(memory, near)
    own_roll = 1 << tree.name
    _select(memory, near, own_roll)
    shape, roll = (tree.root, *near), own_roll | memory.others.roll
    if shape != memory.shape or roll != memory.roll:
        memory.shape, memory.roll, memory.since = shape, roll, clock
    # samples of which none is worth a point are not waited for
    if not memory.is_ready:
        agreed = memory.points.stage >= settings.stages and len(memory.points) > 0
        memory.is_ready = (memory.stands and agreed) or clock - memory.since >= PATIENCE
    return memory, basis


def _part_with_others(memory: Memory, near: Sequence[int]) -> None:
    """What neighbors said before that are not next to this member in the tree does not count."""
    clock = memory.tree.clock
    for j, peer in memory.peers.items():
        if j in near:
            continue
        if peer.counted is not None:
            peer.counted, peer.changed = None, clock
        peer.told, peer.sent, peer.proposals = -1, 0, None
        if clock > peer.link.until:
            peer.newest = None


def _receive(
    settings: Settings, memory: Memory, peer: Peer, news: News, lists: list[PointList], *, has_returned: bool
) -> None:
    """Take in what a neighbor has said besides a hello."""
    number = news.hello.name
    if number in memory.estates and news.sums is not None and news.sums.estate:
        peer.link.leave()  # it repeats its farewell
    elif has_returned:  # or is new
        if peer.counted is not None:
            peer.changed = memory.tree.clock + 1
        peer.newest = peer.counted = None
        memory.estates = {j: sums for j, sums in memory.estates.items() if j != number}
    try:
        if news.standing:
            _stand(memory, news.standing)
        if news.part is not None:
            _merge(settings, memory, news.part, lists)
        if news.proposals is not None:
            peer.proposals = news.proposals.table("proposals")
            if peer.proposals.shape[1] != memory.points.points.shape[1]:
                raise RefusedMessage("news: proposals must have the right dimension", peer.proposals.shape)
        if news.sums is not None:
            _keep(settings, memory, peer, news)
    except RefusedMessage as error:
        exclude(memory, number, str(error))


def _keep(settings: Settings, memory: Memory, peer: Peer, news: News) -> None:
    """Remember sums that pass the tests of form."""
    assert news.sums is not None
    sums, clock = unpacked(news.sums), news.hello.clock
    outputs, dimension = memory.others.weights.shape[1], memory.points.points.shape[1]
    if sums.weights.shape[1] != outputs:
        raise RefusedMessage(f"news: sums must have {outputs} outputs", sums.weights.shape[1])
    if sums.features.size and sums.features.shape != (2, dimension):
        raise RefusedMessage(f"news: sums must have {dimension} features", sums.features.shape)
    if sums.order > news.length:
        raise RefusedMessage("news: sums must be over points of the sender's list", sums.order)
    if len(sums.trials) not in (0, CANDIDATES):
        raise RefusedMessage(f"news: sums must have 0 or {CANDIDATES} trials", len(sums.trials))
    if sums.samples > settings.max_samples * sums.roll.bit_count():
        raise RefusedMessage(f"news: a member may have {settings.max_samples:g} samples", sums.samples)
    rounding = 1e-2  # to 16 bits, once for every hop, may exceed the limits of what sums can be by this fraction
    limit = (1.0 + rounding) * settings.limit * sums.samples
    if sums.trace > limit:
        raise RefusedMessage(f"news: tr Θ must be at most {settings.limit:g} for each sample", sums.trace)
    if not sums.is_definite(rounding):
        raise RefusedMessage("news: Θ must have no negative eigenvalues")
    if news.sums.estate:
        others = {j: estate for j, estate in memory.estates.items() if j != news.hello.name}
        taken = _union(1 << memory.tree.name, *(estate.roll for estate in others.values()), memory.forgotten)
        counts = not memory.forgotten >> memory.tree.name & 1
        if counts and memory.points.begins_with(news.length, news.digest) and not sums.roll & taken:  # until then, it stays
            memory.estates = {**others, news.hello.name: sums}
            memory.own_changed = memory.tree.clock + 1
            peer.link.leave()
            peer.newest = None
    elif peer.newest is None or clock > peer.newest.clock:
        peer.newest = Received(clock, sums, news.length, news.digest)


def _stand(memory: Memory, standing: Mapping[int, int]) -> None:
    """Members were forgotten, or admitted again: nothing that contains samples of the forgotten counts any longer."""
    known = {j: max(count, memory.standing.get(j, 0)) for j, count in standing.items()}
    if not known.items() - memory.standing.items():
        return
    memory.standing = {**memory.standing, **known}
    gone = memory.forgotten
    if memory.others.roll & gone:
        memory.others = Sums.zero(memory.others.weights.shape[1])
    for peer, what, received in list(memory.kept_sums()):
        if received.sums.roll & gone:
            setattr(peer, what, None)
            peer.changed = memory.tree.clock + 1
    memory.estates = {j: sums for j, sums in memory.estates.items() if not sums.roll & gone}


def forget(memory: Memory, number: int, *, forgotten: bool) -> None:
    """Take all samples of a member out of every total of the network, or let them count again."""
    count = memory.standing.get(number, 0)
    if (count % 2 == 1) != forgotten:
        _stand(memory, {number: count + 1})


def exclude(memory: Memory, number: int, reason: str) -> None:
    """Do not listen to a neighbor any longer: what it has said vanishes at once, and the tree finds another way."""
    memory.peers[number] = Peer(Neighbor(), excluded=reason)
    memory.others = Sums.zero(memory.others.weights.shape[1])


def _merge(settings: Settings, memory: Memory, part: ListPart, lists: list[PointList]) -> None:
    theirs = merged(memory.points, part)
    if theirs is None:
        return
    dimension = memory.points.points.shape[1]
    if theirs.scales.size not in (0, dimension) or len(theirs) > settings.max_order:
        raise RefusedMessage("news: the list of points must have the right length, and a scale for each feature", len(theirs))
    lists.append(theirs)


def _adopt(settings: Settings, memory: Memory, old: Basis, points: PointList) -> Basis:
    """Another list takes the place of the own one: the sums of others are read in its coordinates."""
    before, same = memory.points, memory.points.common(points)
    memory.points, memory.since, memory.extended = points, memory.tree.clock, memory.tree.clock
    if same == len(before):
        return old.extended(points.points[same:])
    basis = Basis.over(scaled(settings.kernel, points.scales), points.points)
    if before.stage != points.stage:  # nothing has been learned with the earlier list
        memory.others, memory.estates = Sums.zero(memory.others.weights.shape[1]), {}
        for peer, what, _ in list(memory.kept_sums()):
            setattr(peer, what, None)
        return basis
    if not len(before):
        return basis
    across, memory.own_changed = basis.across(old), memory.tree.clock

    def read(sums: Sums) -> Sums:
        return sums.within(across[:, : sums.order])

    memory.others = read(memory.others)
    memory.estates = {j: read(sums) for j, sums in memory.estates.items()}
    for peer, what, received in list(memory.kept_sums()):
        if before.begins_with(received.length, received.digest):
            setattr(peer, what, Received(REREAD, read(received.sums), len(points), points.digest))
    lost = before.points[max(same, 0) :]  # are proposed again
    memory.proposals = lost if memory.proposals is None else np.concatenate([lost, memory.proposals])[:POOL]
    return basis


def _select(memory: Memory, near: list[int], own_roll: int) -> None:
    """Which sums count: the newest of each tree neighbor, unless they overlap."""
    points, forgotten = memory.points, memory.forgotten if memory.standing else 0
    if memory.estates:
        own_roll = _union(own_roll, *[sums.roll for sums in memory.estates.values()])
    found: list[tuple[int, int, int, Received]] = []
    for j in near:
        peer = memory.peers[j]
        # sums over points that are still on their way count when these have arrived
        for received in (peer.newest, peer.counted):
            if received is None or received.sums.roll & forgotten:
                continue
            was_counted = received is peer.counted and memory.extended < memory.tree.clock  # over the same list
            if was_counted or points.begins_with(received.length, received.digest):
                found.append((-received.sums.roll.bit_count(), len(found), j, received))
                break
    chosen = _disjoint(own_roll, sorted(found))
    moved = False
    for j in near:
        peer, now = memory.peers[j], chosen.get(j)
        if now is not peer.counted:
            peer.counted, peer.changed, moved = now, memory.tree.clock, True
    before, roll, parts = memory.others, 0, list(memory.estates.values())
    for received in chosen.values():
        parts.append(received.sums)
        roll |= received.sums.roll
    roll |= _union(0, *[sums.roll for sums in memory.estates.values()]) if memory.estates else 0
    if not moved and not roll & ~before.roll:
        return
    live = added(parts, outputs=before.weights.shape[1])
    # while the tree changes, members that are missing stay in use until a new sum has as many samples
    if not before.roll & ~live.roll or live.samples >= before.samples:
        memory.others = live


def _union(*rolls: int) -> int:
    return functools.reduce(operator.or_, rolls)


def _disjoint(roll: int, ranked: Iterable[tuple[int, int, int, Received]]) -> dict[int, Received]:
    """Of sums that overlap, the larger ones, which come first in this list.

    Earlier sums are no way out: two neighbors that each keep one, because the newest of the other contains it, would keep
    them for ever.
    """
    chosen: dict[int, Received] = {}
    for _, _, j, received in ranked:
        if not roll & received.sums.roll:
            chosen[j], roll = received, roll | received.sums.roll
    return chosen
