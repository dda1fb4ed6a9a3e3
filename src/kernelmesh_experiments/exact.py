"""Problems small enough to be solved exactly: finite samples, and the minimizers of the theory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize

from kernelmesh import Agent, ArrayStream, ConsensusProtocol, Function, Gaussian, Gradient, Graph, Logistic, Mixture
from kernelmesh_experiments.settings import Count, Floats, Ints, Positive, Settings, setting

__all__ = ["Problem", "ProblemConfig"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """The samples of every agent, the network, and the minimizers of the penalized objective ψ_c and of its limit."""

    kernel: Gaussian
    regularization: float
    points: tuple[Floats, ...]
    labels: tuple[Ints, ...]
    graph: Graph

    classes: ClassVar[int] = 3

    def agent(self, protocol: ConsensusProtocol, **settings: Any) -> Agent:
        """Agents that take gradient steps with some settings to find the minimizer."""
        learner = Gradient(regularization=self.regularization, **settings)
        return Agent(
            dimension=2, outputs=self.classes, kernel=self.kernel, loss=Logistic(), learner=learner, protocol=protocol
        )

    def streams(self, seed: Sequence[int], *, batch_size: int, passes: int) -> list[ArrayStream]:
        """Every agent sees its samples over and over, in an order of its own."""
        own = zip(self.points, self.labels, np.random.default_rng(seed).spawn(len(self.points)), strict=True)
        return [ArrayStream(x, y, batch_size=batch_size, passes=passes, rng=rng) for x, y, rng in own]

    def violation(self, functions: Sequence[Function]) -> float:
        """½ Σ_i Σ_j∈n_i E‖f_i(x_i) − f_j(x_i)‖²."""
        total = 0.0
        for i, around in enumerate(self.graph.neighbors):
            here = functions[i](self.points[i])
            total += sum(float(((here - functions[j](self.points[i])) ** 2).sum(axis=1).mean()) for j in around)
        return 0.5 * total

    def minimize(self, coupling: float) -> tuple[float, list[Function]]:
        """The minimum of ψ_c, and the functions that attain it; an infinite c gives p* and one function for all.

        By the representer theorem every function is a combination of kernels at all samples; with K = L Lᵀ and f = L θ the
        norm of f is that of θ, which makes the problem well conditioned.
        """
        everywhere = np.concatenate(self.points)
        n, agents = len(everywhere), len(self.graph)
        gram = self.kernel(everywhere, everywhere) + 1e-10 * np.eye(n)
        root = np.linalg.cholesky(gram)
        ends = np.cumsum([0, *(len(x) for x in self.points)])
        spans = [slice(a, b) for a, b in pairwise(ends)]
        together = coupling == math.inf
        shape = (1 if together else agents, n, self.classes)
        loss, weight = Logistic(), self.regularization

        def objective(flat: Floats) -> tuple[float, Floats]:
            theta = flat.reshape(shape)
            values = root @ theta
            push = np.zeros_like(values)
            cost = 0.0
            for i, span in enumerate(spans):
                own = 0 if together else i
                z = values[own, span]
                cost += float(loss.value(z, self.labels[i]).mean()) + 0.5 * weight * float((theta[own] ** 2).sum())
                push[own, span] += loss.slope(z, self.labels[i]) / len(z)
                for j in () if together else self.graph.neighbors[i]:
                    gap = z - values[j, span]
                    cost += 0.5 * coupling * float((gap**2).sum()) / len(z)
                    push[i, span] += coupling * gap / len(z)
                    push[j, span] -= coupling * gap / len(z)
            slope = root.T @ push + weight * (agents if together else 1) * theta
            return cost, slope.ravel()

        options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-14, "gtol": 1e-9}
        found = minimize(objective, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options=options)
        weights = np.linalg.solve(root.T, found.x.reshape(shape))
        return float(found.fun), [Function.of(self.kernel, everywhere, w) for w in np.repeat(weights, agents // shape[0], 0)]


@dataclass(frozen=True, kw_only=True)
class ProblemConfig(Settings, owner="exact"):
    """Every agent has some samples for ever."""

    shared: ClassVar[bool] = False
    """Whether all agents have the same samples, or each its own from two of three classes."""

    agents: Count = setting(6, doc="agents in the network")
    samples: Count = setting(60, doc="samples per agent")
    passes: Count = setting(400, doc="passes over them")
    bandwidth: Positive = setting(0.6, doc="d of the Gaussian kernel")
    regularization: Positive = setting(1e-3, doc="λ")

    def problem(self) -> Problem:
        """Draw the samples and the network."""
        rng, classes = np.random.default_rng(self.seed), Problem.classes
        mixture = Mixture.draw(classes=classes, rng=rng)
        samples = [mixture.sample(self.samples, rng=rng)] * self.agents
        for agent in range(self.agents):
            x, y = mixture.sample(4 * self.samples, rng=rng)
            seen = np.flatnonzero(y != agent % classes)[: self.samples]
            if not self.shared:
                samples[agent] = x[seen], y[seen]
        points, labels = zip(*samples, strict=True)
        kernel, graph = Gaussian(bandwidth=self.bandwidth), Graph.random(self.agents, probability=0.3, rng=rng)
        return Problem(kernel=kernel, regularization=self.regularization, points=points, labels=labels, graph=graph)
