"""Second-order learning from sums over landmarks, which agents can share."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer, matrix, non_negative, positive
from kernelmesh.consensus import StepInputs
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Compression, CompressionReport, Model, Update
from kernelmesh.numerics.covariance import Covariance
from kernelmesh.numerics.expansion import Expansion, Lifted
from kernelmesh.numerics.halves import Half, halved, whole
from kernelmesh.numerics.landmarks import agreed, factor, lower_root, novel, on_grid
from kernelmesh.numerics.landmarks import inverse as inverse_of
from kernelmesh.numerics.losses import CurvedLoss, Loss, curvature_root
from kernelmesh.numerics.products import accumulate_square, product
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.registry import register
from kernelmesh.rules.base import Move, Rule, Told, check_curved

__all__ = ["Landmarks", "LandmarksModel"]

# R is recomputed after this many steps, or once this fraction of the statistics has been forgotten.
_STEPS, _FORGOTTEN = 256, 0.05
# The age that files store for an R that is not kept.
_UNFORMED = -1


@dataclass(frozen=True, eq=False)
class LandmarksModel(Model):
    """Statistics Θ, β over the landmarks Z, and the function that they determine.

    `function` holds the statistics. All arrays are immutable: a step creates new ones.
    """

    solution: Expansion | None = None
    """The function, whose weights are W."""
    kept_inverse: Floats | Half = dataclasses.field(default_factory=lambda: np.empty((0, 0)))
    """P = K⁻¹, or half of it."""
    opened: tuple[Floats, Half] | None = None
    """P as expanded from its half, and that half, which is stored again if P is unchanged at the end of the step."""
    spread: Covariance | None = None
    """R = (λ K + K Θ K)⁻¹ = P (λ P + Θ)⁻¹ P; None if the next exchange replaces it; computed if needed earlier."""
    regularization: float = 1.0
    """λ."""
    age: int = 0
    """Steps since R was computed."""
    forgotten: float = 0.0
    """The fraction of the statistics that has been forgotten since."""
    agreed: bool = False
    """Whether every agent with these points would keep all of them."""

    @property
    def statistics(self) -> Statistics:
        """Θ and β over Z."""
        return cast(Statistics, self.function)

    @property
    def weights(self) -> Floats:
        """W."""
        assert self.solution is not None
        return self.solution.weights

    @property
    def inverse(self) -> Floats:
        """P."""
        return whole(self.kept_inverse)

    @property
    def unfolded(self) -> tuple[Floats, tuple[Floats, Half] | None]:
        """P, and the new value of `opened`."""
        inverse = self.inverse
        return inverse, (inverse, self.kept_inverse) if isinstance(self.kept_inverse, Half) else self.opened

    @property
    def folded(self) -> Floats | Half:
        """P in half the memory if possible."""
        if self.opened is not None and self.opened[0] is self.kept_inverse:
            return self.opened[1]
        return halved(self.inverse)

    @property
    def covariance(self) -> Floats:
        """R as a matrix."""
        return self.formed.matrix

    @property
    def formed(self) -> Covariance:
        """R, computed from the statistics if it is not kept."""
        if self.spread is not None:
            return self.spread
        return _solved(self.statistics, self.regularization, inverse=self.inverse).formed

    def arrays(self) -> dict[str, NDArray[Any]]:
        clock = np.array([[_UNFORMED if self.spread is None else self.age, self.forgotten, self.agreed]])
        return {"solution": self.weights, "inverse": self.inverse, "covariance": self.covariance, "clock": clock}

    def widened(self, *, dimension: int, outputs: int) -> Self:
        wider = super().widened(dimension=dimension, outputs=outputs)
        assert self.solution is not None
        return dataclasses.replace(wider, solution=self.solution.widened(dimension=dimension, outputs=outputs))


@register("rule")
@dataclass(frozen=True, kw_only=True)
class Landmarks(Rule):
    """W = (λ I + Θ K)⁻¹ β,  Θ = Σ_t h_t c_t c_tᵀ,  β = Σ_t c_t (h_t z_t − ℓ'(z_t))ᵀ,  c_t = K⁻¹ κ(Z, x_t),  K = κ(Z, Z).

    Like `SecondOrder`, this rule keeps a quadratic model of the loss of all samples and has no step size. But points are not
    chosen by their benefit: samples far from the span of the dictionary Z join it until there are enough (Nyström landmarks),
    and the model consists of sums over samples. Agents can add these sums up: with `SharedStatistics`, all agents end up
    with the same points and learn from all samples. λ applies to each agent: n agents learn as one learner with n λ.

    To use given landmarks, start agents from a function over them with weights 0, and set `novelty` to infinity. Then no
    sample leaves an agent, only sums do.

    Cost of a step with M points and B samples: O(M² B). O(M³) after each exchange, which changes all of Θ.

    Parameters
    ----------
    novelty : float
        ν: a sample becomes a point only if its distance² to the span of the others exceeds ν κ(x, x).
    max_order : int
        The maximum number of points; given landmarks count as well once agents exchange. Of points that several agents
        propose at the same time, all agents keep the same ones: no more than this, and none that is nearly in the span of the
        others.
    half_life : float
        The number of samples after which old data counts half, for streams that change; infinite means nothing is forgotten.
    iterations : int
        The maximum number of majorize-minimize iterations in an implicit step.
    grid : float
        If positive, a new point is a sample rounded to multiples of this spacing. Agents with few features then often choose
        the same points, and large networks agree on them sooner. About the bandwidth of a Gaussian kernel suits 2
        features, and less suits more; 0 means that points are samples.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Gaussian, Landmarks, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), rule=Landmarks())
    >>> state, _ = agent.step(agent.start(), np.array([[0.0], [1.0]]), np.array([1.0, -1.0]))
    >>> agent.predict(state, np.array([[0.0]])).round(2)
    array([[0.99]])
    """

    takes_step_size = False
    listens = False
    gathers = True
    usual_regularization = 0.005
    model_kind = LandmarksModel

    novelty: float = 0.1
    max_order: int = 200
    half_life: float = math.inf
    iterations: int = 5
    grid: float = 0.0

    def __post_init__(self) -> None:
        positive("Landmarks", "novelty", self.novelty, infinite=True)
        integer("Landmarks", "max_order", self.max_order, minimum=1)
        positive("Landmarks", "half_life", self.half_life, infinite=True)
        integer("Landmarks", "iterations", self.iterations, minimum=1)
        if non_negative("Landmarks", "grid", self.grid) and math.isinf(self.novelty):
            remedy = "given landmarks stay as they are: omit it"
            raise InvalidArgument("Landmarks", "grid", "be 0 with infinite novelty", self.grid, remedy=remedy)

    def check(self, owner: str, loss: Loss, regularization: float) -> None:
        check_curved(owner, self, loss, regularization)

    def start(self, function: Expansion, compression: Compression | None, regularization: float) -> LandmarksModel:
        """Start from a function; one learned elsewhere serves as the prior mean."""
        if math.isinf(self.novelty) and not function.order:
            rule = "be finite unless agents start from a function over given points"
            raise InvalidArgument("Landmarks", "novelty", rule, self.novelty)
        statistics = function
        if not isinstance(function, Statistics):
            weights = regularization * function.weights
            statistics = Statistics.of(Expansion.trusted(function.kernel, function.centers, weights))
        return _solved(cast(Statistics, statistics), regularization)

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> LandmarksModel:
        assert isinstance(model, LandmarksModel)
        order, outputs = model.function.order, model.function.outputs
        age, forgotten, agreed = matrix("file", "model.clock", arrays["clock"], rows=1, columns=3)[0]
        inverse = matrix("file", "model.inverse", arrays["inverse"], rows=order, columns=order)
        spread: Covariance | None = Covariance(
            matrix("file", "model.covariance", arrays["covariance"], rows=order, columns=order)
        )
        weights = matrix("file", "model.solution", arrays["solution"], rows=order, columns=outputs)
        solution = _function(model.statistics, weights)
        if age <= 0:  # all of R was not needed
            try:
                solved = _solved(model.statistics, model.regularization, inverse=inverse)
                spread = None if age == _UNFORMED else solved.formed
                if age == 0:  # nothing has been learned since the last solve
                    solution = cast(Expansion, solved.solution)
            except FloatingPointError:
                rule = "have an inverse that fits its points"
                raise InvalidArgument("file", "model.inverse", rule, Verbatim("one that does not")) from None
        return dataclasses.replace(
            model,
            solution=solution,
            kept_inverse=inverse,
            spread=spread,
            age=max(integer("file", "model.clock", int(age), minimum=_UNFORMED), 0),
            forgotten=float(forgotten),
            agreed=bool(agreed),
        )

    def current(self, model: Model) -> Expansion:
        assert isinstance(model, LandmarksModel)
        assert model.solution is not None
        return model.solution

    def shown(self, model: Model, combined: Expansion | None) -> Expansion:
        return self.current(model)

    def absorb(self, model: Model, update: Update, compression: Compression | None, *, samples: int) -> Model:
        assert isinstance(model, LandmarksModel)
        assert update.statistics is not None
        old, new = model.statistics, update.statistics
        stays, gram = np.arange(new.order), None
        if new.order > old.order or not model.agreed:
            gram = new.kernel(new.centers, new.centers)
            stays = agreed(new.kernel, new.centers, novelty=self.novelty, max_order=self.max_order, gram=gram)
        inverse, opened = model.unfolded if len(stays) == new.order == old.order else (None, None)
        if len(stays) < new.order:
            new, inverse = new.restricted(stays, gram)
        elif gram is not None and (stays[1:] < stays[:-1]).any():
            new, opened = new.reordered(stays), None
            inverse = None if inverse is None else compiled.symmetric.taken(inverse, stays, stays)
        if inverse is None and gram is not None:
            inverse = inverse_of(new.kernel, new.centers, compiled.symmetric.taken(gram, stays, stays))
        solved = _solved(new, model.regularization, inverse=inverse)
        return dataclasses.replace(solved, opened=opened, agreed=True)

    def opinion(self, model: Model, said: Sequence[Told]) -> Expansion | None:
        assert isinstance(model, LandmarksModel)
        own, inverse = model.statistics, model.inverse
        if not own.order:
            return Expansion.trusted(own.kernel, own.centers, np.empty((0, len(said) * own.outputs)))
        base = _sum(model.regularization, inverse, own.moments)
        inner, in_debt = [], {}
        for n, (weight, place, told, square) in enumerate(said):
            sums, pooled = own.weights.copy(), base.copy()
            compiled.symmetric.add_known(sums, pooled, place, told, square, weight)
            if (found := _solution(pooled, sums)) is None:  # the agent or the neighbor may have given away more than it had
                if own.definite and not _can_be(model.regularization, inverse, place, told, square):
                    return None
                moments = own.moments.copy()
                compiled.symmetric.add_known(sums.copy(), moments, place, told, square, weight)
                try:
                    half, image = _halves_in_debt(moments, sums, model.regularization, inverse)
                except (FloatingPointError, np.linalg.LinAlgError):
                    return None
                found, in_debt[n] = np.zeros_like(sums), product(half.T, image)
            inner.append(found)
        weights = product(inverse, np.concatenate(inner, axis=1))
        for n, debtor in in_debt.items():
            weights[:, n * own.outputs : (n + 1) * own.outputs] = debtor
        return Expansion.trusted(own.kernel, own.centers, weights)

    def learn(
        self, model: Model, inputs: StepInputs, move: Move, compression: Compression | None
    ) -> tuple[Model, CompressionReport]:
        assert isinstance(model, LandmarksModel)
        batch = len(inputs.points)
        before = model.function.order
        if model.spread is None:
            inverse, opened = model.unfolded
            model = dataclasses.replace(model, kept_inverse=inverse, opened=opened, spread=model.formed)
        kept = 0.5 ** (batch / self.half_life)
        if kept < 1.0:
            model = _forgetting(model, kept)
        aged = model.age >= _STEPS or model.forgotten > _FORGOTTEN
        if aged and model.function.order:
            model = _anew(model, inverse=model.inverse)
        model, cross, lifted = self._grown(model, inputs)
        after = self._taught(model, inputs, cross, lifted)
        if after is None:  # rounding errors have made R invalid
            model = _anew(model)
            after = self._taught(model, inputs, cross, product(cross, model.inverse))
        if after is None:
            raise FloatingPointError("the function is no longer finite")
        new = after.function.order - before
        if inputs.exchanges_next:  # the exchange recomputes R, which would be the largest part of the state until then
            held, solution = after.folded, after.solution
            if isinstance(solution, Lifted):
                solution = solution.keeping(held)
            after = dataclasses.replace(
                after, solution=solution, kept_inverse=held, opened=None, spread=None, age=0, forgotten=0.0
            )
        return after, CompressionReport(error=0.0, budget=0.0, removed=batch - new, dependent=batch - new)

    def _grown(self, model: LandmarksModel, inputs: StepInputs) -> tuple[LandmarksModel, Floats, Floats]:
        """The model with novel samples, or what they round to, added as points; κ(X, Z) and κ(X, Z) P."""
        kernel, points, cross = model.function.kernel, inputs.points, inputs.cross
        fresh = isinstance(model.solution, Lifted)
        lifted = cast(Lifted, model.solution).lift(cross) if fresh else product(cross, model.inverse)
        room = self.max_order - model.function.order
        if room <= 0 or math.isinf(self.novelty):
            return model, cross, lifted
        chosen, square = novel(kernel, points, cross, lifted, novelty=self.novelty, room=room)
        if not len(chosen):
            return model, cross, lifted
        new, along = np.ascontiguousarray(points[chosen]), lifted[chosen]
        if self.grid:  # what samples round to may be in the dictionary, or close to its span
            new = on_grid(new, self.grid)
            across = kernel(new, model.function.centers)
            along = product(across, model.inverse)
            chosen, square = novel(kernel, new, across, along, novelty=self.novelty, room=room)
            new, along = np.ascontiguousarray(new[chosen]), along[chosen]
            if not len(chosen):
                return model, cross, lifted
        model = _extended(model, new, along, square)
        cross = np.concatenate([cross, kernel(points, new)], axis=1)
        return model, cross, product(cross, model.inverse)

    def _taught(self, model: LandmarksModel, inputs: StepInputs, cross: Floats, lifted: Floats) -> LandmarksModel | None:
        """The model after the mini-batch; None if R is no longer a covariance."""
        statistics = model.statistics
        own = statistics.kernel.diag(inputs.points)
        # κ(X, Z) R, or κ(X, Z) P A⁻¹ if R = P A⁻¹ P is represented by a factor of A; the product with P is then deferred
        before = model.formed
        solved = before.solved(lifted)
        left, spread = (cross, product(cross, before.matrix)) if solved is None else (lifted, solved)
        covariance, credible = compiled.newton.covariance(left, spread, own / model.regularization)
        if not credible:
            return None
        force, root, targets = self._step(inputs, cast(Expansion, model.solution).from_cross(cross), covariance)
        lost = compiled.newton.lost(covariance, root, spread)
        change = product(spread.T, force)
        if not math.isfinite(float(np.add.reduce(change, axis=None)) + float(np.add.reduce(lost, axis=None))):
            return None
        moments = statistics.moments.copy()
        accumulate_square(moments, root[:, None] * lifted)  # symmetric to the last bit, because only half of it is sent
        sums = statistics.weights + product(lifted.T, targets)
        return dataclasses.replace(
            model,
            function=Statistics.gathered(statistics.kernel, statistics.centers, sums, moments, definite=statistics.definite),
            solution=_moved(model, change, lifted=solved is not None),
            spread=before.less(lost),
            age=model.age + 1,
        )

    def _step(self, inputs: StepInputs, here: Floats, covariance: Floats) -> tuple[Floats, Floats, Floats]:
        """a, by which W changes by −R κ(Z, X) a; and √h and h z − ℓ'(z), which represent the samples in the statistics."""
        loss, targets = cast(CurvedLoss, inputs.loss), inputs.targets
        if not inputs.combined:
            force, there = loss.implicit_step(here, covariance, targets, iterations=self.iterations)
            root = curvature_root(loss, "curvature", there, targets)
            return force, root, (root**2)[:, None] * there - force
        # If statistics are averages over many agents, the agent's own mini-batch weighs far more now than it will in the end,
        # and an implicit step would go too far. So the loss is expanded at the current function.
        slope, root = loss.slope(here, targets), curvature_root(loss, "curvature", here, targets)
        lower = compiled.newton.factorize(covariance, root)
        force, _, _ = compiled.newton.refine(lower, root, covariance, here, here, slope)
        return force, root, (root**2)[:, None] * here - slope


def _solved(statistics: Statistics, regularization: float, *, inverse: Floats | None = None) -> LandmarksModel:
    """The model that the statistics determine, by R = P (λ P + Θ)⁻¹ P and W = P (λ P + Θ)⁻¹ β."""
    if inverse is None:
        inverse = inverse_of(statistics.kernel, statistics.centers)
    root = _root(statistics, regularization, inverse)
    statistics = statistics.known(definite=root is not None)
    if root is None:
        half, image = _halves_in_debt(statistics.moments, statistics.weights, regularization, inverse)
        covariance, weights = (product(half.T, table) for table in (half, image))
        spread, solution = Covariance(0.5 * (covariance + covariance.T)), _function(statistics, weights)
    elif not len(root):
        spread, solution = Covariance(inverse), _function(statistics, statistics.weights)
    else:
        spread = Covariance.factored(root, inverse)
        solution = Lifted.by(statistics.kernel, statistics.centers, inverse, _inner(root, statistics.weights))
    return LandmarksModel(
        statistics,
        square_norm=math.nan,
        solution=solution,
        kept_inverse=inverse,
        spread=spread,
        regularization=regularization,
    )


def _function(statistics: Statistics, weights: Floats) -> Expansion:
    return Expansion.trusted(statistics.kernel, statistics.centers, weights)


def _moved(model: LandmarksModel, change: Floats, *, lifted: bool) -> Expansion:
    """The function with weights W − change, or W − P change if `lifted`."""
    if not lifted:
        return _function(model.statistics, model.weights - change)
    if isinstance(model.solution, Lifted) and not model.solution.is_deferred:
        return model.solution.less(change)
    return _function(model.statistics, model.weights - product(model.inverse, change))


def _root(statistics: Statistics, regularization: float, inverse: Floats) -> Floats | None:
    """The lower triangular factor of λ P + Θ; None if Θ has negative eigenvalues of a relevant size."""
    if not len(inverse):
        return inverse
    moments, square = statistics.moments, np.empty_like(inverse)
    weigh = compiled.symmetric.weigh_upper  # the triangle that `factor` reads
    if statistics.definite:
        weigh(square, regularization, inverse, moments)
        if (found := factor(square)) is not None:
            return found
    # An agent that completes an exchange late gives away part of what it had when it made its offer, and may have given that
    # to others since. Then Θ has negative eigenvalues until something flows back.
    weigh(square, 0.5 * regularization, inverse, moments)
    if factor(square) is None:
        return None
    weigh(square, regularization, inverse, moments)
    return factor(square)


def _sum(regularization: float, inverse: Floats, moments: Floats) -> Floats:
    """λ P + Θ."""
    out = np.empty_like(inverse)
    compiled.symmetric.weigh(out, regularization, inverse, moments)
    return out


def _can_be(regularization: float, inverse: Floats, place: Ints, sums: Floats, square: Floats) -> bool:
    """Whether Θ of a neighbor, over those of its points that the agent has, has no relevant negative eigenvalues."""
    out = _sum(regularization, inverse, np.zeros_like(inverse))
    compiled.symmetric.add_known(np.zeros((len(inverse), sums.shape[1])), out, place, sums, square, 1.0)
    return factor(out) is not None


def _solution(square: Floats, sums: Floats) -> Floats | None:
    """(λ P + Θ)⁻¹ β, given λ P + Θ, which it overwrites; None if that is not positive definite."""
    from scipy.linalg import lapack

    _, found, failed = lapack.dposv(square.T, sums, lower=1, overwrite_a=1)
    return None if failed else cast(Floats, found)


def _inner(root: Floats, sums: Floats) -> Floats:
    """(λ P + Θ)⁻¹ β."""
    from scipy.linalg import lapack

    return cast(Floats, lapack.dpotrs(root, sums, lower=1)[0])


def _halves_in_debt(moments: Floats, sums: Floats, regularization: float, inverse: Floats) -> tuple[Floats, Floats]:
    """H and G with R = Hᵀ H and W = Hᵀ G, for Θ with negative eigenvalues.

    Directions in which the agent gave away more than it had count as unknown.
    With P = L Lᵀ and L⁻¹ Θ L⁻ᵀ = Q Λ Qᵀ, R = L Q (λ + Λ)⁻¹ Qᵀ Lᵀ and W = L Q (λ + Λ)⁻¹ Qᵀ L⁻¹ β.
    """
    from scipy.linalg import eigh, solve_triangular

    lower = np.tril(lower_root(inverse.copy()))
    inner = solve_triangular(lower, moments, lower=True, check_finite=False)
    inner = solve_triangular(lower, inner.T, lower=True, check_finite=False)
    if not np.isfinite(inner).all():
        raise FloatingPointError("the statistics are no longer finite")
    values, vectors = eigh(0.5 * (inner + inner.T))
    scale = 1.0 / np.sqrt(regularization + np.maximum(values, 0.0))
    image = product(vectors.T, solve_triangular(lower, sums, lower=True, check_finite=False))
    return scale[:, None] * product(lower, vectors).T, np.where(values < 0.0, 0.0, scale)[:, None] * image


def _anew(model: LandmarksModel, *, inverse: Floats | None = None) -> LandmarksModel:
    """The same model with R, and P unless it is given, recomputed from its statistics."""
    return dataclasses.replace(_solved(model.statistics, model.regularization, inverse=inverse), agreed=model.agreed)


def _extended(model: LandmarksModel, points: Floats, lifted: Floats, schur: Floats) -> LandmarksModel:
    """The model with more points, without any statistics yet: `lifted` is κ(new, Z) P, `schur` their Schur complement."""
    block = np.linalg.inv(schur)
    block = 0.5 * (block + block.T)
    function = _with_points(model.statistics, points)
    return dataclasses.replace(
        model,
        function=function,
        solution=_function(function, np.concatenate([model.weights, np.zeros((len(points), model.function.outputs))])),
        kept_inverse=_bordered(model.inverse, lifted, block),
        spread=Covariance(_bordered(model.covariance, lifted, block / model.regularization)),
        agreed=False,
    )


def _with_points(statistics: Statistics, points: Floats) -> Statistics:
    """The same statistics over a dictionary with more points."""
    return statistics.plus([(1.0, Statistics.nothing(statistics.kernel, np.ascontiguousarray(points), statistics.outputs))])


def _bordered(old: Floats, lifted: Floats, block: Floats) -> Floats:
    """[[old + Zᵀ B Z, −Zᵀ B], [−B Z, B]]."""
    order, new = len(old), len(block)
    rows = product(block, lifted)
    out = np.empty((order + new, order + new))
    out[:order, :order] = old + product(lifted.T, rows)
    out[order:, :order] = -rows
    out[:order, order:] = -rows.T
    out[order:, order:] = block
    return out


def _forgetting(model: LandmarksModel, kept: float) -> LandmarksModel:
    """Reduce the weight of past samples but keep the function, which takes the place of the prior mean."""
    old = model.statistics
    sums = kept * old.weights + (1.0 - kept) * model.regularization * model.weights
    function = Statistics.gathered(old.kernel, old.centers, sums, kept * old.moments, definite=old.definite)
    return dataclasses.replace(model, function=function, forgotten=1.0 - (1.0 - model.forgotten) * kept)
