"""A tick, second half: what a member will say to whom before the next tick. A tick is a step, with samples or without.

Waves follow the root's count: the deepest members speak first, so that one sum for each edge and direction in k ticks
reaches everybody within k + 2 · depth ticks. A changed roll is passed on sooner, and nothing is sent that has not changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.messages import NOBODY, Hello, ListPart, News, Rows, packed
from kernelmesh.numerics.basis import Basis
from kernelmesh.numerics.sums import Sums, added
from kernelmesh.protocols.relay.agreement import POINTS, SCALED, standardized, tuned
from kernelmesh.protocols.relay.memory import Memory, Outgoing, Peer
from kernelmesh.protocols.relay.point_list import EMPTY, part_of
from kernelmesh.protocols.relay.settings import CALM, PATIENCE, POOL, Settings

__all__ = ["is_settled", "prepare", "tell"]


def prepare(settings: Settings, memory: Memory, basis: Basis, own: Sums, *, changed: bool, candidates: Floats) -> None:
    """Decide what is sent before the next tick; `memory` is the copy that `hear` has made.

    `changed` says whether the own sums have changed since the last tick, and `candidates` are samples worth a point.
    """
    tree, near = memory.tree, memory.near
    if changed:
        memory.own_changed = tree.clock
    outputs = own.weights.shape[1]
    mine = added([own, *memory.estates.values()], outputs=outputs) if memory.estates else own
    _propose(settings, memory, basis, candidates, own, near)
    if memory.leaving:
        sums, proposals = {_heir(memory, near): packed(mine, bits=settings.bits, estate=True)}, None
    else:
        due = _due(settings, memory, mine, near)
        sums = {j: packed(value, bits=settings.bits) for j, value in due} if due else {}
        proposals = None if memory.proposals is None else _proposed(settings, memory, memory.proposals)
    for j, peer in memory.peers.items():
        lacks = peer.digest != memory.points.digest and not peer.excluded and tree.clock <= peer.link.until
        out = sums.get(j), _part(memory, peer) if lacks else None, proposals if j == tree.parent else None
        if any(out):
            memory.outgoing[j] = Outgoing(*out)


def _heir(memory: Memory, near: Sequence[int]) -> int:
    """To whom a member that leaves says farewell: to one alone, as long as that one lives."""
    heir = memory.links.get(memory.heir)
    if heir is None or not heir.alive(memory.tree.clock):
        memory.heir = memory.tree.parent if memory.tree.parent in near else min(near, default=NOBODY)
    return memory.heir


def tell(memory: Memory, names: Iterable[Hashable]) -> list[News | None]:
    """The message to each neighbor, from the memory after a step; None to one that was excluded."""
    tree, points, standing, silent = memory.tree, memory.points, memory.standing or None, Outgoing()
    length, said = len(points.points), list[News | None]()
    for name in names:
        number = memory.numbers.get(name, NOBODY)
        peer = memory.peers.get(number)
        if peer is not None and peer.excluded:
            said.append(None)
            continue
        heard = 0 if peer is None or peer.newest is None else peer.newest.clock
        known = tree.count if tree.root == number else tree.given_up.get(number, 0)
        hello = Hello(tree.name, tree.clock, tree.root, tree.count, tree.hops, tree.parent, heard, known)
        said.append(News(hello, length, points.digest, *memory.outgoing.get(number, silent), standing))
    return said


def is_settled(memory: Memory) -> bool:
    """Whether this member has nothing to say that a neighbor does not know."""
    if memory.outgoing or memory.next_points is not None or not memory.is_ready or memory.tree.clock - memory.since < CALM:
        return False
    near = memory.near
    for j in near:
        peer, hello = memory.peers[j], memory.peers[j].link.hello
        news = memory.changed_for(j)
        if news > peer.sent or hello is None or hello.heard < news or peer.digest != memory.points.digest:
            return False
    return True


# -- points ------------------------------------------------------------------------------------------------------------


def _propose(settings: Settings, memory: Memory, basis: Basis, candidates: Floats, own: Sums, near: Sequence[int]) -> None:
    """Which points this member proposes; a root whose tree stands adds them to the list, and decides what is agreed on."""
    tree, points = memory.tree, memory.points
    decides = tree.is_root and memory.stands
    if points.stage < SCALED <= settings.stages:
        total = added([own, memory.others], outputs=own.weights.shape[1])
        if decides and total.samples > 1 and total.features.size:
            memory.next_points = standardized(settings, points, total, tree.name)
        memory.proposals = candidates[:POOL] if memory.proposals is None else memory.proposals
        return
    compares = points.stage < settings.stages
    room = min(settings.max_order, POINTS if compares else settings.max_order) - len(points.points)
    fresh = [] if memory.proposals is None else [memory.proposals]
    if len(candidates):
        fresh.append(candidates)
    for j, peer in memory.peers.items():
        if peer.proposals is not None and j in near and j != tree.parent:
            fresh.append(peer.proposals)
        peer.proposals = None
    if room > 0 and fresh:
        pool = np.concatenate(fresh)
        if memory.proposals is None or len(pool) > len(memory.proposals) or memory.filtered != points.digest:
            pool = pool[np.sort(basis.novel(pool, novelty=settings.novelty, room=POOL))]
            memory.filtered, memory.proposed = points.digest, 0
        if decides and len(pool):
            memory.next_points, pool = points.extended(pool[:room], tree.name), pool[:0]
        memory.proposals = pool if len(pool) else None
    else:
        memory.proposals = None
    if compares and decides and memory.next_points is None and len(points):
        total = added([own, memory.others], outputs=own.weights.shape[1])
        is_complete = sum(half.samples for half in total.trials[:2]) == total.samples
        if total.trials and (is_complete or memory.tree.clock - memory.since >= PATIENCE):
            memory.next_points = tuned(settings, points, total.trials, tree.name)


def _proposed(settings: Settings, memory: Memory, proposals: Floats) -> Rows | None:
    """The proposals that are sent to the parent now, at most 128 at a time."""
    clock = memory.tree.clock
    if memory.tree.is_root or (memory.proposed and clock - memory.proposed < settings.every):
        return None
    memory.proposed = clock
    return Rows.of(proposals[:128])


def _part(memory: Memory, peer: Peer) -> ListPart | None:
    """The points that a neighbor lacks; all of them if its list is another one."""
    points, clock = memory.points, memory.tree.clock
    if peer.listed >= memory.extended and (clock - peer.listed < CALM or not _by_lot(clock)):
        return None
    begins = points.begins_with(peer.length, peer.digest)
    if not begins and peer.length > len(points) and clock - memory.extended < CALM:
        return None  # it may have more, and will send it
    peer.listed = clock
    return part_of(points, peer.length, peer.digest) if begins else part_of(points, 0, EMPTY)


# -- sums --------------------------------------------------------------------------------------------------------------


def _due(settings: Settings, memory: Memory, mine: Sums, near: Sequence[int]) -> list[tuple[int, Sums]]:
    """The tree neighbors to whom sums are sent now, and the sums."""
    tree, every, inbox = memory.tree, settings.every, memory.inbox(near)
    up, down = (tree.waves + tree.hops) // every, (tree.waves - tree.hops) // every
    rises, falls = up != memory.up, down != memory.down
    memory.up, memory.down = up, down
    due = []
    for j in near:
        peer, hello, roll = memory.peers[j], memory.peers[j].link.hello, mine.roll
        for other, sums in inbox:
            roll |= sums.roll if other != j else 0
        pause = tree.clock - peer.sent
        is_wave = rises if j == tree.parent else falls
        # what the neighbor has may be older than what was sent last, if that says the same
        is_late = hello is not None and hello.heard < peer.sent and 2 * pause > every
        # a root decides what is agreed on when rolls have been calm for a while: nobody may hold them back until then
        is_due = roll != peer.told and pause >= (max(1, every // 4) if memory.points.stage >= settings.stages else 1)
        if not is_due and (is_wave or is_late):
            news = memory.changed_for(j)
            is_lost = is_late and hello is not None and hello.heard < news and _by_lot(tree.clock)
            is_due = is_lost or (is_wave and (news > peer.sent or not peer.sent))
        if is_due:
            due.append(j)
    if not due:
        return []
    out = []
    for j, value in _all_but_one(mine, inbox, due):
        memory.peers[j].sent, memory.peers[j].told = tree.clock, value.roll
        if j != tree.parent:  # only the root decides what is agreed on
            value = replace(value, features=np.empty((0, 0)), trials=())
        out.append((j, value))
    return out


def _by_lot(clock: int) -> bool:
    """One tick in four, at irregular intervals: a rhythm could keep missing an edge that comes and goes in the same one."""
    return 0x9E3779B1 * clock % (1 << 32) < 1 << 30


def _all_but_one(mine: Sums, inbox: list[tuple[int, Sums]], due: list[int]) -> Iterable[tuple[int, Sums]]:
    """For each j that is due, the sum of everything but what came from j; nothing is subtracted."""
    outputs = mine.weights.shape[1]
    ahead = [mine]
    for _, sums in inbox:
        ahead.append(added([ahead[-1], sums], outputs=outputs))
    place = {j: n for n, (j, _) in enumerate(inbox)}
    behind: dict[int, list[Sums]] = {len(inbox) - 1: []}
    for n in range(len(inbox) - 1, 0, -1):
        behind[n - 1] = [added([inbox[n][1], *behind[n]], outputs=outputs)]
    for j in due:
        at = place.get(j)
        yield j, ahead[-1] if at is None else added([ahead[at], *behind[at]], outputs=outputs)
