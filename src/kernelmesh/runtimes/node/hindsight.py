"""What the latest steps of an agent tell about it: how far its neighbors are from it, and whether its function is absurd."""

from collections.abc import Sequence

import numpy as np

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.exchange import disagreement
from kernelmesh.protocols import Heard
from kernelmesh.runtimes.node.values import Entry, Recover

__all__ = ["Hindsight"]


class Hindsight:
    """What is remembered of the latest steps.

    A function is absurd if for `in_a_row` mini-batches its loss was `absurd` times that of predicting 0.
    """

    def __init__(self, agent: Agent, *, absurd: float = 20.0, in_a_row: int = 20) -> None:
        self._agent, self._absurd, self._in_a_row = agent, absurd, in_a_row
        self.points: Floats | None = None
        """Those of the latest mini-batch."""
        self.heard: Sequence[Heard] = ()
        """What neighbors said in the latest exchange."""
        self.absurd = 0
        """For how many mini-batches in a row the loss has been far above that of predicting 0."""

    def forget(self) -> None:
        """The agent continues from another state."""
        self.points, self.heard, self.absurd = None, (), 0

    def stepped(self, entry: Entry, *, exchanged: bool) -> None:
        """A step has been taken; between two exchanges, disagreement is measured by what neighbors said in the one before."""
        if len(entry.batch.points):
            self.points = entry.batch.points
        if exchanged or any(said.reply is not None for said in entry.heard):
            self.heard = entry.heard

    def disagreement(self, state: State) -> float | None:
        """The distance from the neighbors' outputs at the latest mini-batch; None if it is not known."""
        return None if self.points is None else disagreement(self._agent, state, self.points, self.heard)

    def doubt(self, state: State, entry: Entry, loss: float) -> Recover | None:
        """Ask for an earlier function if the loss on fresh samples has been far above that of predicting 0 for a while."""
        zero_loss = state.baseline_loss
        if loss > self._absurd * zero_loss:
            nothing = np.zeros((len(entry.batch.points), self._agent.outputs))
            zero_loss = float(self._agent.loss.value(nothing, entry.batch.targets).mean())
        self.absurd = self.absurd + 1 if loss > self._absurd * zero_loss else 0
        if self.absurd != self._in_a_row:
            return None
        text = f"the loss on fresh samples is {loss:.3g} where predicting 0 costs {zero_loss:.3g}"
        return Recover(text, state.steps - self.absurd - 1)  # the loss of a step is that of the state before it
