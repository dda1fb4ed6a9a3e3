"""Compression: keeping a function near f̃ with as few points as the budget allows.

`Komp` is destructive kernel orthogonal matching pursuit with pre-fitting (Algorithm 2 of the paper): remove the point
whose loss, after refitting all other weights, is least, while the distance to f̃ stays within the budget ε. It is computed
without a single refit, because with P the inverse Gram matrix of the kept points and W their weights, removing j adds
exactly ‖W_j‖² / P_jj to the squared distance, and the squared distances of successive removals add up.

Cost of one step with M points, B new ones, C outputs and q removals:
O(M² B) for one product with P, O(M (B + q + C)) per removal, and O(M² s) to update P when s points were exchanged.
Only a budget too fine for the conditioning of P (points that nearly coincide, all of which must be kept) costs O((M + B)³).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, cast, runtime_checkable

import numpy as np

from kernelmesh.checks import Floats, Told, matrix, non_negative, positive, refuse, whole
from kernelmesh.maths.compiled import folding
from kernelmesh.maths.compiled import pruning as loops
from kernelmesh.maths.expansion import Expansion
from kernelmesh.maths.inverse_gram import BROKEN, InverseGram
from kernelmesh.maths.kernels import Kernel, check_kernel
from kernelmesh.maths.products import product
from kernelmesh.maths.schedules import Constant, Power, Schedule, as_schedule

__all__ = ["Change", "Compression", "Komp", "Memory", "Pruned", "Uncompressed", "compress", "compressed"]

# A new point whose distance² to the span of the others is at most this share of κ(x, x) counts as dependent.
_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Change:
    """f̃ = shrink · f + Σ_b κ(x_b, ·) a_b: what a learning step wants to do to f before compression.

    `cross` may carry κ(X, D) when the caller has it already. `shared` says that many of the points are likely to be in the
    dictionary already, bit for bit, or several times among the new ones, as functions of neighbours have it: they are then
    put together first, so that a step costs what its different points cost.
    """

    points: Floats
    coefficients: Floats
    shrink: float = 1.0
    cross: Floats | None = None
    shared: bool = False

    def joined(self, more: tuple[Floats, Floats] | None) -> Change:
        """The same change with more points and their coefficients."""
        if more is None:
            return self
        points, coefficients = np.concatenate([self.points, more[0]]), np.concatenate([self.coefficients, more[1]])
        return Change(points, coefficients, self.shrink, shared=True)


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What one compression did."""

    error: float
    """‖f − f̃‖, the distance that compression moved the function."""
    budget: float
    removed: int = 0
    """How many of the M + B candidate points were dropped."""
    dependent: int = 0
    """How many of the new points lay in the span of the others to rounding and were folded in."""
    repaired: bool = False
    """Whether the inverse Gram matrix had drifted and was formed anew."""

    @property
    def over_budget(self) -> bool:
        """Whether the error is larger than the budget allows: a cap on the model order forced it, or (for budgets near
        rounding) points coincide to rounding and could not be kept apart.
        """
        return self.error > self.budget * (1.0 + 1e-9)


@dataclass(frozen=True, eq=False)
class Memory:
    """What an agent remembers: its function, and the workspace that lets the next step be cheap.

    The function is an immutable value and stays valid for ever. The workspace is not: a step takes it over and changes it in
    place, after which this Memory can still be read but not stepped again. `copy` keeps an independent one.
    """

    function: Expansion
    square_norm: float = 0.0
    """‖f‖², carried along: projections are orthogonal, so ‖f‖² = ‖f̃‖² − error²."""
    workspace: InverseGram | None = None
    stamp: int = 0

    def copy(self) -> Memory:
        """An independent copy that can be stepped on its own."""
        if self.workspace is None or self.workspace.stamp == BROKEN:
            return self
        return replace(self, workspace=self.claim().copy())

    def disown(self) -> None:
        """After a step that failed half way: if it has changed the workspace, mark that, so that P is formed anew."""
        if self.workspace is not None and self.workspace.stamp != self.stamp:
            self.workspace.stamp = BROKEN

    def claim(self) -> InverseGram:
        """The workspace, if it still belongs to this Memory."""
        assert self.workspace is not None
        self.check_ownership()
        return self.workspace

    def check_ownership(self) -> None:
        """Refuse to go on with a workspace that a newer Memory has taken over."""
        if self.workspace is not None and self.workspace.stamp not in (self.stamp, BROKEN):
            raise RuntimeError(
                "Memory: this state was already stepped and its workspace now belongs to the newer state; "
                "step the newest state, keep state.copy() before stepping, or begin anew from its function"
            )

    def scaled(self, factor: float) -> Memory:
        """The memory of factor · f over the same points."""
        weights = self.function.weights * factor
        function = Expansion.trusted(self.function.kernel, self.function.centres, weights)
        return replace(self, function=function, square_norm=self.square_norm * factor**2)


@runtime_checkable
class Compression(Protocol):
    """How a function is kept small."""

    def start(self, function: Expansion) -> Memory:
        """A memory that holds `function` (for a new agent: the zero function)."""
        ...

    def absorb(self, memory: Memory, change: Change, *, samples: int) -> tuple[Memory, Pruned]:
        """Make the change, compress, and take over the memory's workspace. On an error the memory is untouched."""
        ...


@dataclass(frozen=True, kw_only=True)
class Uncompressed:
    """No compression: plain functional stochastic gradient descent, one more point for every sample.

    >>> from kernelmesh import Gaussian
    >>> memory = Uncompressed().start(Expansion.zero(Gaussian(), dimension=1, outputs=1))
    >>> change = Change(np.array([[0.0], [0.0]]), np.array([[1.0], [1.0]]))
    >>> memory, _ = Uncompressed().absorb(memory, change, samples=0)
    >>> memory.function.order
    2
    """

    def start(self, function: Expansion) -> Memory:
        return Memory(function, function.inner(function))

    def absorb(self, memory: Memory, change: Change, *, samples: int) -> tuple[Memory, Pruned]:
        f = memory.function
        cross = f.kernel(change.points, f.centres) if change.cross is None else change.cross
        gram = f.kernel(change.points, change.points)
        added = loops.growth(gram, cross, f.weights, change.coefficients, change.shrink)
        square_norm = change.shrink**2 * memory.square_norm + added
        if not math.isfinite(square_norm):
            raise FloatingPointError("the function is no longer finite")
        centres = np.concatenate([f.centres, change.points])
        weights = np.concatenate([change.shrink * f.weights, change.coefficients])
        return Memory(Expansion.trusted(f.kernel, centres, weights), square_norm), Pruned(error=0.0, budget=0.0)


@dataclass(frozen=True, kw_only=True)
class Komp:
    """Destructive matching pursuit with pre-fitting, ‖f − f̃‖ ≤ ε over all outputs together.

    `budget` is ε, a number or a schedule; 0 drops only what costs nothing. `max_order` caps the model order whatever the
    budget says; `Pruned.over_budget` tells when it did. A new point counts as dependent when its distance² to the span of
    the others is at most `tolerance` · κ(x, x). After every `watch` changes of P one column of P K is compared with
    the identity, and P is formed anew when it has drifted.

    >>> from kernelmesh import Gaussian
    >>> komp = Komp(budget=0.1)
    >>> memory = komp.start(Expansion.zero(Gaussian(), dimension=1, outputs=1))
    >>> memory, pruned = komp.absorb(memory, Change(np.array([[0.0], [0.01]]), np.array([[1.0], [1.0]])), samples=0)
    >>> memory.function.order, pruned.error < 0.1
    (1, True)
    """

    budget: Schedule | float
    max_order: int | None = None
    tolerance: float = _TOLERANCE
    watch: int = 16

    def __post_init__(self) -> None:
        budget = self.budget
        if not isinstance(budget, Schedule):
            budget = Constant(non_negative("Komp", "budget", budget, infinite=True))
        object.__setattr__(self, "budget", as_schedule("Komp", "budget", budget))
        if self.max_order is not None:
            whole("Komp", "max_order", self.max_order, least=1)
        positive("Komp", "tolerance", self.tolerance)
        whole("Komp", "watch", self.watch, least=1)

    @classmethod
    def parsimonious(
        cls, step_size: Schedule | float, *, parsimony: float = 0.04, max_order: int | None = None
    ) -> Komp:
        """ε = K η^{3/2}, the budget of the paper for constant steps (Theorem 1), with parsimony constant K."""
        eta = as_schedule("Komp", "step_size", step_size)
        return cls(
            budget=Power(of=eta, scale=non_negative("Komp", "parsimony", parsimony), exponent=1.5), max_order=max_order
        )

    @classmethod
    def vanishing(cls, step_size: Schedule | float, *, max_order: int | None = None) -> Komp:
        """ε = η², the budget of the paper for diminishing steps (Corollary 1)."""
        return cls(budget=Power(of=as_schedule("Komp", "step_size", step_size), exponent=2.0), max_order=max_order)

    def start(self, function: Expansion) -> Memory:
        inverse = InverseGram()
        if function.order == 0:
            return Memory(function, workspace=inverse)
        if inverse.rebuild(function.kernel, function.centres):
            return Memory(function, function.inner(function), inverse, inverse.stamp)
        # some points depend on others to rounding: build up from nothing, which folds them in
        zero = Expansion.zero(function.kernel, dimension=function.dimension, outputs=function.outputs)
        memory = Memory(zero, workspace=InverseGram())
        memory, _ = _absorb(memory, Change(function.centres, function.weights), 0.0, function.order, self.tolerance)
        return memory

    def absorb(self, memory: Memory, change: Change, *, samples: int) -> tuple[Memory, Pruned]:
        budget = cast(Schedule, self.budget)(samples)
        if not budget >= 0:
            raise refuse("Komp", "budget", "be >= 0 at every sample", budget)
        repaired = memory.workspace is None or memory.workspace.stamp == BROKEN
        if repaired:  # there was none, or an earlier step was cut short while it changed P; the function is whole
            memory = self.start(memory.function)
        inverse = memory.claim()
        if inverse.stamp - inverse.probed >= self.watch and inverse.order:
            memory, drifted = self._repair(memory, inverse)
            repaired = repaired or drifted
        if change.shared:
            memory, change = _put_together(memory, change)
        most = self.max_order or memory.function.order + len(change.points)
        try:
            memory, pruned = _absorb(memory, change, budget, most, self.tolerance)
        except _Breakdown:
            # rounding in P made the exchange impossible; a fresh P gets one more chance
            memory, repaired = self._renew(memory), True
            memory, pruned = _absorb(memory, change, budget, most, self.tolerance)
        return memory, replace(pruned, repaired=True) if repaired else pruned

    def _repair(self, memory: Memory, inverse: InverseGram) -> tuple[Memory, bool]:
        """Look at another column each time (the golden ratio visits all of them) and rebuild P if it has drifted."""
        f = memory.function
        index = int(inverse.order * math.modf(memory.stamp / self.watch * 0.6180339887498949)[0])
        if inverse.probe(f.kernel, f.centres, index):
            return memory, False
        memory = self._renew(memory)
        inverse = memory.claim()
        # where the points themselves are nearly dependent no inverse is exact: ask for what a fresh one achieves
        if index < inverse.order:
            inverse.bound = max(inverse.bound, 10.0 * inverse.drift(f.kernel, memory.function.centres, index))
        return memory, True

    def _renew(self, memory: Memory) -> Memory:
        """The same function with P formed anew, or without the points that have become dependent where that fails."""
        f, inverse = memory.function, memory.claim()
        if inverse.rebuild(f.kernel, f.centres):
            return replace(memory, square_norm=f.inner(f))
        return self.start(f)


def _put_together(memory: Memory, change: Change) -> tuple[Memory, Change]:
    """The same f̃, with points that the dictionary has already added to its weights, and equal new points made one."""
    f = memory.function
    old, points = f.order, np.concatenate([f.centres, change.points])
    fresh, sums, touches = folding.fold(points.view(np.uint64), old, change.coefficients)
    if len(fresh) == len(change.points):
        return memory, change
    coefficients = sums[old:]
    if not touches:
        return memory, Change(change.points[fresh], coefficients, change.shrink)
    weights = change.shrink * f.weights + sums[:old]
    moved = Expansion.trusted(f.kernel, f.centres, weights)
    square_norm = float((weights * moved.evaluate(f.centres)).sum())
    return replace(memory, function=moved, square_norm=max(square_norm, 0.0)), Change(
        change.points[fresh], coefficients
    )


class _Breakdown(FloatingPointError):
    """Rounding in P has made an exchange of points impossible."""


def _absorb(memory: Memory, change: Change, budget: float, most: int, tolerance: float) -> tuple[Memory, Pruned]:
    f, inverse = memory.function, memory.claim()
    points, coefficients, shrink = change.points, change.coefficients, change.shrink
    schur = f.kernel(points, points)
    lifted = np.zeros((len(points), inverse.width))  # stays zero where there are no old points
    changes, stays, weights, added, square_error, dependent = loops.choose(
        inverse.buffer,
        f.order,
        f.kernel(points, f.centres) if change.cross is None else change.cross,
        schur,
        lifted,
        f.kernel.diag(f.centres),
        f.weights,
        shrink,
        shrink**2 * memory.square_norm,
        coefficients,
        tolerance,
        min(budget, 1e150) ** 2,
        most,
    )
    square_norm = shrink**2 * memory.square_norm + added
    if not math.isfinite(square_norm):
        raise FloatingPointError("the function is no longer finite")
    if changes < 0:
        # the budget is finer than what P can resolve: begin again from all the points, which needs no P
        everything = Change(np.concatenate([f.centres, points]), np.concatenate([shrink * f.weights, coefficients]))
        zero = Expansion.zero(f.kernel, dimension=f.dimension, outputs=f.outputs)
        return _absorb(Memory(zero, workspace=InverseGram()), everything, budget, most, tolerance)
    removed = f.order + len(points) - int(np.count_nonzero(stays)) if changes else len(points)

    def outcome(function: Expansion, square_error: float) -> tuple[Memory, Pruned]:
        pruned = Pruned(error=math.sqrt(square_error), budget=budget, removed=removed, dependent=dependent)
        left = max(square_norm - square_error, 0.0) if function.order else 0.0
        return Memory(function, left, inverse, inverse.stamp), pruned

    if changes == 0:
        # the batch only replaced itself: neither the points nor P change
        return outcome(
            Expansion.trusted(f.kernel, f.centres, weights), square_error if f.order else max(square_norm, 0.0)
        )
    kept = stays[f.order :].nonzero()[0]
    leaving = (~stays[: f.order]).nonzero()[0]
    plan = inverse.plan(
        leaving=leaving,
        kept=kept,
        lifted=lifted,
        schur=schur,
        weights=f.weights,
        shrink=shrink,
        coefficients=coefficients,
    )
    weights = plan.weights()
    if not np.isfinite(weights).all():
        raise _Breakdown("the weights are no longer finite")
    if f.order == 0:
        # S is the Gram matrix of all candidates here: the error can be measured, which rounds less than adding it up
        rest = coefficients.copy()
        rest[kept] -= plan.arriving
        square_error = max(float((rest * product(schur, rest)).sum()), 0.0)
    function = Expansion.trusted(f.kernel, plan.arrange(f.centres, points[kept]), weights)
    inverse.apply(plan)
    return outcome(function, square_error)


def compress(
    kernel: Kernel, centres: Floats, weights: Floats, budget: float, *, max_order: int | None = None
) -> tuple[Floats, Floats, float]:
    """Compress f̃ = Σ κ(d_m, ·) w_m to a few of its points: new centres, new weights, and the distance ‖f − f̃‖ ≤ budget.

    `weights` is a vector (one function) or a matrix (one column per function; they share the points).

    >>> from kernelmesh import Gaussian
    >>> centres, weights, error = compress(Gaussian(), [[0.0], [0.01], [5.0]], [1.0, 1.0, 1.0], 0.1)
    >>> len(centres), error < 0.1
    (2, True)
    """
    check_kernel("compress", kernel)
    centres = matrix("compress", "centres", centres)
    flat = np.ndim(weights) == 1
    table = matrix("compress", "weights", np.asarray(weights)[:, None] if flat else weights, rows=len(centres))
    limit = cast(Constant, Komp(budget=budget, max_order=max_order).budget).value
    try:
        f, pruned = compressed(kernel, centres, table, limit, max_order=max_order)
    except FloatingPointError:
        raise refuse("compress", "weights", "give a function of finite norm", Told("one that overflows")) from None
    return f.centres.copy(), f.weights[:, 0].copy() if flat else f.weights.copy(), pruned.error


def compressed(
    kernel: Kernel, centres: Floats, weights: Floats, budget: float, *, max_order: int | None = None
) -> tuple[Expansion, Pruned]:
    """`compress` for callers that have checked everything before."""
    zero = Expansion.trusted(kernel, np.empty((0, centres.shape[1])), np.empty((0, weights.shape[1])))
    start, change = _put_together(Memory(zero, workspace=InverseGram()), Change(centres, weights))
    memory, pruned = _absorb(start, change, budget, max_order or len(centres), _TOLERANCE)
    return memory.function, pruned
