"""Engines: however agents are spread over processes or actors, the rounds are those of the simulation, bit for bit."""

import itertools
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import typer
from threadpoolctl import threadpool_info, threadpool_limits

from kernelmesh import (
    ArrayStream,
    Averaged,
    Diffusion,
    Diverged,
    Faults,
    Graph,
    Hilbert,
    Landmarks,
    Local,
    Penalty,
    Relay,
    simulate,
)
from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.attacks import FarPoints, NotFinite, Replay
from kernelmesh.runtimes.engines import LostShard, Processes
from kernelmesh.runtimes.engines.host import StaleRound
from kernelmesh.runtimes.engines.partition import crossing, partition
from kernelmesh.runtimes.threads import use_one_thread
from kernelmesh_experiments.cli.engines import chosen_engine
from test_node import data, make, same

AGENTS = {
    "local": {"protocol": Local()},
    "penalty": {"protocol": Penalty(coupling=0.05)},
    "hilbert": {"protocol": Hilbert(coupling=0.02, every=2)},
    "diffusion": {"protocol": Diffusion()},
    "averaged": {"learner": Averaged(step_size=20.0), "protocol": Diffusion(every=2)},
    "relay": {"learner": Landmarks(), "protocol": Relay(every=4)},
    "scaled relay": {"learner": Landmarks(half_life=500.0), "protocol": Relay(bits=16, scales=True)},
}
LATTICE = Graph.ring(6)


def network(kind="diffusion", *, agents=6, rows=160, graph=LATTICE, **changes):
    """Agent, graph and streams, of which some end earlier."""
    streams = [ArrayStream(*data(i, rows + 48 * (i % 2)), batch_size=16) for i in range(agents)]
    return make(**{**AGENTS[kind], **changes}), graph, streams


def rounds(kind="diffusion", engine=None, *, faults=None, keep=(), states=None, **changes):
    """The rounds of such a network, with what agents have learned in those that are kept."""
    out = []
    for now in simulate(*network(kind, **changes), states=states, engine=engine, faults=faults and faults(), settle=40):
        if not keep or now.number in keep:
            now.functions  # noqa: B018 (fetched before the next round)
        out.append(now)
    return out


def assert_equal(ours, theirs, *, keep=()):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        # as text, where NaN equals itself
        assert (one.number, repr(one.infos), one.samples) == (other.number, repr(other.infos), other.samples)
        np.testing.assert_array_equal(one.square_norms, other.square_norms)
        assert one.orders == other.orders
        for sent in ("bytes_sent", "floats_sent", "edge_bytes"):
            np.testing.assert_array_equal(getattr(one, sent), getattr(other, sent))
        if not keep or one.number in keep:
            assert_same_functions(one.functions, other.functions)
            assert [f.kernel for f in one.functions] == [g.kernel for g in other.functions]


def assert_same_functions(ours, theirs):
    assert all(same(f, g) for f, g in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def processes():
    with Processes(2) as engine:
        yield engine


@pytest.mark.parametrize("kind", AGENTS)
def test_processes_reproduce_the_simulation(processes, kind):
    assert_equal(rounds(kind, processes), rounds(kind))


@pytest.mark.parametrize("kind", ["penalty", "diffusion", "relay"])
def test_faults_are_the_same_wherever_agents_are(processes, kind):
    """Edges that come and go, losses, absence and, where there may be some, attacks."""
    edges = [[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 5), (1, 4), (2, 3)]]
    bad = {} if kind == "relay" else {3: [(FarPoints(), 2, 4)], 1: [(Replay(), 3, 9)]}

    def faults():
        return Faults(drop=0.2, absent={2: [(2, 3)]}, edges=edges, byzantine=bad, rng=np.random.default_rng(0))

    assert_equal(rounds(kind, processes, faults=faults), rounds(kind, faults=faults))


def test_values_that_are_not_finite_end_the_run_with_the_same_error(processes):
    def error(engine):
        faults = Faults(byzantine={3: [(NotFinite(), 2, 4)]}, rng=np.random.default_rng(0))
        with pytest.raises((Diverged, InvalidArgument)) as caught:
            list(simulate(*network("diffusion"), faults=faults, engine=engine))
        return str(caught.value)

    assert error(processes) == error(None)


@pytest.mark.parametrize("kind", ["diffusion", "relay"])
def test_runs_continue_from_states_that_were_fetched(processes, kind):
    agent, graph, streams = network(kind)
    batches = [list(stream) for stream in streams]
    first = simulate(agent, graph, batches, engine=processes)
    last = [next(first) for _ in range(3)][-1]
    states, rest = list(last.states), [batch[-5:] for batch in batches]
    *_, theirs = itertools.islice(simulate(agent, graph, batches), 3)
    ours = simulate(agent, graph, rest, states=states, engine=processes)
    for mine, other in zip(ours, simulate(agent, graph, rest, states=theirs.states), strict=True):
        assert_same_functions(mine.functions, other.functions)
    with pytest.raises(InvalidArgument, match="read them before the engine starts another network"):
        last.functions_of([0])


def test_states_are_fetched_until_two_rounds_later(processes):
    run = simulate(*network(rows=320), engine=processes)
    first = next(run)
    (found,) = first.functions_of([4]).values()
    next(run)
    np.testing.assert_array_equal(found.weights, first.functions[4].weights)
    third = next(run)
    next(run)
    next(run)
    with pytest.raises(StaleRound, match="round 3: its states must be read before the next round"):
        third.functions  # noqa: B018


@pytest.mark.filterwarnings("ignore::kernelmesh.UnstablePenalty")
def test_divergence_is_the_same_and_leaves_the_round_before_it(processes):
    def before_the_end(engine):
        newest = None
        try:
            for now in simulate(*network("penalty", rows=640, protocol=Penalty(coupling=4.0)), engine=engine):
                newest = now
        except Diverged as error:
            return str(error), newest.functions
        raise AssertionError

    (ours, mine), (theirs, others) = before_the_end(processes), before_the_end(None)
    assert ours == theirs
    assert_same_functions(mine, others)


def assert_bytes_of_crossing_edges(engine):
    """Functions as they are counted, with at most 5 % for numbers and lengths around them."""
    agent, graph, streams = network(rows=480)
    expected, last = 0.0, np.zeros(6)
    for now in simulate(agent, graph, [list(stream)[:20] for stream in streams], engine=engine):
        sent, last = (now.bytes_sent - last) / 2, now.bytes_sent  # each agent sends the same to both neighbors
        expected += sum(sent[i] + sent[j] for i, j in crossing(graph, engine.placement))
    assert expected <= engine.batch_bytes <= 1.05 * expected


def test_only_messages_over_crossing_edges_are_sent(processes):
    assert_bytes_of_crossing_edges(processes)


def test_one_thread_is_used_after_it_is_asked_for():
    with threadpool_limits(2):
        use_one_thread()
        assert all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "blas")


def test_the_loss_of_a_worker_ends_the_run_and_the_engine_starts_again(processes):
    run = simulate(*network(), engine=processes)
    next(run)
    os.kill(processes._workers[1][0].pid, signal.SIGKILL)
    with pytest.raises(LostShard, match=r"worker process 1 of 2 was lost; continue from .*--resume"):
        list(run)
    assert_equal(rounds(engine=processes), rounds())


def test_a_script_without_a_main_guard_is_told_about_it(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import numpy as np\n"
        "from kernelmesh import Agent, ArrayStream, Gaussian, Gradient, Graph, Squared, simulate\n"
        "from kernelmesh.runtimes.engines import Processes\n"
        "agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))\n"
        "x = np.linspace(-1, 1, 64)[:, None]\n"
        "list(simulate(agent, Graph.line(2), [ArrayStream(x, np.sin(x))] * 2, engine=Processes(2)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'in a script, start networks under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def unpicklable(*args):
    class Mine(ArrayStream):
        pass

    return Mine(*args)


POINTS, LABELS, RNG = np.random.default_rng(0).standard_normal((32, 2)), np.zeros(32, dtype=int), np.random.default_rng(0)
REFUSED = {
    "more workers than agents": (lambda: [ArrayStream(POINTS, LABELS)], "at most the number of agents"),
    "streams that can be read only here": (lambda: [iter(x for x in ())] * 2, "be readable from the start, got generator"),
    "streams with one generator": (lambda: [ArrayStream(POINTS, LABELS, rng=RNG) for _ in "ab"], "have their own generator"),
    "what cannot be pickled": (lambda: [unpicklable(POINTS, LABELS)] * 2, "the network must be picklable"),
    "invalid samples": (lambda: [ArrayStream(POINTS, LABELS + 9)] * 2, r"Agent: y must be class numbers"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses(processes, what):
    streams, words = REFUSED[what]
    with pytest.raises(InvalidArgument, match=words):
        next(simulate(network()[0], Graph.line(len(streams())), streams(), engine=processes))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_parts_are_of_equal_size_and_few_edges_cross(parts):
    graph = Graph.geometric(60, radius=0.3, rng=np.random.default_rng(1))
    found = partition(graph, parts)
    sizes = np.bincount(found, minlength=parts)
    assert len(sizes) == parts
    assert sizes.max() - sizes.min() <= 1 + (parts == 7)
    by_chance = np.mean([len(crossing(graph, tuple(np.random.default_rng(n).permutation(found)))) for n in range(5)])
    assert len(crossing(graph, found)) <= 0.6 * by_chance


@pytest.mark.parametrize(
    ("engine", "workers", "address", "words"),
    [
        ("proceses", None, None, "--engine must be one of simulation, processes, ray"),
        ("simulation", 2, None, "--workers must be omitted with --engine simulation"),
        ("processes", None, "auto", "--address must be omitted with --engine processes"),
    ],
)
def test_mistakes_on_the_command_line_are_named(engine, workers, address, words, capsys):
    with pytest.raises(typer.Exit) as left, chosen_engine("run", engine, workers, address):
        raise AssertionError
    assert left.value.exit_code == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
