"""What an agent says in one round."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.consensus import EdgeMemories, EdgeMemory
from kernelmesh.messages import Message
from kernelmesh.numerics.expansion import Expansion

__all__ = ["Outbox"]


class Outbox:
    """What an agent says in one round, all of it from the state before the step.

    `points` are those of its mini-batch; None for an agent without samples in this round, which asks nothing, still answers,
    and still tells its function. It makes no numbered offers unless `offers` says so.
    If its samples come later, `learn` takes them.

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
        """What questions are answered from."""
        self._sent: Expansion = state.sent
        self._edges: EdgeMemories = state.edges
        self.learns, self._offers = False, offers
        self._told: Mapping[str, Message] | None = None
        self.question: Message | None = None
        """What every neighbor is asked."""
        if points is not None:
            self.learn(points)

    @classmethod
    def restored(
        cls, agent: Agent, step: int, *, shown: Expansion, question: Message | None, told: Mapping[str, Message]
    ) -> Outbox:
        """What was said in a round that is over: `told` has what each neighbor heard where functions are exchanged."""
        self = cls.__new__(cls)
        self._agent, self.step, self.shown, self._sent, self._edges = agent, step, shown, shown, {}
        self.learns = self._offers = True
        self._told, self.question = told, question
        return self

    def learn(self, points: Floats) -> None:
        """There is a mini-batch for the round, of which nothing has been said yet."""
        self.learns = self._offers = True
        consensus = self._agent.consensus
        if consensus.exchange.question is not None:
            self.question = consensus.ask(self._sent, points)

    def remembers(self, neighbor: Hashable) -> EdgeMemory:
        """What the agent remembered of an edge when the round began."""
        return self._edges.get(neighbor) or EdgeMemory()

    def reply(
        self, neighbor: Hashable, share: float, question: Message | None, there: tuple[int, int] | None = None
    ) -> Message | None:
        """What a neighbor hears that takes part in the round; None for silence.

        `share` is 1 / (1 + our degree); the step must be told the same one with what was heard. `there` is the epoch and the
        number of exchanges that the neighbor says it has completed, where it does.
        """
        consensus, exchange = self._agent.consensus, self._agent.consensus.exchange
        if exchange.question is not None:
            return None if question is None else consensus.answer(self.shown, question)
        if self._told is not None:
            return self._told.get(str(neighbor))
        if not exchange.replies or (exchange.numbered and not self._offers):
            return None
        return consensus.tell(self._sent, self._edges.get(neighbor), share, there)
