"""Simulated faults: changing edges, lost messages, absent agents, and Byzantine agents; and the plan of each round."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kernelmesh.checks import generator, integer, non_negative
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.messages import Message, SentFunction
from kernelmesh.numerics.graphs import Graph, metropolis_weight, share
from kernelmesh.runtimes.attacks import Attack

__all__ = ["Faults", "Lie", "Plan", "Tie"]


class Tie(NamedTuple):
    """An agent's view of one edge in one round."""

    number: int
    """The neighbor's number in the graph."""
    name: Hashable
    weight: float
    """The Metropolis weight of the edge, over the edges that are there in this round."""


class Lie(NamedTuple):
    """What a bad agent does in one round."""

    attack: Attack
    number: int
    first: int
    """The round in which the attack began."""
    seed: int

    def told(self, message: Message, first: Message, sender: int, receiver: int) -> Message:
        """What is said instead of a message; `first` is what was said over this edge when the attack began."""
        # one generator for each message, so that a lie is the same wherever and in whichever order it is computed
        rng = np.random.default_rng([self.seed, self.number, sender, receiver])
        said = self.attack.distort(message, first, self.number - self.first, rng)
        _check_shapes(said, message)
        return said


def _check_shapes(said: Message, message: Message) -> None:
    """Refuse what could not be sent over a wire."""
    if type(said) is not type(message):
        rule = f"return a message of the same type, {type(message).__name__}"
        raise InvalidArgument("Attack", "distort", rule, Verbatim(type(said).__name__))
    if not isinstance(said, SentFunction) or not isinstance(message, SentFunction):
        return
    points = len(said.points)
    wanted = {"points": (points, message.points.shape[1]), "weights": (points, message.weights.shape[1])}
    for name, shape in wanted.items():
        found = getattr(said, name).shape
        if found != shape:
            raise InvalidArgument("Attack", f"distort: {name}", f"have shape {shape}", Verbatim(str(found)))


class Plan(NamedTuple):
    """Who talks to whom in a round, whatever the agents have learned: the same wherever they are."""

    talks: bool
    """Whether agents exchange messages in this round."""
    learns: Set[int]
    """The agents that have a mini-batch and are there."""
    ties: Sequence[Sequence[Tie]] | None = None
    """Who hears whom; None if as in the graph."""
    lost: Set[tuple[int, int]] = frozenset()
    """The questions, functions or sums, (from, to), that are lost."""
    unanswered: Set[tuple[int, int]] = frozenset()
    """The answers, (from, to), that are lost."""
    lies: Mapping[int, Lie] = {}
    """By agent: its attack in this round."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Faults to simulate; by default there are none.

    Parameters
    ----------
    edges : sequence of edge lists or callable, optional
        The edges in each round: edge lists that are cycled through, or a function of the
        round number (from 1). An edge list contains pairs of names and need not connect all agents.
    drop : float
        The probability that a message is lost; if it is not 0, `rng` is required.
    absent : mapping of Hashable to sequence of (int, int)
        The rounds (first, last) in which an agent is absent: it neither learns nor sends, and its stream waits.
    byzantine : mapping of Hashable to sequence of (Attack, int, int)
        The attacks of each bad agent, with the first and the last round of each: it learns like all others, but sends
        something else. `kernelmesh.runtimes.attacks` has a table of attacks.
    rng : numpy.random.Generator, optional
        The generator for lost messages and random attacks, required if there are any. A run uses it up: to repeat the run,
        pass a new one with the same seed.

    Examples
    --------
    >>> Faults(edges=[[(0, 1)], [(1, 2)]], absent={2: [(10, 20)]}).away(2, 15)
    True
    """

    edges: Sequence[Iterable[Any]] | Callable[[int], Iterable[Any]] | None = None
    drop: float = 0.0
    absent: Mapping[Hashable, Sequence[tuple[int, int]]] = field(default_factory=dict)
    byzantine: Mapping[Hashable, Sequence[tuple[Attack, int, int]]] = field(default_factory=dict)
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        if non_negative("Faults", "drop", self.drop) >= 1.0:
            raise InvalidArgument("Faults", "drop", "be a probability >= 0 and < 1", self.drop)
        if self.drop > 0:
            generator("Faults", self.rng)
        if not (self.edges is None or callable(self.edges)) and not _are_lists(self.edges):
            rule = "be a list of at least one edge list (one for each round), or a function of the round's number"
            raise InvalidArgument("Faults", "edges", rule, self.edges)
        self._check_spans("absent", "be a list of pairs (first round, last round), counted from 1", 2)
        if self.byzantine:
            generator("Faults", self.rng)
        self._check_spans("byzantine", "be a list of triples (attack, first round, last round), counted from 1", 3)

    def _check_spans(self, name: str, rule: str, length: int) -> None:
        """Reject anything but a mapping from agents to lists of spans, each ending with its first and last round."""
        given = getattr(self, name)
        if not isinstance(given, Mapping):
            raise InvalidArgument("Faults", name, "be a mapping from agents to lists", given)
        for agent, spans in given.items():
            argument = f"{name}[{agent!r}]"
            if not isinstance(spans, Sequence) or not all(isinstance(s, Sequence) and len(s) == length for s in spans):
                raise InvalidArgument("Faults", argument, rule, spans)
            for *what, first, last in spans:
                if not all(isinstance(each, Attack) and not isinstance(each, type) for each in what):
                    raise InvalidArgument(
                        "Faults", argument, rule, tuple(what), remedy="for example (Scaled(factor=-1.0), 100, 200)"
                    )
                integer("Faults", argument, first, minimum=1)
                if integer("Faults", argument, last, minimum=1) < first:
                    raise InvalidArgument("Faults", argument, rule, (first, last))

    def check(self, graph: Graph) -> None:
        """Reject agents that are not in the network."""
        for name in ("absent", "byzantine"):
            for agent in getattr(self, name):
                if agent not in graph.names:
                    raise InvalidArgument("Faults", name, f"name agents among {graph.names[:5]}…", agent)

    def away(self, name: Hashable, number: int) -> bool:
        """Whether an agent is absent in a round."""
        return any(first <= number <= last for first, last in self.absent.get(name, ()))

    @property
    def _are_none(self) -> bool:
        return self.edges is None and not (self.drop or self.absent or self.byzantine)

    def absent_from(self, graph: Graph, number: int) -> frozenset[int]:
        """The agents that are absent in a round."""
        return frozenset(graph.names.index(name) for name in self.absent if self.away(name, number))

    def seed(self) -> int:
        """A seed for random attacks."""
        return int(self.rng.integers(1 << 62)) if self.byzantine and self.rng is not None else 0

    def plan(self, graph: Graph, number: int, learns: Set[int], *, talks: bool, asks: bool, seed: int) -> Plan:
        """The plan of a round; each call draws other losses."""
        if self._are_none:
            return Plan(talks, learns)
        ties, lost, unanswered = self.ties(graph, number), frozenset[tuple[int, int]](), frozenset[tuple[int, int]]()
        if talks and self.drop > 0:
            pairs = [(i, tie.number) for i, around in enumerate(ties) for tie in around]
            lost = frozenset(pair for pair in pairs if self._loses())
            if asks:
                unanswered = frozenset((j, i) for i, j in pairs if i in learns and (i, j) not in lost and self._loses())
        lies = {
            i: Lie(attack, number, first, seed)
            for i, name in enumerate(graph.names)
            for attack, first, last in self.byzantine.get(name, ())
            if first <= number <= last
        }
        return Plan(talks, learns, ties, lost, unanswered, lies)

    def _loses(self) -> bool:
        """Whether the next message is lost."""
        return self.rng is not None and bool(self.rng.random() < self.drop)

    def ties(self, graph: Graph, number: int) -> list[list[Tie]]:
        """The views of all edges in a round, with Metropolis weights over the present edges."""
        here = [not self.away(name, number) for name in graph.names]
        around: list[set[int]] = [set() for _ in graph.names]
        for i, j in self._pairs(graph, number):
            if here[i] and here[j]:
                around[i].add(j)
                around[j].add(i)
        shares = [share(len(near)) for near in around]
        return [
            [Tie(j, graph.names[j], metropolis_weight(shares[i], shares[j])) for j in sorted(near)]
            for i, near in enumerate(around)
        ]

    def _pairs(self, graph: Graph, number: int) -> Iterable[tuple[int, int]]:
        if self.edges is None:
            return graph.edges
        listed = self.edges(number) if callable(self.edges) else self.edges[(number - 1) % len(self.edges)]
        if not isinstance(listed, Iterable):
            raise InvalidArgument("Faults", "edges", f"give a list of edges (round {number})", listed)
        index = {name: i for i, name in enumerate(graph.names)}
        pairs = []
        for edge in listed:
            pair = tuple(edge) if isinstance(edge, Iterable) and not isinstance(edge, str) else ()
            known = len(pair) == 2 and all(isinstance(end, Hashable) and end in index for end in pair)
            if not known or pair[0] == pair[1]:
                rule = f"be two different agents of the network (round {number})"
                raise InvalidArgument("Faults", "each edge", rule, Verbatim(repr(edge)))
            pairs.append((index[pair[0]], index[pair[1]]))
        return pairs


def _are_lists(edges: Any) -> bool:
    """Whether these are edge lists that can be iterated over again and again."""
    return isinstance(edges, Sequence) and len(edges) > 0 and all(isinstance(listed, Collection) for listed in edges)
