"""Progress of `fit`: the loss after each pass, early stopping, and verbose output."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernelmesh import Function, State

__all__ = ["Progress"]


@dataclass
class Progress:
    """Follows a fit, pass by pass."""

    owner: str
    """The name of the estimator."""
    measure: Callable[[Sequence[Function]], float]
    """The mean loss of the average of these functions, one per agent."""
    agent: int
    """The index of the agent with the most rows, whose passes are counted."""
    rounds: int
    """Its mini-batches in a pass."""
    passes: int
    """The maximum number of passes."""
    tol: float | None
    """Stop after a pass whose loss is not below (1 − tol) times the lowest so far; None makes all passes."""
    verbose: bool | int
    """Whether to print a line for each pass, and every few seconds during long ones."""
    complete: int = 0
    """Passes so far."""
    _taken: int = 0
    _best: float = math.inf
    _began: float = field(default_factory=lambda: time.monotonic())
    _reported: float = field(default_factory=lambda: time.monotonic())

    def see(self, states: Sequence[State]) -> bool:
        """The agent has taken a mini-batch, and these are the states of all; returns whether the fit should stop."""
        self._taken += 1
        within = self._taken % self.rounds
        if within:
            if self.verbose and time.monotonic() - self._reported > 5.0:  # seconds
                self._report(f"pass {self.complete + 1} of {self.passes}, {within / self.rounds:.0%} of it", states)
            return False
        self.complete += 1
        if not self.verbose and self.tol in (None, -math.inf):
            return False
        memory = states[self.agent].memory
        if memory is not None and not memory.is_ready:  # agents that share sums wait until their network stands
            if self.verbose:
                print(f"{self.owner}: pass {self.complete} of {self.passes}: the network forms", flush=True)
            return False
        loss = self._report(f"pass {self.complete} of {self.passes}", states)
        idle = self.tol is not None and not loss < self._best * (1.0 - self.tol)
        self._best = min(loss, self._best)
        return idle and self.tol != -math.inf

    def settle(self, states: Sequence[State]) -> None:
        """Process the end, when all agents know what each has learned."""
        if self.verbose:
            self._report("settled", states)

    def _report(self, what: str, states: Sequence[State]) -> float:
        """The loss, which is printed with `what`."""
        functions, self._reported = [state.function for state in states], time.monotonic()
        loss = self.measure(functions)
        if self.verbose:
            points, seconds = sum(function.order for function in functions), time.monotonic() - self._began
            print(f"{self.owner}: {what}: loss {loss:.4g}, {points} points, {seconds:.1f} s", flush=True)
        return loss
