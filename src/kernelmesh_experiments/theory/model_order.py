"""The model order stays bounded with constant steps."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelmesh import Agent, ArrayStream, Gaussian, Gradient, Graph, Komp, Logistic, Mixture, Penalty, simulate
from kernelmesh.metrics import projection_gap
from kernelmesh_experiments.cells import Cell, Results
from kernelmesh_experiments.report import panel, style_of
from kernelmesh_experiments.settings import Floats
from kernelmesh_experiments.theory.claims import Claim, Config, Summary

__all__ = ["CLAIM", "order", "order_cell"]

_PARSIMONIES = (0.02, 0.04, 0.08)
_PRINTED = 0.04  # the paper's K


def order_cell(config: Config, parsimony: float = _PRINTED) -> dict[str, Cell]:
    """The run for one K."""
    return {f"order-{parsimony:g}": Cell(order, (config, parsimony))}


def cells(config: Config) -> dict[str, Cell]:
    """A run for each K."""
    return {name: cell for k in _PARSIMONIES for name, cell in order_cell(config, k).items()}


def order(settings: tuple[Config, float]) -> Mapping[str, Any]:
    """Model order over a long stream with constant steps, its bound, and Proposition 1 in every round."""
    config, parsimony = settings
    rng = np.random.default_rng([config.seed, 3])
    mixture = Mixture.draw(rng=rng)
    graph = Graph.random(config.agents, probability=0.3, rng=rng)
    eta = 3.0
    kernel, protocol = Gaussian(bandwidth=config.bandwidth), Penalty(coupling=config.coupling, implicit=True)
    learner = Gradient(step_size=eta, compression=Komp(parsimony=parsimony))
    shape: dict[str, Any] = {"dimension": 2, "outputs": mixture.classes, "kernel": kernel, "loss": Logistic()}
    agent = Agent(**shape, learner=learner, protocol=protocol)
    streams = [ArrayStream(*mixture.sample(config.stream, rng=rng)) for _ in range(config.agents)]
    path, gaps = [], []
    for now in simulate(agent, graph, streams):
        gap, bound = projection_gap(now)
        gaps.append([now.samples[0], gap, bound])
        if now.number % 20 == 0 or now.number == 1:
            path.append([now.samples[0], float(max(f.order for f in now.functions))])
    # a sample whose feature lies within ε / (η L) of the dictionary's span never makes it grow, L = √2 for this loss
    reach = parsimony * math.sqrt(eta) / math.sqrt(2)
    seen = np.concatenate([np.asarray(stream.points) for stream in streams])
    return {"parsimony": parsimony, "path": path, "gaps": gaps, "bound": _packing(seen, config.bandwidth, reach)}


def _packing(points: Floats, bandwidth: float, reach: float) -> int:
    """How many points can be chosen one after the other, each farther than `reach` from those before in feature space.

    On a grid so fine that two points in one cell are within reach: every cell counts once, which can only count too many.
    """
    # ‖κ(x) − κ(z)‖² = 2 − 2 exp(−‖x − z‖²/2d²) ≤ reach²
    distance = bandwidth * math.sqrt(-2.0 * math.log1p(-0.5 * reach**2))
    cells = np.floor(points / (distance / math.sqrt(points.shape[1]))).astype(np.int64)
    return len(np.unique(cells, axis=0))


def summarize(config: Config, done: Results) -> Summary:
    """The largest order of all runs, and the bound for the K of the paper."""
    runs = [done[name] for name in cells(config)]
    printed = next(run for run in runs if run["parsimony"] == _PRINTED)
    figure, axes = panel("samples per agent", "model order, largest of all agents", logarithmic="y")
    for index, run in enumerate(runs):
        path, style = np.array(run["path"]), {**style_of(index), "marker": ""}
        axes.plot(path[:, 0], path[:, 1], **style, label=f"K = {run['parsimony']:g}")
        axes.axhline(run["bound"], **{**style, "linewidth": 0.8}, alpha=0.6, label=f"its bound: {run['bound']}")
    axes.set_title("Bounded model order with constant steps")
    axes.legend(fontsize=8)
    largest = max(point[1] for run in runs for point in run["path"])
    return {"model_order_largest": largest, "model_order_bound": printed["bound"]}, figure


CLAIM = Claim(name="model-order", cells=cells, summarize=summarize)
