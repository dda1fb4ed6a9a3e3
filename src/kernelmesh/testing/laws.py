"""Reporting of broken laws, and the law that all settings obey."""

from typing import Any

import numpy as np

from kernelmesh.registry import describe, kinds, restore

__all__ = ["require", "require_close", "require_role", "require_round_trip"]


def require(holds: bool, owner: object, law: str, found: object) -> None:
    """Raise unless the law holds.

    >>> require(2 > 3, "two", "must be larger than three", 2)
    Traceback (most recent call last):
    ...
    AssertionError: two: must be larger than three, got 2
    """
    if not holds:
        raise AssertionError(f"{owner}: {law}, got {found}")


def require_close(left: Any, right: Any, owner: object, law: str, *, relative: float = 0.0, absolute: float = 0.0) -> None:
    """Raise unless two arrays have the same shape and nearly the same values; reports where they differ most."""
    left, right = np.asarray(left), np.asarray(right)
    require(left.shape == right.shape, owner, law, f"shapes {left.shape} and {right.shape}")
    if not left.size:
        return
    excess = np.abs(left - right) - absolute - relative * np.abs(right)
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(excess), np.inf, excess))), left.shape)
    where = ", ".join(map(str, worst))
    require(bool(excess[worst] <= 0), owner, law, f"{left[worst]:.6g} and {right[worst]:.6g} at [{where}]")


def require_role(value: object, role: type, owner: object) -> None:
    """Raise unless an object implements a role and is an instance rather than a class."""
    wanted = [name for name in dir(role) if not name.startswith("_") or name == "__call__"]
    missing = [name for name in wanted if not hasattr(value, name)]
    require(not isinstance(value, type), owner, f"must be an instance that implements the role {role.__name__}", "a class")
    require(
        isinstance(value, role), owner, f"must implement the role {role.__name__}", f"nothing called {', '.join(missing)}"
    )


def require_round_trip(role: str, value: Any, owner: object) -> None:
    """Raise unless settings of a registered kind survive being written to a file and read back."""
    if type(value) not in kinds(role).values():
        return
    back = restore(describe(value))
    require(back == value, owner, "must equal itself after describe and restore", back)
