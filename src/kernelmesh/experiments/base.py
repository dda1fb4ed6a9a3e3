"""What an experiment is, and how it tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh.report import Report

__all__ = ["Experiment", "Progress", "Run", "Watch"]


@dataclass(frozen=True)
class Progress:
    """How far a run has come: steps done, steps in all, what a step is, and what there is to tell."""

    done: int
    total: int
    unit: str = "rounds"
    told: str = ""


Watch = Callable[[Progress], None]
"""Called after every step; may raise KeyboardInterrupt, upon which a run keeps what it has."""

Run = Callable[[Any, Watch, Path, bool], Report]
"""Takes the settings, whom to tell, a folder for what must outlive an interruption, and whether to go on from there."""


@dataclass(frozen=True)
class Experiment:
    """A name, what it shows, its settings (a frozen dataclass with defaults), and how to run it."""

    name: str
    about: str
    config: type[Any]
    run: Run
    sweep: Run | None = None
    """The whole table behind one claim, where there is one."""
    swept: tuple[str, ...] = ()
    """The settings that the table goes through, which cannot be given with it."""
