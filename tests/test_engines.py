"""Engines: however agents are spread over processes or actors, the rounds are those of the simulation, bit for bit."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import typer
from threadpoolctl import threadpool_info, threadpool_limits

from kernelmesh import (
    Agent,
    ArrayStream,
    Averaged,
    Diffusion,
    Diverged,
    Faults,
    Gaussian,
    Gradient,
    Graph,
    Hilbert,
    Komp,
    Landmarks,
    Local,
    Logistic,
    Mixture,
    Penalty,
    Relay,
    simulate,
)
from kernelmesh.errors import InvalidArgument
from kernelmesh.runtimes.attacks import Replay, Scaled
from kernelmesh.runtimes.engines import LostShard, Processes
from kernelmesh.runtimes.engines.host import StaleRound
from kernelmesh.runtimes.engines.partition import crossing, partition
from kernelmesh.runtimes.threads import use_one_thread
from kernelmesh_experiments.cli.engines import chosen_engine

GRADIENT = Gradient(step_size=2.0, compression=Komp(budget=0.05))
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
    settings = {"dimension": 2, "outputs": 3, "kernel": Gaussian(bandwidth=0.6), "loss": Logistic(), "learner": GRADIENT}
    mixture = Mixture.draw(classes=3, rng=np.random.default_rng(7))
    streams = [
        ArrayStream(*mixture.sample(rows + 48 * (i % 2), rng=np.random.default_rng(i)), batch_size=16) for i in range(agents)
    ]
    return Agent(**{**settings, **AGENTS[kind], **changes}), graph, streams


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
            for f, g in zip(one.functions, other.functions, strict=True):
                np.testing.assert_array_equal(f.points, g.points)
                np.testing.assert_array_equal(f.weights, g.weights)
                assert f.kernel == g.kernel


@pytest.fixture(scope="module")
def processes():
    with Processes(2) as engine:
        yield engine


@pytest.mark.parametrize("kind", AGENTS)
def test_processes_reproduce_the_simulation(processes, kind):
    assert_equal(rounds(kind, processes), rounds(kind))


def edges_drop_and_absence():
    edges = [[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)], [(0, 5), (1, 4), (2, 3)]]
    return Faults(drop=0.3, absent={2: [(2, 3)]}, edges=edges, rng=np.random.default_rng(0))


def attacks():
    bad = {3: [(Scaled(factor=-1.0), 2, 4)], 1: [(Replay(), 3, 9)]}
    return Faults(drop=0.1, byzantine=bad, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kind", "faults"),
    [(kind, edges_drop_and_absence) for kind in ("penalty", "diffusion", "relay")]
    + [(kind, attacks) for kind in ("penalty", "diffusion")],
)
def test_faults_are_the_same_wherever_agents_are(processes, kind, faults):
    assert_equal(rounds(kind, processes, faults=faults), rounds(kind, faults=faults))


def test_values_that_are_not_finite_end_the_run_with_the_same_error(processes):
    def error(engine):
        faults = Faults(byzantine={3: [(Scaled(factor=np.nan), 2, 4)]}, rng=np.random.default_rng(0))
        with pytest.raises((Diverged, InvalidArgument)) as caught:
            list(simulate(*network("diffusion"), faults=faults, engine=engine))
        return str(caught.value)

    assert error(processes) == error(None)


@pytest.mark.parametrize("kind", ["diffusion", "relay"])
def test_runs_continue_from_states_that_were_fetched(processes, kind):
    agent, graph, streams = network(kind)
    batches = [list(stream) for stream in streams]
    first = simulate(agent, graph, batches, engine=processes)
    for _ in range(3):
        last = next(first)
    states = list(last.states)
    theirs = simulate(agent, graph, batches)
    for _ in range(3):
        state_of_theirs = next(theirs).states
    rest = [batch[-5:] for batch in batches]
    ours = simulate(agent, graph, rest, states=states, engine=processes)
    for mine, other in zip(ours, simulate(agent, graph, rest, states=state_of_theirs), strict=True):
        for f, g in zip(mine.functions, other.functions, strict=True):
            np.testing.assert_array_equal(f.weights, g.weights)
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
    for f, g in zip(mine, others, strict=True):
        np.testing.assert_array_equal(f.weights, g.weights)


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
    expected = rounds()
    with Processes(2) as engine:
        run = simulate(*network(), engine=engine)
        next(run)
        os.kill(engine._workers[1][0].pid, signal.SIGKILL)
        with pytest.raises(LostShard, match=r"worker process 1 of 2 was lost; continue from .*--resume"):
            list(run)
        assert_equal(rounds(engine=engine), expected)


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


class TestRefuses:
    POINTS, LABELS = np.random.default_rng(0).standard_normal((32, 2)), np.zeros(32, dtype=int)

    def start(self, engine, *streams):
        return next(simulate(network()[0], Graph.line(len(streams)), streams, engine=engine))

    def test_more_workers_than_agents(self, processes):
        with pytest.raises(InvalidArgument, match=r"at most the number of agents, got 2 workers for 1 agents; set"):
            self.start(processes, ArrayStream(self.POINTS, self.LABELS))

    def test_streams_that_can_be_read_only_here(self, processes):
        with pytest.raises(InvalidArgument, match="be readable from the start, got generator"):
            self.start(processes, *[iter(x for x in ())] * 2)

    def test_streams_with_one_generator(self, processes):
        rng = np.random.default_rng(0)
        with pytest.raises(InvalidArgument, match="each have their own generator"):
            self.start(processes, *[ArrayStream(self.POINTS, self.LABELS, rng=rng) for _ in range(2)])

    def test_what_cannot_be_pickled(self, processes):
        class Mine(ArrayStream):
            pass

        with pytest.raises(InvalidArgument, match=r"the network must be picklable, got .*; define classes"):
            self.start(processes, *[Mine(self.POINTS, self.LABELS)] * 2)

    def test_invalid_samples(self, processes):
        with pytest.raises(InvalidArgument, match=r"Agent: y must be class numbers"):
            self.start(processes, ArrayStream(self.POINTS, self.LABELS), ArrayStream(self.POINTS, self.LABELS + 9))


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
