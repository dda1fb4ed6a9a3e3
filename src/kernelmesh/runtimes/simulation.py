"""The simulation: all agents in lock step. It defines the rounds that every other runtime must reproduce."""

import itertools
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats, integer
from kernelmesh.errors import InvalidArgument, UnstablePenalty, Verbatim
from kernelmesh.numerics.graphs import Graph
from kernelmesh.protocols import ConsensusProtocol
from kernelmesh.runtimes.faults import Faults, Plan
from kernelmesh.runtimes.round import Round
from kernelmesh.runtimes.shard import Facts, Shard
from kernelmesh.streams import Batch

__all__ = ["Engine", "Network", "Round", "simulate", "stability_warning"]


class Network(Protocol):
    """All agents, wherever they are. What they say may stay where it was said until it is needed elsewhere."""

    def take(self, absent: frozenset[int]) -> Facts:
        """Take a mini-batch for every agent whose stream continues, and check those that will be used."""

    def points(self) -> list[Floats]:
        """The points of the current mini-batches."""

    def speak(self, plan: Plan) -> Any:
        """What all agents say, from their states before the round: sums, functions or questions."""

    def answer(self, questions: Any) -> Any:
        """The answers to all questions."""

    def step(self, number: int, said: Any) -> Round:
        """Every agent hears what was said to it, and learns."""


@runtime_checkable
class Engine(Protocol):
    """Where agents run: in worker processes (`Processes`) or on a Ray cluster (`RayEngine`)."""

    def start(
        self, agent: Agent, graph: Graph, streams: Sequence[Iterable[Batch]], states: Sequence[State] | None
    ) -> Network:
        """Start a network, which replaces the previous one."""


def simulate(
    agent: Agent,
    graph: Any,
    streams: Sequence[Iterable[Batch]],
    *,
    states: Sequence[State] | None = None,
    faults: Faults | None = None,
    engine: Engine | None = None,
    settle: int | None = None,
) -> Iterator[Round]:
    """Run one agent per node of a graph, all with the same settings, until every stream has ended.

    In a round all agents speak, then all that have samples left step. If agents share sums (`Relay`), all take part in every
    round, and after the streams have ended rounds go on until all agents present have the sums of all samples.

    Parameters
    ----------
    agent : Agent
        The settings of every agent.
    graph : Graph, networkx graph or list of edges
        The communication graph: anything that `Graph.of` accepts.
    streams : sequence of Stream
        The mini-batches of each agent.
    states : sequence of State, optional
        The initial states; by default, every agent starts from scratch.
    faults : Faults, optional
        Simulated faults: lost messages, absent agents, changing networks.
    engine : Engine, optional
        Where agents run, if not in this process: `Processes` or `RayEngine`. The rounds are the same.
    settle : int, optional
        The maximum number of rounds after the streams have ended, if agents share sums; by default, enough for a line.

    Returns
    -------
    iterator of Round
        Each round as soon as all agents have stepped.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Gradient, Graph, Penalty, Squared
    >>> learner, protocol = Gradient(step_size=0.5), Penalty(coupling=0.1)
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=learner, protocol=protocol)
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> for round in simulate(agent, Graph.ring(3), [ArrayStream(x, np.sin(3 * x))] * 3):
    ...     print(round.number, round.samples)
    1 (32, 32, 32)
    2 (64, 64, 64)
    """
    graph = _checked(agent, graph, streams, states, faults, engine, settle=settle)  # before the first round
    return _rounds(agent, graph, streams, _numbered(agent, states), faults=faults, engine=engine, settle=settle)


def _rounds(
    agent: Agent,
    graph: Graph,
    streams: Sequence[Iterable[Batch]],
    states: Sequence[State] | None,
    *,
    faults: Faults | None,
    engine: Engine | None,
    settle: int | None,
) -> Iterator[Round]:
    open_network = Shard if engine is None else engine.start
    network: Network = open_network(agent, graph, streams, states)
    faults = Faults() if faults is None else faults
    seed, resting, asks = faults.seed(), 0, agent.protocol.question is not None
    for number in itertools.count(1):
        facts = network.take(faults.absent_from(graph, number))
        resting += not facts.waits
        if not facts.waits and (facts.settled or _gives_up(agent, graph, resting, settle)):
            return
        if number == 1:
            _warn_if_unstable(agent, graph, streams, states, network)
        # an agent that has been away has taken fewer steps, and keeps to the rhythm of the others
        talks = agent.protocol.exchanges(facts.furthest + 1)
        plan = faults.plan(graph, number, frozenset(facts.learns), talks=talks, asks=asks, seed=seed)
        said = network.speak(plan)  # before anybody steps
        if asks:
            said = network.answer(said)
        yield network.step(number, said)


def _gives_up(agent: Agent, graph: Graph, resting: int, settle: int | None) -> bool:
    """Whether agents have had their rounds after the streams have ended."""
    # rounds for each agent, as sums go up a line and down again; and waves, as models improve
    limit = 100 * len(graph) + 100 * agent.protocol.every if settle is None else settle
    if resting <= limit:
        return False
    if settle is None:
        text = f"simulate: agents still differ {limit} rounds after their streams have ended"
        remedy = "continue from the states of the last round, or lose fewer messages"
        warnings.warn(f"{text}; {remedy}", RuntimeWarning, stacklevel=3)
    return True


def _checked(agent: Any, network: Any, streams: Any, states: Any, faults: Any, engine: Any, *, settle: Any) -> Graph:
    """The graph; rejects arguments of `simulate` that do not fit."""
    graph: Graph = Graph.of(network)
    _check("agent", agent, Agent, "an Agent")
    _check("faults", faults, Faults | None, "a Faults or None", remedy="for example Faults(drop=0.1)")
    remedy = "for example Processes(2) from kernelmesh.runtimes.engines"
    _check("engine", engine, Engine | None, "an engine or None", remedy=remedy)
    if settle is not None:
        integer("simulate", "settle", settle, minimum=0)
    _check("streams", streams, Collection, "a sequence of streams", remedy="one for each agent")
    _check("states", states, Collection | None, "a sequence of states or None", remedy="one for each agent")
    for name, given in (("streams", streams), ("states", states)):
        if given is not None and len(given) != len(graph):
            rule = f"be one for each of {len(graph)} agents"
            raise InvalidArgument("simulate", name, rule, Verbatim(f"{len(given)} {name}"))
    for i, stream in enumerate(streams):
        remedy = "for example ArrayStream(points, targets)"
        _check(f"streams[{i}]", stream, Iterable, "an iterable of mini-batches", remedy=remedy)
    for i, state in enumerate(states or ()):
        _check(f"states[{i}]", state, State, "a State", remedy="Agent.start() makes one")
        agent.check_state("simulate", state)
    if faults is not None:
        faults.check(graph)
        if faults.byzantine and agent.protocol.shares:
            rule = f"have no byzantine agents with the protocol {type(agent.protocol).__name__}"
            remedy = "attacks distort functions and values; to simulate a lying member, give it false labels"
            raise InvalidArgument("simulate", "faults", rule, Verbatim("some"), remedy=remedy)
    return graph


def _check(name: str, given: Any, kind: Any, what: str, *, remedy: str = "") -> None:
    if not isinstance(given, kind) or isinstance(given, type):
        raise InvalidArgument("simulate", name, f"be {what}", given, remedy=remedy)


def _numbered(agent: Agent, states: Sequence[State] | None) -> list[State] | None:
    """The states, where agents share sums numbered as in the graph."""
    if states is None:
        return None
    out = []
    for number, state in enumerate(states):
        memory = state.memory
        if memory is not None and memory.tree.name != number:
            if memory.tree.clock:
                rule = f"have the number {number}, its place in the graph"
                raise InvalidArgument("simulate", f"states[{number}]", rule, Verbatim(f"number {memory.tree.name}"))
            function = state.function if state.function.order else None
            state = agent.start(name=state.name, function=function, number=number)
        out.append(state)
    return out


def _warn_if_unstable(
    agent: Agent, graph: Graph, streams: Sequence[Any], states: Sequence[State] | None, network: Network
) -> None:
    """Warn before the first step if the penalty will eventually be too large for the step size."""
    if len(graph) == 1 or type(agent.protocol).max_stable_penalty is ConsensusProtocol.max_stable_penalty:
        return
    points = network.points()
    if not points:
        return
    # of a stream whose length nobody knows, many rounds are looked at
    rounds = max(len(stream) if isinstance(stream, Sized) else 100_000 for stream in streams)
    first = max((state.samples for state in states or ()), default=0)
    warning = stability_warning(agent, points, graph, first=first, last=first + rounds * len(points[0]))
    if warning is not None:
        warnings.warn(warning, UnstablePenalty, stacklevel=3)


def stability_warning(agent: Agent, batches: Sequence[Floats], graph: Graph, *, first: int, last: int) -> str | None:
    """A warning if the penalty will be too large for mini-batches like these within a range of samples, or None.

    docs/consensus.md derives the bound. Protocols that are stable for every penalty have none.
    """
    protocol = agent.protocol
    per_step = protocol.max_stable_penalty(agent.kernel, batches, 1.0, graph.stiffness)
    if per_step == np.inf:
        return None
    for samples in np.unique(np.linspace(first, max(first, last - 1), 256).astype(int)):
        penalty, step_size = protocol.penalty(int(samples)), agent.learner.step_size_at(int(samples))
        if penalty * step_size > per_step:
            when = f"reaches {penalty:.3g} after {samples} samples" if samples else f"is {penalty:.3g}"
            return (
                f"{type(protocol).__name__}: with step size {step_size:g} in this network the penalty must stay below "
                f"{per_step / step_size:.2g}, else agents drive each other apart, but it {when}; lower or cap it "
                f"(Doubling has a ceiling), lower the step size, or take another protocol (only Penalty and Hilbert "
                f"have such a bound)"
            )
    return None
