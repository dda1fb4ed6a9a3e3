"""A single learner with all the samples: its accuracy, model order and CPU time."""

import time
from dataclasses import dataclass

from kernelmesh import Agent, ArrayStream, Graph, simulate
from kernelmesh.experiments.samples import Samples
from kernelmesh.metrics import accuracies

__all__ = ["WARM_UP", "Alone", "learn_alone", "warm_up"]

WARM_UP = 512
"""Samples of a run that is not timed: enough for everything to be compiled."""


@dataclass(frozen=True, kw_only=True)
class Alone:
    """What one learner reached and what it cost."""

    accuracy: float
    model_order: int
    cpu_seconds: float
    """Of this process, for learning only: to compare them, run with one thread of the linear algebra, as cells do."""


def warm_up(agent: Agent, samples: Samples) -> None:
    """Let everything that a run needs be compiled, so that no clock counts it."""
    for _ in simulate(agent, Graph.line(1), [ArrayStream(samples.points[:WARM_UP], samples.labels[:WARM_UP])]):
        pass


def learn_alone(agent: Agent, stream: ArrayStream, samples: Samples) -> Alone:
    """Learn from a stream until it ends; the accuracy is that on the held-out samples."""
    began = time.process_time()
    *_, last = simulate(agent, Graph.line(1), [stream])
    seconds = time.process_time() - began
    accuracy = accuracies(last.functions, samples.held_points, samples.held_labels)[0]
    return Alone(accuracy=float(accuracy), model_order=last.functions[0].order, cpu_seconds=seconds)
