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
from kernelmesh.numerics.inverse_gram import InverseGram, Layout
from kernelmesh.numerics.kernels import Kernel, check_kernel
from kernelmesh.numerics.products import product
from kernelmesh.numerics.schedules import Schedule, check_schedule, value_at
from kernelmesh.registry import register

__all__ = ["Compression", "CompressionReport", "Komp", "Model", "Uncompressed", "Update", "compress"]


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
    """A function with what makes the next step cheap."""

    function: Function
    _: KW_ONLY
    square_norm: float = 0.0
    """‖f‖²: projections are orthogonal, so ‖f‖² = ‖f̃‖² − error². NaN with learners that project differently."""
    inverse: InverseGram | None = None
    """P of its points, if it is needed."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to store besides the function and P, which can be recomputed."""
        return {}

    def without_samples(self) -> Self:
        """The same model, without samples that it may keep besides its points."""
        return self

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
        """Apply the update and compress to a distance of at most `budget`."""


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
        moved = product(gram, update.coefficients) + 2.0 * update.shrink * f.from_cross(cross)
        square_norm = update.shrink**2 * model.square_norm + float(np.vdot(update.coefficients, moved))
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
    tolerance: float = 1e-12
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
        inverse = InverseGram.of(function.kernel, function.points)
        if inverse is not None:
            return Model(function, square_norm=function.inner(function), inverse=inverse)
        # some points depend on others to rounding: build up from nothing, which folds them in
        return _built_up(function, 0.0, function.order, self.tolerance)[0]

    def absorb(self, model: Model, update: Update, *, budget: float) -> tuple[Model, CompressionReport]:
        if not budget >= 0:
            raise InvalidArgument("Komp", "budget", "be >= 0 at every sample", budget)
        repaired = model.inverse is None
        if model.inverse is None:
            model = self.start(model.function)
        else:
            inverse, repaired = model.inverse.watched(model.function.kernel, model.function.points, self.watch)
            if repaired:
                model = self._with(model, inverse)
            elif inverse is not model.inverse:
                model = replace(model, inverse=inverse)
        before = len(update.points)
        if update.shared:
            model, update = _put_together(model, update)
        max_order = self.max_order or model.function.order + len(update.points)
        try:
            after, report = _absorb(model, update, budget, max_order, self.tolerance)
        except _Breakdown:
            # rounding in P made the exchange impossible; a fresh P gets one more chance
            f, repaired = model.function, True
            assert model.inverse is not None
            model = self._with(model, model.inverse.renewed(f.kernel, f.points))
            after, report = _absorb(model, update, budget, max_order, self.tolerance)
        folded = before - len(update.points)
        return after, replace(report, removed=report.removed + folded, repaired=repaired) if folded or repaired else report

    def _with(self, model: Model, inverse: InverseGram | None) -> Model:
        """The same function with P recomputed, or without dependent points if that has failed."""
        f = model.function
        return self.start(f) if inverse is None else replace(model, inverse=inverse, square_norm=f.inner(f))


def _put_together(model: Model, update: Update) -> tuple[Model, Update]:
    """The same f̃, with points that the dictionary has already added to its weights, and equal new points made one."""
    f = model.function
    old, points = f.order, np.ascontiguousarray(np.concatenate([f.points, update.points]))
    rows = points.view(f"V{points.itemsize * points.shape[1]}").ravel().tolist()  # equal bit for bit
    where: dict[bytes, int] = {}
    first = np.array([where.setdefault(row, i) for i, row in enumerate(rows)])
    fresh = old + np.flatnonzero(first[old:] == np.arange(old, len(first)))
    if old + len(fresh) == len(first):
        return model, update
    place = np.arange(len(first))
    place[fresh] = np.arange(old, old + len(fresh))
    sums = np.zeros((old + len(fresh), f.outputs))
    np.add.at(sums, place[first[old:]], update.coefficients)
    coefficients = sums[old:]
    if not (first[old:] < old).any():
        return model, Update(points[fresh], coefficients, update.shrink)
    weights = update.shrink * f.weights + sums[:old]
    moved = Function(f.kernel, f.points, weights)
    square_norm = float((weights * moved.evaluate(f.points)).sum())
    model = replace(model, function=moved, square_norm=max(square_norm, 0.0))
    return model, Update(points[fresh], coefficients)


class _Breakdown(FloatingPointError):
    """Rounding in P has made an exchange of points impossible."""


def _absorb(model: Model, update: Update, budget: float, max_order: int, tolerance: float) -> tuple[Model, CompressionReport]:
    f, inverse = model.function, model.inverse
    assert inverse is not None
    points, coefficients, shrink = update.points, update.coefficients, update.shrink
    schur = f.kernel(points, points)
    lifted = np.empty((len(points), f.order))
    changes, stays, weights, added, square_error, dependent = compiled.pruning.choose(
        inverse.matrix,
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
        everything = np.concatenate([f.points, points]), np.concatenate([shrink * f.weights, coefficients])
        return _built_up(Function(f.kernel, *everything), budget, max_order, tolerance)
    if changes == 0:
        # the batch only replaced itself: neither the points nor P change
        function, removed = Function(f.kernel, f.points, weights), len(points)
        square_error = square_error if f.order else max(square_norm, 0.0)
    else:
        removed = f.order + len(points) - int(np.count_nonzero(stays))
        layout = Layout.of(stays, f.order)
        exchange = inverse.exchange(
            layout, lifted=lifted, schur=schur, weights=f.weights, shrink=shrink, coefficients=coefficients
        )
        weights = layout.arrange(exchange.staying, exchange.arriving)
        if not np.isfinite(weights).all():
            raise _Breakdown("the weights are no longer finite")
        if f.order == 0:
            # S is the Gram matrix of all candidates here: the error can be measured, which rounds less than adding it up
            rest = coefficients.copy()
            rest[layout.kept] -= exchange.arriving
            square_error = max(float((rest * product(schur, rest)).sum()), 0.0)
        function = Function(f.kernel, layout.arrange(f.points, points[layout.kept]), weights)
        inverse = inverse.after(layout, exchange, np.empty((0, layout.order)))
    left = max(square_norm - square_error, 0.0) if function.order else 0.0
    report = CompressionReport(error=math.sqrt(square_error), budget=budget, removed=removed, dependent=dependent)
    return Model(function, square_norm=left, inverse=inverse), report


def _built_up(function: Function, budget: float, max_order: int, tolerance: float) -> tuple[Model, CompressionReport]:
    """A function compressed from all its points at once, which needs no P."""
    zero = Function.zero(function.kernel, dimension=function.dimension, outputs=function.outputs)
    model, update = _put_together(Model(zero, inverse=InverseGram.empty()), Update(function.points, function.weights))
    return _absorb(model, update, budget, max_order, tolerance)


def compress(
    kernel: Kernel, points: Floats, weights: Floats, budget: float, *, max_order: int | None = None
) -> tuple[Floats, Floats, float]:
    """Compress a kernel expansion f̃ = Σ κ(d_m, ·) w_m to a few of its points, with ‖f − f̃‖ ≤ budget.

    Parameters
    ----------
    kernel : Kernel
        κ.
    points : array-like of shape (M, p)
        The points d.
    weights : array-like of shape (M,) or (M, C)
        The weights w of one function, or one column for each of several functions over the same points.
    budget : float
        The maximum distance ‖f − f̃‖ over all functions jointly.
    max_order : int, optional
        The maximum number of points to keep, regardless of the budget.

    Returns
    -------
    points : ndarray
        The kept points.
    weights : ndarray
        Their weights, with as many dimensions as the given weights.
    error : float
        ‖f − f̃‖, at most the budget unless `max_order` made it larger.

    Examples
    --------
    >>> from kernelmesh import Gaussian
    >>> points, weights, error = compress(Gaussian(), [[0.0], [0.01], [5.0]], [1.0, 1.0, 1.0], 0.1)
    >>> len(points), error < 0.1
    (2, True)
    """
    check_kernel("compress", kernel)
    points = matrix("compress", "points", points)
    flat = np.ndim(weights) == 1
    table = matrix("compress", "weights", np.asarray(weights)[:, None] if flat else weights, rows=len(points))
    limit = non_negative("compress", "budget", budget, infinite=True)
    if max_order is not None:
        integer("compress", "max_order", max_order, minimum=1)
    try:
        model, report = _built_up(Function(kernel, points, table), limit, max_order or len(points), Komp.tolerance)
    except FloatingPointError:
        raise InvalidArgument(
            "compress", "weights", "define a function of finite norm", Verbatim("one that overflows")
        ) from None
    f = model.function
    return f.points.copy(), f.weights[:, 0].copy() if flat else f.weights.copy(), report.error
