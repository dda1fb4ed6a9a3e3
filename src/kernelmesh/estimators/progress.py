"""Progress of `fit`: the loss after each pass, early stopping, and verbose output."""

import math
import time
from collections.abc import Callable, Sequence

from kernelmesh import Function, State

__all__ = ["Progress"]

# Seconds between lines of output within a pass.
_EVERY = 5.0


class Progress:
    """Follows a fit, pass by pass.

    Parameters
    ----------
    owner : str
        The name of the estimator.
    loss : callable
        The mean loss of the average of these functions, one per agent.
    agent : int
        The index of the agent with the most rows, whose passes are counted.
    rounds : int
        Its mini-batches in a pass.
    passes : int
        The maximum number of passes.
    tol : float, optional
        Stop after a pass whose loss is not below (1 − tol) times the lowest so far; None makes all passes.
    verbose : bool or int
        Whether to print a line for each pass, and every few seconds during long ones.
    """

    def __init__(
        self,
        owner: str,
        loss: Callable[[Sequence[Function]], float],
        *,
        agent: int,
        rounds: int,
        passes: int,
        tol: float | None,
        verbose: bool | int,
    ) -> None:
        self._owner, self._measure, self._agent = owner, loss, agent
        self._rounds, self._passes, self._verbose = rounds, passes, verbose
        self._tol = -math.inf if tol is None else tol
        self.complete = 0
        """Passes so far."""
        self._taken = 0
        self._best = math.inf
        self._began = self._reported = time.monotonic()

    def see(self, states: Sequence[State]) -> bool:
        """The agent has taken a mini-batch, and these are the states of all; returns whether the fit should stop."""
        self._taken += 1
        within = self._taken % self._rounds
        if within:
            if self._verbose and time.monotonic() - self._reported > _EVERY:
                self._report(states, self._measure(_functions(states)), f", {within / self._rounds:.0%} of it")
            return False
        self.complete += 1
        if not self._verbose and self._tol == -math.inf:
            return False
        memory = states[self._agent].memory
        if memory is not None and not memory.is_ready:  # agents that share sums wait until their network stands
            if self._verbose:
                print(f"{self._owner}: pass {self.complete} of {self._passes}: the network forms", flush=True)
            return False
        loss = self._measure(_functions(states))
        if self._verbose:
            self._report(states, loss, "")
        idle = not loss < self._best * (1.0 - self._tol)
        self._best = min(loss, self._best)
        return idle and self._tol > -math.inf

    def settle(self, states: Sequence[State]) -> None:
        """Process the end, when all agents know what each has learned."""
        if self._verbose:
            self._print("settled", states, self._measure(_functions(states)))

    def _report(self, states: Sequence[State], loss: float, part: str) -> None:
        self._reported = time.monotonic()
        number = self.complete + bool(part)
        self._print(f"pass {number} of {self._passes}{part}", states, loss)

    def _print(self, what: str, states: Sequence[State], loss: float) -> None:
        points, seconds = sum(state.function.order for state in states), time.monotonic() - self._began
        print(f"{self._owner}: {what}: loss {loss:.4g}, {points} points, {seconds:.1f} s", flush=True)


def _functions(states: Sequence[State]) -> list[Function]:
    return [state.function for state in states]
