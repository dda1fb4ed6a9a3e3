"""How functions are compiled, and the types of their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, types

__all__ = [
    "compile_on_first_call",
    "compiled",
    "in_classes",
    "in_matrix",
    "in_vector",
    "indices",
    "matrix",
    "vector",
]

F = TypeVar("F", bound=Callable[..., Any])

in_matrix = types.Array(types.float64, 2, "C", readonly=True)
in_vector = types.Array(types.float64, 1, "C", readonly=True)
in_classes = types.Array(types.int64, 1, "C", readonly=True)
matrix = types.Array(types.float64, 2, "C")
vector = types.Array(types.float64, 1, "C")
indices = types.Array(types.int64, 1, "C")


def compiled(**options: Any) -> Callable[[F], F]:
    """A helper that only compiled code calls; it is compiled as part of its caller."""
    return cast(Callable[[F], F], njit(**options))


def compile_on_first_call(signature: Any, **options: Any) -> Callable[[F], F]:
    """Compile a function when it is first called, and put the compiled one in its place in its module.

    Callers must write `module.name(…)`: a name they had imported would keep going through this detour.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def first(*arguments: Any) -> Any:
            build = functools.partial(njit, signature, error_model="numpy", **options)
            try:
                ready = build(cache=True)(function)
            except RuntimeError:  # there is no folder to cache in
                ready = build()(function)
            function.__globals__[function.__name__] = ready
            return ready(*arguments)

        return cast(F, first)

    return decorate
