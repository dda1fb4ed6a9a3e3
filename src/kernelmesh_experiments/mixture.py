"""Shared parts of the mixture experiments: settings, data, network, agents, and reference learners."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from kernelmesh import Agent, ArrayStream, ConsensusProtocol, Doubling, Gaussian, Graph, Local, Mixture, Tuning
from kernelmesh.streams import StreamSlice
from kernelmesh_experiments.events import Network
from kernelmesh_experiments.kinds import LOSSES, ProtocolName
from kernelmesh_experiments.learning import LearningSettings
from kernelmesh_experiments.samples import Samples
from kernelmesh_experiments.settings import Count, Floats, Index, Ints, Positive, PositiveOrInf, one_of, setting, settings_of
from kernelmesh_experiments.trial import Stop

__all__ = ["CLASSES", "LossName", "MixtureConfig", "Partition", "Task"]

CLASSES = 5  # of the paper's mixture
Partition = Annotated[str, one_of("identical", "two-class", "one-class")]
LossName = Annotated[str, one_of(*LOSSES)]
Reading = Annotated[str, one_of("deviation", "printed")]


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(LearningSettings, owner="mixture"):
    """The printed settings; what the paper leaves open or prints differently is said beside it."""

    agents: Count = setting(20, doc="agents in the network")
    protocol: ProtocolName = setting(
        "capped-penalty", doc="the consensus protocol; the paper's is `penalty`, which diverges with the paper's schedule"
    )
    partition: Partition = setting(
        "identical", doc="what each agent sees: identical (all samples, in its own order), two-class or one-class"
    )
    loss: LossName = setting("logistic", doc="logistic or hinge")
    samples: Count = setting(5000, doc="samples in the training set")
    held_out: Count = setting(2500, doc="samples in the test set")
    passes: Count = setting(
        5, doc="passes over the samples if agents see only some classes; all continue until every agent has made them"
    )
    reading: Reading = setting(
        "deviation",
        doc="how to read the paper's 0.2: deviation, or printed (a variance); only the former fits the paper's accuracies",
    )
    spread: Positive = setting(0.2, doc="standard deviation of samples around the modes of their class")
    bandwidth: Positive = setting(0.6, doc="d of the Gaussian kernel")
    batch_size: Count = setting(32, doc="samples per step")
    penalty_start: Positive = setting(0.01, doc="c at the first sample")
    penalty_doubles_every: Count = setting(200, doc="number of samples after which c doubles")
    penalty_limit: PositiveOrInf = setting(
        math.inf, doc="cap on c of `penalty` and `hilbert`, as a fraction of the stability limit; the paper has no cap"
    )
    measure_every: Count = setting(4, doc="rounds between measurements")
    measure_agents: Index = setting(0, doc="number of agents and edges to measure, redrawn each time; 0 means all")


@dataclass(frozen=True, eq=False, kw_only=True)
class Task(Samples):
    """The data, the network and the agent that a config describes, all drawn from its seed."""

    config: MixtureConfig
    mixture: Mixture
    graph: Graph
    streams: tuple[StreamSlice, ...]

    @classmethod
    def draw(cls, config: MixtureConfig) -> Task:
        """Everything random, in a fixed order: the same seed gives the same data whatever the protocol."""
        rng = np.random.default_rng(config.seed)
        spread = math.sqrt(config.spread) if config.reading == "printed" else config.spread
        mixture = Mixture.draw(classes=CLASSES, spread=spread, rng=rng)
        points, labels = mixture.sample(config.samples, rng=rng)
        held_points, held_labels = mixture.sample(config.held_out, rng=rng)
        graph = Graph.random(config.agents, probability=0.2, rng=rng)
        own = rng.spawn(config.agents)
        whole = [_stream(config, i, points, labels, mixture.classes, own[i]) for i in range(config.agents)]
        # classes are not equally frequent: everybody goes on until everybody has made the passes
        rounds = max(len(stream) for stream in whole)
        streams = tuple(StreamSlice(dataclasses.replace(stream, passes=2 * stream.passes), 0, rounds) for stream in whole)
        return cls(
            config=config,
            mixture=mixture,
            points=points,
            labels=labels,
            held_points=held_points,
            held_labels=held_labels,
            graph=graph,
            streams=streams,
        )

    @property
    def kernel(self) -> Gaussian:
        """The kernel of every learner here."""
        return Gaussian(bandwidth=self.config.bandwidth)

    def protocol(self) -> ConsensusProtocol:
        """The protocol that the config names, ready for this network."""
        config = self.config
        tuning = Tuning(
            coupling=Doubling(start=config.penalty_start, every=config.penalty_doubles_every),
            limit=config.penalty_limit,
            kernel=self.kernel,
            batches=[part.stream.points[: config.batch_size] for part in self.streams],
            stiffness=self.graph.stiffness,
            step_size=config.initial_step_size,
            every=config.every or None,
        )
        return config.make_protocol(tuning)

    def agent(self, protocol: ConsensusProtocol | None = None) -> Agent:
        """The settings of every agent; with `Local()` those of a learner on its own."""
        shape = 2, self.mixture.classes
        return self.config.make_agent(shape, self.kernel, protocol or self.protocol(), loss=self.config.loss)

    def network(self) -> Network:
        """The network, ready to be trained once: its streams are random and go on where they were left."""
        config = self.config
        return Network(
            agent=self.agent(),
            graph=self.graph,
            streams=self.streams,
            points=self.held_points,
            targets=self.held_labels,
            measure_every=config.measure_every,
            sample=config.measure_agents or None,
            settings=settings_of(config),
        )

    @cached_property
    def bayes(self) -> float:
        """The Bayes-optimal held-out accuracy."""
        return float((self.mixture.bayes(self.held_points) == self.held_labels).mean())

    def centralized(self, stop: Stop) -> float:
        """Held-out accuracy of one learner with all the samples, once: the mean over five orders of them.

        One pass over one order scatters by a percentage point.
        """
        config, agent = self.config, self.agent(Local())
        orders = np.random.default_rng([config.seed, 1]).spawn(5)
        streams = (ArrayStream(self.points, self.labels, batch_size=config.batch_size, rng=order) for order in orders)
        return float(np.mean([self.learn_alone(agent, stream, stop) for stream in streams]))

    def references(self, stop: Stop) -> dict[str, float]:
        """What learners with all the samples reach."""
        central = self.centralized(stop)
        return {"centralized_accuracy": central, "centralized_gap": self.bayes - central, "svm_accuracy": self.svm()}

    def svm(self) -> float:
        """Held-out accuracy of a batch SVM with the same kernel and all the samples (C = 10)."""
        return self.batch_svm(gamma=0.5 / self.config.bandwidth**2)


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
