"""The messages that an agent sends in one round."""

from __future__ import annotations

from collections.abc import Hashable

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.messages import Function, Message
from kernelmesh.numerics.expansion import Expansion

__all__ = ["Outbox"]


class Outbox:
    """The messages that an agent sends in one round, all computed from the state before the step.

    `points` are those of its mini-batch; None for an agent without samples in this round, which sends no queries but still
    replies and sends its function. If its samples arrive later, pass them to `learn`.

    >>> from kernelmesh import Gaussian, Komp, Penalty, Squared
    >>> agent = Agent(
    ...     dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5,
    ...     compression=Komp(budget=0.01), consensus=Penalty(coupling=0.1),
    ... )
    >>> outbox = Outbox(agent, agent.start(), np.array([[0.0], [1.0]]))
    >>> outbox.question.points.shape, outbox.reply(outbox.question).values.shape
    ((2, 1), (2, 1))
    """

    def __init__(self, agent: Agent, state: State, points: Floats | None) -> None:
        self._agent, self._consensus, self.step = agent, agent.consensus, state.steps + 1
        self._state: State | None = state if agent.consensus.shares else None
        asks = agent.consensus.exchange.question is not None
        self.function: Expansion = state.function if asks else state.sent
        """What neighbors hear about: the function from which queries are answered, or the one that is sent."""
        self._sent: Expansion = state.sent
        self.question: Message | None = None
        """The query to every neighbor."""
        if points is not None:
            self.learn(points)

    @classmethod
    def restored(cls, agent: Agent, step: int, function: Expansion) -> Outbox:
        """The outbox of a finished round, from which neighbors can still hear about `function`."""
        self = cls.__new__(cls)
        self._agent, self._consensus, self._state = agent, agent.consensus, None
        self.step, self.function, self._sent, self.question = step, function, function, None
        return self

    def learn(self, points: Floats) -> None:
        """Add the mini-batch of the round, about which nothing has been sent yet."""
        if self._consensus.exchange.question is not None:
            self.question = self._consensus.ask(self._sent, points)

    def reply(self, question: Message | None, neighbor: Hashable = None) -> Message | None:
        """The reply to a neighbor that takes part in the round; None for no reply."""
        exchange = self._consensus.exchange
        if self._state is not None:
            return self._agent.tell(self._state, neighbor)
        if exchange.question is not None:
            return None if question is None else self._consensus.answer(self.function, question)
        return Function(self.function.centers, self.function.weights) if exchange.replies else None
