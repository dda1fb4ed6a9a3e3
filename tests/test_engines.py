"""Engines: however agents are spread over processes or actors, the rounds are those of the simulation, bit for bit."""

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from kernelmesh import Agent, ArrayStream, Diverged, Faults, Gaussian, Graph, Landmarks, Relay, Squared, simulate
from kernelmesh.cli import app
from kernelmesh.errors import InvalidArgument
from kernelmesh.experiments.gmm import LogisticConfig
from kernelmesh.experiments.mixture import Task
from kernelmesh.experiments.protocols import protocols
from kernelmesh.runtimes.engines import LostShard, Processes, files
from kernelmesh.runtimes.engines.host import StaleRound
from kernelmesh.runtimes.engines.partition import crossing, partition

PROTOCOLS = [name for name in protocols() if name != "local"]
SMALL = {"agents": 6, "samples": 160, "held_out": 50, "penalty_limit": 0.5}


def network(*, ends=None, **settings):
    """Agent, graph and streams of the paper's experiment; some streams may end earlier."""
    task = Task.draw(LogisticConfig(**{**SMALL, **settings}))
    streams = [dataclasses.replace(s, stop=(ends or {}).get(i, s.stop)) for i, s in enumerate(task.streams)]
    return task.agent(), task.graph, streams


def rounds(engine=None, *, faults=None, keep=(), states=None, **settings):
    """The rounds of such a network, with what agents have learned in those that are kept."""
    out = []
    with threadpool_limits(1):  # as workers have it: how products round may depend on it
        for now in simulate(*network(**settings), states=states, engine=engine, faults=faults and faults()):
            if not keep or now.number in keep:
                now.functions  # noqa: B018 (fetched before the next round)
            out.append(now)
    return out


def assert_equal(ours, theirs, *, keep=()):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        # as text, where NaN equals itself
        assert (one.number, repr(one.infos), one.samples) == (other.number, repr(other.infos), other.samples)
        assert np.array_equal(one.square_norms, other.square_norms, equal_nan=True)
        assert one.orders == other.orders
        np.testing.assert_array_equal(one.bytes_sent, other.bytes_sent)
        np.testing.assert_array_equal(one.floats_sent, other.floats_sent)
        np.testing.assert_array_equal(one.edge_bytes, other.edge_bytes)
        if not keep or one.number in keep:
            for f, g in zip(one.functions, other.functions, strict=True):
                np.testing.assert_array_equal(f.points, g.points)
                np.testing.assert_array_equal(f.weights, g.weights)


@pytest.fixture(scope="module")
def processes():
    with Processes(2) as engine:
        yield engine


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_processes_reproduce_the_simulation(processes, protocol):
    assert_equal(rounds(processes, protocol=protocol), rounds(protocol=protocol))


def test_faults_are_the_same_wherever_agents_are(processes):
    def faults():
        edges = [[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 5), (1, 4), (2, 3)]]
        return Faults(drop=0.3, absent={2: [(2, 3)]}, edges=edges, rng=np.random.default_rng(0))

    for protocol in ("penalty", "diffusion"):
        assert_equal(rounds(processes, faults=faults, protocol=protocol), rounds(faults=faults, protocol=protocol))


def test_states_can_be_fetched_and_gone_on_from(processes):
    task = Task.draw(LogisticConfig(**SMALL, protocol="diffusion"))
    *_, last = simulate(task.agent(), task.graph, [dataclasses.replace(s, stop=3) for s in task.streams], engine=processes)
    states = list(last.states)  # before the engine begins with another network
    task = Task.draw(LogisticConfig(**SMALL, protocol="diffusion"))
    rest = [dataclasses.replace(stream, start=3) for stream in task.streams]
    ours = [now.functions for now in simulate(task.agent(), task.graph, rest, states=states, engine=processes)]
    theirs = [now.functions for now in rounds(protocol="diffusion")[3:]]
    for mine, other in zip(ours[-1], theirs[-1], strict=True):
        np.testing.assert_array_equal(mine.weights, other.weights)
    with pytest.raises(InvalidArgument, match="read them before the engine starts another network"):
        last.functions_of([0])


def test_only_what_is_asked_for_is_fetched_and_old_rounds_say_so(processes):
    task = Task.draw(LogisticConfig(**SMALL))
    run = simulate(task.agent(), task.graph, task.streams, engine=processes)
    first = next(run)
    (found,) = first.functions_of([4]).values()
    next(run)
    np.testing.assert_array_equal(found.weights, first.functions[4].weights)  # the round before the newest is still there
    third = next(run)
    next(run)
    next(run)
    with pytest.raises(StaleRound, match="round 3: its states must be read before the next round"):
        third.functions  # noqa: B018


def test_divergence_is_the_same_and_leaves_the_round_before_it(processes):
    settings = {"protocol": "penalty", "penalty_limit": math.inf, "penalty_start": 4.0, "samples": 640}

    def before_the_end(engine):
        newest = None
        task = Task.draw(LogisticConfig(**{**SMALL, **settings}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for now in simulate(task.agent(), task.graph, task.streams, engine=engine):
                    newest = now
            except Diverged as error:
                return str(error), newest.functions
        raise AssertionError

    (ours, mine), (theirs, others) = before_the_end(processes), before_the_end(None)
    assert ours == theirs
    for f, g in zip(mine, others, strict=True):
        np.testing.assert_array_equal(f.weights, g.weights)


def test_bytes_between_shards_are_those_of_the_crossing_edges(processes):
    """Functions as they are counted, with at most 5 % for numbers and lengths around them."""
    ours = rounds(processes, protocol="diffusion")
    cross = crossing(Task.draw(LogisticConfig(**SMALL)).graph, processes.placement)
    task, expected, last = Task.draw(LogisticConfig(**SMALL, protocol="diffusion")), 0, None
    degree = [len(around) for around in task.graph.neighbors]
    for now in ours:  # with diffusion, an agent sends the same to each neighbor
        sent = now.bytes_sent - (0 if last is None else last)
        last = now.bytes_sent
        expected += sum(sent[i] / degree[i] + sent[j] / degree[j] for i, j in cross)
    assert expected <= processes.batch_bytes <= 1.05 * expected


def test_workers_use_one_thread_each(processes):
    rounds(processes)
    assert processes.call("threads") == [1, 1]


@pytest.mark.parametrize("checkpoints", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_costs_nothing_but_time(checkpoints, tmp_path):
    def faults():
        return Faults(drop=0.2, rng=np.random.default_rng(0))

    keep = (10,)
    settings = {"protocol": "diffusion", "samples": 320, "ends": {0: 4, 5: 8}}
    expected = rounds(keep=keep, faults=faults, **settings)
    where = {"checkpoints": tmp_path / "shards", "every": 3} if checkpoints else {}
    with Processes(2, **where) as engine:
        ours = []
        for now in simulate(*network(**settings), engine=engine, faults=faults()):
            if now.number in keep:
                now.functions  # noqa: B018
            ours.append(now)
            if now.number == 7:
                os.kill(engine._workers[1][0].pid, signal.SIGKILL)
        assert_equal(ours, expected, keep=keep)
        if checkpoints:
            assert files.newest(str(tmp_path / "shards"), 2) == 9
            assert len(list((tmp_path / "shards").iterdir())) == 4  # two of each shard


@pytest.mark.slow
def test_a_network_that_cannot_be_held_is_given_up(tmp_path):
    class Doomed(Processes):
        def _step(self, number, batches):
            os.kill(self._workers[0][0].pid, signal.SIGKILL)
            return super()._step(number, batches)

    with Doomed(1) as engine, pytest.raises(LostShard, match="worker process 0 of 1 was lost; 3 attempts"):
        rounds(engine)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time of other processes is read from /proc")
def test_idle_workers_sleep():
    def spent(process):
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with Processes(1) as engine:
        rounds(engine)
        worker = engine._workers[0][0]
        before = spent(worker)
        time.sleep(1)
        assert spent(worker) - before < 0.1  # a worker stays awake for a millisecond after each answer


def test_a_script_without_a_main_guard_is_told_about_it(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import numpy as np\n"
        "from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Squared, simulate\n"
        "from kernelmesh.runtimes.engines import Processes\n"
        "agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5,"
        " compression=Komp(budget=0.01))\n"
        "x = np.linspace(-1, 1, 64)[:, None]\n"
        "list(simulate(agent, Graph.line(2), [ArrayStream(x, np.sin(x))] * 2, engine=Processes(2)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'in a script, start networks under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_checkpoints_of_another_network_are_refused(tmp_path):
    with Processes(1, checkpoints=tmp_path, every=2) as engine:
        rounds(engine)
        other = files.name(4, 0)
        arrays, about = files.read(str(tmp_path), other)
        about["network"]["agents"] = 7
        files.write(str(tmp_path), other, arrays=arrays, settings=about)
        with pytest.raises(InvalidArgument, match=r"contain a checkpoint of this network.*use another folder for this run"):
            engine.call("load", str(tmp_path), 4)


def test_what_cannot_be_spread_is_refused(processes):
    agent = Task.draw(LogisticConfig(**SMALL)).agent()
    rng = np.random.default_rng(0)
    points, labels = rng.standard_normal((32, 2)), np.zeros(32, dtype=int)
    line = Graph.line(2)
    with pytest.raises(InvalidArgument, match=r"at most the number of agents, got 2 workers for 1 agents; set"):
        list(simulate(agent, Graph.line(1), [ArrayStream(points, labels)], engine=processes))
    with pytest.raises(InvalidArgument, match="be readable from the start, got generator"):
        list(simulate(agent, line, [iter(x for x in ())] * 2, engine=processes))
    with pytest.raises(InvalidArgument, match="each have their own generator"):
        list(simulate(agent, line, [ArrayStream(points, labels, rng=rng) for _ in range(2)], engine=processes))

    class Local(ArrayStream):
        pass

    with pytest.raises(InvalidArgument, match=r"the network must be picklable, got .*; define classes"):
        list(simulate(agent, line, [Local(points, labels)] * 2, engine=processes))
    with pytest.raises(InvalidArgument, match=r"Agent: y must be class numbers"):
        list(simulate(agent, line, [ArrayStream(points, labels), ArrayStream(points, labels + 9)], engine=processes))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_parts_are_of_equal_size_and_few_edges_cross(parts):
    graph = Graph.geometric(60, radius=0.3, rng=np.random.default_rng(1))
    found = partition(graph, parts)
    sizes = np.bincount(found, minlength=parts)
    assert len(sizes) == parts
    assert sizes.max() - sizes.min() <= 1 + (parts == 7)
    by_chance = np.mean([len(crossing(graph, tuple(np.random.default_rng(n).permutation(found)))) for n in range(5)])
    assert len(crossing(graph, found)) <= 0.6 * by_chance


def test_checkpoints_go_to_any_address():
    pytest.importorskip("fsspec")
    address, arrays = "memory://shards", {"a": np.arange(3)}
    for number in (2, 4, 6):
        files.write(address, files.name(number, 0), arrays=arrays, settings={"round": number})
        files.tidy(address, 0)
    assert files.newest(address, 1) == 6
    assert files.newest(address, 2) == 0
    found, about = files.read(address, files.name(4, 0))
    assert about == {"round": 4}
    np.testing.assert_array_equal(found["a"], arrays["a"])
    with pytest.raises(FileNotFoundError):
        files.read(address, files.name(2, 0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gmm-logistic", "--engine", "proceses"], "--engine must be one of simulation, processes, ray, got 'proceses'"),
        (
            ["gmm-logistic", "--workers", "2"],
            "--workers must be omitted with --engine simulation, which is one process, got 2",
        ),
        (
            ["gmm-logistic", "--checkpoints", "x"],
            "--checkpoints must be omitted with --engine simulation, got 'x'; there are no",
        ),
        (["gmm-logistic", "--engine", "processes", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["gmm-logistic", "--engine", "processes", "--address", "auto"], "--address must be omitted without --engine ray"),
        (["gmm-logistic", "--engine", "processes", "--all"], "--engine must be used with an experiment that trains one"),
        (["violation", "--engine", "processes"], "got violation; gmm-logistic, heterogeneous and brodatz do"),
        (
            ["gmm-logistic", "--agents", "2", "--samples", "64", "--engine", "processes", "--workers", "3"],
            "engine: workers must be at most the number of agents, got 3 workers for 2 agents; set --workers",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_named(arguments, words, tmp_path):
    result = CliRunner().invoke(app, ["run", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert words in result.stderr.replace("\n", " ")


def test_functions_have_the_scales_on_which_agents_agreed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) * [1.0, 100.0]
    agent = Agent(dimension=2, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Landmarks(), protocol=Relay(scales=True))
    found = []
    for engine in (None, Processes(2)):
        streams = [ArrayStream(X[i::3], np.sin(X[i::3, 0]), batch_size=10) for i in range(3)]
        with engine or contextlib.nullcontext():
            *_, last = simulate(agent, Graph.ring(3), streams, engine=engine)
            found.append(np.stack([f(X) for f in last.functions]))
    np.testing.assert_array_equal(*found)
