"""Runs with a known minimizer: the distance of the agents from it, with constant and with decreasing steps."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh import Function, Graph, InverseTime, Komp, Logistic, Penalty, Schedule, simulate
from kernelmesh_experiments.cells import Cell
from kernelmesh_experiments.exact import Problem
from kernelmesh_experiments.theory.claims import Config

__all__ = ["converge", "convergence_cells"]


@dataclass(frozen=True)
class _Square:
    """The square of a schedule."""

    of: Schedule

    def __call__(self, samples: int) -> float:
        return self.of(samples) ** 2


def convergence_cells(config: Config, steps: Sequence[float]) -> dict[str, Cell]:
    """A run for each step size; 0 is the one whose steps fall."""
    return {f"converge-{step:g}": Cell(converge, (config, step)) for step in steps}


def converge(settings: tuple[Config, float]) -> Mapping[str, Any]:
    """‖f_t − f*‖ over all agents: with a constant step size, or (0) with one that falls as a / (b + t) and ε = η²."""
    config, step = settings
    problem = config.problem()
    best = _minimizer(problem)
    falling = InverseTime(scale=1000.0, offset=1000.0)
    chosen: dict[str, Any] = {"step_size": step, "compression": Komp(parsimony=config.parsimony)}
    if not step:
        chosen = {"step_size": falling, "compression": Komp(budget=_Square(falling)), "radius": 2.0 * best.norm()}
    agent = problem.agent(Penalty(coupling=config.coupling), **chosen)
    streams = problem.streams([config.seed, 2], batch_size=config.batch_size, passes=config.passes)
    path: list[list[float]] = []
    noise, rounds = 0.0, len(streams[0])
    wanted = set(np.unique(np.geomspace(1, rounds, 60).astype(int)).tolist()) | set(range(rounds // 2, rounds + 1, 25))
    for now in simulate(agent, problem.graph, streams):
        if now.number in wanted:
            distance = math.sqrt(sum(f.distance(best) ** 2 for f in now.functions))
            order = float(np.mean([f.order for f in now.functions]))
            path.append([now.samples[0], distance, order])
            noise = max(noise, _noise(config, problem, now.functions))
    return {"step": step, "path": path, "noise": noise}


def _minimizer(problem: Problem) -> Function:
    """All agents have the same samples, so whatever c is, all minimize where one of them alone would."""
    alone = dataclasses.replace(problem, points=problem.points[:1], labels=problem.labels[:1], graph=Graph.line(1))
    return alone.minimize(math.inf)[1][0]


def _noise(config: Config, problem: Problem, functions: Sequence[Function]) -> float:
    """E‖∇̂‖² of one mini-batch, stacked over the agents: the σ² of the theory, at most B times smaller than for one sample."""
    total = 0.0
    x, y = problem.points[0], problem.labels[0]
    gram = problem.kernel(x, x)
    values = [f(x) for f in functions]
    for i, f in enumerate(functions):
        push = Logistic().slope(values[i], y)
        for j in problem.graph.neighbors[i]:
            push = push + config.coupling * (values[i] - values[j])
        mean = push / len(x)
        square = float((mean * (gram @ mean)).sum())
        spread = float((push**2).sum(axis=1).mean()) - square  # κ(x, x) = 1
        total += square + spread / config.batch_size + config.regularization**2 * f.inner(f)
    return total
