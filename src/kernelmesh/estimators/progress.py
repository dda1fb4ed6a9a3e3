"""How a long `fit` is doing: the loss after each pass, whether another is worth it, and what to tell meanwhile."""

import math
import time
from collections.abc import Callable, Sequence

from kernelmesh import Expansion, Round

__all__ = ["Progress"]

_EVERY = 5.0
"""Seconds after which something is told within a pass."""


class Progress:
    """Follows the rounds of a fit, pass by pass.

    Parameters
    ----------
    owner : str
        Whose fit it is.
    loss : callable
        The mean loss of what these functions, one for each agent, answer together.
    agent : int
        The number of the agent with the most rows, whose passes count.
    rounds : int
        Its mini-batches in a pass.
    passes : int
        How many there will be at most.
    tol : float, optional
        A pass after which the loss is not below (1 − tol) times the best before is the last one; None makes all passes.
    verbose : bool or int
        Whether to print a line for each pass, and every few seconds within long ones.
    """

    def __init__(
        self,
        owner: str,
        loss: Callable[[Sequence[Expansion]], float],
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
        self._began = self._told = time.monotonic()

    def see(self, now: Round) -> bool:
        """Take a round into account; says whether the fit is to end with it."""
        if now.infos[self._agent] is None:  # the agent was away
            return False
        self._taken += 1
        within = self._taken % self._rounds
        if within:
            if self._verbose and time.monotonic() - self._told > _EVERY:
                self._tell(now, self._measure(now.functions), f", {within / self._rounds:.0%} of it")
            return False
        self.complete += 1
        if not self._verbose and self._tol == -math.inf:
            return False
        loss = self._measure(now.functions)
        if self._verbose:
            self._tell(now, loss, "")
        idle = not loss < self._best * (1.0 - self._tol)
        self._best = min(loss, self._best)
        return idle and self._tol > -math.inf

    def _tell(self, now: Round, loss: float, part: str) -> None:
        self._told = time.monotonic()
        number = self.complete + bool(part)
        points = sum(function.order for function in now.functions)
        seconds = self._told - self._began
        print(
            f"{self._owner}: pass {number} of {self._passes}{part}: loss {loss:.4g}, {points} points, {seconds:.1f} s",
            flush=True,
        )
