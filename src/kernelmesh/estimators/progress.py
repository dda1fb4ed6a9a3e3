"""How a long `fit` is doing: the loss of each pass, whether another is worth it, and what to tell meanwhile."""

import math
import time

from kernelmesh import Round

__all__ = ["Progress"]

_EVERY = 5.0
"""Seconds after which something is told within a pass."""


class Progress:
    """Follows the rounds of a fit, pass by pass.

    Parameters
    ----------
    owner : str
        Whose fit it is.
    rounds : int
        Rounds in a pass, which is one of the agent with the most rows.
    passes : int
        How many there will be at most.
    tol : float, optional
        A pass whose mean loss is not below (1 − tol) times the best before is the last one; None makes all passes.
    verbose : bool or int
        Whether to print a line for each pass, and every few seconds within long ones.
    """

    def __init__(self, owner: str, *, rounds: int, passes: int, tol: float | None, verbose: bool | int) -> None:
        self._owner, self._rounds, self._passes, self._verbose = owner, rounds, passes, verbose
        self._tol = -math.inf if tol is None else tol
        self.complete = 0
        """Passes so far."""
        self._best = math.inf
        self._total, self._samples = 0.0, 0
        self._began = self._told = time.monotonic()

    def see(self, now: Round) -> bool:
        """Take a round into account; says whether the fit is to end with it."""
        for info in now.infos:
            if info is not None:
                self._total += info.batch_size * info.loss
                self._samples += info.batch_size
        loss, within = self._total / self._samples, now.number % self._rounds
        if within:
            if self._verbose and time.monotonic() - self._told > _EVERY:
                self._tell(now, loss, f", {within / self._rounds:.0%} of it")
            return False
        self.complete += 1
        if self._verbose:
            self._tell(now, loss, "")
        idle = not loss < self._best * (1.0 - self._tol)
        self._best, self._total, self._samples = min(loss, self._best), 0.0, 0
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
