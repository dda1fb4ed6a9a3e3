"""Second-order learning: in one pass close to a batch learner, without a step size."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer, matrix, non_negative, positive
from kernelmesh.learners.base import Learner, Move, check_curved
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import CompressionReport, Komp, Model
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.inverse_gram import BROKEN, InverseGram
from kernelmesh.numerics.losses import CurvedLoss, Loss, curvature_root
from kernelmesh.numerics.products import product
from kernelmesh.protocols import StepInputs
from kernelmesh.registry import register

__all__ = ["SecondOrder", "SecondOrderModel"]

# The share of the budget that may go to samples that are not even considered as points, because they can gain so little.
_OVERLOOKED = 0.5
# After so many steps the points are looked at even if none is to be added.
_REVIEW = 8
# After so many changes of P one column of P K is compared with the identity.
_WATCH = 16


@dataclass(frozen=True, eq=False)
class SecondOrderModel(Model):
    """A function, and the covariance R of its weights, which says how far new samples may move it."""

    covariance: InverseGram = dataclasses.field(default_factory=InverseGram)
    turn: int = 0
    """The update that produced the covariance, which identifies an outdated model."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        r = self.covariance
        if r.generation != self.turn:  # a newer model owns it, or a step was cut short: what is stored begins anew
            return {}
        clock = np.array([r.width, r.changes, r.generation], dtype=np.int64)
        return {"covariance": r.matrix.copy(), "covariance_clock": clock}

    def copy(self) -> Self:
        return replace(super().copy(), covariance=self.covariance.copy())

    def invalidate(self) -> None:
        super().invalidate()
        if self.covariance.generation != self.turn:
            self.covariance.generation = BROKEN

    def check_ownership(self) -> None:
        super().check_ownership()
        if self.covariance.generation not in (self.turn, BROKEN):
            raise self.outdated()


class _View(NamedTuple):
    """A mini-batch as seen from a dictionary: κ(X, D), H = κ(X, D) R, T = H κ(D, X), and the implicit step from there."""

    padded: Floats
    """κ(X, D), as wide as the buffers."""
    own: Floats
    """κ(x, x)."""
    lifted: Floats
    covariance: Floats
    credible: bool
    """Whether T can be a covariance."""
    force: Floats
    """a = ℓ'(z), z = f(X) − T a: the slopes where the step leads."""
    there: Floats
    """z."""


class _Candidates(NamedTuple):
    """Samples that may become points: which, their rows Z = κ(X_I, D) P, and S_·I = κ(X, X_I) − κ(X, D) Zᵀ."""

    rows: Ints
    lifted: Floats
    schur: Floats


@register("learner")
@dataclass(frozen=True, kw_only=True)
class SecondOrder(Learner):
    """f ← argmin over span(D) of Σ_b ℓ(f(x_b), y_b) + ½ (w − W)ᵀ A (w − W),  A = λ K_DD + Σ_t h_t k_D(x_t) k_D(x_t)ᵀ.

    Past data is summarized by a quadratic model of its loss over the dictionary D: A is one M × M matrix for all outputs,
    with one curvature h_t for each sample, and each mini-batch is solved against it (a Newton step, taken implicitly). There
    is no step size, and the objective is Σ_t ℓ(f(x_t), y_t) + (λ/2) ‖f‖²: λ is 1/C of an SVM.
    With the squared loss, and while no point enters or leaves, this is kernel ridge regression on the dictionary, exactly.

    Points are chosen by their value to the loss: with R = A⁻¹, removing point j raises the quadratic model by
    ½ ‖W_j‖² / R_jj, and the cheapest points are removed within the budget of ε per sample of the mini-batch.

    Each agent has its own covariance R; with neighbors that see other data it would be biased, so it is for agents that
    learn alone. A step with M points, B samples, C outputs and q points in and out costs O(M² B), with products of M × M × B
    for R, for P if samples are new to the dictionary, and for the update of R. It stores M² numbers more than `Gradient`.

    Parameters
    ----------
    regularization : float
        λ, relative to the sum of all losses.
    budget : float
        The budget ε: the increase in loss that removing points may cause, per sample, in units of the loss (nats for
        `Logistic`).
    max_order : int, optional
        The maximum number of points in the dictionary, regardless of the budget.
    novelty : float
        ν: a sample becomes a point only if its distance² to the span of the others exceeds ν κ(x, x).
    half_life : float
        The number of samples after which old data counts half, for streams that change; infinite means nothing is forgotten.
    iterations : int
        The maximum number of majorize-minimize iterations in an implicit step.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Gaussian, SecondOrder, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=SecondOrder())
    >>> state, _ = agent.step(agent.start(), np.array([[0.0], [1.0]]), np.array([1.0, -1.0]))
    >>> agent.predict(state, np.array([[0.0]])).round(2)
    array([[0.8]])
    """

    model_kind = SecondOrderModel

    regularization: float = 0.1
    budget: float = 0.02
    max_order: int | None = None
    novelty: float = 0.01
    half_life: float = math.inf
    iterations: int = 5

    def __post_init__(self) -> None:
        positive("SecondOrder", "regularization", self.regularization)
        non_negative("SecondOrder", "budget", self.budget)
        if self.max_order is not None:
            integer("SecondOrder", "max_order", self.max_order, minimum=1)
        positive("SecondOrder", "novelty", self.novelty)
        positive("SecondOrder", "half_life", self.half_life, infinite=True)
        integer("SecondOrder", "iterations", self.iterations, minimum=1)

    def check(self, owner: str, loss: Loss) -> None:
        check_curved(self, owner, loss)

    def start(self, function: Function) -> SecondOrderModel:
        """A function that was learned elsewhere counts as its mean, of which nothing else is known: R = P / λ."""
        started = Komp(budget=0.0).start(function)
        inverse = started.workspace
        assert inverse is not None
        covariance = inverse.copy()
        covariance.buffer /= self.regularization
        return _model(started.function, inverse, covariance)

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> SecondOrderModel:
        assert isinstance(model, SecondOrderModel)
        if "covariance" not in arrays:
            return model
        order = model.function.order
        inverse = matrix("file", "model.covariance", arrays["covariance"], rows=order, columns=order)
        _, changes, turn = (integer("file", "model.covariance_clock", n, minimum=0) for n in arrays["covariance_clock"])
        assert model.workspace is not None
        width = model.workspace.width  # P and R are exchanged alike, and must fit each other
        kept = InverseGram.restored(inverse, width=width, changes=changes, generation=turn, probed=0, bound=1.0)
        return replace(model, covariance=kept, turn=turn)

    def learn(self, model: Model, inputs: StepInputs, move: Move) -> tuple[Model, CompressionReport]:
        assert isinstance(model, SecondOrderModel)
        model, inputs, repaired = self._sound(model, inputs)
        batch = len(inputs.points)
        budget = self.budget * batch
        try:
            function, spent, considered = self._absorb(model, inputs, budget)
        except _Breakdown:
            model, inputs = self._repaired(model, inputs)
            repaired = True
            try:
                function, spent, considered = self._absorb(model, inputs, budget)
            except _Breakdown:  # the new points cannot be told apart from the others: learn without them
                function, spent, considered = self._absorb_into(model, inputs)
        inverse, covariance = model.workspace, model.covariance
        assert inverse is not None
        if math.isfinite(self.half_life):
            kept = 0.5 ** (batch / self.half_life)
            covariance.generation = BROKEN
            compiled.newton.blend(covariance.buffer, inverse.buffer, kept, (1.0 - kept) / self.regularization)
            covariance.generation = covariance.changes
        removed = inputs.function.order + batch - function.order
        report = CompressionReport(
            error=spent, budget=budget, removed=removed, dependent=batch - considered, repaired=repaired
        )
        return _model(function, inverse, covariance), report

    def _absorb(self, model: SecondOrderModel, inputs: StepInputs, budget: float) -> tuple[Function, float, int]:
        """Learn from the mini-batch: the function, what removing and overlooking points has cost, and how many were new."""
        order = inputs.function.order
        view = self._view(model, inputs)
        if not view.credible:
            raise _Breakdown("the covariance of the weights is no longer positive definite")
        new, spent = self._candidates(model, inputs, view, budget)
        aged = model.covariance.changes % _REVIEW == 0  # old points may have lost their worth since new ones were considered
        if len(new.rows) or order > (self.max_order or order) or (order and aged):
            stays, cost = self._choice(model, inputs, view, new, budget - spent)
            spent += cost
            if not stays[:order].all() or stays[order:].any():
                return self._exchange(model, inputs, view, new, stays), spent, len(new.rows)
        return self._settle(model, inputs, view), spent, len(new.rows)

    def _absorb_into(self, model: SecondOrderModel, inputs: StepInputs) -> tuple[Function, float, int]:
        """Learn from the mini-batch over the dictionary as it is, whatever that costs."""
        view = self._view(model, inputs)
        gram = inputs.function.kernel(inputs.points, inputs.points)
        _, spent = compiled.newton.overlook(view.force, gram, self.regularization, math.inf)
        return self._settle(model, inputs, view), spent, 0

    def _view(self, model: SecondOrderModel, inputs: StepInputs) -> _View:
        """The mini-batch as the model sees it."""
        own = inputs.function.kernel.diag(inputs.points)
        if not math.isfinite(float(np.add.reduce(own))):
            raise FloatingPointError("κ(x, x) of the new samples is not finite")
        padded = model.covariance.padded(inputs.cross)
        lifted = model.covariance.lift(padded)
        covariance, credible = compiled.newton.covariance(inputs.cross, lifted, own / self.regularization)
        force, there = self._step(inputs, inputs.here, covariance)
        return _View(padded, own, lifted, covariance, credible, force, there)

    def _sound(self, model: SecondOrderModel, inputs: StepInputs) -> tuple[SecondOrderModel, StepInputs, bool]:
        """Check P periodically and recompute it if it has drifted, as `Komp` does; R cannot be recomputed."""
        f, inverse = model.function, model.workspace
        assert inverse is not None
        if BROKEN in (inverse.generation, model.covariance.generation):
            return *self._anew(inputs), True
        if model.covariance.width != inverse.width:  # a step was cut short when only one of them had grown
            model.covariance.resize(inverse.width)
        index = inverse.due(_WATCH)
        if index is None or inverse.probe(f.kernel, f.points, index):
            return model, inputs, False
        if not inverse.rebuild(f.kernel, f.points):
            return *self._anew(inputs), True
        # where the points themselves are nearly dependent no inverse is exact: ask for what a fresh one achieves
        inverse.bound = max(inverse.bound, 10.0 * inverse.drift(f.kernel, f.points, index))
        return model, inputs, True

    def _repaired(self, model: SecondOrderModel, inputs: StepInputs) -> tuple[SecondOrderModel, StepInputs]:
        """Recompute P and bring R within its limits; if that is impossible, reset R."""
        f, inverse = model.function, model.workspace
        assert inverse is not None
        if not inverse.rebuild(f.kernel, f.points):
            return self._anew(inputs)
        try:
            _restore_order(model.covariance, inverse, self.regularization)
        except ValueError:  # R is not finite, or P cannot be factorized
            return self._anew(inputs)
        return model, inputs

    def _anew(self, inputs: StepInputs) -> tuple[SecondOrderModel, StepInputs]:
        """The function without R, perhaps over fewer points, and the mini-batch as seen from there."""
        model = self.start(inputs.function)
        f = model.function
        if f is inputs.function:
            return model, inputs
        cross = f.kernel(inputs.points, f.points)
        return model, replace(inputs, function=f, cross=cross, here=f.from_cross(cross))

    def _step(self, inputs: StepInputs, start: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """a = ℓ'(z), z = z₀ − T a, and z."""
        loss = cast(CurvedLoss, inputs.loss)
        return loss.implicit_step(start, covariance, inputs.targets, iterations=self.iterations)

    def _candidates(
        self, model: SecondOrderModel, inputs: StepInputs, view: _View, budget: float
    ) -> tuple[_Candidates, float]:
        """The samples that are new to the dictionary and may be worth a point, and what overlooking the others can cost."""
        gram = inputs.function.kernel(inputs.points, inputs.points)
        rows, overlooked = compiled.newton.overlook(view.force, gram, self.regularization, _OVERLOOKED * budget)
        diagonal = inputs.function.kernel.diag(inputs.function.points)
        rows = compiled.newton.apart(rows, inputs.cross, view.own, diagonal, self.novelty)
        lifted = model.claim().lift(view.padded[rows])
        schur = np.ascontiguousarray(gram[:, rows])
        chosen, bound = compiled.newton.novel(schur, rows, inputs.cross, lifted, view.own, self.novelty, view.force)
        if math.isnan(bound):
            raise _Breakdown("the inverse Gram matrix is no longer one")
        gain = bound / self.regularization
        if overlooked + gain <= budget:  # no exchange can be worth it
            chosen, overlooked = chosen[:0], overlooked + gain
        return _Candidates(rows[chosen], lifted[chosen], np.ascontiguousarray(schur[:, chosen])), overlooked

    def _choice(
        self, model: SecondOrderModel, inputs: StepInputs, view: _View, new: _Candidates, budget: float
    ) -> tuple[NDArray[np.bool_], float]:
        """Which of the old points and of the candidates stay, and what that costs."""
        prior, spread, added = compiled.newton.prior(new.schur, new.rows, self.regularization)
        covariance = view.covariance + added
        force, there = self._step(inputs, inputs.here, covariance)
        root = curvature_root(inputs.loss, "curvature", there, inputs.targets)
        order = inputs.function.order
        return compiled.newton.choose(
            model.covariance.buffer,
            order,
            view.lifted,
            new.lifted,
            prior,
            spread,
            compiled.newton.factorize(covariance, root),
            root,
            force,
            inputs.function.weights,
            budget,
            self.max_order or order + len(new.rows),
        )

    def _settle(self, model: SecondOrderModel, inputs: StepInputs, view: _View) -> Function:
        """Learn from the mini-batch over the dictionary as it is."""
        f = inputs.function
        weights = f.weights - product(view.lifted[:, : f.order].T, view.force)
        lost = _lost(inputs, view.covariance, view.lifted, view.there)
        _check_finite(weights, lost)
        model.covariance.lose(lost)
        return Function(f.kernel, f.points, weights)

    def _exchange(
        self, model: SecondOrderModel, inputs: StepInputs, view: _View, new: _Candidates, stays: NDArray[np.bool_]
    ) -> Function:
        """Exchange points and learn from the mini-batch over the new dictionary; nothing changes before all is worked out."""
        f, inverse, r = inputs.function, model.claim(), model.covariance
        schur = np.ascontiguousarray(new.schur[new.rows])
        nothing = np.zeros((len(new.rows), f.outputs))
        given: dict[str, Any] = {"lifted": new.lifted, "weights": f.weights, "shrink": 1.0, "coefficients": nothing}
        plan = r.plan(stays, schur=self.regularization * schur, **given)
        of_points = inverse.plan(stays, schur=schur, **given)
        entering = inputs.points[new.rows[plan.kept]]
        arriving = f.kernel(inputs.points, entering)
        leaving = np.flatnonzero(~stays[: f.order])
        old, fresh = compiled.newton.relift(
            r.padded(view.lifted[:, : f.order]),
            inputs.cross,
            leaving,
            arriving,
            plan.gained,
            plan.lost,
            plan.rows,
            plan.block,
        )
        cross = np.ascontiguousarray(plan.arrange(inputs.cross.T, arriving.T).T)
        lifted = np.ascontiguousarray(plan.arrange(old[:, : f.order].T, fresh.T).T)
        mean = plan.weights()
        covariance, _ = compiled.newton.covariance(cross, lifted, view.own)
        force, there = self._step(inputs, product(cross, mean), covariance)
        lost = _lost(inputs, covariance, lifted, there)
        weights = mean - product(lifted.T, force)
        _check_finite(weights, lost)
        centers = plan.arrange(f.points, entering)
        inverse.apply(of_points)
        r.apply(plan.losing(lost))
        return Function(f.kernel, centers, weights)


def _model(function: Function, inverse: InverseGram, covariance: InverseGram) -> SecondOrderModel:
    return SecondOrderModel(
        function,
        square_norm=math.nan,
        workspace=inverse,
        generation=inverse.generation,
        covariance=covariance,
        turn=covariance.generation,
    )


def _lost(inputs: StepInputs, covariance: Floats, lifted: Floats, there: Floats) -> Floats:
    """G with which R becomes R − GᵀG, by the curvatures where the step leads."""
    root = curvature_root(inputs.loss, "curvature", there, inputs.targets)
    return compiled.newton.lost(covariance, root, lifted)


class _Breakdown(FloatingPointError):
    """Rounding in P or R has made a step impossible."""


def _check_finite(weights: Floats, lost: Floats) -> None:
    # one sum finds what is not finite, at a fraction of the price of a table of flags
    if not math.isfinite(float(np.add.reduce(weights, axis=None)) + float(np.add.reduce(lost, axis=None))):
        raise _Breakdown("the function is no longer finite")


def _restore_order(covariance: InverseGram, inverse: InverseGram, regularization: float) -> None:
    """Make R positive definite and at most P / λ again, after rounding has led it astray: O(M³), and hardly ever needed.

    With P = C Cᵀ, the eigenvalues of λ C⁻¹ R C⁻ᵀ belong into (0, 1].
    """
    from scipy.linalg import cholesky, eigh, solve_triangular

    lower = cholesky(inverse.matrix, lower=True)
    half = solve_triangular(lower, covariance.matrix, lower=True)
    values, vectors = eigh(regularization * solve_triangular(lower, half.T, lower=True))
    root = (lower @ vectors) * np.sqrt(np.clip(values, 1e-12, 1.0) / regularization)
    covariance.matrix[...] = root @ root.T
