"""Inner loops compiled by numba, grouped by topic.

A function called from Python has exactly one signature with read-only array inputs (writable arrays are accepted too), so
nothing is compiled twice. It is compiled on the first call, so importing costs nothing, and the machine code is cached on
disk. Helpers called only from compiled code are compiled as part of their callers, once for each combination of read-only
and writable arrays. Slices are copied by loops, because numba takes seconds to compile an assignment to a slice.

Callers write `compiled.pruning.choose(…)`: importing numba takes longer than importing everything else, so a module of this
package is imported when one of its loops is first called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelmesh.numerics.compiled import distances, exchange, losses, newton, pruning

__all__ = ["distances", "exchange", "losses", "newton", "pruning"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"kernelmesh.numerics.compiled.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
