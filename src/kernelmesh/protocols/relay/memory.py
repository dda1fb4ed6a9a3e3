"""What a member of a relay remembers, and how that is stored."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument, RefusedMessage, Verbatim
from kernelmesh.messages import NOBODY, ListPart, PackedSums, Rows, packed, unpacked
from kernelmesh.numerics.sums import Sums
from kernelmesh.protocols.relay.point_list import PointList, merged, part_of
from kernelmesh.protocols.relay.settings import CALM, PATIENCE
from kernelmesh.protocols.relay.tree import Neighbor, Tree

__all__ = ["REREAD", "Memory", "Outgoing", "Peer", "Received", "load", "store"]

_NEVER = -(1 << 62)


REREAD = 1
"""The clock of sums that were read in other coordinates: older than any change, so that the neighbor sends them again."""


class Received(NamedTuple):
    """Sums from a neighbor, with its clock and the list of points that they are over."""

    clock: int
    sums: Sums
    length: int
    digest: int


class Outgoing(NamedTuple):
    """What is to be sent to one neighbor besides a hello."""

    sums: PackedSums | None = None
    part: ListPart | None = None
    proposals: Rows | None = None


class Peer(Struct):
    """What a member remembers of one neighbor; times are in its own ticks."""

    link: Neighbor
    newest: Received | None = None
    counted: Received | None = None
    """The last sums that were part of a total."""
    changed: int = 0
    """When those last changed, or ceased to be."""
    sent: int = 0
    """When sums were last sent to it; 0 if never."""
    told: int = -1
    """The roll of those sums."""
    length: int = 0
    digest: int = 0
    """The list of points that it has."""
    listed: int = _NEVER
    """When it was last sent points."""
    proposals: Floats | None = None
    excluded: str = ""
    """Why it is not listened to; empty if it is."""


class Memory(Struct):
    """All that a member remembers of its network. A step works on a copy, and nothing changes it afterwards."""

    tree: Tree
    points: PointList
    others: Sums
    """The samples of the others that are in use, estates included."""
    next_points: PointList | None = None
    """The list that holds from the next tick on, if this member is the root and has changed it."""
    peers: dict[int, Peer] = {}
    """By number."""
    numbers: dict[Hashable, int] = {}
    """The numbers of the neighbors, by name."""
    estates: dict[int, Sums] = {}
    """The sums that members have left to this one, by number."""
    standing: dict[int, int] = {}
    """How often each member was forgotten and admitted again: odd numbers say that it is forgotten."""
    proposals: Floats | None = None
    """Points that this member would like to be in the list, its own and those of its subtree."""
    proposed: int = 0
    """When they were last sent; 0 if never."""
    filtered: int = 0
    """The digest of the list for which they were last filtered."""
    own_changed: int = REREAD + 1
    """When the own sums last changed."""
    extended: int = 0
    """When the list of points last changed."""
    shape: tuple[int, ...] = ()
    """The root and the tree neighbors."""
    roll: int = 0
    """The members whose samples are in use."""
    since: int = 0
    """When the tree, the roll or the list last changed."""
    is_ready: bool = False
    """Whether the tree stands, and there are points to learn with."""
    up: int = 0
    down: int = 0
    """The latest waves."""
    leaving: bool = False
    """Whether this member says farewell."""
    heir: int = NOBODY
    """To whom."""
    outgoing: dict[int, Outgoing] = {}

    def copied(self) -> Memory:
        """A copy for a step to change."""
        peers = {j: replace(peer, link=replace(peer.link)) for j, peer in self.peers.items()}
        return replace(self, tree=replace(self.tree), peers=peers, numbers=dict(self.numbers), outgoing={})

    @property
    def forgotten(self) -> int:
        """The members that do not count, as a roll."""
        return sum([1 << j for j, count in self.standing.items() if count % 2])

    @property
    def stands(self) -> bool:
        """Whether tree, roll and list have not changed for some ticks, or this has been waited for long enough."""
        return self.tree.clock - self.since >= CALM or self.tree.clock >= PATIENCE

    @property
    def near(self) -> tuple[int, ...]:
        """The tree neighbors in the latest tick: the parent, and the children that were alive."""
        return self.shape[1:]

    @property
    def links(self) -> dict[int, Neighbor]:
        """The neighbors that the tree may use."""
        gone = self.forgotten if self.standing else 0
        return {j: peer.link for j, peer in self.peers.items() if not peer.excluded and not gone >> j & 1}

    def inbox(self, near: Sequence[int]) -> list[tuple[int, Sums]]:
        """The sums of the tree neighbors that count."""
        return [(j, received.sums) for j in near if (received := self.peers[j].counted) is not None]

    def changed_for(self, j: int) -> int:
        """When the sum of everything but what came from neighbor j last changed, if only by what no longer counts."""
        return max([self.own_changed, *[peer.changed for other, peer in self.peers.items() if other != j]])

    def kept_sums(self) -> Iterator[tuple[Peer, str, Received]]:
        """All sums that are remembered of neighbors: whose, under which name, and the sums."""
        for peer in self.peers.values():
            for what in ("newest", "counted"):
                received: Received | None = getattr(peer, what)
                if received is not None:
                    yield peer, what, received


class _StoredSums(Struct, array_like=True, forbid_unknown_fields=True):
    clock: int
    sums: PackedSums
    length: int
    digest: int


class _StoredPeer(Struct, array_like=True, forbid_unknown_fields=True):
    name: str | int | None
    """The neighbor's name, if it can be written down."""
    link: Neighbor
    newest: _StoredSums | None
    counted_is_newest: bool
    counted: _StoredSums | None
    changed: int
    sent: int
    told: bytes | None
    length: int
    digest: int
    listed: int
    proposals: Rows | None
    excluded: str


class _Stored(Struct, array_like=True, forbid_unknown_fields=True):
    tree: Tree
    points: ListPart
    next_points: ListPart | None
    others: PackedSums
    peers: dict[int, _StoredPeer]
    estates: dict[int, PackedSums]
    standing: dict[int, int]
    proposals: Rows | None
    clocks: list[int]
    """proposed, filtered, own_changed, extended, since, up, down."""
    shape: list[int]
    roll: bytes
    is_ready: bool
    leaving: bool
    heir: int
    outgoing: dict[int, tuple[PackedSums | None, ListPart | None, Rows | None]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


def store(memory: Memory) -> bytes:
    """The memory as MessagePack, to the last bit."""
    called = {number: name if isinstance(name, str | int) else None for name, number in memory.numbers.items()}
    peers = {j: _stored_peer(peer, called.get(j)) for j, peer in memory.peers.items()}
    clocks = [getattr(memory, name) for name in _CLOCKS]
    stored = _Stored(
        memory.tree,
        part_of(memory.points, 0, 0),
        None if memory.next_points is None else part_of(memory.next_points, 0, 0),
        packed(memory.others, bits=64),
        peers,
        {j: packed(sums, bits=64) for j, sums in memory.estates.items()},
        memory.standing,
        None if memory.proposals is None else Rows.of(memory.proposals),
        clocks,
        list(memory.shape),
        _roll(memory.roll),
        memory.is_ready,
        memory.leaving,
        memory.heir,
        {j: (out.sums, out.part, out.proposals) for j, out in memory.outgoing.items()},
    )
    return _encoder.encode(stored)


_CLOCKS = ("proposed", "filtered", "own_changed", "extended", "since", "up", "down")


def load(data: bytes, *, dimension: int, outputs: int, names: Sequence[Hashable] | None = None) -> Memory:
    """The memory from `store`, or `InvalidArgument`; neighbors are called by their numbers in `names`, if that is given."""
    try:
        stored = _decoder.decode(data)
        empty = PointList.empty(dimension)
        points = merged(empty, stored.points, trusted=True)
        next_points = None if stored.next_points is None else merged(empty, stored.next_points, trusted=True)
        assert points is not None
        peers = {j: _loaded_peer(peer) for j, peer in stored.peers.items()}
        called = {j: peer.name for j, peer in stored.peers.items()} if names is None else dict(enumerate(names))
        memory = Memory(
            stored.tree,
            points,
            unpacked(stored.others),
            next_points,
            peers,
            {name: j for j in peers if (name := called.get(j)) is not None},
            {j: unpacked(sums) for j, sums in stored.estates.items()},
            stored.standing,
            None if stored.proposals is None else stored.proposals.table("proposals"),
            shape=tuple(stored.shape),
            roll=int.from_bytes(stored.roll, "little"),
            is_ready=stored.is_ready,
            leaving=stored.leaving,
            heir=stored.heir,
            outgoing={j: Outgoing(*out) for j, out in stored.outgoing.items()},
        )
        for name, clock in zip(_CLOCKS, stored.clocks, strict=True):
            setattr(memory, name, clock)
        if points.points.shape[1] != dimension or memory.others.weights.shape[1] != outputs:
            raise RefusedMessage("memory: dimension and outputs must be those of the agent")
    except (RefusedMessage, msgspec.DecodeError, LookupError, ValueError) as error:
        raise InvalidArgument("file", "memory", "be that of a relay", Verbatim(str(error))) from None
    return memory


def _roll(roll: int) -> bytes:
    return roll.to_bytes((roll.bit_length() + 7) // 8, "little")


def _stored_peer(peer: Peer, name: str | int | None) -> _StoredPeer:
    return _StoredPeer(
        name,
        peer.link,
        _stored_sums(peer.newest),
        peer.counted is peer.newest,
        None if peer.counted is peer.newest else _stored_sums(peer.counted),
        peer.changed,
        peer.sent,
        None if peer.told < 0 else _roll(peer.told),
        peer.length,
        peer.digest,
        peer.listed,
        None if peer.proposals is None else Rows.of(peer.proposals),
        peer.excluded,
    )


def _loaded_peer(stored: _StoredPeer) -> Peer:
    newest = _loaded_sums(stored.newest)
    return Peer(
        stored.link,
        newest,
        newest if stored.counted_is_newest else _loaded_sums(stored.counted),
        stored.changed,
        stored.sent,
        -1 if stored.told is None else int.from_bytes(stored.told, "little"),
        stored.length,
        stored.digest,
        stored.listed,
        None if stored.proposals is None else stored.proposals.table("proposals"),
        stored.excluded,
    )


def _stored_sums(received: Received | None) -> _StoredSums | None:
    if received is None:
        return None
    return _StoredSums(received.clock, packed(received.sums, bits=64), received.length, received.digest)


def _loaded_sums(stored: _StoredSums | None) -> Received | None:
    return None if stored is None else Received(stored.clock, unpacked(stored.sums), stored.length, stored.digest)
