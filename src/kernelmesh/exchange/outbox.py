"""The messages that an agent sends in one round."""

from __future__ import annotations

from collections.abc import Hashable

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.messages import Message, SentFunction
from kernelmesh.numerics.function import Function

__all__ = ["Outbox"]


class Outbox:
    """The messages that an agent sends in one round, all computed from the state before the step.

    `points` are those of its mini-batch; None for an agent without samples in this round, which sends no queries but still
    replies and sends its function. If its samples arrive later, pass them to `learn`.

    >>> import numpy as np
    >>> from kernelmesh import Agent, Gaussian, Gradient, Penalty, Squared
    >>> agent = Agent(
    ...     dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(),
    ...     learner=Gradient(step_size=0.5), protocol=Penalty(coupling=0.1),
    ... )
    >>> outbox = Outbox(agent, agent.start(), np.array([[0.0], [1.0]]))
    >>> outbox.question.points.shape, outbox.reply(outbox.question).values.shape
    ((2, 1), (2, 1))
    """

    def __init__(self, agent: Agent, state: State, points: Floats | None) -> None:
        self._agent, self._protocol, self.step = agent, agent.protocol, state.steps + 1
        self._state: State | None = None if state.memory is None else state
        asks = agent.protocol.question is not None
        self.function: Function = state.function if asks else state.sent
        """What neighbors hear about: the function from which queries are answered, or the one that is sent."""
        self._sent: Function = state.sent
        self.question: Message | None = None
        """The query to every neighbor."""
        if points is not None:
            self.learn(points)

    def learn(self, points: Floats) -> None:
        """Add the mini-batch of the round, about which nothing has been sent yet."""
        if self._protocol.question is not None:
            self.question = self._protocol.ask(self._sent, points)

    def reply(self, question: Message | None, neighbor: Hashable = None) -> Message | None:
        """The reply to a neighbor that takes part in the round; None for no reply."""
        if self._state is not None:
            return self._agent.tell(self._state, neighbor)
        if self._protocol.question is not None:
            return None if question is None else self._protocol.answer(self.function, question)
        return SentFunction(self.function.points, self.function.weights) if self._protocol.reply else None
