"""Compression: approximates a function f̃ with as few points as the budget allows.

`Komp` is destructive kernel orthogonal matching pursuit with pre-fitting (Algorithm 2 of the paper): remove the point
whose removal costs least after refitting all other weights, while the distance to f̃ stays within the budget ε. It needs no
explicit refits, because with P the inverse Gram matrix of the kept points and W their weights, removing j adds
exactly ‖W_j‖² / P_jj to the squared distance, and the squared distances of successive removals add up.

Cost of one step with M points, B new ones, C outputs and q removals:
O(M² B) for one product with P, O(M (B + q + C)) per removal, and O(M² s) to update P when s points were exchanged.
Only a budget too fine for the conditioning of P (points that nearly coincide, all of which must be kept) costs O((M + B)³).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, integer, matrix, non_negative, positive
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics import compiled
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.inverse_gram import BROKEN, InverseGram
from kernelmesh.numerics.kernels import Kernel, check_kernel
from kernelmesh.numerics.products import product
from kernelmesh.numerics.schedules import Schedule, check_schedule, value_at
from kernelmesh.registry import register

__all__ = ["Compression", "CompressionReport", "Komp", "Model", "Uncompressed", "Update", "compress", "compressed"]

# A new point whose distance² to the span of the others is at most this share of κ(x, x) counts as dependent.
_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Update:
    """An update before compression: f̃ = shrink · f + Σ_b κ(x_b, ·) a_b.

    `cross` may carry κ(X, D) if the caller already has it. `shared` says that points came from neighbors. Many of those are
    likely to be in the dictionary already, bit for bit, or to occur several times among the new ones: they are merged first,
    so that the cost depends on the distinct points.
    """

    points: Floats
    coefficients: Floats
    shrink: float = 1.0
    cross: Floats | None = None
    shared: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether f̃ = f."""
        return not len(self.points) and self.shrink == 1.0


@dataclass(frozen=True, kw_only=True)
class CompressionReport:
    """The report of one compression."""

    error: float
    """‖f − f̃‖, the distance that compression moved the function."""
    budget: float
    removed: int = 0
    """The number of the M + B candidate points that were removed."""
    dependent: int = 0
    """The number of new points that lay in the span of the others to rounding and were folded in."""
    repaired: bool = False
    """Whether the inverse Gram matrix had drifted and was recomputed."""

    @property
    def over_budget(self) -> bool:
        """Whether the error exceeds the budget: because of the limit on the model order, or (for budgets near
        rounding) because points coincide to rounding and could not be kept apart.
        """
        return self.error > self.budget * (1.0 + 1e-9)


@dataclass(frozen=True, eq=False)
class Model:
    """A function with the workspace that makes the next step cheap.

    The function is an immutable value and always stays valid. The workspace is not: a step takes ownership of it and changes
    it in place, after which this Model can still be read but not stepped again. `copy` makes an independent one.
    """

    function: Function
    _: KW_ONLY
    square_norm: float = 0.0
    """‖f‖²: projections are orthogonal, so ‖f‖² = ‖f̃‖² − error². NaN with rules that project differently."""
    workspace: InverseGram | None = None
    generation: int = 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to store besides the function and P, which can be recomputed."""
        return {}

    def without_samples(self) -> Self:
        """The same model, without samples that it may keep besides its points."""
        return self

    def copy(self) -> Self:
        """An independent copy."""
        if self.workspace is None or self.workspace.generation == BROKEN:
            return self
        return replace(self, workspace=self.claim().copy())

    def invalidate(self) -> None:
        """After a step that failed halfway: if it changed the workspace, mark that, so that P is recomputed."""
        if self.workspace is not None and self.workspace.generation != self.generation:
            self.workspace.generation = BROKEN

    def claim(self) -> InverseGram:
        """The workspace, if it still belongs to this Model."""
        assert self.workspace is not None
        self.check_ownership()
        return self.workspace

    def check_ownership(self) -> None:
        """Raise an error if a newer Model owns the workspace."""
        if self.workspace is not None and self.workspace.generation not in (self.generation, BROKEN):
            raise self.outdated()

    @staticmethod
    def outdated() -> RuntimeError:
        """The error for a model whose workspace is owned by a newer one."""
        return RuntimeError(
            "Model: this state was already stepped and its workspace now belongs to the newer state; "
            "step the newest state, keep state.copy() before stepping, or start over from its function"
        )

    def widened(self, *, dimension: int, outputs: int) -> Self:
        """The model of the same function with more features and outputs (`Function.widened`); Gram matrices stay the same.

        A model that keeps more for each output than its function widens that, too.
        """
        return replace(self, function=self.function.widened(dimension=dimension, outputs=outputs))

    def scaled(self, factor: float) -> Self:
        """The model of factor · f over the same points."""
        weights = self.function.weights * factor
        function = Function(self.function.kernel, self.function.points, weights)
        return replace(self, function=function, square_norm=self.square_norm * factor**2)


@runtime_checkable
class Compression(Protocol):
    """Limits the number of points in a function.

    The interface of `Komp` and `Uncompressed`: `start` a model, then `absorb` updates.

    Examples
    --------
    >>> isinstance(Komp(budget=0.1), Compression)
    True
    """

    def start(self, function: Function) -> Model:
        """A model with `function` (for a new agent, the zero function)."""

    def budget_at(self, samples: int, *, unit: float, parsimony: float) -> float:
        """ε after this many samples, where K η^q has the unit η^q, and by default K is `parsimony`."""

    def absorb(self, model: Model, update: Update, *, budget: float) -> tuple[Model, CompressionReport]:
        """Apply the update and compress to a distance of at most `budget`; takes ownership of the model's workspace.

        On an error, the model is unchanged.
        """


@register("compression")
@dataclass(frozen=True, kw_only=True)
class Uncompressed:
    """No compression: plain functional stochastic gradient descent, with one more point for every sample.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> model = Uncompressed().start(Function.zero(Gaussian(), dimension=1, outputs=1))
    >>> update = Update(np.array([[0.0], [0.0]]), np.array([[1.0], [1.0]]))
    >>> model, _ = Uncompressed().absorb(model, update, budget=0.0)
    >>> model.function.order
    2
    """

    def start(self, function: Function) -> Model:
        return Model(function, square_norm=function.inner(function))

    def budget_at(self, samples: int, *, unit: float, parsimony: float) -> float:
        return 0.0

    def absorb(self, model: Model, update: Update, *, budget: float) -> tuple[Model, CompressionReport]:
        f = model.function
        cross = f.kernel(update.points, f.points) if update.cross is None else update.cross
        gram = f.kernel(update.points, update.points)
        added = compiled.pruning.growth(gram, cross, f.weights, update.coefficients, update.shrink)
        square_norm = update.shrink**2 * model.square_norm + added
        if not math.isfinite(square_norm):
            raise FloatingPointError("the function is no longer finite")
        centers = np.concatenate([f.points, update.points])
        weights = np.concatenate([update.shrink * f.weights, update.coefficients])
        function = Function(f.kernel, centers, weights)
        return Model(function, square_norm=square_norm), CompressionReport(error=0.0, budget=0.0)


@register("compression")
@dataclass(frozen=True, kw_only=True)
class Komp:
    """Kernel orthogonal matching pursuit, destructive with pre-fitting: ‖f − f̃‖ ≤ ε over all outputs jointly.

    Parameters
    ----------
    budget : float or Schedule, optional
        The budget ε; 0 removes only points that cost nothing. By default K η^q with the step size η of the learner, and
        q = 3/2 for `Gradient`, as in the paper (Theorem 1), or 1/2 for `Averaged`.
    parsimony : float, optional
        K in that budget: larger means fewer points and a coarser function. By default that of the learner; the figures of the
        paper use 0.04.
    max_order : int, optional
        The maximum model order, regardless of the budget; `Info.over_budget` is true if it made the error exceed the budget.
    tolerance : float
        A new point counts as dependent when its distance² to the span of the others is at most tolerance · κ(x, x).
    watch : int
        The number of changes of P after which one column of P K is compared with the identity; P is recomputed if it has
        drifted.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> komp = Komp(budget=0.1)
    >>> model = komp.start(Function.zero(Gaussian(), dimension=1, outputs=1))
    >>> model, report = komp.absorb(model, Update(np.array([[0.0], [0.01]]), np.array([[1.0], [1.0]])), budget=0.1)
    >>> model.function.order, report.error < 0.1
    (1, True)
    """

    budget: Schedule | float | None = None
    parsimony: float | None = None
    max_order: int | None = None
    tolerance: float = _TOLERANCE
    watch: int = 16

    def __post_init__(self) -> None:
        if self.budget is not None:
            if self.parsimony is not None:
                raise InvalidArgument("Komp", "parsimony", "be omitted with a budget", self.parsimony)
            check_schedule("Komp", "budget", self.budget)
        if self.parsimony is not None:
            non_negative("Komp", "parsimony", self.parsimony)
        if self.max_order is not None:
            integer("Komp", "max_order", self.max_order, minimum=1)
        positive("Komp", "tolerance", self.tolerance)
        integer("Komp", "watch", self.watch, minimum=1)

    def budget_at(self, samples: int, *, unit: float, parsimony: float) -> float:
        if self.budget is None:
            return (parsimony if self.parsimony is None else self.parsimony) * unit
        return value_at(self.budget, samples)

    def start(self, function: Function) -> Model:
        inverse = InverseGram()
        if function.order == 0:
            return Model(function, workspace=inverse)
        if inverse.rebuild(function.kernel, function.points):
            return Model(function, square_norm=function.inner(function), workspace=inverse, generation=inverse.generation)
        # some points depend on others to rounding: build up from nothing, which folds them in
        zero = Function.zero(function.kernel, dimension=function.dimension, outputs=function.outputs)
        model = Model(zero, workspace=InverseGram())
        model, _ = _absorb(model, Update(function.points, function.weights), 0.0, function.order, self.tolerance)
        return model

    def absorb(self, model: Model, update: Update, *, budget: float) -> tuple[Model, CompressionReport]:
        if not budget >= 0:
            raise InvalidArgument("Komp", "budget", "be >= 0 at every sample", budget)
        repaired = model.workspace is None or model.workspace.generation == BROKEN
        if repaired:  # there was none, or an earlier step was cut short while it changed P; the function is whole
            model = self.start(model.function)
        inverse = model.claim()
        if (index := inverse.due(self.watch)) is not None:
            model, drifted = self._repair(model, inverse, index)
            repaired = repaired or drifted
        folded = 0
        if update.shared:
            before = len(update.points)
            model, update = _put_together(model, update)
            folded = before - len(update.points)
        model, report = self._absorb(model, update, budget)
        report = replace(report, removed=report.removed + folded)
        return model, replace(report, repaired=True) if repaired else report

    def _absorb(self, model: Model, update: Update, budget: float) -> tuple[Model, CompressionReport]:
        max_order = self.max_order or model.function.order + len(update.points)
        try:
            return _absorb(model, update, budget, max_order, self.tolerance)
        except _Breakdown:
            # rounding in P made the exchange impossible; a fresh P gets one more chance
            model, report = _absorb(self._renew(model), update, budget, max_order, self.tolerance)
            return model, replace(report, repaired=True)

    def _repair(self, model: Model, inverse: InverseGram, index: int) -> tuple[Model, bool]:
        """Look at one column, and rebuild P if it has drifted."""
        f = model.function
        if inverse.probe(f.kernel, f.points, index):
            return model, False
        model = self._renew(model)
        inverse = model.claim()
        # where the points themselves are nearly dependent no inverse is exact: ask for what a fresh one achieves
        if index < inverse.order:
            inverse.bound = max(inverse.bound, 10.0 * inverse.drift(f.kernel, model.function.points, index))
        return model, True

    def _renew(self, model: Model) -> Model:
        """The same function with P recomputed, or without dependent points if that fails."""
        f, inverse = model.function, model.claim()
        if inverse.rebuild(f.kernel, f.points):
            return replace(model, square_norm=f.inner(f))
        return self.start(f)


def _put_together(model: Model, update: Update) -> tuple[Model, Update]:
    """The same f̃, with points that the dictionary has already added to its weights, and equal new points made one."""
    f = model.function
    old, points = f.order, np.concatenate([f.points, update.points])
    fresh, sums, touches = compiled.folding.fold(points.view(np.uint64), old, update.coefficients)
    if len(fresh) == len(update.points):
        return model, update
    coefficients = sums[old:]
    if not touches:
        return model, Update(update.points[fresh], coefficients, update.shrink)
    weights = update.shrink * f.weights + sums[:old]
    moved = Function(f.kernel, f.points, weights)
    square_norm = float((weights * moved.evaluate(f.points)).sum())
    model = replace(model, function=moved, square_norm=max(square_norm, 0.0))
    return model, Update(update.points[fresh], coefficients)


class _Breakdown(FloatingPointError):
    """Rounding in P has made an exchange of points impossible."""


def _absorb(model: Model, update: Update, budget: float, max_order: int, tolerance: float) -> tuple[Model, CompressionReport]:
    f, inverse = model.function, model.claim()
    points, coefficients, shrink = update.points, update.coefficients, update.shrink
    schur = f.kernel(points, points)
    lifted = np.zeros((len(points), inverse.width))  # stays zero where there are no old points
    changes, stays, weights, added, square_error, dependent = compiled.pruning.choose(
        inverse.buffer,
        f.order,
        f.kernel(points, f.points) if update.cross is None else update.cross,
        schur,
        lifted,
        f.kernel.diag(f.points),
        f.weights,
        shrink,
        shrink**2 * model.square_norm,
        coefficients,
        tolerance,
        min(budget, 1e150) ** 2,
        max_order,
    )
    square_norm = shrink**2 * model.square_norm + added
    if not math.isfinite(square_norm):
        raise FloatingPointError("the function is no longer finite")
    if changes < 0:
        # the budget is finer than what P can resolve: begin again from all the points, which needs no P
        everything = Update(np.concatenate([f.points, points]), np.concatenate([shrink * f.weights, coefficients]))
        zero = Function.zero(f.kernel, dimension=f.dimension, outputs=f.outputs)
        return _absorb(Model(zero, workspace=InverseGram()), everything, budget, max_order, tolerance)
    if changes == 0:
        # the batch only replaced itself: neither the points nor P change
        function, removed = Function(f.kernel, f.points, weights), len(points)
        square_error = square_error if f.order else max(square_norm, 0.0)
    else:
        removed = f.order + len(points) - int(np.count_nonzero(stays))
        function, measured = _exchange(model, update, stays, lifted, schur)
        square_error = square_error if measured is None else measured
    left = max(square_norm - square_error, 0.0) if function.order else 0.0
    report = CompressionReport(error=math.sqrt(square_error), budget=budget, removed=removed, dependent=dependent)
    return Model(function, square_norm=left, workspace=inverse, generation=inverse.generation), report


def _exchange(
    model: Model, update: Update, stays: NDArray[np.bool_], lifted: Floats, schur: Floats
) -> tuple[Function, float | None]:
    """The projection of f̃ onto the points that stay, and its squared error where that can be measured; P follows."""
    f, inverse = model.function, model.claim()
    plan = inverse.plan(
        stays, lifted=lifted, schur=schur, weights=f.weights, shrink=update.shrink, coefficients=update.coefficients
    )
    weights = plan.weights()
    if not np.isfinite(weights).all():
        raise _Breakdown("the weights are no longer finite")
    measured = None
    if f.order == 0:
        # S is the Gram matrix of all candidates here: the error can be measured, which rounds less than adding it up
        rest = update.coefficients.copy()
        rest[plan.kept] -= plan.arriving
        measured = max(float((rest * product(schur, rest)).sum()), 0.0)
    function = Function(f.kernel, plan.arrange(f.points, update.points[plan.kept]), weights)
    inverse.apply(plan)
    return function, measured


def compress(
    kernel: Kernel, centers: Floats, weights: Floats, budget: float, *, max_order: int | None = None
) -> tuple[Floats, Floats, float]:
    """Compress a kernel expansion f̃ = Σ κ(d_m, ·) w_m to a few of its points, with ‖f − f̃‖ ≤ budget.

    Parameters
    ----------
    kernel : Kernel
        κ.
    centers : array-like of shape (M, p)
        The points d.
    weights : array-like of shape (M,) or (M, C)
        The weights w of one function, or one column for each of several functions over the same points.
    budget : float
        The maximum distance ‖f − f̃‖ over all functions jointly.
    max_order : int, optional
        The maximum number of points to keep, regardless of the budget.

    Returns
    -------
    centers : ndarray
        The kept points.
    weights : ndarray
        Their weights, with as many dimensions as the given weights.
    error : float
        ‖f − f̃‖, at most the budget unless `max_order` made it larger.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> centers, weights, error = compress(Gaussian(), [[0.0], [0.01], [5.0]], [1.0, 1.0, 1.0], 0.1)
    >>> len(centers), error < 0.1
    (2, True)
    """
    check_kernel("compress", kernel)
    centers = matrix("compress", "points", centers)
    flat = np.ndim(weights) == 1
    table = matrix("compress", "weights", np.asarray(weights)[:, None] if flat else weights, rows=len(centers))
    limit = non_negative("compress", "budget", budget, infinite=True)
    if max_order is not None:
        integer("compress", "max_order", max_order, minimum=1)
    try:
        f, report = compressed(kernel, centers, table, limit, max_order=max_order)
    except FloatingPointError:
        raise InvalidArgument(
            "compress", "weights", "define a function of finite norm", Verbatim("one that overflows")
        ) from None
    return f.points.copy(), f.weights[:, 0].copy() if flat else f.weights.copy(), report.error


def compressed(
    kernel: Kernel, centers: Floats, weights: Floats, budget: float, *, max_order: int | None = None
) -> tuple[Function, CompressionReport]:
    """`compress` for callers that have checked everything before."""
    fresh, sums, _ = compiled.folding.fold(centers.view(np.uint64), 0, weights)
    if len(fresh) < len(centers):
        centers, weights = centers[fresh], sums
    return compressed_distinct(kernel, centers, weights, budget, max_order=max_order)


def compressed_distinct(
    kernel: Kernel, centers: Floats, weights: Floats, budget: float, *, max_order: int | None = None
) -> tuple[Function, CompressionReport]:
    """`compressed` for points of which no two are equal."""
    kept, after, square_norm, square_error, dependent = compiled.pruning.compress(
        kernel(centers, centers), weights, _TOLERANCE, min(budget, 1e150) ** 2, max_order or len(centers)
    )
    if not math.isfinite(square_norm):
        raise FloatingPointError("the function is no longer finite")
    if not np.isfinite(after).all():
        raise FloatingPointError("the weights are no longer finite")
    removed = len(centers) - len(kept)
    report = CompressionReport(error=math.sqrt(square_error), budget=budget, removed=removed, dependent=dependent)
    return Function(kernel, centers[kept], after), report
