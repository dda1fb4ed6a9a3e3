"""What a member of a relay remembers, and how that is stored."""

from __future__ import annotations

import base64
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kernelmesh.checks import Floats, finite
from kernelmesh.errors import InvalidArgument, RefusedMessage, Verbatim
from kernelmesh.messages import NOBODY, ListPart, PackedSums, Rows, packed, unpacked
from kernelmesh.numerics.sums import Sums
from kernelmesh.protocols.relay.point_list import PointList, merged, part_of
from kernelmesh.protocols.relay.settings import CALM, PATIENCE
from kernelmesh.protocols.relay.tree import NEVER, Neighbor, Tree

__all__ = ["REREAD", "Memory", "Outgoing", "Peer", "Received", "load", "store"]

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
    """What a member remembers of one neighbor; times are in its own ticks, which are its steps."""

    link: Neighbor
    newest: Received | None = None
    counted: Received | None = None
    """The last sums that were part of a total."""
    changed: int = 0
    """When the counted sums last changed, or ceased to be."""
    sent: int = 0
    """When sums were last sent to it; 0 if never."""
    told: int = -1
    """The roll of the sums that were last sent to it."""
    length: int = 0
    digest: int = 0
    """The list of points that it has."""
    listed: int = NEVER
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
    numbers: dict[Any, int] = {}
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
    """The neighbor that takes over its samples."""
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


class _Stored(Struct, array_like=True, forbid_unknown_fields=True):
    memory: Memory
    names: dict[int, str | int]
    """Those of the neighbors that can be written down."""
    unchanged: list[int]
    """The neighbors whose newest sums are those that count."""


def _described(array: NDArray[Any]) -> tuple[list[int], str, bytes]:
    return list(array.shape), array.dtype.str, array.tobytes()


def _restored(_: Any, stored: tuple[list[int], str, str]) -> NDArray[Any]:
    shape, kind, data = stored
    array: NDArray[Any] = np.frombuffer(base64.b64decode(data), {"<f8": np.float64, "<i8": np.int64}[kind]).reshape(shape)
    if not finite(array):
        raise ValueError("every number must be finite")
    return array


_encoder = msgspec.json.Encoder(enc_hook=_described)
_decoder = msgspec.json.Decoder(_Stored, dec_hook=_restored)


def store(memory: Memory) -> bytes:
    """The memory as JSON, to the last bit."""
    names = {j: name for name, j in memory.numbers.items() if isinstance(name, str | int)}
    unchanged = [j for j, peer in memory.peers.items() if peer.newest is peer.counted]
    return _encoder.encode(_Stored(replace(memory, numbers={}), names, unchanged))


def load(data: bytes, *, dimension: int, outputs: int, names: Sequence[Hashable] | None = None) -> Memory:
    """The memory from `store`, or `InvalidArgument`; neighbors are called by their numbers in `names`, if that is given."""
    try:
        stored = _decoder.decode(data)
        memory, called = stored.memory, stored.names if names is None else dict(enumerate(names))
        memory.numbers = {called[j]: j for j in memory.peers if j in called}
        for j in stored.unchanged:
            memory.peers[j].counted = memory.peers[j].newest
        for points in (memory.points, *([memory.next_points] if memory.next_points else [])):
            merged(PointList.empty(dimension), part_of(points, 0, 0), trusted=True)
        for sums in (memory.others, *memory.estates.values(), *(received.sums for _, _, received in memory.kept_sums())):
            unpacked(packed(sums, bits=64))
        if memory.others.weights.shape[1] != outputs:
            raise RefusedMessage("memory: outputs must be those of the agent")
    except (RefusedMessage, msgspec.DecodeError, LookupError, ValueError) as error:
        raise InvalidArgument("file", "memory", "be that of a relay", Verbatim(str(error))) from None
    return memory
