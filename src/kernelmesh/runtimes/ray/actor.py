"""What runs in an actor: a host whose batches are separate objects, so that each goes straight to the actor it is for."""

from collections.abc import Sequence
from typing import Any

from kernelmesh.runtimes.engines.host import Host
from kernelmesh.runtimes.plan import Plan

__all__ = ["ShardActor"]


class ShardActor(Host):
    """A host that takes and gives one object per neighboring shard, in the order of `peers`."""

    def say(self, method: str, plan: Plan | None, peers: Sequence[int], *received: bytes) -> Any:
        """`Host.exchange`: as many objects as there are peers, empty ones where there is nothing to say."""
        arrived = {peer: data for peer, data in zip(peers, received, strict=False) if data}
        found = self.exchange(method, plan if plan is not None else arrived)
        out = tuple(found.get(peer, b"") for peer in peers)
        return out[0] if len(out) == 1 else out or None

    def learn(self, number: int, peers: Sequence[int], *received: bytes) -> Any:
        """`Host.step`."""
        return self.handle("step", number, {peer: data for peer, data in zip(peers, received, strict=False) if data})
