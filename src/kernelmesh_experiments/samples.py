"""Labeled samples for training and testing, and what single learners reach with all of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.svm import SVC

from kernelmesh import Agent, ArrayStream, Function, Graph, simulate
from kernelmesh.metrics import accuracies
from kernelmesh_experiments.settings import Floats, Ints
from kernelmesh_experiments.trial import Stop

__all__ = ["Samples"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """Points in the rows of a matrix, and the class of each."""

    points: Floats
    labels: Ints
    held_points: Floats
    held_labels: Ints

    def arrays(self) -> dict[str, Any]:
        """The samples alone, by name, whatever a subclass adds."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Samples)}

    def batch_svm(self, *, gamma: float) -> float:
        """Held-out accuracy of a batch SVM with κ(x, z) = exp(−γ‖x − z‖²) and all the samples (C = 10)."""
        machine = SVC(C=10.0, gamma=gamma).fit(self.points, self.labels)
        return float(machine.score(self.held_points, self.held_labels))

    def learn_alone(self, agent: Agent, stream: ArrayStream, stop: Stop) -> float:
        """Held-out accuracy of one learner at the end of a stream."""
        functions: Sequence[Function] = ()
        for now in simulate(agent, Graph.line(1), [stream]):
            functions = now.functions
            if stop():
                raise KeyboardInterrupt
        return float(accuracies(functions, self.held_points, self.held_labels)[0])
