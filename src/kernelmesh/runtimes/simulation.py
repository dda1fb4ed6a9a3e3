"""The simulation: all agents in lock step. It defines the rounds that every other runtime must reproduce."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats, integer
from kernelmesh.errors import InvalidArgument, UnstablePenalty, Verbatim
from kernelmesh.numerics.graphs import Graph
from kernelmesh.protocols import ConsensusProtocol
from kernelmesh.runtimes.blas_threads import BlasThreads
from kernelmesh.runtimes.engines.base import Engine, InProcess, LostShard
from kernelmesh.runtimes.faults import Faults
from kernelmesh.runtimes.plan import Plan, Planner
from kernelmesh.runtimes.round import Round
from kernelmesh.runtimes.shard import Facts
from kernelmesh.streams import Batch

__all__ = ["Round", "simulate", "stability_warning"]


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

    In a round, every agent with samples left takes a mini-batch and queries its neighbors; all reply from their function when
    the round began; then all of them step. An agent whose stream has ended still replies, and still sends its function if the
    protocol sends functions, but receives none. If a protocol exchanges only in every k-th round, agents just step in the
    others; rounds are counted by the agents' steps, so that a resumed run keeps the same rhythm.

    If agents share sums (`Relay`), all of them take part in every round, with samples or without. The first rounds only form
    the network; after the streams have ended, rounds go on until all agents have the sums of all samples. Agents that are
    absent when all others have finished are not waited for.

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
        Where agents run: by default in this process, or in others (`Processes`, `RayEngine`). The
        rounds are the same; states are fetched on demand, before the next round.
    settle : int, optional
        The maximum number of rounds after the streams have ended, if agents share sums; by default, enough for a line.

    Returns
    -------
    iterator of Round
        The rounds, each computed on demand.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Penalty, Squared
    >>> agent = Agent(
    ...     dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5,
    ...     compression=Komp(budget=0.01), protocol=Penalty(coupling=0.1),
    ... )
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> streams = [ArrayStream(x, np.sin(3 * x)) for _ in range(3)]
    >>> for round in simulate(agent, Graph.ring(3), streams):
    ...     print(round.number, round.samples)
    1 (32, 32, 32)
    2 (64, 64, 64)
    """
    graph = Graph.of(graph)
    _check("agent", agent, Agent, "an Agent")
    _check("faults", faults, Faults | None, "a Faults or None", remedy="for example Faults(drop=0.1)")
    remedy = "for example Processes(2) from kernelmesh.runtimes.engines"
    _check("engine", engine, Engine | None, "an engine or None", remedy=remedy)
    _check("streams", streams, Collection, "a sequence of streams", remedy="one for each agent")
    _check("states", states, Collection | None, "a sequence of states or None", remedy="one for each agent")
    for i, stream in enumerate(streams):
        _check(
            f"streams[{i}]",
            stream,
            Iterable,
            "an iterable of mini-batches",
            remedy="for example ArrayStream(points, targets)",
        )
    for name, given in (("streams", streams), ("states", states)):
        if given is not None and len(given) != len(graph):
            rule = f"be one for each of {len(graph)} agents"
            raise InvalidArgument("simulate", name, rule, Verbatim(f"{len(given)} {name}"))
    for i, state in enumerate(states or ()):
        _check(f"states[{i}]", state, State, "a State", remedy="Agent.start() makes one")
        agent.check_state("simulate", state)
    if faults is not None:
        faults.check(graph)
        if faults.byzantine and agent.protocol.shares:
            rule = f"have no byzantine agents with the protocol {type(agent.protocol).__name__}"
            remedy = "attacks distort functions and values; to simulate a lying member, give it false labels"
            raise InvalidArgument("simulate", "faults", rule, Verbatim("some"), remedy=remedy)
    # checked at the call; the generator below only starts with the first round
    rest = None if settle is None else integer("simulate", "settle", settle, minimum=0)
    return _rounds(agent, graph, streams, None if states is None else _numbered(agent, states), faults, engine, rest)


# Rounds after the streams have ended, for each agent, as sums go up a line and down again; and waves, as models improve.
_ROUNDS_PER_AGENT, _WAVES = 100, 100


def _numbered(agent: Agent, states: Sequence[State]) -> list[State]:
    """The states, where agents share sums numbered as in the graph."""
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


def _check(name: str, given: Any, kind: Any, what: str, *, remedy: str = "") -> None:
    if not isinstance(given, kind) or isinstance(given, type):
        raise InvalidArgument("simulate", name, f"be {what}", given, remedy=remedy)


def _rounds(
    agent: Agent,
    graph: Graph,
    streams: Sequence[Iterable[Batch]],
    states: list[State] | None,
    faults: Faults | None,
    engine: Engine | None,
    settle: int | None,
) -> Iterator[Round]:
    shards = InProcess() if engine is None else engine
    planner, threads = Planner(agent, graph, faults), BlasThreads()
    shards.start(agent, graph, streams, states)
    number = shown = resting = 0
    limit = settle if settle is not None else _ROUNDS_PER_AGENT * len(graph) + _WAVES * agent.protocol.every
    largest = max((state.function.order for state in states or ()), default=0)
    while True:
        number += 1
        try:
            facts = shards.call("take", planner.away(number))
            if not any(each.waits for each in facts):
                if all(each.settled for each in facts):
                    return
                if resting >= limit:
                    if settle is None:
                        _warn_of_limit(resting)
                    return
                resting += 1
            learns, furthest = _who_learns(planner, facts)
            if number == 1:
                _warn_if_unstable(agent, graph, streams, states, shards)
            with threads.limited(largest):
                now = _round(shards, planner.plan(number, learns, furthest), agent.protocol)
        except LostShard as lost:
            number = shards.recover(lost)
            planner.rewind(number)
            continue
        largest = max(now.orders)
        if number > shown:  # rounds that are computed again have been seen
            shown = number
            yield now
        del now  # whoever has not kept it lets go of the states before the next ones are made


def _warn_of_limit(rounds: int) -> None:
    warnings.warn(
        f"simulate: agents still differ {rounds} rounds after their streams have ended; continue from the states of the last "
        "round, or lose fewer messages",
        RuntimeWarning,
        stacklevel=4,
    )


def _round(shards: Engine, plan: Plan, protocol: ConsensusProtocol) -> Round:
    said: Any = None
    if plan.talks:
        said = shards.exchange("ask", None, plan)
        if protocol.question:
            said = shards.exchange("answer", said)
    return shards.step(plan.number, said)


def _who_learns(planner: Planner, facts: Sequence[Facts]) -> tuple[NDArray[np.bool_], int]:
    """By agent, whether it learns in a round; and the largest number of steps that any of these has taken."""
    learns = np.zeros(planner.agents, dtype=bool)
    learns[[i for each in facts for i in each.learns]] = True
    return learns, max(each.furthest for each in facts)


# How many rounds to look ahead where nobody knows how long a stream is.
_UNKNOWN = 100_000


def _warn_if_unstable(
    agent: Agent, graph: Graph, streams: Sequence[Any], states: Sequence[State] | None, shards: Engine
) -> None:
    """Warn before the first step if the penalty will eventually be too large for the step size."""
    if len(graph) == 1 or type(agent.protocol).max_stable_penalty is ConsensusProtocol.max_stable_penalty:
        return
    points = [each for part in shards.call("points") for each in part]
    if not points:
        return
    rounds = max(len(stream) if isinstance(stream, Sized) else _UNKNOWN for stream in streams)
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
