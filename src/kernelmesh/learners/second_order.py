"""Second-order learning: in one pass close to a batch learner, without a step size."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints, integer, matrix, non_negative, positive
from kernelmesh.learners.base import Learner, Move, check_curved
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import CompressionReport, Komp, Model
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.inverse_gram import InverseGram, Layout
from kernelmesh.numerics.losses import CurvedLoss, Loss, curvature_root
from kernelmesh.numerics.products import product
from kernelmesh.protocols import StepInputs
from kernelmesh.registry import register

__all__ = ["SecondOrder", "SecondOrderModel"]


@dataclass(frozen=True, eq=False)
class SecondOrderModel(Model):
    """A function, and the covariance R of its weights, which says how far new samples may move it."""

    covariance: InverseGram = dataclasses.field(default_factory=InverseGram.empty)

    def arrays(self) -> dict[str, NDArray[Any]]:
        r = self.covariance
        return {"covariance": r.matrix, "covariance_clock": np.array([r.changes], dtype=np.int64)}


class _View(NamedTuple):
    """A mini-batch as seen from a dictionary: κ(X, D), H = κ(X, D) R, T = H κ(D, X), and the implicit step from there."""

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
        """Start from a function; nothing is known of its weights but the prior, R = P / λ."""
        model = Komp().start(function)
        assert model.inverse is not None
        covariance = InverseGram(model.inverse.matrix / self.regularization)
        return SecondOrderModel(model.function, square_norm=math.nan, inverse=model.inverse, covariance=covariance)

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> SecondOrderModel:
        assert isinstance(model, SecondOrderModel)
        order = model.function.order
        covariance = matrix("file", "model.covariance", arrays["covariance"], rows=order, columns=order)
        (changes,) = (integer("file", "model.covariance_clock", n, minimum=0) for n in arrays["covariance_clock"])
        return replace(model, covariance=InverseGram(covariance, changes))

    def learn(self, model: Model, inputs: StepInputs, move: Move) -> tuple[Model, CompressionReport]:
        assert isinstance(model, SecondOrderModel)
        model, inputs, repaired = self._sound(model, inputs)
        batch = len(inputs.points)
        budget = self.budget * batch
        try:
            after, spent, considered = self._absorb(model, inputs, budget)
        except _Breakdown:
            model, inputs = self._repaired(model, inputs)
            repaired = True
            try:
                after, spent, considered = self._absorb(model, inputs, budget)
            except _Breakdown:  # the new points cannot be told apart from the others: learn without them
                after, spent, considered = self._absorb_into(model, inputs)
        if math.isfinite(self.half_life):
            after = _aged(after, self.regularization, 0.5 ** (batch / self.half_life))
        removed = inputs.function.order + batch - after.function.order
        report = CompressionReport(
            error=spent, budget=budget, removed=removed, dependent=batch - considered, repaired=repaired
        )
        return after, report

    def _absorb(self, model: SecondOrderModel, inputs: StepInputs, budget: float) -> tuple[SecondOrderModel, float, int]:
        """Learn from the mini-batch: the model, what removing and overlooking points has cost, and how many were new."""
        order = inputs.function.order
        view = self._view(model, inputs)
        if not view.credible:
            raise _Breakdown("the covariance of the weights is no longer positive definite")
        new, spent = self._candidates(model, inputs, view, budget)
        aged = model.covariance.changes % 8 == 0  # old points may have lost their worth since new ones were considered
        if len(new.rows) or order > (self.max_order or order) or (order and aged):
            stays, cost = self._choice(model, inputs, view, new, budget - spent)
            spent += cost
            if not stays[:order].all() or stays[order:].any():
                return self._exchange(model, inputs, view, new, stays), spent, len(new.rows)
        return _settle(model, inputs, view), spent, len(new.rows)

    def _absorb_into(self, model: SecondOrderModel, inputs: StepInputs) -> tuple[SecondOrderModel, float, int]:
        """Learn from the mini-batch over the dictionary as it is, whatever that costs."""
        view = self._view(model, inputs)
        gram = inputs.function.kernel(inputs.points, inputs.points)
        _, spent = compiled.newton.overlook(view.force, gram, self.regularization, math.inf)
        return _settle(model, inputs, view), spent, 0

    def _view(self, model: SecondOrderModel, inputs: StepInputs) -> _View:
        """The mini-batch as the model sees it."""
        own = inputs.function.kernel.diag(inputs.points)
        if not math.isfinite(float(np.add.reduce(own))):
            raise FloatingPointError("κ(x, x) of the new samples is not finite")
        lifted = product(inputs.cross, model.covariance.matrix)
        covariance, credible = compiled.newton.covariance(inputs.cross, lifted, own / self.regularization)
        force, there = self._step(inputs, inputs.here, covariance)
        return _View(own, lifted, covariance, credible, force, there)

    def _sound(self, model: SecondOrderModel, inputs: StepInputs) -> tuple[SecondOrderModel, StepInputs, bool]:
        """Check P periodically and recompute it if it has drifted, as `Komp` does; R cannot be recomputed."""
        f, before = model.function, model.inverse
        assert before is not None
        inverse, repaired = before.watched(f.kernel, f.points, Komp.watch)
        if inverse is None:
            return *self._anew(inputs), True
        return (model if inverse is before else replace(model, inverse=inverse)), inputs, repaired

    def _repaired(self, model: SecondOrderModel, inputs: StepInputs) -> tuple[SecondOrderModel, StepInputs]:
        """Recompute P and bring R within its limits; if that is impossible, reset R."""
        f = model.function
        assert model.inverse is not None
        inverse = model.inverse.renewed(f.kernel, f.points)
        if inverse is None:
            return self._anew(inputs)
        try:
            covariance = _within_limits(model.covariance, inverse, self.regularization)
        except ValueError:  # R is not finite, or P cannot be factorized
            return self._anew(inputs)
        return replace(model, inverse=inverse, covariance=covariance), inputs

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
        # half of the budget may go to samples that are not even considered as points, because they can gain so little
        rows, overlooked = compiled.newton.overlook(view.force, gram, self.regularization, 0.5 * budget)
        diagonal = inputs.function.kernel.diag(inputs.function.points)
        rows = compiled.newton.apart(rows, inputs.cross, view.own, diagonal, self.novelty)
        assert model.inverse is not None
        lifted = product(inputs.cross[rows], model.inverse.matrix)
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
            model.covariance.matrix,
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

    def _exchange(
        self, model: SecondOrderModel, inputs: StepInputs, view: _View, new: _Candidates, stays: NDArray[np.bool_]
    ) -> SecondOrderModel:
        """Exchange points and learn from the mini-batch over the new dictionary."""
        f, inverse, r = inputs.function, model.inverse, model.covariance
        assert inverse is not None
        layout = Layout.of(stays, f.order)
        schur = np.ascontiguousarray(new.schur[new.rows])
        nothing = np.zeros((len(new.rows), f.outputs))
        given: dict[str, Any] = {"lifted": new.lifted, "weights": f.weights, "shrink": 1.0, "coefficients": nothing}
        of_weights = r.exchange(layout, schur=self.regularization * schur, **given)
        of_points = inverse.exchange(layout, schur=schur, **given)
        entering = inputs.points[new.rows[layout.kept]]
        arriving = f.kernel(inputs.points, entering)
        old, fresh = compiled.newton.relift(
            view.lifted,
            inputs.cross,
            layout.leaving,
            arriving,
            of_weights.gained,
            of_weights.lost,
            of_weights.rows,
            of_weights.block,
        )
        cross = np.ascontiguousarray(layout.arrange(inputs.cross.T, arriving.T).T)
        lifted = np.ascontiguousarray(layout.arrange(old.T, fresh.T).T)
        mean = layout.arrange(of_weights.staying, of_weights.arriving)
        covariance, _ = compiled.newton.covariance(cross, lifted, view.own)
        force, there = self._step(inputs, product(cross, mean), covariance)
        lost = _lost(inputs, covariance, lifted, there)
        weights = mean - product(lifted.T, force)
        _check_finite(weights, lost)
        return replace(
            model,
            function=Function(f.kernel, layout.arrange(f.points, entering), weights),
            inverse=inverse.after(layout, of_points, lost[:0]),
            covariance=r.after(layout, of_weights, lost),
        )


def _aged(model: SecondOrderModel, regularization: float, kept: float) -> SecondOrderModel:
    """What is known of the weights counts less: R becomes a mean of R and of the prior, P / λ."""
    assert model.inverse is not None
    mean = kept * model.covariance.matrix + (1.0 - kept) / regularization * model.inverse.matrix
    return replace(model, covariance=replace(model.covariance, matrix=mean))


def _settle(model: SecondOrderModel, inputs: StepInputs, view: _View) -> SecondOrderModel:
    """Learn from the mini-batch over the dictionary as it is."""
    f = inputs.function
    weights = f.weights - product(view.lifted.T, view.force)
    lost = _lost(inputs, view.covariance, view.lifted, view.there)
    _check_finite(weights, lost)
    return replace(model, function=Function(f.kernel, f.points, weights), covariance=model.covariance.less(lost))


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


def _within_limits(covariance: InverseGram, inverse: InverseGram, regularization: float) -> InverseGram:
    """R made positive definite and at most P / λ again, after rounding has led it astray: O(M³), and hardly ever needed.

    With P = C Cᵀ, the eigenvalues of λ C⁻¹ R C⁻ᵀ belong into (0, 1].
    """
    from scipy.linalg import cholesky, eigh, solve_triangular

    lower = cholesky(inverse.matrix, lower=True)
    half = solve_triangular(lower, covariance.matrix, lower=True)
    values, vectors = eigh(regularization * solve_triangular(lower, half.T, lower=True))
    root = (lower @ vectors) * np.sqrt(np.clip(values, 1e-12, 1.0) / regularization)
    return replace(covariance, matrix=root @ root.T)
