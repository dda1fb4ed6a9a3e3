"""What an experiment is, and how it tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelmesh.metrics import Measures
from kernelmesh.report import Report

__all__ = ["Experiment", "Progress", "Watch"]


@dataclass(frozen=True)
class Progress:
    """How far a run has come: rounds done, rounds in all, and the newest measures (None before the first)."""

    done: int
    total: int
    newest: Measures | None


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Experiment:
    """A name, what it shows, its settings (a frozen dataclass with defaults), and how to run it."""

    name: str
    about: str
    config: type[Any]
    run: Callable[[Any, Watch], Report]
