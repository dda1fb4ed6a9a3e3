"""A small network of agents that share sums, with its own clock and a post that loses, delays and repeats messages."""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from dataclasses import replace

import networkx as nx
import numpy as np

from kernelmesh.agent import advance, listen
from kernelmesh.numerics.sums import added
from kernelmesh.protocols import Heard

NOBODY = -1


class Network:
    """Agents by number, on a graph given as numbers of neighbors by number; only public code of the agents is called.

    A message sent in round t is heard in the first round of its receiver after t + `delay`, at most.
    """

    def __init__(self, agent, neighbors, batches, *, seed=0, function=None, loss=0.0, delay=0, duplication=0.0, speeds=None):
        self.agent, self.function, self.rng = agent, function, np.random.default_rng(seed)
        self.neighbors = {i: set(others) for i, others in enumerate(neighbors)}
        self.batches = {i: list(own) for i, own in enumerate(batches)}
        self.loss, self.delay, self.duplication = loss, delay, duplication
        self.speeds = dict(enumerate(np.ones(len(self.batches)) if speeds is None else speeds))
        self.states = {i: self._fresh(i) for i in self.batches}
        self.learned = dict.fromkeys(self.batches, 0)
        """How many of its mini-batches each agent has learned from."""
        self.down = set()
        self.leaving = set()
        self.left = set()
        self.forgotten = set()
        self.sides = dict.fromkeys(self.batches, 0)
        """While the network is cut: on which side of it each agent is."""
        self.round = 0
        self.after_tick = None
        """Called with the number of an agent after its tick."""
        self._post, self._order = [], itertools.count()
        self._inboxes = {i: [] for i in self.batches}

    def _fresh(self, number):
        return self.agent.start(name=f"agent {number}", number=number, function=self.function)

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, rounds):
        for _ in range(rounds):
            self.step()

    def run_until(self, condition, *, limit):
        """The number of rounds until a condition holds, at most `limit`."""
        for count in range(limit):
            if condition():
                return count
            self.step()
        assert condition(), f"not within {limit} rounds"
        return limit

    def step(self):
        while self._post and self._post[0][0] <= self.round:
            _, _, sender, receiver, news = heapq.heappop(self._post)
            if receiver not in self.down:
                self._inboxes[receiver].append((sender, news))
        spoken = []
        for i in list(self.states):
            if i in self.down or self.rng.random() >= self.speeds[i]:
                continue
            self._tick(i)
            for j in sorted(self.neighbors[i]):
                news = self.agent.tell(self.states[i], f"agent {j}")
                if news is not None:
                    spoken.append((i, j, news))
        for sender, receiver, news in spoken:
            self._send(sender, receiver, news)
        self.round += 1

    def _tick(self, i):
        inbox, self._inboxes[i] = self._inboxes[i], []
        heard = [Heard(reply=news, neighbor=f"agent {j}") for j, news in inbox]
        state, taken = self.states[i], self.learned[i]
        if taken < len(self.batches[i]) and self.agent.wants(state):
            self.states[i], _ = advance(self.agent, state, *self.batches[i][taken], heard)
            self.learned[i] += 1
        else:
            self.states[i] = listen(self.agent, state, heard)
        for sender in self.leaving & self.states[i].memory.estates.keys():
            self.down.add(sender)
            self.leaving.discard(sender)
            self.left.add(sender)
        if self.after_tick is not None:
            self.after_tick(i)

    def _send(self, sender, receiver, news):
        if self.sides[sender] != self.sides[receiver]:
            return
        for _ in range(1 + int(self.rng.random() < self.duplication)):
            if self.rng.random() >= self.loss:
                late = int(self.rng.integers(self.delay + 1))
                heapq.heappush(self._post, (self.round + 1 + late, next(self._order), sender, receiver, news))

    # -- faults --------------------------------------------------------------------------------------------------------

    def calm(self):
        """From now on, nothing is lost, late or repeated, and all agents are equally fast; who is down stays down."""
        self.loss, self.delay, self.duplication = 0.0, 0, 0.0
        self.speeds = dict.fromkeys(self.speeds, 1.0)
        self.sides = dict.fromkeys(self.sides, 0)

    def kill(self, i):
        self.down.add(i)
        self._inboxes[i] = []

    def restore(self, i):
        """It comes back with the state that it had."""
        self.down.discard(i)

    def snapshot(self, i):
        return self.states[i], self.learned[i]

    def restore_old(self, i, snapshot):
        """It comes back with an earlier state, but with all its samples, from its journal; and its clock goes on."""
        now, (state, learned) = self.states[i], snapshot
        if state.memory.points.digest == now.memory.points.digest:
            model = replace(now.model, others=state.model.others, changed=True)
            state = replace(state, model=model, samples=now.samples)
        else:
            for batch in self.batches[i][learned : self.learned[i]]:
                state, _ = advance(self.agent, state, *batch)
        memory = state.memory.copied()
        memory.tree.clock = max(memory.tree.clock, now.memory.tree.clock)
        self.states[i] = replace(state, memory=memory)
        self.down.discard(i)

    def cut(self, side):
        self.sides = {i: int(i in side) for i in self.states}

    def join(self, neighbors, batches):
        """A new agent."""
        i = max(self.states) + 1
        self.neighbors[i], self.batches[i], self.learned[i], self._inboxes[i] = set(neighbors), list(batches), 0, []
        self.speeds[i], self.sides[i] = 1.0, 0
        for j in neighbors:
            self.neighbors[j].add(i)
        self.states[i] = self._fresh(i)
        return i

    def leave(self, i):
        """It says farewell until that has been heard, and is gone."""
        self.states[i] = replace(self.states[i], memory=self.agent.protocol.left(self.states[i].memory))
        self.leaving.add(i)

    def forget(self, by, number):
        memory = self.agent.protocol.forgotten(self.states[by].memory, number)
        self.states[by] = replace(self.states[by], memory=memory)
        self.forgotten.add(number)

    # -- what is seen --------------------------------------------------------------------------------------------------

    @property
    def living(self):
        return [i for i in self.states if i not in self.down]

    @property
    def streams_ended(self):
        return all(self.learned[i] == len(self.batches[i]) for i in self.living)

    def own(self, i):
        return self.states[i].model.own

    def total(self, i):
        """The sums that agent i uses."""
        model = self.states[i].model
        return added([model.own, model.others], outputs=self.agent.outputs)

    def roll(self, i):
        return 1 << i | self.states[i].model.others.roll

    def should_count(self):
        """Those whose samples belong in every total: the living, and those who said farewell."""
        return {*self.living, *self.left} - self.forgotten

    def rolls_are_right(self):
        roll = sum(1 << i for i in self.should_count())
        return all(self.roll(i) == roll for i in self.living if i not in self.forgotten)

    def error(self):
        """The largest error of any total, relative to the largest number in it; infinite if one has other points."""
        own = [self.own(i) for i in self.living if i not in self.forgotten]
        estates = [sums for i in self.living for sums in self.states[i].memory.estates.values()]
        truth = added([*own, *estates], outputs=self.agent.outputs)
        worst = 0.0
        for i in self.living:
            if i in self.forgotten:
                continue
            total = self.total(i)
            if total.order != truth.order or total.samples != truth.samples:
                return np.inf
            for ours, theirs in ((total.moments, truth.moments), (total.weights, truth.weights)):
                size = np.abs(theirs).max(initial=1e-300)
                worst = max(worst, float(np.abs(ours - theirs).max(initial=0.0) / size))
        return worst

    def is_exact(self):
        return self.rolls_are_right() and self.error() <= 1e-10

    def counted_twice(self, i):
        """By how many samples the total of agent i exceeds the samples of all members on its roll."""
        state, roll = self.states[i], self.roll(i)
        most = sum(self.own(j).samples for j in self.states if roll >> j & 1)
        return state.model.own.samples + state.model.others.samples - most

    def rolls_are_disjoint(self, i):
        """Whether no member is in two of the sums that agent i adds up."""
        memory = self.states[i].memory
        rolls = [1 << i, *(sums.roll for sums in memory.estates.values())]
        rolls += [sums.roll for _, sums in memory.inbox(memory.near)]
        overlap = memory.others.roll >> i & 1
        union = functools.reduce(operator.or_, rolls)
        return not overlap and sum(roll.bit_count() for roll in rolls) == union.bit_count()

    def trees(self):
        return {i: self.states[i].memory.tree for i in self.living}

    def is_one_tree(self):
        """Whether the living have one root, the smallest of them, and their parents form a spanning tree."""
        trees = self.trees()
        parents = nx.DiGraph({i: [] if tree.parent == NOBODY else [tree.parent] for i, tree in trees.items()})
        roots = [i for i in parents if not parents[i]]
        return (
            nx.is_arborescence(parents.reverse())
            and roots == [min(trees)]
            and {t.root for t in trees.values()} == {min(trees)}
        )

    def depth(self):
        return max(tree.hops for tree in self.trees().values())

    def accuracy(self, points, labels):
        """The accuracy of each living agent, in percent."""
        return {i: 100.0 * float(np.mean(self.states[i].function(points).argmax(1) == labels)) for i in self.living}


# -- graphs --------------------------------------------------------------------------------------------------------------


def of_edges(agents, edges):
    neighbors = [set() for _ in range(agents)]
    for i, j in edges:
        neighbors[i].add(int(j))
        neighbors[j].add(int(i))
    return neighbors


def random_tree(agents, seed):
    rng, place = np.random.default_rng(seed), np.random.default_rng(seed).permutation(agents)
    return of_edges(agents, [(place[i], place[int(rng.integers(i))]) for i in range(1, agents)])


def random_graph(agents, seed, degree=3.6):
    """A connected graph."""
    rng = np.random.default_rng(seed)
    while True:
        ties = np.triu(rng.random((agents, agents)) < degree / (agents - 1), 1)
        neighbors = of_edges(agents, np.argwhere(ties))
        if is_connected(neighbors, range(agents)):
            return neighbors


def is_connected(neighbors, members):
    """Whether these members are connected without the others."""
    members = set(members)
    return nx.is_connected(nx.Graph({i: set(neighbors[i]) & members for i in members}))


def half(neighbors):
    """About half of a graph, connected, whose rest is connected as well if that can be had."""
    agents = len(neighbors)
    reached, order = {agents - 1}, [agents - 1]
    for i in order:
        order += sorted(set(neighbors[i]) - reached)
        reached |= set(neighbors[i])
    sides = [set(order[:k]) for k in range(agents // 2, 1, -1)]
    return next((side for side in sides if is_connected(neighbors, set(range(agents)) - side)), sides[0])
