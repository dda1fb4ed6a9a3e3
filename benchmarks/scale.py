"""From a hundred agents to ten thousand: time, memory and bytes of a round, on one core, on two, and on Ray.

`python benchmarks/scale.py AGENTS ROUNDS PROTOCOL [ENGINE]` measures one network in a process of its own and prints a line of
JSON; `… sizes PROTOCOL` and `… engines` print the tables that `make bench scale_PROTOCOL` and `make bench scale_engines`
store. Time is CPU time: on a busy machine it varies less than the clock. Only engines are compared by the clock, because
their processes wait for each other.

All networks are measured over the same rounds, because dictionaries grow in the first ones: small networks are repeated with
other graphs and samples instead of running longer. A relay first forms its network, which takes longer than these rounds if
the graph is large; PROTOCOL `relay-learning` counts rounds from the first in which every agent learns.
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
from importlib import import_module
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cases import Line, at_least, at_most
from kernelmesh import Agent, Gaussian, Gradient, Graph, Landmarks, Logistic, Penalty, Relay, Round, simulate
from kernelmesh.runtimes.engines import Processes
from kernelmesh.runtimes.engines.partition import crossing
from kernelmesh.streams import Batch, Mixture

DEGREE, STEP, BATCH, ROUNDS = 6, 3.0, 32, 50
SIZES = (100, 300, 1000, 3000, 10_000)
LEARNING_SIZES = (100, 300, 1000)
LEARNING = "relay-learning"
_RELAY: dict[str, Any] = {"learner": Landmarks(), "protocol": Relay()}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "penalty": {"learner": Gradient(step_size=STEP), "protocol": Penalty(coupling=0.02)},
    "relay": _RELAY,
    LEARNING: _RELAY,
}
# Rounds that are not counted, in which loops are compiled; and small networks are repeated until all agents have taken part
# in so many rounds.
SKIPPED, _STEPS = 2, 20_000
# So many times are the engines compared.
TURNS = 5
# So many mini-batches are drawn at a time: drawing a single one would take longer than some protocols do.
AHEAD = 10
# Networks of so many agents report every tenth round on stderr: they take minutes.
SLOW = 3000


@dataclass(frozen=True)
class Drawn:
    """Mini-batches without end, drawn when they are needed, so that samples take no memory."""

    mixture: Mixture
    seed: int

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng([7, self.seed])
        while True:
            points, labels = self.mixture.sample(AHEAD * BATCH, rng=rng)
            for at in range(0, AHEAD * BATCH, BATCH):
                yield Batch(points[at : at + BATCH], labels[at : at + BATCH])


def network(agents: int, protocol: str, *, seed: int = 0) -> tuple[Agent, Graph, list[Drawn]]:
    """The paper's agents and mixture on a random geometric graph; another seed means another graph and other samples."""
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(classes=5, rng=rng)
    graph = Graph.geometric(agents, degree=DEGREE, rng=np.random.default_rng([8, seed]) if seed else rng)
    agent = Agent(
        dimension=2, outputs=mixture.classes, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), **PROTOCOLS[protocol]
    )
    return agent, graph, [Drawn(mixture, i + agents * seed) for i in range(agents)]


@dataclass
class Clock:
    """What has been spent since a round."""

    first: int
    cpu: float
    wall: float
    workers: list[float]
    samples: int

    @classmethod
    def started(cls, now: Round, engine: Any) -> Clock:
        workers = [] if engine is None else engine.cpu_seconds
        return cls(now.number, time.process_time(), time.perf_counter(), workers, sum(now.samples))


def measure(agents: int, rounds: int, protocol: str, engine: str = "simulation") -> dict[str, Any]:
    """Time per agent and round after the first ones, in which loops are compiled; peak memory; bytes."""
    warnings.simplefilter("ignore")
    import_module("scipy.linalg.blas")  # a limit applies only to libraries already loaded
    opened: Any = None
    if engine == "processes":
        opened = Processes(2)
    elif engine == "ray":
        from kernelmesh.runtimes.ray import RayEngine

        opened = RayEngine(2)
    cpu, wall, counted, samples = 0.0, 0.0, 0, 0
    for seed in range(max(1, _STEPS // (agents * rounds)) if opened is None else 1):
        with threadpool_limits(1):  # from the start: the threads of a library go on for a while after they have worked
            agent, graph, streams = network(agents, protocol, seed=seed)
            clock, before = None, 0
            for now in simulate(agent, graph, streams, engine=opened):
                if clock is None and now.number >= SKIPPED and _counts(now, protocol):
                    clock, before = Clock.started(now, opened), int(now.bytes_sent.sum())
                sent, over_edges, orders, number = now.bytes_sent, now.edge_bytes, now.orders, now.number
                seen = sum(now.samples)
                del now  # a round holds all states: they go before the next ones are made
                if agents >= SLOW and number % 10 == 0:
                    print(f"round {number}: {_peak():.0f} MB", file=sys.stderr, flush=True)
                if clock is not None and number == clock.first + rounds - SKIPPED:
                    break
        assert clock is not None
        cpu, wall = cpu + time.process_time() - clock.cpu, wall + time.perf_counter() - clock.wall
        counted, samples = counted + agents * (rounds - SKIPPED), samples + seen - clock.samples
    out: dict[str, Any] = {"agents": agents, "rounds": rounds, "protocol": protocol, "engine": engine}
    out["wall_us"], out["first"] = 1e6 * wall / counted, clock.first + 1
    out["edges"], out["bytes"] = len(graph.edges), int(sent.sum() - before) / agents / (rounds - SKIPPED)
    out["order"], out["learned"] = float(np.mean(orders)), samples / BATCH / counted
    if opened is not None:
        # what a round takes on cores of its own: the driver, then the slower shard
        cpu += max(after - before for after, before in zip(opened.cpu_seconds, clock.workers, strict=True))
        between = set(crossing(graph, opened.placement))
        out["batch_bytes"] = opened.batch_bytes
        out["crossing_bytes"] = sum(int(n) for n, edge in zip(over_edges, graph.edges, strict=True) if edge in between)
        opened.close()
    out["cpu_us"] = 1e6 * cpu / counted
    out["megabytes"] = _peak()
    return out


def _counts(now: Round, protocol: str) -> bool:
    """Whether rounds are counted from here on."""
    return protocol != LEARNING or all(state.memory is not None and state.memory.is_ready for state in now.states)


def _peak() -> float:
    """The most memory that this process has had, in MB of 2²⁰ bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _apart(*arguments: Any) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found), file=sys.stderr, flush=True)  # the largest takes long: what was measured must not be lost
    return found


# All cases: a random geometric graph of mean degree 6, the paper's mixture, mini-batches of 32.


def penalty() -> list[Line]:
    """100 to 10,000 agents with `Penalty`, 50 rounds; CPU time per agent and round."""
    return sizes("penalty")


def relay() -> list[Line]:
    """100 to 10,000 agents with `Landmarks` and `Relay`, the first 50 rounds; CPU time per agent and round.

    Agents learn when their network stands, which takes more rounds the deeper it is. The last lines are of 50 rounds from the
    first in which every agent learns.
    """
    return [*sizes("relay"), *(_line(_apart(agents, ROUNDS, LEARNING)) for agents in LEARNING_SIZES)]


def sizes(protocol: str) -> list[Line]:
    """Each size once on the way up and, but for the largest, once on the way down: the machine may be busier for a while."""
    runs: dict[int, list[dict[str, Any]]] = {agents: [] for agents in SIZES}
    for agents in (*SIZES, *SIZES[-2::-1]):
        runs[agents].append(_apart(agents, ROUNDS, protocol))
    found = {agents: _mean(own) for agents, own in runs.items()}
    largest = found[SIZES[-1]]
    slope = np.polyfit(np.log(SIZES), [math.log(n * found[n]["cpu_us"]) for n in SIZES], 1)[0]
    return [
        *(_line(one) for one in found.values()),
        at_most(f"{protocol}: CPU time per agent and round, {SIZES[-1]} agents", largest["cpu_us"], 500.0, " µs"),
        at_most(f"{protocol}: peak memory, {SIZES[-1]} agents", largest["megabytes"] / 1024, 1.5, " GB"),
        at_most(f"{protocol}: slope of time over agents, {SIZES[0]} to {SIZES[-1]}", float(slope), 1.05, ""),
    ]


def _mean(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean time and the least memory: a first run may compile loops, which takes more."""
    cpu, memory = np.mean([one["cpu_us"] for one in runs]), min(one["megabytes"] for one in runs)
    return {**runs[0], "cpu_us": float(cpu), "megabytes": memory}


def _line(one: dict[str, Any]) -> Line:
    shown = (
        f"{one['cpu_us']:.0f} µs, {one['megabytes']:.0f} MB, {one['order']:.1f} points, {one['bytes']:.0f} bytes sent and "
    )
    shown += f"{one['learned']:.2f} mini-batches learned per agent and round"
    return Line(f"{one['protocol']}, {one['agents']} agents, from round {one['first']}", shown)


def engines() -> list[Line]:
    """200 agents on two workers against the simulation, by the clock: the best of five runs of each, in turns."""
    # other jobs slow a shared machine down for seconds at a time, and the best run is the one they have disturbed least
    runs: dict[str, list[float]] = {"simulation": [], "processes": [], "ray": []}
    latest = {}
    for _ in range(TURNS):
        for name, found in runs.items():
            latest[name] = _apart(200, 100, "penalty", name)
            found.append(latest[name]["wall_us"])
    lines = [Line("simulation, 200 agents", f"{_listed(runs['simulation'])} µs by the clock")]
    for engine, least in (("processes", 1.6), ("ray", 0.8)):
        what = f"{engine}, 2 workers, 200 agents"
        lines.append(Line(what, f"{_listed(runs[engine])} µs by the clock"))
        lines.append(at_least(f"{what}: throughput", min(runs["simulation"]) / min(runs[engine]), least))
        extra = latest[engine]["batch_bytes"] / latest[engine]["crossing_bytes"]
        lines.append(at_most(f"{what}: bytes of batches by those of crossing edges", extra, 1.05))
    return lines


def _listed(times: list[float]) -> str:
    return ", ".join(f"{one:.0f}" for one in times)


def main(arguments: list[str]) -> None:
    """One network, or a table."""
    if arguments[:1] == ["sizes"]:
        lines = relay() if arguments[1] == "relay" else sizes(arguments[1])
    elif arguments == ["engines"]:
        lines = engines()
    else:
        print(json.dumps(measure(int(arguments[0]), int(arguments[1]), *arguments[2:])))
        return
    for line in lines:
        print(line.what, line.shown, line.target)


if __name__ == "__main__":
    main(sys.argv[1:])
