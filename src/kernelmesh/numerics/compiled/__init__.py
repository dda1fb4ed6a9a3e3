"""Inner loops compiled by numba, grouped by topic.

A function that Python calls has exactly one signature whose inputs are read-only arrays (writable ones are accepted too), so
nothing is compiled twice; it is compiled when it is first called, so importing costs nothing, and the machine code is cached
on disk. Helpers that only compiled code calls are compiled as part of their callers, once for each mixture of read-only and
own arrays. Slices are copied by loops: numba compiles an assignment to a slice for seconds.

Callers write `compiled.pruning.choose(…)`: numba takes longer to import than all the rest together, so a module of this
folder is imported when a loop of it is first called, and after that is found at once.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelmesh.numerics.compiled import (
        averaging,
        distances,
        exchange,
        folding,
        gossip,
        losses,
        newton,
        pruning,
        sampling,
        selection,
        symmetric,
    )

__all__ = ["averaging", "distances", "exchange", "folding", "gossip", "losses", "newton", "pruning"]
__all__ += ["sampling", "selection", "symmetric"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"kernelmesh.numerics.compiled.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
