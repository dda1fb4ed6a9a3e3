"""From twenty agents to ten thousand: time, memory and bytes of a round, on one core, on two, and on Ray.

`python benchmarks/scale.py AGENTS ROUNDS PROTOCOL [ENGINE]` measures one network in a process of its own and prints a line of
JSON. Time is CPU time: on a busy machine it varies less than what the clock says.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cases import Line, at_least, at_most
from kernelmesh import Agent, Consensus, ExactDiffusion, Gaussian, Graph, Komp, Logistic, Penalty, simulate
from kernelmesh.runtimes.engines import Processes
from kernelmesh.streams import Batch, Mixture

DEGREE, STEP, ROUNDS = 6, 3.0, 50
SIZES = (20, 100, 1000, 10_000)
PROTOCOLS: dict[str, Consensus] = {
    "penalty": Penalty(coupling=0.02),
    "exact-diffusion": ExactDiffusion(budget=0.01 * STEP**1.5),
}


@dataclass(frozen=True)
class Drawn:
    """Mini-batches that are drawn when they are needed, so that samples take no memory."""

    mixture: Mixture
    rounds: int
    seed: int

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng([7, self.seed])
        for _ in range(self.rounds):
            yield Batch(*self.mixture.sample(32, rng=rng))


def network(agents: int, rounds: int, protocol: str) -> tuple[Agent, Graph, list[Drawn]]:
    """The paper's agents and mixture on a random geometric graph."""
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(rng=rng)
    graph = Graph.geometric(agents, degree=DEGREE, rng=rng)
    agent = Agent(
        dimension=2,
        outputs=mixture.classes,
        kernel=Gaussian(bandwidth=0.6),
        loss=Logistic(),
        step_size=STEP,
        compression=Komp.parsimonious(STEP, parsimony=0.04),
        consensus=PROTOCOLS[protocol],
    )
    return agent, graph, [Drawn(mixture, rounds, i) for i in range(agents)]


def measure(agents: int, rounds: int, protocol: str, engine: str = "simulation") -> dict[str, Any]:
    """Time per agent and round after the first ones, in which loops are compiled; peak memory; bytes."""
    agent, graph, streams = network(agents, rounds, protocol)
    warnings.simplefilter("ignore")
    opened: Any = None
    if engine == "processes":
        opened = Processes(2)
    elif engine == "ray":
        from kernelmesh.runtimes.ray import RayEngine

        opened = RayEngine(2)
    skipped, spent, clock, shards = 2, 0.0, 0.0, [0.0]
    with threadpool_limits(1):
        for now in simulate(agent, graph, streams, engine=opened):
            if now.number == skipped:
                spent, clock = time.process_time(), time.perf_counter()
                shards = [0.0] if opened is None else opened.cpu_seconds
    driver, counted = time.process_time() - spent, agents * (rounds - skipped)
    out: dict[str, Any] = {"agents": agents, "rounds": rounds, "protocol": protocol, "engine": engine}
    out["wall_us"] = 1e6 * (time.perf_counter() - clock) / counted
    out["edges"], out["bytes"] = len(graph.edges), int(now.bytes_sent.sum())
    out["order"] = float(np.mean([f.order for f in now.functions]))
    out["cpu_us"] = 1e6 * driver / counted
    if opened is not None:
        # what a round takes on cores of its own: the driver, then the slower shard
        busiest = max(after - before for after, before in zip(opened.cpu_seconds, shards, strict=True))
        out["cpu_us"] = 1e6 * (driver + busiest) / counted
        out["batch_bytes"] = opened.batch_bytes
        opened.close()
    out["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return out


def _apart(*arguments: Any) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def scale() -> list[Line]:
    """A random geometric graph of mean degree 6, the paper's mixture, mini-batches of 32, 50 rounds.

    Times are CPU time per agent and round. With two workers it is that of the driver and the slower worker: what a round
    takes where each has a core of its own.
    """
    lines = []
    for protocol in PROTOCOLS:
        found = {agents: _apart(agents, ROUNDS, protocol) for agents in SIZES}
        for agents, one in found.items():
            shown = f"{one['cpu_us']:.0f} µs, {one['megabytes']:.0f} MB, {one['order']:.1f} points, "
            shown += f"{one['bytes'] / agents / ROUNDS:.0f} bytes sent per agent and round"
            lines.append(Line(f"{protocol}, {agents} agents", shown))
        largest, sizes = found[SIZES[-1]], SIZES[1:]
        slope = np.polyfit(np.log(sizes), [math.log(n * found[n]["cpu_us"]) for n in sizes], 1)[0]
        lines.append(at_most(f"{protocol}: peak memory, {SIZES[-1]} agents", largest["megabytes"] / 1024, 3.0, " GB"))
        ratio = largest["cpu_us"] / found[SIZES[0]]["cpu_us"]
        lines.append(at_most(f"{protocol}: time per agent and round by that of 20 agents", ratio, 2.0))
        lines.append(at_most(f"{protocol}: slope of time over agents, 100 to 10,000", float(slope), 1.05, ""))
    lines += _engines()
    return lines


def _engines() -> list[Line]:
    """Two cores and Ray, each between two runs of the simulation."""
    lines = []
    for engine, least in (("processes", 1.6), ("ray", 0.8)):
        before, with_it, after = (_apart(200, 100, "penalty", name) for name in ("simulation", engine, "simulation"))
        alone = 0.5 * (before["cpu_us"] + after["cpu_us"])
        clock = 0.5 * (before["wall_us"] + after["wall_us"]) / with_it["wall_us"]
        lines.append(at_least(f"{engine}, 2 workers, 200 agents: throughput", alone / with_it["cpu_us"], least))
        lines.append(Line(f"{engine}, 2 workers, 200 agents: throughput by the clock", f"{clock:.2f} ×"))
    return lines


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
