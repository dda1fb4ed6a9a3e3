"""Averaged stochastic gradient descent: large steps, with a running average for prediction."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, integer, matrix, positive
from kernelmesh.learners.base import Descent, Move
from kernelmesh.numerics.compression import CompressionReport, Model, Update
from kernelmesh.numerics.function import Function, padded
from kernelmesh.protocols import StepInputs
from kernelmesh.registry import register

__all__ = ["Averaged", "AveragedModel"]


@dataclass(frozen=True, eq=False)
class AveragedModel(Model):
    """A function f and the running average f̄ of the functions so far, over the same points."""

    average: Floats = dataclasses.field(default_factory=lambda: np.empty((0, 0)))
    """The weights of f̄."""
    steps: int = 0
    """The number of functions in the average."""
    scale: float = 0.0
    """Approximately ‖[α f, f̄]‖², from which the compression estimates its rounding errors; NaN if it does not need it."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        clock = np.array([self.steps], dtype=np.int64)
        scale = {} if math.isnan(self.scale) else {"scale": np.array([[self.scale]])}
        return {"average": self.average, "clock": clock, **scale}

    def widened(self, *, dimension: int, outputs: int) -> Self:
        wider = super().widened(dimension=dimension, outputs=outputs)
        return replace(wider, average=padded(self.average, outputs))


@register("learner")
@dataclass(frozen=True, kw_only=True)
class Averaged(Descent):
    """f̃ = (1 − ηλ) f − (η/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + the neighbors' contribution,  f̄~ = (1 − w_t) f̄ + w_t f̃,
    (f, f̄) ← C_ε[(f̃, f̄~)] with α² ‖f − f̃‖² + ‖f̄ − f̄~‖² ≤ ε²,  w_t = 4 / (t + 3).

    Steps that are too large to settle fluctuate around the solution, but their average does not. So η can be ten times as
    large as with `Gradient`, and one pass gets as far as many. The agent predicts and answers with f̄, and sends f. Both
    share one dictionary and one compression, with 2C outputs instead of C. The weights w_t are those of polynomial-decay
    averaging (Shamir and Zhang, 2013), which discounts early iterates.

    Intended for losses with bounded slope: with `Squared`, steps cannot be large.

    Parameters
    ----------
    step_size : float or Schedule
        η < 1/λ.
    compression : Compression
        C_ε; by default `Komp()`, with the budget ε = 0.06 η^{1/2}, since the average converges while steps stay large.
    regularization : float
        λ, relative to the mean loss.
    fidelity : float
        α: the accuracy of f relative to f̄ in compression.
    half_life : float
        The number of samples after which old iterates count half, for streams that change; infinite means nothing is
        forgotten.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Averaged, Gaussian, Logistic
    >>> agent = Agent(
    ...     dimension=1, outputs=2, kernel=Gaussian(), loss=Logistic(), learner=Averaged(step_size=30.0)
    ... )
    >>> state, _ = agent.step(agent.start(), np.array([[-1.0], [1.0]]), np.array([0, 1]))
    >>> agent.predict(state, np.array([[1.0]])).argmax()
    np.int64(1)
    """

    budget_exponent = 0.5
    usual_parsimony = 0.06
    model_kind = AveragedModel

    fidelity: float = 0.1
    half_life: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("Averaged", "fidelity", self.fidelity)
        positive("Averaged", "half_life", self.half_life, infinite=True)

    def start(self, function: Function) -> AveragedModel:
        started = super().start(function)
        f = started.function
        return AveragedModel(f, square_norm=math.nan, inverse=started.inverse, average=f.weights, scale=started.square_norm)

    def absorb(self, model: Model, update: Update, *, samples: int) -> Model:
        assert isinstance(model, AveragedModel)
        return self._moved(model, update, samples, weight=self._weight(model, 0))[0]

    def learn(self, model: Model, inputs: StepInputs, move: Move) -> tuple[Model, CompressionReport]:
        assert isinstance(model, AveragedModel)
        return self._moved(model, move(inputs), inputs.samples, weight=self._weight(model, len(inputs.points)))

    def _weight(self, model: AveragedModel, samples: int) -> float:
        """w_t, but at least the fraction of the average forgotten in this many samples."""
        return max(4.0 / (model.steps + 4.0), -math.expm1(-math.log(2.0) * samples / self.half_life))

    def _moved(
        self, model: AveragedModel, update: Update, samples: int, *, weight: float
    ) -> tuple[AveragedModel, CompressionReport]:
        """f̃, and f̄ updated with this weight, compressed together as one function [α f, f̄] with 2C outputs."""
        f, fidelity = model.function, self.fidelity
        average = (1.0 - weight) * model.average + weight * update.shrink * f.weights
        both = np.concatenate([fidelity * update.shrink * f.weights, average], axis=1)
        joint = Model(Function(f.kernel, f.points, both), square_norm=model.scale, inverse=model.inverse)
        coefficients = np.concatenate([fidelity * update.coefficients, weight * update.coefficients], axis=1)
        step = Update(update.points, coefficients, 1.0, update.cross, update.shared)
        after, report = self.compression.absorb(joint, step, budget=self.budget_at(samples))
        both = after.function.weights
        function = Function(f.kernel, after.function.points, both[:, : f.outputs] / fidelity)
        average, scale = both[:, f.outputs :].copy(), after.square_norm
        moved = replace(model, function=function, inverse=after.inverse, average=average, steps=model.steps + 1, scale=scale)
        return moved, report

    def shown(self, model: Model) -> Function:
        assert isinstance(model, AveragedModel)
        return Function(model.function.kernel, model.function.points, model.average)

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> AveragedModel:
        f = model.function
        average = matrix("file", "model.average", arrays["average"], rows=f.order, columns=f.outputs)
        (steps,) = (integer("file", "model.clock", n, minimum=0) for n in arrays["clock"])
        scale = math.nan
        if "scale" in arrays:
            scale = float(matrix("file", "model.scale", arrays["scale"], rows=1, columns=1)[0, 0])
        return AveragedModel(f, square_norm=math.nan, inverse=model.inverse, average=average, steps=steps, scale=scale)
