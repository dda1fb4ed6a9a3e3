"""Metrics of a round: accuracy, disagreement and cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmesh.agent import Agent
from kernelmesh.checks import Floats, Ints, integer
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.losses import Loss
from kernelmesh.runtimes.round import Round

__all__ = ["AgentMeasures", "Measures", "accuracies", "disagreement", "edge_disagreements", "errors", "losses", "measure"]
__all__ += ["measure_agents", "projection_gap", "summarize"]


def losses(functions: Sequence[Function], loss: Loss, points: Floats, targets: Any) -> Floats:
    """The mean loss of each agent on the given samples; the sum is the paper's global objective Σ_i E[ℓ(f_i(x), y)]."""
    checked = loss.check("losses", targets, rows=len(points), outputs=functions[0].outputs)
    return np.array([loss.value(f(points), checked).mean() for f in functions])


def accuracies(functions: Sequence[Function], points: Floats, labels: Any) -> Floats:
    """The accuracy of each agent."""
    return np.array([(f(points).argmax(axis=1) == labels).mean() for f in functions])


def errors(functions: Sequence[Function], points: Floats, targets: Any) -> Floats:
    """The root mean square error of each agent, over all outputs."""
    goal = np.asarray(targets, dtype=np.float64).reshape(len(points), -1)
    return np.array([math.sqrt(((f(points) - goal) ** 2).mean()) for f in functions])


def disagreement(functions: Sequence[Function], graph: Graph) -> float:
    """Σ_(i,j)∈E ‖f_i − f_j‖² in the Hilbert norm; as in the paper, both directions of an edge count."""
    return float(sum(2.0 * edge_disagreements(functions, graph)))


def edge_disagreements(functions: Sequence[Function], graph: Graph) -> Floats:
    """‖f_i − f_j‖² in the Hilbert norm along each edge, in the order of `graph.edges`."""
    return _along(dict(enumerate(functions)), graph.edges)


def _along(functions: Mapping[int, Function], edges: Sequence[tuple[int, int]]) -> Floats:
    """‖f_i − f_j‖² along each of these edges."""
    squares = {i: functions[i].inner(functions[i]) for i in dict.fromkeys(i for edge in edges for i in edge)}
    out = np.zeros(len(edges))
    for n, (i, j) in enumerate(edges):
        inner = float((functions[i].weights * functions[j].evaluate(functions[i].points)).sum())
        out[n] = max(squares[i] + squares[j] - 2.0 * inner, 0.0)
    return out


def projection_gap(now: Round) -> tuple[float, float]:
    """How far compression changed the network's gradient in this round, and the bound of Proposition 1.

    ‖∇̃ − ∇‖ = √(Σ_i (‖f_i − f̃_i‖ / η)²) ≤ ε V / η; rounds in which no agent moved give (0, 0).
    """
    steps = [info for info in now.infos if info is not None and info.step_size > 0]
    if not steps:
        return 0.0, 0.0
    gap = math.sqrt(sum((info.error / info.step_size) ** 2 for info in steps))
    return gap, len(now.states) * max(info.budget / info.step_size for info in steps)


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The metrics of one round.

    Attributes
    ----------
    round : int
        The number of rounds so far.
    samples : int
        The largest number of samples that any agent has seen.
    objective : float
        Σ_i E[ℓ(f_i(x), y)], as in the paper, over held-out samples.
    regularized_objective : float
        The objective + (λ/2) Σ_i ‖f_i‖².
    disagreement : float
        Σ_(i,j)∈E ‖f_i − f_j‖² in the Hilbert norm, over both directions of every edge.
    score_mean, score_worst : float
        Held-out accuracy for class targets, root mean square error for values; over the agents.
    order_mean, order_max : float and int
        The number of points in the dictionaries.
    penalty : float
        The largest penalty c in use.
    projection_gap, projection_bound : float
        How far compression changed the network's gradient, and the bound of Proposition 1.
    floats_per_sample, bytes_per_sample : float
        The numbers and bytes sent by all agents over all edges, divided by the samples they all learned from.
    over_budget : int
        The number of agents whose limit on the model order made them exceed the budget in this round.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Gradient, Graph, Squared, simulate
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> *_, last = simulate(agent, Graph.line(1), [ArrayStream(x, np.sin(3 * x))])
    >>> measure(last, agent=agent, graph=Graph.line(1), points=x, targets=np.sin(3 * x)).samples
    64
    """

    round: int
    samples: int
    """The largest number of samples that any agent has seen."""
    objective: float
    """Σ_i E[ℓ(f_i(x), y)], as in the paper, over held-out samples."""
    regularized_objective: float
    """The objective + (λ/2) Σ_i ‖f_i‖²."""
    disagreement: float
    score_mean: float
    """Held-out accuracy for class targets, root mean square error for values; over the agents."""
    score_worst: float
    order_mean: float
    order_max: int
    penalty: float
    projection_gap: float
    projection_bound: float
    floats_per_sample: float
    """The numbers sent by all agents over all edges, divided by the samples they all learned from."""
    bytes_per_sample: float
    over_budget: int
    """The number of agents whose limit on the model order made them exceed the budget in this round."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentMeasures:
    """The metrics of one round per agent and edge, which `Measures` summarizes; NaN if only a sample was measured.

    Attributes
    ----------
    losses : ndarray
        The mean held-out loss of each agent.
    scores : ndarray
        Held-out accuracy for class targets, root mean square error for values; of each agent.
    square_norms : ndarray
        ‖f_i‖² of each agent.
    disagreements : ndarray
        ‖f_i − f_j‖² in the Hilbert norm along each edge, in the order of `graph.edges`.
    agents, edges : ndarray of int
        The indices of the measured agents and edges.
    """

    losses: Floats
    scores: Floats
    square_norms: Floats
    disagreements: Floats
    agents: Ints
    edges: Ints


def measure(now: Round, *, agent: Agent, graph: Graph, points: Floats, targets: Any, sample: int | None = None) -> Measures:
    """Compute the metrics of a round on held-out samples, for all agents or a sample of them.

    Parameters
    ----------
    now : Round
        A round yielded by `simulate`.
    agent : Agent
        The settings of the agents.
    graph : Graph
        The communication graph.
    points : ndarray of shape (rows, dimension)
        Held-out points.
    targets : array-like
        Their targets: class numbers, or values.
    sample : int, optional
        Measure at most this many agents, and the disagreement over as many edges, instead of all. Sums are
        scaled to the whole network, `score_worst` is the worst of those measured, and only their functions are fetched
        if agents are in other processes. The same round of a network always has the same sample.

    Returns
    -------
    Measures
        Accuracy, disagreement and cost.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Gradient, Graph, Squared, simulate
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))
    >>> x, graph = np.linspace(-1, 1, 64)[:, None], Graph.line(1)
    >>> *_, last = simulate(agent, graph, [ArrayStream(x, np.sin(3 * x))])
    >>> measure(last, agent=agent, graph=graph, points=x, targets=np.sin(3 * x)).disagreement
    0.0
    """
    where: dict[str, Any] = {"graph": graph, "points": points, "targets": targets, "sample": sample}
    return summarize(now, measure_agents(now, agent=agent, **where), agent=agent)


def measure_agents(
    now: Round, *, agent: Agent, graph: Graph, points: Floats, targets: Any, sample: int | None = None
) -> AgentMeasures:
    """The loss and score of every agent on held-out samples, and the disagreement along every edge; or those of a sample."""
    checked = agent.loss.check("measure", targets, rows=len(points), outputs=agent.outputs)
    agents, edges = _sampled(now, graph, sample)
    pairs = [graph.edges[e] for e in edges]
    everybody = len(agents) == len(graph) and len(edges) == len(graph.edges)
    ends = dict.fromkeys((*agents.tolist(), *(i for pair in pairs for i in pair)))
    functions = dict(enumerate(now.functions)) if everybody else now.functions_of(list(ends))
    outputs = [functions[i](points) for i in agents]
    if agent.loss.classifies:
        scores = [float((z.argmax(axis=1) == checked).mean()) for z in outputs]
    else:
        scores = [math.sqrt(((z - checked) ** 2).mean()) for z in outputs]
    carried = ((i, now.square_norms[i]) for i in agents)
    norms = [functions[i].inner(functions[i]) if math.isnan(square) else square for i, square in carried]
    return AgentMeasures(
        losses=_placed([agent.loss.value(z, checked).mean() for z in outputs], agents, len(graph)),
        scores=_placed(scores, agents, len(graph)),
        square_norms=_placed(norms, agents, len(graph)),
        disagreements=_placed(_along(functions, pairs), edges, len(graph.edges)),
        agents=agents,
        edges=edges,
    )


def _placed(values: Sequence[float] | Floats, places: Ints, length: int) -> Floats:
    """An array with these values at these positions, and NaN elsewhere."""
    out = np.full(length, np.nan)
    out[places] = values
    return out


def summarize(now: Round, found: AgentMeasures, *, agent: Agent) -> Measures:
    """Summarize the metrics of each agent; sums are scaled to the whole network."""
    whole = len(found.losses) / len(found.agents)  # exactly 1 if all are measured
    apart = float(sum(2.0 * found.disagreements[found.edges]))
    objective = float(sum(found.losses[found.agents])) * whole
    scores, worst = found.scores[found.agents], min if agent.loss.classifies else max
    orders = [now.orders[i] for i in found.agents]
    infos = [info for info in now.infos if info is not None]
    gap, bound = projection_gap(now)
    learned = max(sum(now.samples), 1)
    return Measures(
        round=now.number,
        samples=max(now.samples),
        objective=objective,
        regularized_objective=objective + whole * sum(_regularizer(agent, now, found, i) for i in found.agents),
        disagreement=apart * (len(found.disagreements) / len(found.edges) if len(found.edges) else 1.0),
        score_mean=float(np.mean(scores)),
        score_worst=float(worst(scores)),
        order_mean=float(np.mean(orders)),
        order_max=max(orders),
        penalty=max((info.penalty for info in infos), default=0.0),
        projection_gap=gap,
        projection_bound=bound,
        floats_per_sample=float(now.floats_sent.sum()) / learned,
        bytes_per_sample=float(now.bytes_sent.sum()) / learned,
        over_budget=sum(info.over_budget for info in infos),
    )


def _sampled(now: Round, graph: Graph, sample: int | None) -> tuple[Ints, Ints]:
    """The indices of the agents and edges to measure."""
    if sample is None or integer("measure", "sample", sample, minimum=1) >= len(graph):
        return np.arange(len(graph)), np.arange(len(graph.edges))
    rng = np.random.default_rng([now.number, len(graph)])
    agents = np.sort(rng.choice(len(graph), sample, replace=False))
    return agents, np.sort(rng.choice(len(graph.edges), min(sample, len(graph.edges)), replace=False))


def _regularizer(agent: Agent, now: Round, found: AgentMeasures, i: int) -> float:
    """λ/2 ‖f‖², divided by the number of samples with learners for which λ is relative to the sum of all losses."""
    divisor = max(now.samples[i], 1) if agent.learner.sums_losses else 1
    return 0.5 * agent.learner.regularization / divisor * float(found.square_norms[i])
