"""From twenty agents to ten thousand: time, memory and bytes of a round, on one core, on two, and on Ray.

`python benchmarks/scale.py AGENTS ROUNDS PROTOCOL [ENGINE]` measures one network in a process of its own and prints a line of
JSON; `python benchmarks/scale.py curves`, `… engines` and `… sizes PROTOCOL` measure one part, as `make bench scale_curves`,
`scale_engines` and `scale_PROTOCOL` do, which store it. Time is CPU time: on a busy machine it varies less than the clock.
Only engines are compared by the clock, because their processes wait for each other.

All networks are measured over the same rounds, because dictionaries grow in the first ones: small networks are repeated with
other graphs and samples instead of running longer. `… sizes PROTOCOL` prints each network as soon as it has been measured;
`… store PROTOCOL FILE…` makes the table of `make bench scale_PROTOCOL` from such lines, also from those of several commands;
for given points, those of `penalty` belong to it.
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
from pathlib import Path
from typing import Any

import numpy as np
from kernelmesh.numerics.landmarks import agreed
from threadpoolctl import threadpool_limits

from cases import Line, at_least, at_most
from kernelmesh import (
    Agent,
    ExactDiffusion,
    Expansion,
    Gaussian,
    Graph,
    Komp,
    Landmarks,
    Logistic,
    Penalty,
    SharedDictionary,
    SharedDiffusion,
    SharedStatistics,
    State,
    simulate,
)
from kernelmesh.report import style_of
from kernelmesh.runtimes.engines import Processes
from kernelmesh.runtimes.engines.partition import crossing
from kernelmesh.streams import Batch, Mixture

DEGREE, STEP, ROUNDS = 6, 3.0, 50
SIZES = (20, 100, 1000, 10_000)
GIVEN = 25
PROTOCOLS: dict[str, dict[str, Any]] = {
    "penalty": {"consensus": Penalty(coupling=0.02)},
    "exact-diffusion": {"consensus": ExactDiffusion(budget=0.01 * STEP**1.5, every=ExactDiffusion.usual_every)},
    "shared-statistics": {"rule": Landmarks(), "consensus": SharedStatistics()},
    "gridded-statistics": {"rule": Landmarks(grid=0.65), "consensus": SharedStatistics()},
    "capped-statistics": {"rule": Landmarks(max_order=30), "consensus": SharedStatistics()},
    "given-points": {"consensus": SharedDiffusion(), "compression": SharedDictionary(novelty=math.inf)},
}
"""The last one has a dictionary that is given to all agents, so that they are advanced as one tensor."""
# Those whose cost is drawn against agents, degree and so on.
CURVES = ("penalty", "exact-diffusion", "shared-statistics")
# Rounds that are not counted, in which loops are compiled; and small networks are repeated until all agents have taken so
# many steps.
SKIPPED, _STEPS = 2, 20_000
# So many times are the engines compared.
TURNS = 5
# So many rounds are drawn at a time: drawing those of a single one would take longer than some protocols do.
AHEAD = 10
FIGURE = Path(__file__).parent.parent / "docs" / "scale.png"
# Networks of so many agents report every round on stderr: they take minutes.
SLOW = 5000


@dataclass(frozen=True)
class Drawn:
    """Mini-batches that are drawn when they are needed, so that samples take no memory."""

    mixture: Mixture
    rounds: int
    seed: int
    batch: int = 32

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng([7, self.seed])
        for n in range(self.rounds):
            at = n % AHEAD * self.batch
            if at == 0:
                points, labels = self.mixture.sample(AHEAD * self.batch, rng=rng)
            yield Batch(points[at : at + self.batch], labels[at : at + self.batch])


def network(
    agents: int,
    rounds: int,
    protocol: str,
    *,
    degree: int = DEGREE,
    parsimony: float = 0.04,
    batch: int = 32,
    classes: int = 5,
    seed: int = 0,
) -> tuple[Agent, Graph, list[Drawn], list[State] | None]:
    """The paper's agents and mixture on a random geometric graph; with states where points are given.

    Another seed means another graph and other samples of the same mixture.
    """
    rng = np.random.default_rng(0)
    mixture = Mixture.draw(classes=classes, rng=rng)
    graph = Graph.geometric(agents, degree=degree, rng=np.random.default_rng([8, seed]) if seed else rng)
    settings = PROTOCOLS[protocol]
    if "rule" not in settings:
        settings = {"step_size": STEP, "compression": Komp.parsimonious(STEP, parsimony=parsimony), **settings}
    agent = Agent(dimension=2, outputs=mixture.classes, kernel=Gaussian(bandwidth=0.6), loss=Logistic(), **settings)
    states = given(agent, mixture, graph) if protocol == "given-points" else None
    return agent, graph, [Drawn(mixture, rounds, i + agents * seed, batch) for i in range(agents)], states


def given(agent: Agent, mixture: Mixture, graph: Graph) -> list[State]:
    """Agents that start from 0 over the same samples, of which none is in the span of the others."""
    points, _ = mixture.sample(1000, rng=np.random.default_rng(5))
    chosen = agreed(agent.kernel, points, novelty=0.02, max_order=GIVEN)
    function = Expansion(agent.kernel, points[chosen], np.zeros((len(chosen), agent.outputs)))
    return [agent.start(name=name, function=function) for name in graph.names]


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
    driver, clock, busiest, counted = 0.0, 0.0, 0.0, 0
    for seed in range(max(1, _STEPS // (agents * rounds)) if opened is None else 1):
        with threadpool_limits(1):  # from the start: the threads of a library go on for a while after they have worked
            agent, graph, streams, states = network(agents, rounds, protocol, seed=seed)
            began = time.process_time(), time.perf_counter(), [0.0]
            for now in simulate(agent, graph, streams, states=states, engine=opened):
                if now.number == SKIPPED:
                    began = time.process_time(), time.perf_counter(), [0.0] if opened is None else opened.cpu_seconds
                sent, over_edges, orders = now.bytes_sent, now.edge_bytes, now.orders
                if agents >= SLOW:
                    so_far = 1e6 * (time.process_time() - began[0]) / agents / max(now.number - SKIPPED, 1)
                    print(f"round {now.number}: {so_far:.0f} µs, {_peak():.0f} MB", file=sys.stderr, flush=True)
                del now  # a round holds all states: they go before the next ones are made
        driver, clock = driver + time.process_time() - began[0], clock + time.perf_counter() - began[1]
        counted += agents * (rounds - SKIPPED)
    out: dict[str, Any] = {"agents": agents, "rounds": rounds, "protocol": protocol, "engine": engine}
    out["wall_us"] = 1e6 * clock / counted
    out["edges"], out["bytes"] = len(graph.edges), int(sent.sum())
    out["order"] = float(np.mean(orders))
    if opened is not None:
        # what a round takes on cores of its own: the driver, then the slower shard
        busiest = max(after - before for after, before in zip(opened.cpu_seconds, began[2], strict=True))
        out["batch_bytes"] = opened.batch_bytes
        between = set(crossing(graph, opened.placement))
        out["crossing_bytes"] = sum(int(n) for n, edge in zip(over_edges, graph.edges, strict=True) if edge in between)
        opened.close()
    out["cpu_us"] = 1e6 * (driver + busiest) / counted
    out["megabytes"] = _peak()
    return out


def _peak() -> float:
    """The most memory that this process has had, in MB of 2²⁰ bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# What a round costs as each of these changes, the others staying as they are.
VARIED: dict[str, tuple[float, ...]] = {
    "agents": (20, 60, 200, 600),
    "degree": (2, 4, 6, 12, 24),
    "parsimony": (0.16, 0.08, 0.04, 0.02, 0.01),
    "batch": (8, 16, 32, 64, 128),
    "classes": (2, 5, 10, 20),
}


def curves(*, agents: int = 60, rounds: int = 24) -> list[dict[str, Any]]:
    """CPU time and bytes per agent and round, and points kept, along each line of `VARIED`."""
    rows = []
    warnings.simplefilter("ignore")
    for protocol in CURVES:
        for name, values in VARIED.items():
            if name == "parsimony" and "rule" in PROTOCOLS[protocol]:
                continue
            for value in values:
                options: dict[str, Any] = {"agents": agents, name: value if name == "parsimony" else int(value)}
                agent, graph, streams, _ = network(rounds=rounds, protocol=protocol, **options)
                skipped, spent = rounds // 2, 0.0
                with threadpool_limits(1):
                    for now in simulate(agent, graph, streams):
                        if now.number == skipped:
                            spent = time.process_time()
                            sent = now.bytes_sent.sum()
                counted = len(graph) * (rounds - skipped)
                row: dict[str, Any] = {"protocol": protocol, "varied": name, "value": value}
                row["cpu_us"] = 1e6 * (time.process_time() - spent) / counted
                row["bytes"] = float(now.bytes_sent.sum() - sent) / counted
                row["order"] = float(np.mean([f.order for f in now.functions]))
                rows.append(row)
    return rows


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """One panel for each thing that was varied, one line for each protocol."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(VARIED)), VARIED, strict=True):
        for index, protocol in enumerate(CURVES):
            own = [row for row in rows if row["protocol"] == protocol and row["varied"] == name]
            across = [row["order"] if name == "parsimony" else row["value"] for row in own]
            axes.plot(across, [row["cpu_us"] for row in own], label=protocol, **style_of(index))
        axes.set(xlabel="points kept" if name == "parsimony" else name, xscale="log", yscale="log")
        marks = (2, 5, 10, 20, 50) if name == "parsimony" else VARIED[name]
        axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
        axes.set_xticks([], minor=True)
        axes.set_xlim(0.8 * min(marks), 1.25 * max(marks))
        axes.grid(alpha=0.3, which="both")
        axes.set_ylim(100, 5000)
    figure.axes[0].set_ylabel("µs of CPU time per agent and round")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(file, dpi=110)


def _apart(*arguments: Any) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# All cases: a random geometric graph of mean degree 6, the paper's mixture, mini-batches of 32. With two workers, CPU time is
# that of the driver and the slower worker, which stays awake for a moment between requests.


def penalty() -> list[Line]:
    """20 to 10,000 agents with `Penalty`, 50 rounds; CPU time per agent and round."""
    return _sizes("penalty")[0]


def exact_diffusion() -> list[Line]:
    """20 to 10,000 agents with `ExactDiffusion`, exchanges in every 6th of 50 rounds; CPU time per agent and round."""
    return _sizes("exact-diffusion")[0]


def shared_statistics() -> list[Line]:
    """20 to 10,000 agents with `Landmarks` and `SharedStatistics`, 50 rounds; CPU time per agent and round."""
    return _sizes("shared-statistics")[0]


def gridded_statistics() -> list[Line]:
    """The same with points on a grid slightly wider than the kernel."""
    return _sizes("gridded-statistics")[0]


def capped_statistics() -> list[Line]:
    """The same with dictionaries of at most 30 points."""
    return _sizes("capped-statistics")[0]


def given_points() -> list[Line]:
    """20 to 10,000 agents that share 25 given points, 50 rounds; CPU time per agent and round."""
    lines, found = _sizes("given-points")
    return [*lines, _gain(found, _apart(SIZES[-1], ROUNDS, "penalty"))]


def _gain(found: dict[int, dict[str, Any]], penalty: dict[str, Any]) -> Line:
    """How many times more rounds per second the largest network computes with given points."""
    gain = penalty["cpu_us"] / found[SIZES[-1]]["cpu_us"]
    return at_least(f"{GIVEN} given points: rounds per second by those of penalty, {SIZES[-1]} agents", gain, 10.0)


def cost_curves() -> list[Line]:
    """CPU time, points and bytes of a round as one thing changes at a time; 60 agents, the second half of 24 rounds."""
    rows = curves()
    draw(rows, FIGURE)
    return [
        Line(
            f"{row['protocol']}, {row['varied']} {row['value']:g}",
            f"{row['cpu_us']:.0f} µs, {row['order']:.1f} points, {row['bytes']:.0f} bytes sent",
        )
        for row in rows
    ]


def _sizes(protocol: str) -> tuple[list[Line], dict[int, dict[str, Any]]]:
    """One network after the other, up to the largest and back: a machine that is busier for a while weighs on all of them."""
    runs = []
    for agents in (*SIZES, *SIZES[-2::-1]):
        runs.append(_apart(agents, ROUNDS, protocol))
        print(json.dumps(runs[-1]), flush=True)  # the largest takes long: what has been measured before must not be lost
    return _table(protocol, runs)


def _table(protocol: str, runs: list[dict[str, Any]]) -> tuple[list[Line], dict[int, dict[str, Any]]]:
    """Each size, by its mean time and least memory (a first run may compile loops, which takes more), and comparisons."""
    found = {}
    for agents in SIZES:
        own = [one for one in runs if (one["agents"], one["rounds"], one["protocol"]) == (agents, ROUNDS, protocol)]
        if not own:
            raise SystemExit(f"{protocol}: no network of {agents} agents was measured over {ROUNDS} rounds")
        means = {"cpu_us": np.mean([one["cpu_us"] for one in own]), "megabytes": min(one["megabytes"] for one in own)}
        found[agents] = {**own[0], **{name: float(value) for name, value in means.items()}}
    lines = []
    for agents, one in found.items():
        shown = f"{one['cpu_us']:.0f} µs, {one['megabytes']:.0f} MB, {one['order']:.1f} points, "
        shown += f"{one['bytes'] / agents / ROUNDS:.0f} bytes sent per agent and round"
        lines.append(Line(f"{protocol}, {agents} agents", shown))
    largest = found[SIZES[-1]]
    slope = np.polyfit(np.log(SIZES[1:]), [math.log(n * found[n]["cpu_us"]) for n in SIZES[1:]], 1)[0]
    lines.append(at_most(f"{protocol}: peak memory, {SIZES[-1]} agents", largest["megabytes"] / 1024, 3.0, " GB"))
    ratio = largest["cpu_us"] / found[SIZES[0]]["cpu_us"]
    lines.append(at_most(f"{protocol}: time per agent and round, {SIZES[-1]} agents by 20", ratio, 2.0))
    lines.append(at_most(f"{protocol}: slope of time over agents, 100 to {SIZES[-1]}", float(slope), 1.05, ""))
    return lines, found


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


if __name__ == "__main__" and sys.argv[1:] == ["curves"]:
    found = curves()
    draw(found, FIGURE)
    for line in found:
        print(json.dumps(line))
elif __name__ == "__main__" and sys.argv[1:] == ["engines"]:
    for found_line in engines():
        print(found_line.what, found_line.shown, found_line.target)
elif __name__ == "__main__" and sys.argv[1:2] == ["sizes"]:
    for found_line in _sizes(sys.argv[2])[0]:
        print(found_line.what, found_line.shown, found_line.target)
elif __name__ == "__main__" and sys.argv[1:2] == ["store"]:
    from run import store

    measured = [json.loads(row) for file in sys.argv[3:] for row in Path(file).read_text().splitlines() if row[:1] == "{"]
    rows, of_size = _table(sys.argv[2], measured)
    if sys.argv[2] == "given-points":
        rows.append(_gain(of_size, _table("penalty", measured)[1][SIZES[-1]]))
    store(f"scale_{sys.argv[2]}", rows)
elif __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
