"""Numbers about a round: how well the network predicts, how far its agents are apart, what it cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.losses import Loss
from kernelmesh.runtimes.simulation import Round

__all__ = ["AgentMeasures", "Measures", "accuracies", "disagreement", "edge_disagreements", "errors", "losses", "measure"]
__all__ += ["measure_agents", "projection_gap", "summarize"]


def losses(functions: Sequence[Expansion], loss: Loss, points: Floats, targets: Any) -> Floats:
    """The mean loss of each agent on the given samples; their sum is the paper's global objective Σ_i E[ℓ(f_i(x), y)]."""
    checked = loss.check("losses", targets, rows=len(points), outputs=functions[0].outputs)
    return np.array([loss.value(f(points), checked).mean() for f in functions])


def accuracies(functions: Sequence[Expansion], points: Floats, labels: Any) -> Floats:
    """The share of points that each agent puts into the right class."""
    return np.array([(f(points).argmax(axis=1) == labels).mean() for f in functions])


def errors(functions: Sequence[Expansion], points: Floats, targets: Any) -> Floats:
    """The root mean square error of each agent, over all outputs."""
    goal = np.asarray(targets, dtype=np.float64).reshape(len(points), -1)
    return np.array([math.sqrt(((f(points) - goal) ** 2).mean()) for f in functions])


def disagreement(functions: Sequence[Expansion], graph: Graph) -> float:
    """Σ_(i,j)∈E ‖f_i − f_j‖² in the Hilbert norm; as in the paper, both directions of an edge count."""
    return float(sum(2.0 * edge_disagreements(functions, graph)))


def edge_disagreements(functions: Sequence[Expansion], graph: Graph) -> Floats:
    """‖f_i − f_j‖² in the Hilbert norm along each edge, in the order of `graph.edges`."""
    squares = [f.inner(f) for f in functions]
    out = np.zeros(len(graph.edges))
    for n, (i, j) in enumerate(graph.edges):
        inner = float((functions[i].weights * functions[j].evaluate(functions[i].centers)).sum())
        out[n] = max(squares[i] + squares[j] - 2.0 * inner, 0.0)
    return out


def projection_gap(now: Round) -> tuple[float, float]:
    """How far compression bent the network's gradient in this round, and the bound of Proposition 1 for it.

    ‖∇̃ − ∇‖ = √(Σ_i (‖f_i − f̃_i‖ / η)²) ≤ ε V / η; rounds in which no agent moved give (0, 0).
    """
    steps = [info for info in now.infos if info is not None and info.step_size > 0]
    if not steps:
        return 0.0, 0.0
    gap = math.sqrt(sum((info.error / info.step_size) ** 2 for info in steps))
    return gap, len(now.states) * max(info.budget / info.step_size for info in steps)


@dataclass(frozen=True, kw_only=True)
class Measures:
    """One line of a run's record.

    Attributes
    ----------
    round : int
        Rounds so far.
    samples : int
        The most samples any agent has seen.
    objective : float
        Σ_i E[ℓ(f_i(x), y)], as printed in the paper, over held-out samples.
    regularized_objective : float
        The objective + (λ/2) Σ_i ‖f_i‖².
    disagreement : float
        Σ_(i,j)∈E ‖f_i − f_j‖² in the Hilbert norm, over both directions of every edge.
    score_mean, score_worst : float
        Held-out accuracy for class targets, root mean square error for values; over the agents.
    order_mean, order_max : float and int
        Points in the dictionaries.
    penalty : float
        The largest c in force.
    projection_gap, projection_bound : float
        How far compression bent the network's gradient, and the bound of Proposition 1 for it.
    floats_per_sample, bytes_per_sample : float
        What all agents sent over all edges, divided by the samples that all of them learned from.
    over_budget : int
        Agents whose cap on the model order made them exceed the budget in this round.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Squared, simulate
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> *_, last = simulate(agent, Graph.line(1), [ArrayStream(x, np.sin(3 * x))])
    >>> measure(last, agent=agent, graph=Graph.line(1), points=x, targets=np.sin(3 * x)).samples
    64
    """

    round: int
    samples: int
    """The most samples any agent has seen."""
    objective: float
    """Σ_i E[ℓ(f_i(x), y)], as printed in the paper, over held-out samples."""
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
    """Numbers that all agents sent over all edges, divided by the samples that all of them learned from."""
    bytes_per_sample: float
    over_budget: int
    """Agents whose cap on the model order made them exceed the budget in this round."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentMeasures:
    """The same round agent by agent and edge by edge: what `Measures` sums up.

    Attributes
    ----------
    losses : ndarray
        The mean held-out loss of each agent.
    scores : ndarray
        Held-out accuracy for class targets, root mean square error for values; of each agent.
    disagreements : ndarray
        ‖f_i − f_j‖² in the Hilbert norm along each edge, in the order of `graph.edges`.
    """

    losses: Floats
    scores: Floats
    disagreements: Floats


def measure(now: Round, *, agent: Agent, graph: Graph, points: Floats, targets: Any) -> Measures:
    """Take all measures of a round on held-out samples.

    Parameters
    ----------
    now : Round
        The round, as `simulate` gives it.
    agent : Agent
        The settings of the agents.
    graph : Graph
        Who talks to whom.
    points : ndarray of shape (rows, dimension)
        Held-out points.
    targets : array-like
        Their targets: class numbers, or values.

    Returns
    -------
    Measures
        How well the network predicts, how far its agents are apart, and what it cost.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Squared, simulate
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> x, graph = np.linspace(-1, 1, 64)[:, None], Graph.line(1)
    >>> *_, last = simulate(agent, graph, [ArrayStream(x, np.sin(3 * x))])
    >>> measure(last, agent=agent, graph=graph, points=x, targets=np.sin(3 * x)).disagreement
    0.0
    """
    return summarize(now, measure_agents(now, agent=agent, graph=graph, points=points, targets=targets), agent=agent)


def measure_agents(now: Round, *, agent: Agent, graph: Graph, points: Floats, targets: Any) -> AgentMeasures:
    """Every agent's loss and score on held-out samples, and the disagreement along every edge."""
    checked = agent.loss.check("measure", targets, rows=len(points), outputs=agent.outputs)
    outputs = [f(points) for f in now.functions]
    if agent.loss.classifies:
        scores = [float((z.argmax(axis=1) == checked).mean()) for z in outputs]
    else:
        scores = [math.sqrt(((z - checked) ** 2).mean()) for z in outputs]
    return AgentMeasures(
        losses=np.array([agent.loss.value(z, checked).mean() for z in outputs]),
        scores=np.array(scores),
        disagreements=edge_disagreements(now.functions, graph),
    )


def summarize(now: Round, found: AgentMeasures, *, agent: Agent) -> Measures:
    """One line of a record from what was measured of each agent."""
    objective = float(sum(found.losses))
    worst = min if agent.loss.classifies else max
    orders = [f.order for f in now.functions]
    infos = [info for info in now.infos if info is not None]
    gap, bound = projection_gap(now)
    learned = max(sum(now.samples), 1)
    return Measures(
        round=now.number,
        samples=max(now.samples),
        objective=objective,
        regularized_objective=objective + sum(_regularizer(agent, state) for state in now.states),
        disagreement=float(sum(2.0 * found.disagreements)),
        score_mean=float(np.mean(found.scores)),
        score_worst=float(worst(found.scores)),
        order_mean=float(np.mean(orders)),
        order_max=max(orders),
        penalty=max((info.penalty for info in infos), default=0.0),
        projection_gap=gap,
        projection_bound=bound,
        floats_per_sample=float(now.floats_sent.sum()) / learned,
        bytes_per_sample=float(now.bytes_sent.sum()) / learned,
        over_budget=sum(info.over_budget for info in infos),
    )


def _regularizer(agent: Agent, state: State) -> float:
    """λ/2 ‖f‖², or its share in one sample with rules that weigh it against the sum of all losses."""
    weight = 0.5 * cast(float, agent.regularization) / (1 if agent.rule.takes_step_size else max(state.samples, 1))
    carried = state.model.square_norm
    return weight * (state.function.inner(state.function) if math.isnan(carried) else carried)
