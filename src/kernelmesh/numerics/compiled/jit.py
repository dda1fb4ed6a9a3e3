"""Decorators that compile functions, and the types of their arguments."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from kernelmesh.checks import Floats, Ints

__all__ = ["Classes", "Flags", "Indices", "Matrix", "OwnMatrix", "OwnVector", "Vector"]
__all__ += ["compile_on_first_call", "compiled"]

F = TypeVar("F", bound=Callable[..., Any])

# Types of arguments and results. Inputs may be read-only arrays; arrays of `Own…` types are writable.
Matrix = Annotated[Floats, types.Array(types.float64, 2, "C", readonly=True)]
Vector = Annotated[Floats, types.Array(types.float64, 1, "C", readonly=True)]
Classes = Annotated[Ints, types.Array(types.int64, 1, "C", readonly=True)]
OwnMatrix = Annotated[Floats, types.Array(types.float64, 2, "C")]
OwnVector = Annotated[Floats, types.Array(types.float64, 1, "C")]
Indices = Annotated[Ints, types.Array(types.int64, 1, "C")]
Flags = Annotated[NDArray[np.bool_], types.Array(types.boolean, 1, "C")]
_SCALARS = {int: types.int64, float: types.float64, bool: types.boolean, type(None): types.void}


def compiled(**options: Any) -> Callable[[F], F]:
    """Mark a helper called only from compiled code; it is compiled as part of its caller."""
    return cast(Callable[[F], F], njit(**options))


def _type_of(hint: Any) -> Any:
    """The numba type that an annotation stands for."""
    if get_origin(hint) is tuple:
        return types.Tuple([_type_of(part) for part in get_args(hint)])
    return _SCALARS[hint] if hint in _SCALARS else hint.__metadata__[0]


def compile_on_first_call(**options: Any) -> Callable[[F], F]:
    """Compile a function on its first call, and replace it in its module by the compiled one.

    Its annotations define the types. Callers must write `module.name(…)`: an imported name would still refer to the wrapper.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def first(*arguments: Any) -> Any:
            hints = {name: _type_of(hint) for name, hint in get_type_hints(function, include_extras=True).items()}
            signature = hints.pop("return")(*hints.values())
            build = functools.partial(njit, signature, error_model="numpy", **options)
            try:
                ready = build(cache=True)(function)
            except RuntimeError:  # no writable cache folder
                ready = build()(function)
            function.__globals__[function.__name__] = ready
            return ready(*arguments)

        return cast(F, first)

    return decorate
