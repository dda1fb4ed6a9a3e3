"""The result of one simulated round."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from kernelmesh.agent import Info, State
from kernelmesh.checks import Ints
from kernelmesh.numerics.function import Function

__all__ = ["LazyInfos", "RemoteStates", "Round"]


class RemoteStates(Sequence[State]):
    """States that are fetched or assembled on demand; small parts are available at once."""

    samples: Sequence[int]
    orders: Sequence[int]
    square_norms: Sequence[float]

    @abstractmethod
    def functions(self, agents: Sequence[int] | None = None) -> list[Function]:
        """The functions of these agents, or of all."""


class LazyInfos(Sequence[Info | None]):
    """The diagnostics of each step, assembled on demand: in most rounds nobody looks at them."""

    def __init__(self, agents: int, assemble: Callable[[], Iterable[Info | None]]) -> None:
        self._agents, self._assemble = agents, assemble

    @cached_property
    def _all(self) -> tuple[Info | None, ...]:
        return tuple(self._assemble())

    def __len__(self) -> int:
        return self._agents

    @overload
    def __getitem__(self, index: int) -> Info | None: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Info | None, ...]: ...
    def __getitem__(self, index: int | slice) -> Info | tuple[Info | None, ...] | None:
        return self._all[index]

    def __repr__(self) -> str:
        return repr(self._all)


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
    >>> from kernelmesh import Agent, ArrayStream, Gaussian, Graph, Komp, Squared, simulate
    >>> agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), step_size=0.5, compression=Komp(budget=0.01))
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> *_, last = simulate(agent, Graph.line(1), [ArrayStream(x, np.sin(3 * x))])
    >>> last.number, last.samples, last.bytes_sent.tolist()
    (2, (64,), [0])
    """

    number: int
    """The number of rounds so far."""
    states: Sequence[State]
    infos: Sequence[Info | None]
    """The diagnostics of each step; None for an agent whose stream had ended."""
    floats_sent: Ints
    """Numbers that each agent has sent since the start."""
    bytes_sent: Ints
    edge_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Bytes that have crossed each edge, in both directions, in the order of `graph.edges`."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """The function that each agent has learned so far, as immutable values."""
        if isinstance(self.states, RemoteStates):
            return tuple(self.states.functions())
        return tuple(state.function for state in self.states)

    def functions_of(self, agents: Sequence[int]) -> dict[int, Function]:
        """The functions of some agents, by number; if agents are in other processes, only these are fetched."""
        if isinstance(self.states, RemoteStates):
            return dict(zip(agents, self.states.functions(agents), strict=True))
        return {i: self.states[i].function for i in agents}

    @property
    def samples(self) -> tuple[int, ...]:
        """The number of samples each agent has seen since its state was created."""
        if isinstance(self.states, RemoteStates):
            return tuple(self.states.samples)
        return tuple(state.samples for state in self.states)

    @property
    def orders(self) -> tuple[int, ...]:
        """The model order of each agent."""
        if isinstance(self.states, RemoteStates):
            return tuple(self.states.orders)
        return tuple(state.function.order for state in self.states)

    @property
    def square_norms(self) -> tuple[float, ...]:
        """‖f_i‖² of the function that each agent continues from; NaN with rules that do not track it."""
        if isinstance(self.states, RemoteStates):
            return tuple(self.states.square_norms)
        return tuple(state.model.square_norm for state in self.states)
