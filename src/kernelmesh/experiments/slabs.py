"""Regression where each agent sees one slab of the input space: can an agent predict where it has never been?"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from kernelmesh.agent import Agent
from kernelmesh.checks import Floats, integer, non_negative, positive
from kernelmesh.consensus import Consensus, Local
from kernelmesh.errors import InvalidArgument
from kernelmesh.experiments.base import Experiment, Watch
from kernelmesh.experiments.cells import run_cells
from kernelmesh.experiments.protocols import PROTOCOLS, protocol
from kernelmesh.experiments.trial import Trial, learn
from kernelmesh.metrics import errors
from kernelmesh.numerics.compression import Komp
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.kernels import Gaussian
from kernelmesh.numerics.losses import Squared
from kernelmesh.numerics.schedules import Doubling
from kernelmesh.report import Report, style_of
from kernelmesh.runtimes import simulate
from kernelmesh.streams import ArrayStream, StreamSlice

__all__ = ["EXPERIMENT", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A line of agents; agent i sees x in the i-th of as many equal slabs of [−2, 2], and y = sin(3x) + x/2 with noise."""

    owner: ClassVar[str] = "slabs"

    seed: int = 0
    seeds: int = 10  # for the whole table
    agents: int = 10
    protocol: str = "exact-diffusion"
    samples: int = 4000  # of each agent
    held_out: int = 2000
    noise: float = 0.1
    bandwidth: float = 0.35
    step_size: float = 0.5
    parsimony: float = 0.04
    dual_parsimony: float = 0.01
    regularization: float = 1e-6
    batch_size: int = 32
    measure_every: int = 8

    def __post_init__(self) -> None:
        integer(self.owner, "seed", self.seed, minimum=0)
        for argument in ("seeds", "agents", "samples", "held_out", "batch_size", "measure_every"):
            integer(self.owner, argument, getattr(self, argument), minimum=1)
        for argument in ("bandwidth", "step_size"):
            positive(self.owner, argument, getattr(self, argument))
        for argument in ("noise", "parsimony", "dual_parsimony", "regularization"):
            non_negative(self.owner, argument, getattr(self, argument))
        if self.protocol not in PROTOCOLS:
            raise InvalidArgument(self.owner, "protocol", f"be one of {', '.join(PROTOCOLS)}", self.protocol)


def truth(points: Floats) -> Floats:
    """The function to be learned."""
    return np.asarray(np.sin(3 * points) + 0.5 * points)


@dataclass(frozen=True, eq=False)
class Slabs:
    """The data and the network of a config."""

    config: Config
    points: tuple[Floats, ...]
    targets: tuple[Floats, ...]
    held_points: Floats
    graph: Graph

    @classmethod
    def draw(cls, config: Config) -> Slabs:
        """Everything random, from the seed."""
        rng = np.random.default_rng(config.seed)
        edges = np.linspace(-2.0, 2.0, config.agents + 1)
        points = tuple(rng.uniform(low, high, (config.samples, 1)) for low, high in pairwise(edges))
        targets = tuple(truth(x) + config.noise * rng.standard_normal(x.shape) for x in points)
        return cls(config, points, targets, rng.uniform(-2.0, 2.0, (config.held_out, 1)), Graph.line(config.agents))

    def agent(self, consensus: Consensus | None = None) -> Agent:
        """The settings of every agent."""
        config, kernel = self.config, Gaussian(bandwidth=self.config.bandwidth)
        return Agent(
            dimension=1,
            outputs=1,
            kernel=kernel,
            loss=Squared(),
            step_size=config.step_size,
            regularization=config.regularization,
            compression=Komp.parsimonious(config.step_size, parsimony=config.parsimony),
            consensus=consensus
            or protocol(
                config.protocol,
                schedule=Doubling(start=0.01, every=200),
                share_of_limit=0.5,
                dual_budget=config.dual_parsimony * config.step_size**1.5,
                kernel=kernel,
                batches=[x[: config.batch_size] for x in self.points],
                graph=self.graph,
                step_size=config.step_size,
            ),
        )

    def streams(self) -> list[StreamSlice]:
        """What each agent sees."""
        pairs = zip(self.points, self.targets, strict=True)
        own = [ArrayStream(x, y, batch_size=self.config.batch_size) for x, y in pairs]
        return [StreamSlice(stream, 0, len(stream)) for stream in own]

    def train(self, watch: Watch, measure_every: int, folder: Path | None = None, resume: bool = False) -> Trial:
        """The network, trained; errors are against the truth."""
        return learn(
            self.agent(),
            self.graph,
            self.streams(),
            points=self.held_points,
            targets=truth(self.held_points),
            watch=watch,
            measure_every=measure_every,
            settings=dataclasses.asdict(self.config),
            folder=folder,
            resume=resume,
        )

    def centralized(self) -> tuple[float, Expansion]:
        """The error of one learner that sees all slabs and takes as many steps as an agent, and what it learned."""
        config = self.config
        rng = np.random.default_rng([config.seed, 1])
        rows = rng.permutation(config.agents * config.samples)[: config.samples]
        x, y = np.concatenate(self.points)[rows], np.concatenate(self.targets)[rows]
        *_, last = simulate(self.agent(Local()), Graph.line(1), [ArrayStream(x, y, batch_size=config.batch_size)])
        return float(errors(last.functions, self.held_points, truth(self.held_points))[0]), last.functions[0]


def run(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """One network, next to a learner that sees all slabs."""
    began = time.perf_counter()
    slabs = Slabs.draw(config)
    trial = slabs.train(watch, config.measure_every, folder, resume)
    central, everything = slabs.centralized()
    summary = {
        "experiment": config.owner,
        "seed": config.seed,
        "protocol": config.protocol,
        "agents": config.agents,
        **_as_errors(trial.summary()),
        "centralized_error": central,
        "worst_over_centralized": trial.last.score_worst / central,
        "seconds": time.perf_counter() - began,
    }
    figure = _figure(trial.newest.functions, everything, config)
    return Report(
        config.owner, dataclasses.asdict(config), summary, {"rounds": trial.rounds}, {"figure": figure}, trial.remark
    )


def _as_errors(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("accuracy", "error"): value for name, value in summary.items()}


def cell(config: Config) -> Mapping[str, Any]:
    """One cell of the table."""
    slabs = Slabs.draw(config)
    trial = slabs.train(lambda _: None, 10**6)
    central, _ = slabs.centralized()
    return {"protocol": config.protocol, "seed": config.seed, **_as_errors(trial.summary()), "centralized": central}


def sweep(config: Config, watch: Watch, folder: Path, resume: bool = False) -> Report:
    """Every protocol, over the seeds."""
    began = time.perf_counter()
    jobs: dict[str, tuple[Any, Any]] = {
        f"{name}-{seed}": (cell, dataclasses.replace(config, seed=seed, protocol=name))
        for seed in range(config.seed, config.seed + config.seeds)
        for name in PROTOCOLS
    }
    done = run_cells(jobs, watch=watch, folder=folder, resume=resume)
    missing = len(jobs) - len(done)
    table = []
    for name in PROTOCOLS:
        lines = [line for line in done.values() if line["protocol"] == name and line["complete"]]
        if lines:
            numbers = ("error_mean", "error_worst", "centralized", "model_order_mean", "bytes_per_sample")
            means = {number: float(np.mean([line[number] for line in lines])) for number in numbers}
            table.append(
                {"protocol": name, **means, "worst / centralized": means["error_worst"] / means["centralized"]}
            )
    reached = next((row["worst / centralized"] for row in table if row["protocol"] == config.protocol), math.nan)
    remark = f"Interrupted: {missing} of {len(jobs)} cells are missing; --resume goes on." if missing else ""
    summary = {
        "experiment": config.owner,
        "seeds": config.seeds,
        "complete": not remark,
        "remark": remark,
        f"{config.protocol}: worst error / centralized (must be <= 1.15)": reached,
        "seconds": time.perf_counter() - began,
    }
    tables = {"table": table, "cells": list(done.values())}
    return Report(config.owner, dataclasses.asdict(config), summary, tables, {}, remark, (), ("table",))


def _figure(functions: Sequence[Expansion], central: Expansion, config: Config) -> Figure:
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(-2, 2, 400)[:, None]
    for i, edge in enumerate(np.linspace(-2, 2, config.agents + 1)):
        axes.axvline(edge, color="0.9", linewidth=0.8, label="what one agent sees" if i == 0 else None)
    for place, agent in enumerate(sorted({0, len(functions) // 2, len(functions) - 1})):
        line = {**style_of(place), "marker": ""}
        axes.plot(grid, functions[agent](grid), **line, label=f"agent {agent} (sees slab {agent})")
    axes.plot(grid, central(grid), **{**style_of(5), "marker": ""}, label="one learner that sees everything")
    axes.plot(grid, truth(grid), color="black", linewidth=1, linestyle=":", label="the truth")
    axes.set_xlabel("$x$")
    axes.set_ylabel("$f(x)$")
    axes.set_title(f"{config.protocol}: each of {len(functions)} agents sees one slab of the input space")
    axes.legend(loc="lower right", fontsize=9)
    return figure


EXPERIMENT = Experiment(
    "slabs", "regression where each agent sees one slab of the input space", Config, run, sweep, ("protocol",)
)
