"""Regression where each agent sees one slab of the input space."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kernelmesh import (
    Agent,
    ArrayStream,
    Doubling,
    Expansion,
    Gaussian,
    Graph,
    Landmarks,
    Local,
    SharedDictionary,
    Squared,
    simulate,
)
from kernelmesh.checks import Floats
from kernelmesh.consensus import Tuning
from kernelmesh.experiments import Cell, Experiment, Findings, Network, Session, learn, means, settings_of
from kernelmesh.experiments.learning import Rates, parsimonious_agent
from kernelmesh.experiments.protocols import ProtocolName, protocol, protocols
from kernelmesh.experiments.settings import Count, NonNegative, Positive, Settings
from kernelmesh.metrics import errors
from kernelmesh.registry import register
from kernelmesh.report import panel, style_of
from kernelmesh.schema import setting
from kernelmesh.streams import StreamSlice

__all__ = ["EXPERIMENT", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config(Settings, owner="slabs"):
    """A line of agents; agent i sees x in the i-th of as many equal slabs of [−2, 2], and y = sin(3x) + x/2 with noise."""

    seeds: Count = setting(10, doc="number of seeds of the full table (`--all`)")
    agents: Count = setting(10, doc="number of agents, each with its own slab")
    protocol: ProtocolName = setting("shared-statistics", doc="the consensus protocol; see `kernelmesh list --protocols`")
    samples: Count = setting(4000, doc="samples per agent")
    held_out: Count = setting(2000, doc="samples in the test set")
    noise: NonNegative = setting(0.1, doc="the standard deviation of the noise on the values")
    bandwidth: Positive = setting(0.35, doc="d of the Gaussian kernel")
    step_size: Positive = setting(0.5, doc="η")
    parsimony: NonNegative = setting(0.04, doc="K of the budget, ε = K η^1.5")
    dual_parsimony: NonNegative = setting(0.01, doc="K of the duals of exact diffusion")
    regularization: NonNegative = setting(1e-6, doc="λ of gradient steps")
    landmarks_regularization: Positive = setting(
        Landmarks.usual_regularization, doc="λ of `landmarks`, the rule of agents that share statistics"
    )
    batch_size: Count = setting(32, doc="samples per step")
    measure_every: Count = setting(8, doc="rounds between measurements")


def truth(points: Floats) -> Floats:
    """The function to be learned."""
    return np.asarray(np.sin(3 * points) + 0.5 * points)


@dataclass(frozen=True, eq=False, kw_only=True)
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
        held_points = rng.uniform(-2.0, 2.0, (config.held_out, 1))
        graph = Graph.line(config.agents)
        return cls(config=config, points=points, targets=targets, held_points=held_points, graph=graph)

    def agent(self) -> Agent:
        """The settings of every agent."""
        config, kernel = self.config, Gaussian(bandwidth=self.config.bandwidth)
        tuning = Tuning(
            coupling=Doubling(start=0.01, every=200),
            limit=0.5,
            dual_budget=config.dual_parsimony * config.step_size**1.5,
            kernel=kernel,
            batches=[x[: config.batch_size] for x in self.points],
            stiffness=self.graph.stiffness,
            every=1,
            step_size=config.step_size,
        )
        consensus = protocol(config.protocol, tuning)
        if consensus.exchange.statistics:
            learning: dict[str, Any] = {"rule": Landmarks(), "regularization": config.landmarks_regularization}
            return Agent(dimension=1, outputs=1, kernel=kernel, loss=Squared(), consensus=consensus, **learning)
        rates = Rates(config.step_size, config.parsimony, config.regularization)
        alone = parsimonious_agent((1, 1), kernel, rates, Local(), loss=Squared())
        compression = SharedDictionary() if consensus.exchange.shared else alone.compression
        return dataclasses.replace(alone, consensus=consensus, compression=compression)

    def network(self) -> Network:
        """The network, ready to be trained; errors are against the truth."""
        pairs = zip(self.points, self.targets, strict=True)
        streams = [ArrayStream(x, y, batch_size=self.config.batch_size) for x, y in pairs]
        return Network(
            agent=self.agent(),
            graph=self.graph,
            streams=[StreamSlice(stream, 0, len(stream)) for stream in streams],
            points=self.held_points,
            targets=truth(self.held_points),
            measure_every=self.config.measure_every,
            settings=settings_of(self.config),
        )

    def centralized(self) -> tuple[float, Expansion]:
        """The error of one learner that sees all slabs and takes as many steps as an agent, and what it learned."""
        config = self.config
        rng = np.random.default_rng([config.seed, 1])
        rows = rng.permutation(config.agents * config.samples)[: config.samples]
        x, y = np.concatenate(self.points)[rows], np.concatenate(self.targets)[rows]
        alone = dataclasses.replace(self.agent(), consensus=Local())
        *_, last = simulate(alone, Graph.line(1), [ArrayStream(x, y, batch_size=config.batch_size)])
        return float(errors(last.functions, self.held_points, truth(self.held_points))[0]), last.functions[0]


def run(config: Config, session: Session) -> Findings:
    """One network, next to a learner that sees all slabs."""
    slabs = Slabs.draw(config)
    trial = session.train(slabs.network())
    central, everything = slabs.centralized()
    setup = {name: getattr(config, name) for name in ("seed", "protocol", "agents")}
    ends = {"centralized_error": central, _RATIO: trial.last.score_worst / central}
    return Findings(
        summary={**setup, **_as_errors(trial.summary()), **ends},
        tables={"rounds": trial.rounds},
        figures={"figure": _figure(trial.newest.functions, everything, config)},
    )


def _as_errors(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("accuracy", "error"): value for name, value in summary.items()}


def cell(config: Config) -> Mapping[str, Any]:
    """One cell of the table."""
    slabs = Slabs.draw(config)
    trial = learn(slabs.network(), only_ends=True)
    central, _ = slabs.centralized()
    return {"protocol": config.protocol, "seed": config.seed, **_as_errors(trial.row()), "centralized": central}


def table(config: Config, session: Session) -> Findings:
    """Every protocol, over the seeds."""
    groups = {name: Cell(cell, dataclasses.replace(config, protocol=name)) for name in protocols()}
    found = session.sweep(groups, range(config.seed, config.seed + config.seeds))
    rows = []
    for name, lines in found.items():
        if complete := [line for line in lines if line["complete"]]:
            mean = means(complete, _NUMBERS)
            rows.append({"protocol": name, **mean, _RATIO: mean["error_worst"] / mean["centralized"]})
    cells = sorted((line for lines in found.values() for line in lines), key=lambda line: line["seed"])
    reached = next((row[_RATIO] for row in rows if row["protocol"] == config.protocol), math.nan)
    return Findings(
        summary={"seeds": config.seeds, "protocol": config.protocol, _RATIO: reached, f"{_RATIO}_limit": 1.15},
        tables={"table": rows, "cells": cells},
    )


_NUMBERS = ("error_mean", "error_worst", "centralized", "model_order_mean", "bytes_per_sample")
_RATIO = "worst_over_centralized"


def _figure(functions: Sequence[Expansion], central: Expansion, config: Config) -> Figure:
    figure, axes = panel("$x$", "$f(x)$", size=(9, 5), grid=False)
    grid = np.linspace(-2, 2, 400)[:, None]
    for i, edge in enumerate(np.linspace(-2, 2, config.agents + 1)):
        axes.axvline(edge, color="0.9", linewidth=0.8, label="what one agent sees" if i == 0 else None)
    for index, agent in enumerate(sorted({0, len(functions) // 2, len(functions) - 1})):
        line = {**style_of(index), "marker": ""}
        axes.plot(grid, functions[agent](grid), **line, label=f"agent {agent} (sees slab {agent})")
    axes.plot(grid, central(grid), **{**style_of(5), "marker": ""}, label="one learner that sees everything")
    axes.plot(grid, truth(grid), color="black", linewidth=1, linestyle=":", label="the truth")
    axes.set_title(f"{config.protocol}: each of {len(functions)} agents sees one slab of the input space")
    axes.legend(loc="lower right", fontsize=9)
    return figure


_ABOUT = "regression where each agent sees one slab of the input space"
EXPERIMENT = Experiment(name="slabs", about=_ABOUT, config=Config, run=run, table=table, trains=True, swept=("protocol",))
register("experiment", EXPERIMENT, name=EXPERIMENT.name)
