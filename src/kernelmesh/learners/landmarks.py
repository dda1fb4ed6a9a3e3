"""Second-order learning from sums over landmarks, which agents can share."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kernelmesh.checks import Floats, integer, matrix, positive
from kernelmesh.errors import InvalidArgument, RefusedMessage, Verbatim
from kernelmesh.learners.base import Learner, Move, check_curved
from kernelmesh.messages import News, PackedSums, packed, unpacked
from kernelmesh.numerics.basis import Basis
from kernelmesh.numerics.compression import CompressionReport, Model
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.losses import Loss, curvature_root
from kernelmesh.numerics.products import product
from kernelmesh.numerics.sums import Sums, added
from kernelmesh.protocols import StepInputs
from kernelmesh.protocols.relay.settings import POOL
from kernelmesh.registry import register

__all__ = ["KeptRows", "Landmarks", "LandmarksModel"]

_decoder = msgspec.msgpack.Decoder(PackedSums)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Samples that an agent keeps, to linearize their losses again when the model has improved."""

    points: Floats
    targets: NDArray[Any]
    outputs: Floats
    """z, the outputs at which the losses were linearized."""
    weights: Floats
    """How much each counts: less than 1 for old samples of a stream that changes."""

    def __len__(self) -> int:
        return len(self.points)

    def plus(self, points: Floats, targets: NDArray[Any], outputs: Floats, weights: Floats) -> "KeptRows":
        """With more samples."""
        if not len(self.points):  # the targets have no type yet
            return KeptRows(points, targets, outputs, weights)
        return KeptRows(*map(np.concatenate, zip(vars(self).values(), (points, targets, outputs, weights), strict=True)))

    def at(self, rows: NDArray[np.int64]) -> "KeptRows":
        """Some of the samples."""
        return KeptRows(*[table[rows] for table in vars(self).values()])


@dataclass(frozen=True, eq=False)
class LandmarksModel(Model):
    """Sums over an agent's own samples and over those of others, and the function that they determine.

    All arrays are immutable: a step creates new ones.
    """

    basis: Basis = dataclasses.field(kw_only=True)
    own: Sums = dataclasses.field(kw_only=True)
    """Over the agent's own samples: `frozen`, and the kept samples as linearized last."""
    frozen: Sums = dataclasses.field(kw_only=True)
    """Over those samples that are not kept."""
    kept: KeptRows = dataclasses.field(kw_only=True)
    others: Sums = dataclasses.field(kw_only=True)
    """Over the samples of other agents."""
    coordinates: Floats = dataclasses.field(kw_only=True)
    """w = (λ I + Θ)⁻¹ β."""
    revisited: Floats = dataclasses.field(kw_only=True)
    """w when the kept samples were linearized last."""
    regularization: float = dataclasses.field(kw_only=True)
    age: int = dataclasses.field(kw_only=True, default=0)
    """Steps since then."""
    changed: bool = dataclasses.field(kw_only=True, default=False)
    """Whether `own` has changed since the others were told last."""
    candidates: Floats = dataclasses.field(kw_only=True)
    """Samples since then that would be worth a point."""
    trials: tuple[Sums, ...] = dataclasses.field(kw_only=True, default=())
    """Over two halves of the kept samples for each kernel that is compared before the agents learn."""

    def shared(self, roll: int, *, learns: bool) -> Sums:
        """The sums to be added to those of others; before agents learn, those of the kept samples that they agree by."""
        own, points = self.own, self.kept.points
        found = Sums(own.moments, own.weights, own.samples, roll, own.features)
        if learns:
            return found
        with np.errstate(over="raise"):
            features = np.stack([points.sum(0), (points**2).sum(0)])
        return dataclasses.replace(found, samples=float(len(points)), features=features, trials=self.trials)

    def without_samples(self) -> "LandmarksModel":
        """The same model, which can be shown to others: samples are only in its sums, once there are points to learn with."""
        if not self.own.samples:
            return self
        rows = self.kept.at(np.arange(0))
        return dataclasses.replace(self, frozen=self.own, kept=rows, candidates=self.candidates[:0])

    def arrays(self) -> dict[str, NDArray[Any]]:
        sums = {"own": self.own, "frozen": self.frozen, "others": dataclasses.replace(self.others, trials=self.trials)}
        wire = {name: msgspec.msgpack.encode(packed(each, bits=64)) for name, each in sums.items()}
        return {
            "root": self.basis.root,
            **{name: np.frombuffer(data, np.uint8) for name, data in wire.items()},
            **{f"kept.{name}": np.asarray(table) for name, table in vars(self.kept).items()},
            "coordinates": self.coordinates,
            "revisited": self.revisited,
            "candidates": self.candidates,
            "clock": np.array([self.age, self.changed], dtype=np.int64),
        }

    def is_untried(self, order: int) -> bool:
        """Whether the kept samples are not yet in sums over so many points for the kernels that are compared."""
        have = self.trials[:2]
        return bool(order and len(self.kept)) and (
            not have or have[0].order != order or sum(half.samples for half in have) != len(self.kept)
        )

    def tried(self, bases: Sequence[Basis], loss: Loss) -> "LandmarksModel":
        """The model with sums over two halves of the kept samples in the coordinates of each basis, with labels as values."""
        values, outputs = self.kept.targets, self.own.weights.shape[1]
        if loss.classifies:
            values = (np.arange(outputs) == values[:, None]) - 1.0 / outputs
        trials = []
        for basis in bases:
            features = basis.features(self.kept.points)
            trials += [Sums.of(features[half::2], values[half::2], samples=float(len(values[half::2]))) for half in (0, 1)]
        return dataclasses.replace(self, trials=tuple(trials), changed=True)

    @property
    def is_due(self) -> bool:
        """Whether the kept samples are to be linearized again once some steps have passed."""
        return self.basis.order > 0 and len(self.kept) > 0 and self.moved

    @property
    def moved(self) -> bool:
        """Whether the model has changed since the kept samples were linearized.

        That is, its outputs at the agent's samples, in units in which the loss has the curvature 1, by 0.1 in quadratic mean.
        """
        if len(self.coordinates) != len(self.revisited):
            return True
        step = (self.coordinates - self.revisited)[: self.own.order]
        return float(np.vdot(step, product(self.own.square(), step))) > 0.1**2 * self.own.samples


@register("learner")
@dataclass(frozen=True, kw_only=True)
class Landmarks(Learner):
    """w = (λ I + Θ)⁻¹ β,  Θ = Σ_t h_t φ_t φ_tᵀ,  β = Σ_t φ_t (h_t z_t − ℓ'(z_t))ᵀ,  f(x) = wᵀ φ(x).

    φ(x) = L⁻¹ κ(Z, x) are orthonormal coordinates of the span of the landmarks Z (`Basis`). The loss of every sample is
    replaced by its parabola at the present output z = f(x), with the curvature h; then learning is a sum. The agent keeps
    its latest samples and linearizes them again as the model improves, which repairs what was linearized at a poor one. Of
    more than `keep`, those that fit best go first, and their part of the sum stays.

    Sums over different samples can be added: with `Relay`, all agents of a network have the model of all samples.

    Samples far from the span of the landmarks join them until there are enough. To use given landmarks, start agents from a
    function over them with weights 0, and set `novelty` to infinity. Then no sample leaves an agent, only sums do.

    Cost of a step with M points and B samples: O(M² B + M³).

    Parameters
    ----------
    regularization : float
        λ, relative to the sum of all losses; it belongs to the network: n agents learn what one learner would.
    novelty : float
        ν: a sample becomes a point only if its distance² to the span of the others exceeds ν κ(x, x).
    max_order : int
        The maximum number of points.
    keep : int
        The number of its samples that the agent keeps; 0 keeps none.
    half_life : float
        The number of samples after which old data counts half, for streams that change; infinite means nothing is forgotten.

    Examples
    --------
    >>> import numpy as np
    >>> from kernelmesh import Agent, Gaussian, Landmarks, Squared
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Landmarks())
    >>> state, _ = agent.step(agent.start(), np.array([[0.0], [1.0]]), np.array([1.0, -1.0]))
    >>> agent.predict(state, np.array([[0.0]])).round(2)
    array([[0.8]])
    """

    hears = (News,)
    model_kind = LandmarksModel

    regularization: float = 0.1
    novelty: float = 0.1
    max_order: int = 200
    keep: int = 512
    half_life: float = math.inf

    def __post_init__(self) -> None:
        positive("Landmarks", "regularization", self.regularization)
        positive("Landmarks", "novelty", self.novelty, infinite=True)
        integer("Landmarks", "max_order", self.max_order, minimum=1)
        integer("Landmarks", "keep", self.keep, minimum=0)
        positive("Landmarks", "half_life", self.half_life, infinite=True)

    def check(self, owner: str, loss: Loss) -> None:
        check_curved(self, owner, loss)

    def start(self, function: Function) -> LandmarksModel:
        """Start from a function; one learned elsewhere counts as the mean of the prior."""
        if math.isinf(self.novelty) and not function.order:
            rule = "be finite unless agents start from a function over given points"
            raise InvalidArgument("Landmarks", "novelty", rule, self.novelty)
        basis = Basis.over(function.kernel, function.points)
        coordinates = basis.coordinates(function)
        # w₀ = (λ I)⁻¹ λ w₀
        own = Sums(np.zeros(basis.order * (basis.order + 1) // 2), self.regularization * coordinates)
        nothing = KeptRows(np.empty((0, function.dimension)), np.empty(0), np.empty((0, function.outputs)), np.empty(0))
        return _solved(
            LandmarksModel(
                function,
                basis=basis,
                own=own,
                frozen=own,
                kept=nothing,
                others=Sums.zero(function.outputs),
                coordinates=coordinates,
                revisited=coordinates,
                regularization=self.regularization,
                candidates=np.empty((0, function.dimension)),
            )
        )

    def unpack(self, model: Model, arrays: Mapping[str, NDArray[Any]]) -> LandmarksModel:
        assert isinstance(model, LandmarksModel)
        function = model.function
        order, dimension, outputs = function.order, function.dimension, function.outputs
        root = matrix("file", "model.root", arrays["root"], rows=order, columns=order)
        own, frozen, others = (_unpacked(arrays[name], name, order, outputs) for name in ("own", "frozen", "others"))
        points = matrix("file", "model.kept.points", arrays["kept.points"], columns=dimension)
        age, changed = (integer("file", "model.clock", n, minimum=0) for n in arrays["clock"])
        coordinates = matrix("file", "model.coordinates", arrays["coordinates"], rows=order, columns=outputs)
        basis = Basis(function.kernel, function.points, root)
        return dataclasses.replace(
            model,
            basis=basis,
            own=own,
            frozen=frozen,
            others=dataclasses.replace(others, trials=()),
            kept=KeptRows(
                points,
                arrays["kept.targets"],
                matrix("file", "model.kept.outputs", arrays["kept.outputs"], rows=len(points), columns=outputs),
                matrix("file", "model.kept.weights", arrays["kept.weights"][None], columns=len(points))[0],
            ),
            coordinates=coordinates,
            revisited=matrix("file", "model.revisited", arrays["revisited"], columns=outputs),
            square_norm=float(np.vdot(coordinates, coordinates)),
            candidates=matrix("file", "model.candidates", arrays["candidates"], columns=dimension),
            age=age,
            changed=bool(changed),
            trials=others.trials,
        )

    def adopt(self, model: LandmarksModel, basis: Basis, others: Sums, regularization: float) -> LandmarksModel:
        """The model with other sums of the others, over a list of points and with a λ that may have changed."""
        if basis is model.basis and others is model.others and regularization == model.regularization:
            return model
        if basis is not model.basis:
            if not model.own.samples:
                model = dataclasses.replace(model, candidates=model.kept.points[:POOL])
            model = _rebased(dataclasses.replace(model, regularization=regularization), basis)
        solution = _solution(basis, model.own, others, regularization)
        return dataclasses.replace(model, others=others, regularization=regularization, **solution)

    def begin(self, model: LandmarksModel, loss: Loss) -> LandmarksModel:
        """Learn from what was kept while there were no points."""
        is_new = model.basis.order and len(model.kept)
        return self._revisited(dataclasses.replace(model, trials=()), loss) if is_new else model

    def learn(self, model: Model, inputs: StepInputs, move: Move) -> tuple[LandmarksModel, CompressionReport]:
        """Learn from a mini-batch."""
        assert isinstance(model, LandmarksModel)
        points, basis, before = inputs.points, model.basis, len(model.basis.points)
        features, candidates = basis.lifted(inputs.cross), model.candidates
        new = basis.novel(points, novelty=self.novelty, room=self.max_order - before, features=features)
        if len(new) and inputs.grows:
            basis = basis.extended(points[new])
            features = basis.features(points)
        elif len(new):
            candidates = np.concatenate([candidates, points[new]])[:POOL]
        own, frozen, kept, ones = model.own, model.frozen, model.kept, np.ones(len(points))
        share = 0.5 ** (len(points) / self.half_life)
        if share < 1.0:
            own, frozen = own.times(share), frozen.times(share)
            kept = dataclasses.replace(kept, weights=share * kept.weights)
        order = len(basis.points)
        if self.keep or not order:
            kept = kept.plus(points, inputs.targets, inputs.here, ones)
        solution: dict[str, Any] = {}
        if order:
            gained = _gained(inputs.loss, features, inputs.here, inputs.slope, inputs.targets, ones)
            own = added([own, gained], outputs=own.weights.shape[1])
            frozen = frozen if self.keep else own
            solution = _solution(basis, own, model.others, model.regularization)
        learned: dict[str, Any] = {"basis": basis, "own": own, "frozen": frozen, "kept": kept, "candidates": candidates}
        model = dataclasses.replace(model, **learned, **solution, changed=True, age=model.age + 1)
        model = self.revisit(model, inputs.loss)
        joined = order - before
        report = CompressionReport(error=0.0, budget=0.0, removed=len(points) - joined, dependent=len(points) - joined)
        return model, report

    def revisit(self, model: LandmarksModel, loss: Loss) -> LandmarksModel:
        """Linearize the kept samples again when the model has changed, at most once in 8 steps."""
        if model.age < 8 or not (model.is_due or (model.basis.order and len(model.kept) > self.keep)):
            return model
        return self._revisited(model, loss)

    def _revisited(self, model: LandmarksModel, loss: Loss) -> LandmarksModel:
        kept, frozen = model.kept, model.frozen
        features = model.basis.features(kept.points)
        here = product(features, model.coordinates)
        over = len(kept) - self.keep
        if over > 0:
            turn = np.argsort((loss.slope(here, kept.targets) ** 2).sum(axis=1), kind="stable")
            out, stay = np.sort(turn[:over]), np.sort(turn[over:])
            gained = _regained(loss, features[out], here[out], kept.at(out))
            frozen = added([frozen, gained], outputs=here.shape[1])
            kept, features, here = kept.at(stay), features[stay], here[stay]
        own = frozen
        if len(kept):
            own = added([frozen, _regained(loss, features, here, kept)], outputs=here.shape[1])
        kept = dataclasses.replace(kept, outputs=here)
        solution = _solution(model.basis, own, model.others, model.regularization)
        now: dict[str, Any] = {
            "kept": kept,
            "frozen": frozen,
            "own": own,
            "revisited": model.coordinates,
            "age": 0,
            "changed": True,
        }
        return dataclasses.replace(model, **now, **solution)


def _regained(loss: Loss, features: Floats, here: Floats, rows: KeptRows) -> Sums:
    """`_gained` over samples that have been linearized before, at z'.

    h is at least what the parabola at z' should have had to meet the loss at z,
    2 (ℓ(z) − ℓ(z') − ℓ'(z')ᵀ(z − z')) / ‖z − z'‖²: where a loss is flat, Newton steps go too far and back without end.
    """
    move = here - rows.outputs
    far = np.maximum(np.add.reduce(move**2, axis=1), 1e-12)
    before, old_slope = loss.value_and_slope(rows.outputs, rows.targets)
    value, slope = loss.value_and_slope(here, rows.targets)
    rise = value - before - np.add.reduce(old_slope * move, axis=1)
    met = np.clip(2.0 * rise / far, 0.0, getattr(loss, "most_curved", math.inf))
    return _gained(loss, features, here, slope, rows.targets, rows.weights, least=np.sqrt(met))


def _gained(
    loss: Loss, features: Floats, here: Floats, slope: Floats, targets: Any, weights: Floats, *, least: Floats | float = 0.0
) -> Sums:
    """Σ h φ φᵀ and Σ φ (h z − ℓ'(z))ᵀ over samples whose losses are replaced by their parabolas at z.

    h is the curvature at z, but its root at least `least`.
    """
    root = np.maximum(np.maximum(curvature_root(loss, "curvature", here, targets), 1e-12), least)
    size = np.sqrt(weights)[:, None]
    pull = root[:, None] * here - slope / root[:, None]
    return Sums.of(size * root[:, None] * features, size * pull, samples=float(np.add.reduce(weights)))


def _unpacked(data: NDArray[Any], name: str, order: int, outputs: int) -> Sums:
    """Sums from a file."""
    try:
        sums = unpacked(_decoder.decode(data.astype(np.uint8).tobytes()))
        if sums.order <= order and sums.weights.shape[1] == outputs:
            return sums
        found = f"{sums.order} points and {sums.weights.shape[1]} outputs"
    except (RefusedMessage, msgspec.DecodeError) as error:
        found = str(error)
    rule = f"be sums over at most {order} points with {outputs} outputs"
    raise InvalidArgument("file", f"model.{name}", rule, Verbatim(found))


def _rebased(model: LandmarksModel, basis: Basis) -> LandmarksModel:
    """The model over another list of points; if it begins like the old one, sums stay as they are."""
    old = model.basis
    longer = basis.order >= old.order and basis.kernel == old.kernel and np.array_equal(basis.points[: old.order], old.points)
    if longer:
        return dataclasses.replace(model, basis=basis)
    across = basis.across(old)
    own, frozen = (sums.within(across[:, : sums.order]) for sums in (model.own, model.frozen))
    new = dataclasses.replace(
        model, basis=basis, own=own, frozen=frozen, changed=True, revisited=np.empty((0, own.weights.shape[1])), age=8
    )
    return _solved(dataclasses.replace(new, others=Sums.zero(own.weights.shape[1])))


def _solved(model: LandmarksModel) -> LandmarksModel:
    """The model with the function that its sums determine."""
    return dataclasses.replace(model, **_solution(model.basis, model.own, model.others, model.regularization))


def _solution(basis: Basis, own: Sums, others: Sums, regularization: float) -> dict[str, Any]:
    """The function that sums determine, as fields of a model."""
    outputs = own.weights.shape[1]
    coordinates = np.zeros((len(basis.points), outputs))
    found = added([own, others], outputs=outputs).solve(regularization)
    coordinates[: len(found)] = found
    if not math.isfinite(float(np.add.reduce(coordinates, axis=None))):
        raise FloatingPointError("the function is no longer finite")
    flat = coordinates.reshape(-1)
    norm = float(flat @ flat)
    return {"coordinates": coordinates, "function": basis.function(coordinates), "square_norm": norm}
