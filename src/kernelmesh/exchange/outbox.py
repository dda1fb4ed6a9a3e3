"""The messages that an agent sends in one round."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.consensus import EdgeMemories
from kernelmesh.messages import Message
from kernelmesh.numerics.expansion import Expansion

__all__ = ["Outbox"]


class Outbox:
    """The messages that an agent sends in one round, all computed from the state before the step.

    `points` are those of its mini-batch; None for an agent without samples in this round, which sends no queries but still
    replies and sends its function. It makes numbered offers only if `offers` is set.
    If its samples arrive later, pass them to `learn`.

    >>> from kernelmesh import Gaussian, Komp, Penalty, Squared
    >>> agent = Agent(
    ...     dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5,
    ...     compression=Komp(budget=0.01), consensus=Penalty(coupling=0.1),
    ... )
    >>> outbox = Outbox(agent, agent.start(), np.array([[0.0], [1.0]]))
    >>> outbox.question.points.shape, outbox.reply("south", 0.5, outbox.question).values.shape
    ((2, 1), (2, 1))
    """

    def __init__(self, agent: Agent, state: State, points: Floats | None, *, offers: bool = False) -> None:
        self._agent, self.step = agent, state.steps + 1
        self.shown: Expansion = state.function
        """The function from which queries are answered."""
        self._sent: Expansion = state.sent
        self._edges: EdgeMemories = state.edges
        self.learns, self._offers = False, offers
        self._told: Mapping[str, Message] | None = None
        self.question: Message | None = None
        """The query to every neighbor."""
        if points is not None:
            self.learn(points)

    @classmethod
    def restored(
        cls, agent: Agent, step: int, *, shown: Expansion, question: Message | None, told: Mapping[str, Message]
    ) -> Outbox:
        """The outbox of a finished round; `told` has what each neighbor received if functions are exchanged."""
        self = cls.__new__(cls)
        self._agent, self.step, self.shown, self._sent, self._edges = agent, step, shown, shown, {}
        self.learns = self._offers = True
        self._told, self.question = told, question
        return self

    def learn(self, points: Floats) -> None:
        """Add the mini-batch of the round, about which nothing has been sent yet."""
        self.learns = self._offers = True
        consensus = self._agent.consensus
        if consensus.exchange.question is not None:
            self.question = consensus.ask(self._sent, points)

    def reply(
        self, neighbor: Hashable, share: float, question: Message | None, there: tuple[int, int] | None = None
    ) -> Message | None:
        """The reply to a neighbor that takes part in the round; None for no reply.

        `share` is 1 / (1 + our degree); the step must receive the same value. `there` is the epoch and the
        number of exchanges that the neighbor says it has completed, if it says so.
        """
        consensus, exchange = self._agent.consensus, self._agent.consensus.exchange
        if exchange.question is not None:
            return None if question is None else consensus.answer(self.shown, question)
        if self._told is not None:
            return self._told.get(str(neighbor))
        if not exchange.replies or (exchange.numbered and not self._offers):
            return None
        return consensus.tell(self._sent, self._edges.get(neighbor), share, there)
