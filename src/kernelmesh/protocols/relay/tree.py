"""A spanning tree that repairs itself: who is the parent of whom, from short hellos between neighbors.

Every member tells its neighbors at every tick which root it follows, how often that root has ticked, by how many hops it is
away, and who its parent is. The smallest number that is known to be alive is the root: only a root counts its own number
up, so a root that has died, or that exists only as a rumor in a cycle, stops counting and is given up. A neighbor becomes a
new parent only if it is ahead of what this member has announced itself (the feasibility condition of Babel), so that no
cycle can form.
"""

from __future__ import annotations

from msgspec import Struct

from kernelmesh.messages import NOBODY, Hello

__all__ = ["NEVER", "Neighbor", "Tree", "grow", "heeded"]

NEVER = -(1 << 62)
# A neighbor or a root is given up after twice its longest usual pause, and some ticks more.
_PAUSES, _GRACE = 2.0, 4.0


def _longest(pause: float, last: int) -> float:
    """The longest usual pause after another one; a pause that was given up counts no more than patience lasts."""
    counted = min(float(last), _PAUSES * pause + _GRACE)
    return max(counted, pause + 0.05 * (counted - pause))  # a long one is forgotten slowly


class Neighbor(Struct):
    """What a member remembers of the hellos of a neighbor; times are in its own ticks."""

    hello: Hello | None = None
    at: int = NEVER
    """When the newest hello came."""
    pause: float = 1.0
    """The longest usual pause between two hellos."""
    until: float = NEVER
    """The last tick in which it counts as alive without another hello."""
    rose: int = NEVER
    """When the neighbor last announced another root, or a higher count of the same."""
    left: bool = False
    """Whether that hello was its farewell."""

    def alive(self, clock: int) -> bool:
        """Whether it has said something lately."""
        return clock <= self.until

    def leave(self) -> None:
        """It has said farewell."""
        self.left, self.until = True, NEVER


class Tree(Struct):
    """A member's place in the tree."""

    name: int
    """Its number."""
    root: int
    """The root that it follows, at first itself."""
    clock: int = 0
    count: int = 0
    hops: int = 0
    parent: int = NOBODY
    rose: int = 0
    """When the count of the root last rose."""
    pause: float = 1.0
    """The longest usual pause between two rises."""
    given_up: dict[int, int] = {}
    """Roots that were given up, and their counts then: they are believed again only when they count on."""
    waves: int = 0
    """An estimate of the root's count, which runs on between its hellos."""

    @property
    def is_root(self) -> bool:
        """Whether this member is the root."""
        return self.parent == NOBODY

    def near(self, neighbors: dict[int, Neighbor]) -> list[int]:
        """The tree neighbors: the parent, and the children that are alive."""
        near = []
        for j, neighbor in neighbors.items():
            hello = neighbor.hello
            if j == self.parent or (hello and hello.parent == self.name and self.clock <= neighbor.until):
                near.append(j)
        return near


def heeded(tree: Tree, neighbor: Neighbor, hello: Hello) -> bool:
    """Take note of a hello; False if it is late or a duplicate."""
    before = neighbor.hello
    if before is not None and hello.clock <= before.clock and (neighbor.left or tree.clock <= neighbor.until):
        return False  # a neighbor that was silent for long may have lost its clock
    if neighbor.at > NEVER and tree.clock - neighbor.at != neighbor.pause:
        neighbor.pause = _longest(neighbor.pause, tree.clock - neighbor.at)
    if before is None or hello.root != before.root or hello.count > before.count:
        neighbor.rose = tree.clock
    neighbor.at, neighbor.hello, neighbor.left = tree.clock, hello, False
    neighbor.until = tree.clock + _PAUSES * neighbor.pause + _GRACE
    if tree.root == tree.name:  # a root that has lost its state is believed when it counts on from what the others know
        tree.count = max(tree.count, hello.known)
    return True


def grow(tree: Tree, neighbors: dict[int, Neighbor]) -> None:
    """A tick: count if this is the root, give up a root that is silent, and choose the parent."""
    tree.clock += 1
    limit = _PAUSES * tree.pause + _GRACE  # ticks after which nothing more is expected
    if tree.root == tree.name:
        tree.count = max(tree.count + 1, tree.clock)
    elif tree.clock - tree.rose > limit:
        tree.given_up = {**tree.given_up, tree.root: max(tree.count, tree.given_up.get(tree.root, 0))}
        tree.root, tree.parent, tree.hops = tree.name, NOBODY, 0
        tree.count = max(tree.clock, tree.given_up.get(tree.name, 0)) + 1
    options = _leaders(tree, neighbors)
    if options:
        _follow(tree, options, limit)
    leader = neighbors[tree.parent].hello if tree.parent in neighbors else None
    beat = tree.hops + (tree.count if leader is None else leader.count)
    # between the root's beats, which may come in bursts, the waves run on own ticks, a little slower, by at most 50 ticks
    tree.waves += tree.clock % 8 > 0
    if not beat <= tree.waves <= beat + 50:
        tree.waves = beat


def _leaders(tree: Tree, neighbors: dict[int, Neighbor]) -> dict[int, Neighbor]:
    """The neighbors that may be the parent."""
    out = {}
    for j, neighbor in neighbors.items():
        hello = neighbor.hello
        if hello is None or hello.parent == tree.name or hello.root > tree.root or hello.root >= tree.name:
            continue
        if hello.count <= tree.given_up.get(hello.root, -1) or tree.clock > neighbor.until:
            continue
        ahead = hello.count > tree.count or (hello.count == tree.count and hello.hops < tree.hops)
        if hello.root < tree.root or j == tree.parent or ahead:
            out[j] = neighbor
    return out


def _follow(tree: Tree, options: dict[int, Neighbor], limit: float) -> None:
    """Follow the smallest root; the parent stays unless it is gone, lags behind, or is a hop farther than need be."""
    ranks = []
    for j, neighbor in options.items():
        if (hello := neighbor.hello) is not None:
            ranks.append((hello.root, tree.clock - neighbor.rose > limit, hello.hops, -hello.count, j))
    root, is_stale, hops, _, nearest = min(ranks)
    stays = [rank for rank in ranks if rank[-1] == tree.parent and rank[:2] == (root, is_stale)]
    if not stays or hops < stays[0][2]:
        tree.parent = nearest
    chosen = options[tree.parent].hello
    assert chosen is not None
    if root != tree.root:
        tree.root, tree.count, tree.rose = root, chosen.count, tree.clock
    elif chosen.count > tree.count:
        if tree.clock - tree.rose != tree.pause:
            tree.pause = _longest(tree.pause, tree.clock - tree.rose)
        tree.count, tree.rose = chosen.count, tree.clock
    tree.hops = chosen.hops + 1
