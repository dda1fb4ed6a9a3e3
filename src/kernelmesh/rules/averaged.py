"""Large steps, of which the running average is shown: what one pass of small steps does not reach."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, integer, matrix, positive
from kernelmesh.consensus import StepInputs
from kernelmesh.numerics import compiled
from kernelmesh.numerics.compression import Compression, CompressionReport, Model, Update
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.registry import register
from kernelmesh.rules.base import Move, Rule

__all__ = ["Averaged", "AveragedModel"]


@dataclass(frozen=True, eq=False)
class AveragedModel(Model):
    """A function f and the running average f̄ of the functions so far, over the same points."""

    average: Floats = dataclasses.field(default_factory=lambda: np.empty((0, 0)))
    """The weights of f̄."""
    steps: int = 0
    """How many functions have been averaged."""
    scale: float = 0.0
    """About ‖[α f, f̄]‖², which tells the compression how large its rounding errors may be."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"average": self.average, "steps": np.array([self.steps], dtype=np.int64), "scale": np.array([[self.scale]])}


@register("rule")
@dataclass(frozen=True, kw_only=True)
class Averaged(Rule):
    """f̃ = (1 − ηλ) f − (η/B) Σ_b ℓ'(f(x_b), y_b) κ(x_b, ·) + what the neighbors add,  f̄~ = (1 − w_t) f̄ + w_t f̃,
    (f, f̄) ← C_ε[(f̃, f̄~)] with α² ‖f − f̃‖² + ‖f̄ − f̄~‖² ≤ ε²,  w_t = 2 / (t + 1).

    Steps that are too large to settle wander about the solution; their average does not. So η can be ten times what
    `Gradient` bears, and one pass goes as far as many. What the agent shows, and answers
    questions from, is f̄; what it sends is f. (With protocols that
    move to where the neighbors are first, f̄ is the average of the functions there.) Both are kept over one dictionary and
    cost one compression, with 2C outputs instead of C. Meant for losses with bounded slope: with `Squared`,
    no step can be large. `Komp.averaging` has a budget that suits the rule.

    Parameters
    ----------
    fidelity : float
        α: how closely f itself is kept, compared with f̄. Its next steps will move it anyway.
    half_life : float
        Samples after which what was averaged weighs half, for streams that change; infinite means that nothing is forgotten.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Averaged, Gaussian, Komp, Logistic
    >>> agent = Agent(
    ...     dimension=1, outputs=2, kernel=Gaussian(), loss=Logistic(), rule=Averaged(),
    ...     step_size=30.0, compression=Komp.averaging(30.0),
    ... )
    >>> state, _ = agent.step(agent.start(), np.array([[-1.0], [1.0]]), np.array([0, 1]))
    >>> agent.predict(state, np.array([[1.0]])).argmax()
    np.int64(1)
    """

    budget_exponent = 0.5

    fidelity: float = 0.1
    half_life: float = math.inf

    def __post_init__(self) -> None:
        positive("Averaged", "fidelity", self.fidelity)
        positive("Averaged", "half_life", self.half_life, infinite=True)

    def start(self, function: Expansion, compression: Compression | None, regularization: float) -> AveragedModel:
        started = super().start(function, compression, regularization)
        return _averaged(started, started.function, started.function.weights, 0, started.square_norm)

    def absorb(self, model: Model, update: Update, compression: Compression | None, *, samples: int) -> Model:
        assert compression is not None
        assert isinstance(model, AveragedModel)
        both = compiled.averaging.stack(model.function.weights, self.fidelity * update.shrink, model.average, 1.0, 0.0)
        return self._compressed(model, update, both, 0.0, compression, samples)[0]

    def learn(
        self, model: Model, inputs: StepInputs, move: Move, compression: Compression | None
    ) -> tuple[Model, CompressionReport]:
        assert compression is not None
        assert isinstance(model, AveragedModel)
        update = move(inputs)
        weight = max(2.0 / (model.steps + 2.0), -math.expm1(-math.log(2.0) * len(inputs.points) / self.half_life))
        # with neighbors' functions combined, what counts is where they met, not where one mini-batch leads from there
        gained = weight if inputs.combined else weight * update.shrink
        both = compiled.averaging.stack(
            model.function.weights, self.fidelity * update.shrink, model.average, 1.0 - weight, gained
        )
        share = 0.0 if inputs.combined else weight
        return self._compressed(model, update, both, share, compression, inputs.samples, steps=model.steps + 1)

    def _compressed(
        self,
        model: AveragedModel,
        update: Update,
        both: Floats,
        share: float,
        compression: Compression,
        samples: int,
        *,
        steps: int | None = None,
    ) -> tuple[AveragedModel, CompressionReport]:
        """[α f, f̄] over one dictionary, compressed together; the new points join f̄ with a share of their coefficients."""
        f = model.function
        stacked = Model(
            Expansion.trusted(f.kernel, f.centers, both),
            square_norm=model.scale,
            workspace=model.workspace,
            generation=model.generation,
        )
        coefficients = compiled.averaging.stack(update.coefficients, self.fidelity, update.coefficients, 0.0, share)
        step = Update(update.points, coefficients, 1.0, update.cross, update.shared)
        after, report = compression.absorb(stacked, step, samples=samples)
        weights, average = compiled.averaging.split(after.function.weights, self.fidelity)
        function = Expansion.trusted(f.kernel, after.function.centers, weights)
        steps = model.steps if steps is None else steps
        return _averaged(after, function, average, steps, after.square_norm), report

    def shown(self, model: Model, combined: Expansion | None) -> Expansion:
        assert isinstance(model, AveragedModel)
        return Expansion.trusted(model.function.kernel, model.function.centers, model.average)

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> AveragedModel:
        f = model.function
        average = matrix("file", "model.average", arrays["average"], rows=f.order, columns=f.outputs)
        steps = integer("file", "model.steps", arrays["steps"][0], minimum=0)
        scale = float(matrix("file", "model.scale", arrays["scale"], rows=1, columns=1)[0, 0])
        return _averaged(model, f, average, steps, scale)


def _averaged(model: Model, function: Expansion, average: Floats, steps: int, scale: float) -> AveragedModel:
    """The model of a function and its average, with the workspace of another model over the same points."""
    return AveragedModel(
        function,
        square_norm=math.nan,
        workspace=model.workspace,
        generation=model.generation,
        average=average,
        steps=steps,
        scale=scale,
    )
