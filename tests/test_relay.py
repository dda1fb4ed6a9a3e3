"""Relay sums on whole networks: exact on every graph, no sample counted twice, and no fault that lasts."""

from dataclasses import replace

import numpy as np
import pytest

import relay_network
from kernelmesh import Agent, Function, Gaussian, Graph, Landmarks, Logistic, Relay, Squared
from relay_network import Network, half, is_connected, random_graph, random_tree

CLASSES = 5
ANGLES = 2.0 * np.pi * np.arange(CLASSES) / CLASSES
CORNERS = 2.5 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def drawn(labels, rng):
    return CORNERS[labels] + 0.7 * rng.normal(size=(len(labels), 2)), labels


HELD, TRUTH = drawn(np.random.default_rng(99).integers(CLASSES, size=400), np.random.default_rng(98))
SIZES = [10, pytest.param(20, marks=pytest.mark.slow)]
"""Of the networks that are put to the test."""


def batches_of(first, count, rng, size=4):
    """Mini-batches of two classes."""
    return [drawn((first + np.array([0, 2] * (size // 2))) % CLASSES, rng) for _ in range(count)]


def network(graph, *, seed=0, batches=20, unequal=True, every=8, bits=64, keep=512, **faults):
    """Agents with two classes each, and so many mini-batches; if unequal, from none to twice as many."""
    rng = np.random.default_rng(seed)
    agent = Agent(
        dimension=2,
        outputs=CLASSES,
        kernel=Gaussian(bandwidth=1.0),
        loss=Logistic(),
        learner=Landmarks(max_order=60, keep=keep),
        protocol=Relay(every=every, bits=bits),
    )
    counts = rng.integers(2 * batches + 1, size=len(graph)) if unequal else [batches] * len(graph)
    streams = [batches_of(i % CLASSES, count, rng) for i, count in enumerate(counts)]
    return Network(agent, graph, streams, seed=seed, **faults)


def finish(mesh, limit=400):
    """Until all streams have ended."""
    mesh.run_until(lambda: mesh.streams_ended, limit=limit)


def settle(mesh, limit=400):
    """Until nobody has anything new to say."""
    finish(mesh)
    mesh.run_until(lambda: all(mesh.agent.is_settled(mesh.states[i]) for i in mesh.living), limit=limit)


def recovers(mesh):
    """All is calm again: within 40 rounds, every member is in every total, and in the end all totals are exact."""
    mesh.calm()
    finish(mesh)
    mesh.run(40)
    assert mesh.rolls_are_right()
    settle(mesh)
    assert mesh.is_exact()


def worst(mesh):
    return min(mesh.accuracy(HELD, TRUTH).values())


def checked(mesh):
    """Let the network check after every tick that nothing is counted twice."""

    def check(i):
        assert mesh.rolls_are_disjoint(i), f"round {mesh.round}: a member is in two sums of agent {i}"
        assert mesh.counted_twice(i) <= 1e-6, f"round {mesh.round}: agent {i} has counted samples twice"

    mesh.after_tick = check
    return mesh


def lowest(mesh, rounds):
    """The lowest accuracy of any agent in so many rounds."""
    reached = []
    for _ in range(rounds):
        mesh.step()
        reached.append(worst(mesh))
    return min(reached)


def leaf_of(mesh):
    """A member whose absence leaves the others connected, and that leads nobody."""
    leaders = {tree.parent for tree in mesh.trees().values()}
    return max(i for i in set(mesh.living) - leaders if is_connected(mesh.neighbors, set(mesh.living) - {i}))


def leader_of(mesh):
    """A member that others follow, not the root, whose absence leaves the others connected."""
    leaders = {tree.parent for i, tree in mesh.trees().items() if i} - {relay_network.NOBODY, 0}
    return max(i for i in leaders if is_connected(mesh.neighbors, set(mesh.living) - {i}))


def can_spare(mesh, one):
    """Whether the others are connected without it."""
    rest = set(mesh.living) - mesh.forgotten - mesh.leaving - {one}
    return len(rest) > 3 and is_connected(mesh.neighbors, rest)


ROLES = {"leaf": leaf_of, "leader": leader_of, "root": lambda _: 0}


def well_connected(seed, agents=10):
    """A random graph that stays connected without its root."""
    return next(
        graph
        for graph in (random_graph(agents, seed + 1000 * n) for n in range(1000))
        if is_connected(graph, range(1, agents))
        and any(is_connected(graph, set(range(agents)) - {i}) for i in range(1, agents))
    )


class TestExact:
    """Totals equal the sum over all members k + 2 · depth rounds after the last sample."""

    @pytest.mark.parametrize("every", [1, 16])
    @pytest.mark.parametrize(
        "graph",
        [*(make(10).neighbors for make in (Graph.ring, Graph.star, Graph.line)), random_graph(12, 3), random_tree(12, 4)],
    )
    def test_small_graphs(self, graph, every):
        mesh = network(graph, every=every, keep=0, batches=10)
        finish(mesh)
        mesh.run(every + 2 * mesh.depth())
        assert mesh.is_one_tree()
        assert mesh.is_exact()

    @pytest.mark.parametrize("agents", [60, *(pytest.param(n, marks=pytest.mark.slow) for n in (200, 1000))])
    def test_geometric_graphs(self, agents):
        graph = Graph.geometric(agents, degree=8, rng=np.random.default_rng(0))
        mesh = network(graph.neighbors, keep=0, batches=8)
        finish(mesh)
        mesh.run(8 + 2 * mesh.depth())
        assert mesh.is_exact()


WEATHER = [{"loss": 0.1}, {"loss": 0.3}, {"loss": 0.6}, {"delay": 10}, {"duplication": 0.5, "delay": 5}]
FAULTS = {
    **{f"{role} killed": lambda mesh, role=role: mesh.kill(ROLES[role](mesh)) for role in ROLES},
    **{str(faults): lambda mesh, faults=faults: vars(mesh).update(faults) for faults in WEATHER},
    "unequal speeds": lambda mesh: mesh.speeds.update(
        enumerate(np.random.default_rng(2).uniform(0.2, 1.0, len(mesh.speeds)))
    ),
    "cut, and loss": lambda mesh: (vars(mesh).update(loss=0.3), mesh.cut(half([mesh.neighbors[i] for i in mesh.living]))),
}


class TestFaults:
    """What a fault costs while it lasts, and that nothing of it stays."""

    @pytest.mark.parametrize("agents", SIZES)
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_while_streams_go_on(self, fault, agents):
        mesh = checked(network(well_connected(0, agents), batches=70, unequal=False))
        mesh.run(40)
        before = worst(mesh)
        FAULTS[fault](mesh)
        # after a kill, for some rounds, totals with as many samples as before lack a few members
        assert lowest(mesh, 60) >= before - (1.0 if "killed" in fault else 0.5)
        assert worst(mesh) >= before - 0.5
        recovers(mesh)
        assert worst(mesh) >= before - 0.5

    @pytest.mark.parametrize("role", ROLES)
    def test_a_kill_after_all_streams_have_ended_loses_nothing(self, role):
        mesh = checked(network(well_connected(0)))
        settle(mesh)
        before, gone = worst(mesh), ROLES[role](mesh)
        mesh.kill(gone)
        assert lowest(mesh, 60) >= before - 0.5
        mesh.restore(gone)
        assert lowest(mesh, 40) >= before - 0.5
        assert mesh.is_exact()

    @pytest.mark.parametrize("agents", SIZES)
    @pytest.mark.parametrize(("role", "loss"), [("leaf", 0.0), ("leader", 0.3), ("root", 0.0)])
    def test_a_member_restored_from_30_rounds_ago(self, role, loss, agents):
        mesh = checked(network(well_connected(1, agents), seed=1, batches=50, unequal=False))
        mesh.run(40)
        one = ROLES[role](mesh)
        snapshot = mesh.snapshot(one)
        mesh.run(30)
        before, mesh.loss = worst(mesh), loss
        mesh.kill(one)
        assert lowest(mesh, 30) >= before - 0.5
        mesh.restore_old(one, snapshot)
        assert lowest(mesh, 40) >= before - 0.5
        recovers(mesh)

    @pytest.mark.parametrize("agents", SIZES)
    def test_a_bad_network_from_the_start(self, agents):
        mesh = checked(network(well_connected(3, agents), seed=3, batches=30, loss=0.3, delay=5, duplication=0.2))
        mesh.speeds = dict(enumerate(np.random.default_rng(3).uniform(0.2, 1.0, agents)))
        finish(mesh, limit=2000)
        recovers(mesh)
        assert worst(mesh) >= 95.0

    def test_two_networks_that_have_never_met_become_one(self):
        """Each has a list of points of its own; afterwards all have one."""
        mesh = checked(network(well_connected(5), seed=5))
        mesh.cut(half([mesh.neighbors[i] for i in mesh.living]))
        finish(mesh)
        assert len({mesh.states[i].memory.points.digest for i in mesh.living}) == 2
        mesh.calm()
        settle(mesh)
        assert len({mesh.states[i].memory.points.digest for i in mesh.living}) == 1
        assert mesh.is_exact()
        assert worst(mesh) >= 95.0


class TestMembers:
    @pytest.mark.parametrize("role", ROLES)
    def test_the_samples_of_a_member_that_leaves_stay(self, role):
        mesh = checked(network(well_connected(6), seed=6))
        settle(mesh)
        before = worst(mesh)
        mesh.leave(ROLES[role](mesh))
        assert lowest(mesh, 60) >= before - 0.5
        assert len(mesh.left) == 1
        assert mesh.is_exact()

    def test_an_heir_can_leave_too(self):
        """An estate is left on."""
        mesh = checked(network(well_connected(7), seed=7))
        settle(mesh)
        for _ in range(3):
            gone = leaf_of(mesh)
            mesh.leave(gone)
            mesh.run(10)
            heir = next(i for i in mesh.living if gone in mesh.states[i].memory.estates)
            if not is_connected(mesh.neighbors, set(mesh.living) - {heir}):
                continue
            mesh.leave(heir)
            mesh.run(50)
            assert mesh.is_exact()

    @pytest.mark.parametrize("loss", [0.0, 0.3])
    def test_a_forgotten_member_was_never_there(self, loss):
        """Every total becomes that of a network that never had it: exact unlearning."""
        rng = np.random.default_rng(8)
        points, graph = 2.0 * rng.normal(size=(20, 2)), well_connected(8)
        learner, protocol = Landmarks(novelty=np.inf, keep=32), Relay(bits=64)
        agent = Agent(
            dimension=2, outputs=1, kernel=Gaussian(bandwidth=1.0), loss=Squared(), learner=learner, protocol=protocol
        )
        function = Function.of(agent.kernel, points, np.zeros((20, 1)))
        batches = [[(x := 2.0 * rng.normal(size=(4, 2)), np.sin(x[:, :1])) for _ in range(10)] for _ in graph]
        mesh = Network(agent, graph, batches, function=function, loss=loss, seed=8)
        settle(mesh)
        gone = leaf_of(mesh)
        mesh.forget(1, gone)
        mesh.calm()
        mesh.run(40)
        without = Network(agent, graph, batches, function=function, seed=8)
        without.kill(gone)
        settle(without)
        for i in without.living:
            assert mesh.total(i).samples == without.total(i).samples
            assert (
                np.abs(mesh.total(i).moments - without.total(i).moments).max()
                <= 1e-10 * np.abs(without.total(i).moments).max()
            )
            assert np.abs(mesh.states[i].function(HELD) - without.states[i].function(HELD)).max() <= 1e-10

    def test_a_root_that_has_lost_its_state_leads_again_at_once(self):
        """The others have given it up, and know that it has counted further."""
        mesh = network(well_connected(12), seed=12)  # what it has lost counts until it is learned again
        settle(mesh)
        mesh.run(200)
        mesh.kill(0)
        mesh.run(40)
        mesh.states[0], mesh.learned[0] = mesh._fresh(0), 0
        mesh.restore(0)
        mesh.run(40)
        assert mesh.is_one_tree()
        settle(mesh)
        assert mesh.is_exact()

    def test_a_late_member_learns_what_all_know_and_adds_its_own_samples(self):
        mesh = checked(network(well_connected(9), seed=9))
        settle(mesh)
        before, old = worst(mesh), set(mesh.living)
        new = mesh.join([3, 7], batches_of(2, 20, np.random.default_rng(9)))
        for _ in range(60):
            mesh.step()
            assert min(mesh.accuracy(HELD, TRUTH)[i] for i in old) >= before - 0.5
        assert mesh.accuracy(HELD, TRUTH)[new] >= before - 0.5
        mesh.run_until(mesh.is_exact, limit=40)


class TestForm:
    """Sums that cannot be sums exclude who sends them, and the tree finds another way."""

    @pytest.mark.parametrize(
        "spoiled",
        [
            lambda own: replace(own, moments=100.0 * own.moments),
            lambda own: replace(own, moments=-own.moments),
            lambda own: replace(own, samples=1e6),
            lambda own: replace(own, weights=own.weights * np.nan),
        ],
        ids=["too large", "negative", "more samples than a member may have", "not finite"],
    )
    def test_the_sender_of_invalid_sums_is_excluded(self, spoiled):
        mesh = network(well_connected(11), seed=11, keep=0, unequal=False)
        mesh.agent = replace(mesh.agent, protocol=replace(mesh.agent.protocol, max_samples=1e5))
        settle(mesh)
        liar = leaf_of(mesh)
        model = mesh.states[liar].model
        mesh.states[liar] = replace(mesh.states[liar], model=replace(model, own=spoiled(model.own), changed=True))
        mesh.run(80)
        others = set(mesh.living) - {liar}
        assert any(mesh.states[i].memory.peers[liar].excluded for i in mesh.neighbors[liar])
        assert min(mesh.accuracy(HELD, TRUTH)[i] for i in others) >= 95.0
        assert all(mesh.states[i].memory.tree.parent != liar for i in mesh.neighbors[liar])


class TestAgreement:
    """On scales, width and λ, before agents learn."""

    def shares(self, agents, every, kept=None):
        """A line whose agents have features of very different sizes; `kept` are those that have rows."""
        agent = Agent(
            dimension=2,
            outputs=1,
            kernel=Gaussian(bandwidth=1.0),
            loss=Squared(),
            learner=Landmarks(max_order=40),
            protocol=Relay(every=every, scales=True, tunes=True),
        )
        rng, streams = np.random.default_rng(0), []
        for i in range(agents):
            X = np.array([0.01 if i == 0 else 3.0, 1.0]) * rng.normal(size=(40, 2))
            rows = range(0, 40, 4) if kept is None or i in kept else ()
            streams.append([(X[t : t + 4], np.sin(X[t : t + 4, :1])) for t in rows])
        return Network(agent, Graph.line(agents).neighbors, streams)

    @pytest.mark.parametrize("every", [1, 24])
    def test_all_rows_count_whatever_the_root_has(self, every):
        mesh = self.shares(6, every)
        settle(mesh, 2000)
        lists = [mesh.states[i].memory.points for i in mesh.living]
        assert len({points.digest for points in lists}) == 1
        width = lists[0].scales[1]  # of a feature whose standard deviation is 1
        assert 2.0 < lists[0].scales[0] / width < 3.2  # 2.7 with all samples, 0.01 with those of the root alone

    @pytest.mark.parametrize("every", [1, 24])
    def test_a_root_without_rows_waits_for_those_of_others(self, every):
        mesh = self.shares(3, every, kept=(1, 2))
        settle(mesh, 2000)
        assert {mesh.total(i).samples for i in mesh.living} == {80.0}


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 200))])
def test_random_faults_count_no_sample_twice_and_totals_are_exact_afterwards(seed):
    """Random graphs, and a schedule of kills, restores, cuts, losses, delays, joins, farewells and exclusions."""
    rng = np.random.default_rng([seed, 1])
    agents = int(rng.integers(5, 16))
    graph = random_tree(agents, seed) if rng.random() < 0.2 else random_graph(agents, seed)
    mesh = checked(network(graph, seed=seed, batches=30, every=int(rng.choice([1, 4, 8, 16])), keep=0))
    snapshots = {}
    for _ in range(12):
        mesh.run(int(rng.integers(1, 40)))
        living, down = mesh.living, [i for i in mesh.down if i not in mesh.left]
        one = int(rng.choice(living))
        match str(rng.choice(["kill", "restore", "old", "cut", "weather", "join", "leave", "forget", "calm"])):
            case "kill" if len(living) > 3 and one not in mesh.leaving:
                mesh.kill(one)
            case "restore" if down:
                mesh.restore(int(rng.choice(down)))
            case "old" if down and down[0] in snapshots and not mesh.states[down[0]].memory.estates:
                mesh.restore_old(down[0], snapshots[down[0]])
            case "cut":
                mesh.cut(set(rng.choice(living, size=len(living) // 2, replace=False).tolist()))
            case "weather":
                mesh.loss, mesh.delay = float(rng.choice([0.0, 0.1, 0.3, 0.6])), int(rng.integers(11))
                mesh.duplication = float(rng.choice([0.0, 0.3]))
                mesh.speeds = {i: float(rng.uniform(0.2, 1.0)) for i in mesh.states}
            case "join":
                mesh.join([one], batches_of(int(rng.integers(CLASSES)), 20, rng))
            case "leave" if can_spare(mesh, one) and not mesh.leaving and not ({one} | mesh.neighbors[one]) & mesh.forgotten:
                mesh.leave(one)
            case "forget" if can_spare(mesh, one) and not mesh.leaving and not mesh.states[one].memory.estates:
                mesh.forget(int(rng.choice([i for i in living if i != one])), one)
            case "calm":
                mesh.calm()
        snapshots = {i: mesh.snapshot(i) for i in mesh.states} if rng.random() < 0.5 else snapshots
    mesh.calm()
    for i in [i for i in mesh.down if i not in mesh.left]:
        mesh.restore(i)
    if is_connected(mesh.neighbors, set(mesh.living) - mesh.forgotten - mesh.leaving):
        mesh.run(20)
        finish(mesh, limit=1000)
        mesh.run_until(lambda: not mesh.leaving and mesh.is_exact(), limit=100)
