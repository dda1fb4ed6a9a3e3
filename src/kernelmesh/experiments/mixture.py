"""What the experiments on the mixture of Gaussians share: settings, data, network, agent, and learners to compare with."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from sklearn.svm import SVC

from kernelmesh.agent import Agent
from kernelmesh.checks import Floats, Ints, integer, non_negative, positive
from kernelmesh.consensus import Consensus, Local
from kernelmesh.errors import InvalidArgument
from kernelmesh.experiments.protocols import NAMES, protocol
from kernelmesh.metrics import accuracies
from kernelmesh.numerics.compression import Komp
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Hinge, Logistic, Loss
from kernelmesh.numerics.schedules import Doubling, InverseTime, Schedule
from kernelmesh.runtimes import simulate
from kernelmesh.streams import ArrayStream, Mixture, StreamSlice

__all__ = ["PARTITIONS", "MixtureConfig", "Task"]

PARTITIONS = ("identical", "two-class", "one-class")
_LOSSES: dict[str, Loss] = {"logistic": Logistic(), "hinge": Hinge()}
# How many orders of the samples a learner with all the data is tried on; one pass over one order scatters by a point.
_ORDERS = 5


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """The printed settings; what the paper leaves open or prints differently is said beside it."""

    owner: ClassVar[str] = "mixture"

    seed: int = 0
    agents: int = 20
    protocol: str = "capped-penalty"  # the paper's own is `penalty`, which diverges with its own schedule
    partition: str = "identical"  # every agent sees all samples in an order of its own, or some classes, five times
    loss: str = "logistic"
    samples: int = 5000
    held_out: int = 2500
    passes: int = 5  # where agents see some classes only; all go on until everybody has made them
    reading: str = "deviation"  # of the printed 0.2; only as a standard deviation are the printed accuracies possible
    spread: float = 0.2
    bandwidth: float = 0.6
    step_size: float = 3.0
    step_halves: float = math.inf  # samples after which the step size is half of that, falling as a / (b + t)
    parsimony: float = 0.04
    dual_parsimony: float = 0.01  # the same for the duals of exact diffusion
    regularization: float = 1e-6
    batch_size: int = 32
    penalty_start: float = 0.01
    penalty_doubles_every: int = 200
    penalty_limit: float = math.inf  # for `penalty` and `hilbert`, as a share of what is stable; the paper has none
    measure_every: int = 4  # rounds

    def __post_init__(self) -> None:
        integer(self.owner, "seed", self.seed, minimum=0)
        for argument in ("agents", "samples", "held_out", "passes", "batch_size", "measure_every"):
            integer(self.owner, argument, getattr(self, argument), minimum=1)
        integer(self.owner, "penalty_doubles_every", self.penalty_doubles_every, minimum=1)
        for argument in ("spread", "bandwidth", "step_size", "penalty_start"):
            positive(self.owner, argument, getattr(self, argument))
        for argument in ("penalty_limit", "step_halves"):
            positive(self.owner, argument, getattr(self, argument), infinite=True)
        for argument in ("parsimony", "dual_parsimony", "regularization"):
            non_negative(self.owner, argument, getattr(self, argument))
        for argument, known in (
            ("protocol", NAMES),
            ("partition", PARTITIONS),
            ("loss", tuple(_LOSSES)),
            ("reading", ("deviation", "printed")),
        ):
            if getattr(self, argument) not in known:
                raise InvalidArgument(self.owner, argument, f"be one of {', '.join(known)}", getattr(self, argument))

    @property
    def steps(self) -> Schedule | float:
        """The step size over the samples."""
        half = self.step_halves
        return self.step_size if half == math.inf else InverseTime(scale=self.step_size * half, offset=half)

    def settings(self) -> dict[str, Any]:
        """The settings as JSON can hold them."""
        return {name: str(v) if v == math.inf else v for name, v in dataclasses.asdict(self).items()}


@dataclass(frozen=True, eq=False)
class Task:
    """The data, the network and the agent that a config describes, all drawn from its seed."""

    config: MixtureConfig
    mixture: Mixture
    points: Floats
    labels: Ints
    held_points: Floats
    held_labels: Ints
    graph: Graph
    streams: tuple[StreamSlice, ...]
    rng: np.random.Generator

    @classmethod
    def draw(cls, config: MixtureConfig) -> Task:
        """Everything random, in a fixed order: the same seed gives the same data whatever the protocol."""
        rng = np.random.default_rng(config.seed)
        spread = math.sqrt(config.spread) if config.reading == "printed" else config.spread
        mixture = Mixture.draw(spread=spread, rng=rng)
        points, labels = mixture.sample(config.samples, rng=rng)
        held_points, held_labels = mixture.sample(config.held_out, rng=rng)
        graph = Graph.random(config.agents, probability=0.2, rng=rng)
        own = rng.spawn(config.agents)
        whole = [_stream(config, i, points, labels, mixture.classes, own[i]) for i in range(config.agents)]
        # classes are not equally frequent: everybody goes on until everybody has made the passes
        rounds = max(len(stream) for stream in whole)
        streams = tuple(
            StreamSlice(dataclasses.replace(stream, passes=2 * stream.passes), 0, rounds) for stream in whole
        )
        return cls(config, mixture, points, labels, held_points, held_labels, graph, streams, rng)

    @property
    def kernel(self) -> Gaussian:
        """The kernel of every learner here."""
        return Gaussian(bandwidth=self.config.bandwidth)

    def consensus(self) -> Consensus:
        """The protocol that the config names, ready for this network."""
        config = self.config
        return protocol(
            config.protocol,
            schedule=Doubling(start=config.penalty_start, every=config.penalty_doubles_every),
            share_of_limit=config.penalty_limit,
            dual_budget=config.dual_parsimony * config.step_size**1.5,
            kernel=self.kernel,
            batches=[part.stream.points[: config.batch_size] for part in self.streams],
            graph=self.graph,
            step_size=config.step_size,
        )

    def agent(self, consensus: Consensus | None = None) -> Agent:
        """The settings of every agent; with `Local()` those of a learner on its own."""
        config = self.config
        return Agent(
            dimension=2,
            outputs=self.mixture.classes,
            kernel=self.kernel,
            loss=_LOSSES[config.loss],
            step_size=config.steps,
            regularization=config.regularization,
            compression=Komp.parsimonious(config.step_size, parsimony=config.parsimony),
            consensus=consensus or self.consensus(),
        )

    @cached_property
    def bayes(self) -> float:
        """The held-out accuracy that nothing can exceed but by luck."""
        return float((self.mixture.bayes(self.held_points) == self.held_labels).mean())

    def centralized(self) -> float:
        """Held-out accuracy of one learner with all the samples, once: the mean over several orders of them."""
        config, scores = self.config, []
        for order in np.random.default_rng([config.seed, 1]).spawn(_ORDERS):
            stream = ArrayStream(self.points, self.labels, batch_size=config.batch_size, rng=order)
            *_, last = simulate(self.agent(Local()), Graph.line(1), [stream])
            scores.append(accuracies(last.functions, self.held_points, self.held_labels)[0])
        return float(np.mean(scores))

    def svm(self) -> float:
        """Held-out accuracy of a batch SVM with the same kernel and all the samples (C = 10)."""
        machine = SVC(C=10.0, gamma=0.5 / self.config.bandwidth**2).fit(self.points, self.labels)
        return float(machine.score(self.held_points, self.held_labels))


def _stream(
    config: MixtureConfig, agent: int, points: Floats, labels: Ints, classes: int, rng: np.random.Generator
) -> ArrayStream:
    if config.partition == "identical":
        return ArrayStream(points, labels, batch_size=config.batch_size, rng=rng)
    # agents i, i+1, … see classes i, i+1, …; every class is seen by as many agents as every other, or one less
    seen = labels == agent % classes
    if config.partition == "two-class":
        seen |= labels == (agent + 1) % classes
    return ArrayStream(points[seen], labels[seen], batch_size=config.batch_size, passes=config.passes, rng=rng)
