"""Diffusion without bias: a dual function on every edge carries what the two ends still owe each other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.errors import InvalidArgument
from kernelmesh.consensus.base import Edge, Edges, Heard, StepInputs
from kernelmesh.consensus.local import Local
from kernelmesh.messages import Message, Offer, Repair
from kernelmesh.numerics.compression import Update, compressed
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.schedules import Constant, Schedule, as_schedule

__all__ = ["ExactDiffusion"]

_FAR = 1 << 32


@dataclass(frozen=True, kw_only=True)
class ExactDiffusion:
    """With ā_ij half the Metropolis weight of an edge, ā_ii the rest, and C for compression:

    f_i ← C_ε[Σ_j ā_ij φ_j],  λ_ij ← C_δ[λ_ij + ā_ij (φ_j − φ_i)]   from the functions φ that the neighbors sent, then
    φ_i ← C_ε[(1 − ηλ) f_i − (η/B) Σ_b ℓ'(f_i(x_b), y_b) κ(x_b, ·) + Σ_j λ_ij]   which is sent in the next round.

    Agents that see different data pull in different directions, and plain diffusion settles where pull and averaging balance,
    which is not where a learner with all the data would. The duals λ_ij = −λ_ji add up what was averaged away, until they
    cancel the difference. Both ends of an edge compute them from the same two functions in the same order, so that they stay
    opposite bit for bit, whatever compression does, and sum to zero over the network. Exchanges over an edge are numbered and
    what was offered stays as it is until both ends have used it, so that this also holds when messages are lost. A dual acts
    in rounds in which an exchange was completed. Ends whose duals are not opposite, because one was restored from an older
    state or computes on a host that rounds differently, find that out by count and digest; then the end that stands first in
    the graph sends its dual along with an offer, and the other goes on from the negative of that.

    `budget` is δ; a quarter of the agent's ε is a good choice. What the agent shows is f, what it sends is φ.

    >>> ExactDiffusion(budget=0.05).penalty(0)
    0.0
    """

    budget: Schedule | float

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", as_schedule("ExactDiffusion", "budget", self.budget))
        if not isinstance(self.budget, Constant):
            # both ends must use the same δ in the same round, and they may have seen different numbers of samples
            raise InvalidArgument("ExactDiffusion", "budget", "be a constant number >= 0", self.budget)

    def ask(self, function: Expansion, points: Floats) -> Message | None:
        return None

    def answer(self, function: Expansion, question: Message) -> Message | None:
        return None

    def offer(
        self, function: Expansion, edge: Edge | None, share: float, there: tuple[int, int] | None = None
    ) -> Message:
        edge = edge or Edge()
        ours = _open(function, edge, share)
        behind = edge.behind if there is None or there[0] != edge.epoch else there[1] < edge.done
        if behind and edge.before is not None:
            ours = replace(edge.before, done=ours.done, digest=ours.digest)
        return ours if edge.handed is None or ours.exchange > 1 else _repair(ours, edge.handed)

    def combine(self, function: Expansion, heard: Sequence[Heard], edges: Edges) -> tuple[Update, Edges]:
        own = 1.0
        after = {name: replace(edge, fresh=False) if edge.fresh else edge for name, edge in edges.items()}
        centers, weights = [np.empty((0, function.dimension))], [np.empty((0, function.outputs))]
        for said in heard:
            edge = edges.get(said.neighbor) or Edge()
            theirs, negative = _read(said.asked, function.kernel)
            if theirs is not None and theirs.epoch > edge.epoch + _FAR:
                theirs = None  # nobody has had to begin anew so often
            if theirs is not None and (epoch := _common_epoch(edge, theirs)) != edge.epoch:
                kept = edge.dual if said.is_first else None
                edge = Edge(epoch=epoch, dual=kept, handed=kept)
            if theirs is not None and theirs.epoch != edge.epoch:
                theirs = None  # of an epoch that is over
            ours = _open(function, edge, said.share)
            behind = edge.behind if theirs is None else theirs.done < edge.done
            known = {o.exchange: o for o in (edge.early, theirs) if o is not None}
            wanted, early = known.get(edge.done + 1), known.get(edge.done + 2)
            if wanted is None:
                after[said.neighbor] = replace(edge, offered=ours, early=early, behind=behind, fresh=False)
                continue
            weight = 0.5 * min(ours.share, wanted.share)
            # an epoch begins with what the is_first end has: the other takes it over with the first offer, if there is any
            dual = edge.dual if said.is_first or edge.done else negative
            after[said.neighbor] = Edge(
                dual=self._dual(dual, function.kernel, ours, wanted, weight, said.is_first),
                epoch=edge.epoch,
                done=edge.done + 1,
                fresh=True,
                before=ours,
                early=early,
                behind=behind,
                handed=None if edge.done else edge.handed,  # who offers for the second exchange has completed the first
            )
            centers.append(wanted.centers)
            weights.append(weight * wanted.weights)
            if edge.offered is None:
                own -= weight
            else:  # the two ends must add opposite things, so what counts is what was offered, not what we are now
                centers.append(ours.centers)
                weights.append(-weight * ours.weights)
        return Update(np.concatenate(centers), np.concatenate(weights), own, shared=True), after

    def _dual(
        self, dual: Expansion | None, kernel: Kernel, ours: Offer, theirs: Offer, weight: float, is_first: bool
    ) -> Expansion:
        """λ_ij ← C_δ[λ_ij + ā_ij (φ_j − φ_i)], computed as the end that stands first in the graph sees it."""
        sign = 1.0 if is_first else -1.0
        first, second = (ours, theirs) if is_first else (theirs, ours)
        centers, weights = [first.centers, second.centers], [-weight * first.weights, weight * second.weights]
        if dual is not None:
            centers.insert(0, dual.centers)
            weights.insert(0, sign * dual.weights)
        budget = cast(Constant, self.budget).value
        found, _ = compressed(kernel, np.concatenate(centers), np.concatenate(weights), budget)
        return found if is_first else Expansion.trusted(kernel, found.centers, -found.weights)

    def correction(self, edges: Edges) -> tuple[Floats, Floats] | None:
        # a dual answers to an exchange: were it to act while the neighbor is silent, nothing would hold it back
        duals = [edge.dual for edge in edges.values() if edge.dual is not None and edge.fresh]
        if not duals:
            return None
        return np.concatenate([dual.centers for dual in duals]), np.concatenate([dual.weights for dual in duals])

    def relay(self, function: Expansion, heard: Sequence[Heard]) -> Update:
        # the duals are all that is left of the second move; the first one has been made
        return Update(np.empty((0, function.dimension)), np.empty((0, function.outputs)), shared=True)

    def move(self, moment: StepInputs, heard: Sequence[Heard]) -> Update:
        return Local().move(moment, ())

    def penalty(self, samples: int) -> float:
        return 0.0


def _open(function: Expansion, edge: Edge, share: float) -> Offer:
    """Ours in the open exchange: what was offered before, else what we are now."""
    if edge.offered is not None:
        return edge.offered
    return Offer(function.centers, function.weights, edge.epoch, edge.done + 1, edge.done, _digest(edge), share)


def _repair(ours: Offer, dual: Expansion) -> Repair:
    terms = ours.epoch, ours.exchange, ours.done, ours.digest, ours.share
    return Repair(ours.centers, ours.weights, dual.centers, dual.weights, *terms)


def _read(message: Message | None, kernel: Kernel) -> tuple[Offer | None, Expansion | None]:
    """What the neighbor offers, and the negative of the dual that it handed over with it."""
    if not isinstance(message, Repair):
        return message if isinstance(message, Offer) else None, None
    terms = message.epoch, message.exchange, message.done, message.digest, message.share
    negative = Expansion(kernel, message.dual_centers, -message.dual_weights)
    return Offer(message.centers, message.weights, *terms), negative


def _common_epoch(edge: Edge, theirs: Offer) -> int:
    """The epoch to go on in: a later one than ours if the duals of the two ends are not, or will not be, opposite."""
    if theirs.epoch != edge.epoch:
        return max(edge.epoch, theirs.epoch)
    lost = abs(theirs.done - edge.done) > 1 or (theirs.done == edge.done and theirs.digest != _digest(edge))
    return edge.epoch + 1 if lost else edge.epoch


def _digest(edge: Edge) -> int:
    """Of a dual without regard to its sign: the same at both ends while they are opposite.

    0 before the first exchange of an epoch, when one end has yet to take over the dual of the other.
    """
    if edge.dual is None or edge.done == 0:
        return 0
    data = edge.dual.centers.tobytes() + np.abs(edge.dual.weights).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1
