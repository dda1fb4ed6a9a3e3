"""What a step with an exchange costs where agents share their points, for dictionaries of 20 to 4000 points."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cases import BATCH, Line
from kernelmesh import (
    Agent,
    Expansion,
    Gaussian,
    Graph,
    Landmarks,
    Logistic,
    Penalty,
    Rule,
    SharedDictionary,
    SharedDiffusion,
    SharedStatistics,
    State,
    simulate,
)
from kernelmesh.streams import ArrayStream

_AGENTS = 3  # in a line: the middle one has two neighbors
_SIZES = ((20, 2, 5), (200, 16, 26), (1000, 64, 26), (4000, 256, 13))
"""Points, numbers in each, and classes."""
_LARGEST = 1000
"""Of `SharedStatistics`: beyond, a round takes minutes, and an agent keeps gigabytes."""


Known = dict[tuple[int, type[Rule]], State]
"""Where agents begin, by the number of points and the rule."""


def _protocols(order: int) -> dict[str, dict[str, Any]]:
    # points are given, so that all agents have so many from the first round on
    steps = {"step_size": 1.0, "compression": SharedDictionary(novelty=math.inf, max_order=order)}
    found: dict[str, dict[str, Any]] = {
        "penalty": {**steps, "consensus": Penalty(coupling=0.01)},
        "shared diffusion": {**steps, "consensus": SharedDiffusion()},
    }
    if order <= _LARGEST:
        rule = Landmarks(novelty=math.inf, max_order=order)
        found["shared statistics"] = {"rule": rule, "consensus": SharedStatistics()}
    return found


def cost(order: int, dimension: int, outputs: int, learning: dict[str, Any], known: Known) -> tuple[float, float]:
    """CPU milliseconds of an agent's round, the median, and numbers over an edge each way, when all points are known."""
    rng = np.random.default_rng(0)
    kernel = Gaussian(bandwidth=math.sqrt(dimension / 2.0))
    agent = Agent(dimension=dimension, outputs=outputs, kernel=kernel, loss=Logistic(), **learning)
    given = Expansion(kernel, rng.standard_normal((order, dimension)), np.zeros((order, outputs)))
    key = order, type(agent.rule)
    if key not in known:  # O(M³), and the same for all agents and protocols with this rule: nothing in it is ever changed
        known.clear()
        known[key] = agent.start(function=given)
    graph = Graph.line(_AGENTS)
    rounds = 4 if order > 500 else 24
    streams = [
        ArrayStream(rng.standard_normal((rounds * BATCH, dimension)), rng.integers(outputs, size=rounds * BATCH))
        for _ in range(_AGENTS)
    ]
    taken, sent, began = [], [0.0], time.process_time()
    for now in simulate(agent, graph, streams, states=[replace(known[key], name=name) for name in graph.names]):
        taken.append((time.process_time() - began) / _AGENTS)
        sent.append(float(now.floats_sent.sum()))
        began = time.process_time()
    return 1e3 * float(np.median(taken[2:])), (sent[-1] - sent[-2]) / (2 * len(graph.edges))


def sizes() -> list[Line]:
    """Three agents in a line, mini-batches of 32, points that all agents have: a round with an exchange, one thread."""
    lines: list[Line] = []
    known: Known = {}
    with threadpool_limits(1):
        for order, dimension, outputs in _SIZES:
            for name, learning in _protocols(order).items():
                milliseconds, floats = cost(order, dimension, outputs, learning, known)
                shown = f"{milliseconds:.3g} ms, {floats:.0f} floats over an edge each way"
                lines.append(Line(f"M = {order}, p = {dimension}, C = {outputs}: {name}", shown))
    return lines
