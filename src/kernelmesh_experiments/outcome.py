"""The outcome of a run: complete, incomplete, interrupted, or diverged; it determines the exit code."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kernelmesh import Diverged as DivergedError

__all__ = ["Complete", "Diverged", "Incomplete", "Interrupted", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """One of the below; as text, what a reader must know first."""

    name: ClassVar[str]
    exit_code: ClassVar[int] = 1

    def facts(self) -> dict[str, Any]:
        """What the summary of a run says about this outcome only."""
        return {}

    def row(self) -> dict[str, Any]:
        """What summaries and tables say about every outcome."""
        return {"complete": isinstance(self, Complete), "outcome": self.name, "remark": str(self)}


@dataclass(frozen=True)
class Complete(Outcome):
    """Everything was computed."""

    name: ClassVar[str] = "complete"
    exit_code: ClassVar[int] = 0

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class Interrupted(Outcome):
    """The run was stopped and can be resumed.

    >>> str(Interrupted(done=3, total=20, unit="cells"))
    'Interrupted after 3 of 20 cells; use --resume to continue.'
    """

    name: ClassVar[str] = "interrupted"
    exit_code: ClassVar[int] = 130

    done: int
    total: int
    unit: str = "cells"

    def __str__(self) -> str:
        return f"Interrupted after {self.done} of {self.total} {self.unit}; use --resume to continue."

    def facts(self) -> dict[str, Any]:
        """How far it came."""
        return {f"{self.unit}_done": self.done, f"{self.unit}_total": self.total}


@dataclass(frozen=True, kw_only=True)
class Incomplete(Interrupted):
    """Some cells of a sweep failed; the others are there.

    >>> str(Incomplete(done=3, total=4, reason="out of memory"))
    '1 of 4 cells failed, the first of them: out of memory. Use --resume to retry.'
    """

    name: ClassVar[str] = "incomplete"
    exit_code: ClassVar[int] = 1

    reason: str

    def __str__(self) -> str:
        failed = f"{self.total - self.done} of {self.total} cells failed, the first of them"
        return f"{failed}: {self.reason.rstrip('.')}. Use --resume to retry."


@dataclass(frozen=True)
class Diverged(Outcome):
    """The functions left all bounds; the results are those of the last round before that."""

    name: ClassVar[str] = "diverged"

    error: DivergedError

    def __str__(self) -> str:
        return f"Diverged: {self.error}"

    def facts(self) -> dict[str, Any]:
        """Where and why."""
        facts = {f"diverged_{name}": getattr(self.error, name) for name in ("samples", "step_size", "penalty", "reason")}
        return {"diverged_agent": str(self.error.agent), **facts}
