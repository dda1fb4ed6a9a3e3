"""The result of one simulated round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from kernelmesh.agent import Info, State
from kernelmesh.checks import Ints
from kernelmesh.numerics.function import Function

__all__ = ["RemoteStates", "Round"]


class RemoteStates(Sequence[State]):
    """States in other processes, fetched on demand; small parts of them are here."""

    def __init__(
        self,
        fetch: Callable[[], list[State]],
        functions: Callable[[Sequence[int]], list[Function]],
        samples: tuple[int, ...],
        orders: tuple[int, ...],
        square_norms: tuple[float, ...],
    ) -> None:
        self._fetch, self.functions_of = fetch, functions
        self.samples, self.orders, self.square_norms = samples, orders, square_norms

    @cached_property
    def _all(self) -> list[State]:
        return self._fetch()

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions of all agents."""
        return tuple(self.functions_of(range(len(self))))

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: int | slice) -> State | list[State]:
        return self._all[index]


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """The result of one simulated round. Everything is indexed by the agent's number in the graph.

    Attributes
    ----------
    number : int
        The number of rounds so far.
    states : sequence of State
        The state of each agent after the round; fetched on demand if agents are in other processes.
    infos : sequence of Info or None
        The diagnostics of each step; None for an agent whose stream had ended.
    floats_sent, bytes_sent : ndarray of int
        The numbers and bytes that each agent has sent since the start.
    edge_bytes : ndarray of int
        The bytes that have crossed each edge since the start, in both directions, in the order of `graph.edges`.
    functions : tuple of Function
        The function that each agent has learned so far, as immutable values.
    samples : tuple of int
        The number of samples each agent has seen since its state was created.

    Examples
    --------
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Gradient, Graph, Squared, simulate
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=Gradient(step_size=0.5))
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> *_, last = simulate(agent, Graph.line(1), [ArrayStream(x, np.sin(3 * x))])
    >>> last.number, last.samples, last.bytes_sent.tolist()
    (2, (64,), [0])
    """

    number: int
    states: Sequence[State]
    infos: Sequence[Info | None]
    floats_sent: Ints
    bytes_sent: Ints
    edge_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def functions(self) -> tuple[Function, ...]:
        """The function that each agent has learned so far, as immutable values."""
        return self.states.functions if isinstance(self.states, RemoteStates) else tuple(s.function for s in self.states)

    def functions_of(self, agents: Sequence[int]) -> dict[int, Function]:
        """The functions of some agents, by number; if agents are in other processes, only these are fetched."""
        if isinstance(self.states, RemoteStates):
            return dict(zip(agents, self.states.functions_of(agents), strict=True))
        return {i: self.states[i].function for i in agents}

    @property
    def samples(self) -> tuple[int, ...]:
        """The number of samples each agent has seen since its state was created."""
        return self.states.samples if isinstance(self.states, RemoteStates) else tuple(s.samples for s in self.states)

    @property
    def orders(self) -> tuple[int, ...]:
        """The model order of each agent."""
        return self.states.orders if isinstance(self.states, RemoteStates) else tuple(s.function.order for s in self.states)

    @property
    def square_norms(self) -> tuple[float, ...]:
        """‖f_i‖² of the function that each agent continues from; NaN with learners that do not track it."""
        if isinstance(self.states, RemoteStates):
            return self.states.square_norms
        return tuple(state.model.square_norm for state in self.states)
