"""The inverse Gram matrix P = K⁻¹ of a dictionary, updated as points are added and removed.

This is the largest part of an agent: M² numbers. It lives in a buffer that is changed in place and never copied; a
`Plan` describes the effect of an exchange of points on the weights before anything is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints
from kernelmesh.errors import InvalidArgument
from kernelmesh.numerics import compiled
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.products import accumulate, product

__all__ = ["BROKEN", "InverseGram", "Plan"]

_BLOCK = 256

# The generation of a P that is being changed, or whose update was cut short.
BROKEN = -1

# An inverse whose entries, times κ(x, x), are beyond this has lost too many digits to be used.
_WORST = 1e12


@dataclass(frozen=True, eq=False)
class Plan:
    """An exchange that has been worked out but not yet carried out: M points, some of which leave while others enter.

    Survivors keep their place, except those behind the new end, which move into the gaps (`movers` → `gaps`); the entering
    points take `slots`.
    """

    order: int
    kept: Ints
    movers: Ints
    gaps: Ints
    slots: Ints
    gained: Floats  # Y: P gains YᵀY
    lost: Floats  # Q: and loses QᵀQ
    rows: Floats  # of the new P, for the entering points over the old ones
    block: Floats  # and over each other
    staying: Floats
    arriving: Floats

    def weights(self) -> Floats:
        """The weights of the projection of f̃ onto the points that remain."""
        return self.arrange(self.staying, self.arriving)

    def arrange(self, staying: Floats, entering: Floats) -> Floats:
        """Lay out rows that belong to points: survivors, movers and entering ones, each in its place."""
        out = np.empty((self.order, staying.shape[1]))
        shared = min(self.order, len(staying))
        out[:shared] = staying[:shared]
        out[self.gaps] = staying[self.movers]
        out[self.slots] = entering
        return out

    def losing(self, terms: Floats) -> Plan:
        """The same exchange, after which P also loses GᵀG, with G = `terms` over the points that remain, as arranged."""
        old = np.zeros((len(terms), self.gained.shape[1]))
        shared = min(self.order, len(self.staying))
        old[:, :shared] = terms[:, :shared]
        old[:, self.gaps] = 0.0
        old[:, self.slots] = 0.0
        old[:, self.movers] = terms[:, self.gaps]
        new = terms[:, self.slots]
        return replace(
            self,
            lost=np.concatenate([self.lost, old]),
            rows=self.rows - product(new.T, old),
            block=self.block - product(new.T, new),
        )


class InverseGram:
    """P = K⁻¹ for the M points of a dictionary, in the upper left corner of a buffer that is zero elsewhere."""

    def __init__(self) -> None:
        self.order = 0
        self.changes = 0
        self.generation = 0  # the update that P is the result of; BROKEN while one is under way
        self.probed = 0  # the generation at which drift was last looked at
        self.bound = 1e-8  # how much drift is tolerated
        self.width = 0  # how many points fit before the buffer must grow
        self._flat = np.zeros(0)
        self.buffer = self._flat.reshape(0, 0)
        """The whole buffer, width × width; valid until the next update."""

    @classmethod
    def restored(
        cls, inverse: Floats, *, width: int, changes: int, generation: int, probed: int, bound: float
    ) -> InverseGram:
        """An inverse as it was when it was stored, down to the size of its buffer, which decides how products round."""
        if width < len(inverse):
            raise InvalidArgument("InverseGram", "width", f"be at least {len(inverse)}", width)
        out = cls()
        out.order, out.changes, out.generation, out.probed, out.bound = len(inverse), changes, generation, probed, bound
        out.width, out._flat = width, np.zeros(width * width)
        out.buffer = out._flat.reshape(width, width)
        out.buffer[: len(inverse), : len(inverse)] = inverse
        return out

    @property
    def matrix(self) -> Floats:
        """P itself, M × M; valid until the next update."""
        return self.buffer[: self.order, : self.order]

    def copy(self) -> InverseGram:
        """An independent copy."""
        twin = InverseGram()
        twin.__dict__.update(self.__dict__, _flat=self._flat.copy())
        twin.buffer = twin._flat.reshape(self.width, self.width)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "buffer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._flat = self._flat.copy()  # an array that was unpickled does not own its memory, and could not grow
        self.buffer = self._flat.reshape(self.width, self.width)

    def padded(self, rows: Floats) -> Floats:
        """Rows over M points as rows over the whole buffer."""
        out = np.zeros((len(rows), self.width))
        out[:, : rows.shape[1]] = rows
        return out

    def lift(self, cross: Floats) -> Floats:
        """cross @ P for rows that are padded to the buffer's width: one product of B × M × M."""
        if self.width == 0:
            return np.zeros_like(cross)
        return product(cross, self.buffer)

    def plan(
        self, stays: NDArray[np.bool_], *, lifted: Floats, schur: Floats, weights: Floats, shrink: float, coefficients: Floats
    ) -> Plan:
        """Work out the exchange after which only those stay of the M points and the new ones; P itself stays as it is."""
        old = self.order
        leaving, kept = np.flatnonzero(~stays[:old]), np.flatnonzero(stays[old:])
        new, order = len(kept), old + len(kept) - len(leaving)
        if order > self.width:
            generation, self.generation = self.generation, BROKEN
            self.resize(_roomy(order))
            self.generation = generation
            lifted = self.padded(lifted)
        worked_out = compiled.exchange.exchange(self.buffer, old, leaving, kept, lifted, schur, weights, shrink, coefficients)
        free = np.concatenate([leaving[: leaving.searchsorted(order)], np.arange(old, order)])
        movers = order + np.flatnonzero(stays[order:old])
        return Plan(order, kept, movers, free[new:], free[:new], *worked_out)

    def apply(self, plan: Plan) -> None:
        """Carry an exchange out: one symmetric update of rank (points in + points out), then the moves.

        If it is interrupted, the generation stays BROKEN, and the owner of the points can recompute P.
        """
        self.generation = BROKEN
        terms = np.concatenate([plan.gained, plan.lost])
        signed = terms.copy()
        signed[len(plan.gained) :] *= -1.0
        accumulate(self.buffer, terms, signed)
        compiled.exchange.place(
            self.buffer, self.order, plan.order, plan.movers, plan.gaps, plan.slots, plan.rows, plan.block
        )
        self.order = plan.order
        if self.width > 64 and self.width > 1.25 * _roomy(self.order):
            self.resize(_roomy(self.order))
        self.changes += 1
        self.generation = self.changes

    def lose(self, terms: Floats) -> None:
        """P ← P − GᵀG with G = `terms`, padded to the buffer's width."""
        self.generation = BROKEN
        if self.width:
            accumulate(self.buffer, terms, -terms)
        self.changes += 1
        self.generation = self.changes

    def drift(self, kernel: Kernel, centers: Floats, index: int) -> float:
        """‖(P K − I) e_j‖₁ for one point j of the dictionary: how far P is from the inverse, in O(M (M + p))."""
        image = self.lift(self.padded(kernel(centers[index : index + 1], centers)))[0]
        image[index] -= 1.0
        return float(np.abs(image).sum())

    def due(self, watch: int) -> int | None:
        """The point whose column is to be probed next, if P has changed so often since the last time; else None.

        It is another one each time: the golden ratio visits all of them.
        """
        if self.generation - self.probed < watch or not self.order:
            return None
        return int(self.order * math.modf(self.generation / watch * 0.6180339887498949)[0])

    def probe(self, kernel: Kernel, centers: Floats, index: int) -> bool:
        """Look at one column; whether its drift is within the bound."""
        self.probed = self.generation
        return self.drift(kernel, centers, index) <= self.bound

    def rebuild(self, kernel: Kernel, centers: Floats) -> bool:
        """Recompute P from the points inside the buffer. Returns False, with P BROKEN, if K is not positive definite."""
        from scipy.linalg import lapack

        generation, self.generation = max(self.generation, self.changes), BROKEN
        if len(centers) > self.width:
            self.order = 0
            self.resize(_roomy(len(centers)))
        self.order = len(centers)
        buffer = self.buffer
        buffer[...] = 0.0
        for start in range(0, self.order, _BLOCK):
            stop = min(start + _BLOCK, self.order)
            buffer[start:stop, : self.order] = kernel(centers[start:stop], centers)
        spare = np.arange(self.order, self.width)
        buffer[spare, spare] = 1.0  # so that the whole buffer, which LAPACK wants in one piece, can be factorized
        _, failed = lapack.dpotrf(buffer.T, lower=1, clean=0, overwrite_a=1)
        if not failed:
            _, failed = lapack.dpotri(buffer.T, lower=1, overwrite_c=1)
        shares = buffer.diagonal()[: self.order] * kernel.diag(centers)  # κ(x, x) by the distance² to the other points
        if failed or not np.isfinite(shares).all() or shares.max(initial=0.0) > _WORST:
            return False
        # the lower half of the transpose is the upper half of the buffer
        for start in range(0, self.width, _BLOCK):
            stop = min(start + _BLOCK, self.width)
            corner = np.triu(buffer[start:stop, start:stop])
            buffer[start:stop, start:stop] = corner + np.triu(corner, 1).T
            buffer[stop:, start:stop] = buffer[start:stop, stop:].T
        buffer[spare, spare] = 0.0
        self.generation = generation  # the same P, only better: those who hold it may go on
        return True

    def resize(self, width: int) -> None:
        """Make room for so many points."""
        # One realloc instead of a second buffer: the peak stays at the size of the wider one. Nobody else holds a view.
        old = self.width
        del self.buffer
        if width > old:
            self._flat.resize(width * width, refcheck=False)
            compiled.exchange.spread_rows(self._flat, self.order, old, width)
        else:
            compiled.exchange.spread_rows(self._flat, self.order, old, width)
            self._flat.resize(width * width, refcheck=False)
        self.width = width
        self.buffer = self._flat.reshape(width, width)


def _roomy(order: int) -> int:
    """A width with some room to grow: 1.5 %, in steps of at least 16 points."""
    step = max(16, order // 64)
    return (order // step + 1) * step
