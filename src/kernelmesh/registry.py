"""The registry of kinds by role and name, and settings as plain data.

A kind is registered once, next to its definition, and is then available everywhere: in files, in an agent's TOML file, in
`kernelmesh run --protocol`, and in help texts. Other packages register theirs in the same way; if a package has an entry
point

    [project.entry-points.kernelmesh]
    anything = "their_package.their_module"

the module is imported when a name is first looked up.
"""

import dataclasses
import hashlib
import importlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, overload

from kernelmesh.errors import InvalidArgument, UnreadableFile, format_value

__all__ = ["ROLES", "describe", "find", "fingerprint", "kebab", "kinds", "register", "restore", "role_of"]

ROLES: Mapping[str, str] = {
    "kernel": "kernelmesh.numerics.kernels",
    "loss": "kernelmesh.numerics.losses",
    "schedule": "kernelmesh.numerics.schedules",
    "compression": "kernelmesh.numerics.compression",
    "graph": "kernelmesh.numerics.graphs",
    "protocol": "kernelmesh.protocols",
    "learner": "kernelmesh.learners",
    "stream": "kernelmesh.streams",
}
"""Every role, and the module whose import registers the built-in kinds."""

# the roles that files may name
_SETTINGS = ("kernel", "loss", "schedule", "compression", "graph", "protocol", "learner")

_T = TypeVar("_T")
_known: dict[str, dict[str, Any]] = {role: {} for role in ROLES}


@overload
def register(role: str, kind: _T, *, name: str | None = None) -> _T: ...
@overload
def register(role: str, *, name: str | None = None) -> Callable[[_T], _T]: ...
def register(role: str, kind: Any = None, *, name: str | None = None) -> Any:
    """Register a kind under its name, for files, agents' TOML files and help texts; can be used as a decorator.

    Parameters
    ----------
    role : str
        One of `ROLES`: "kernel", "loss", "schedule", "compression", "graph", "protocol", "learner", "stream".
    kind : type or value, optional
        What to register; omitted when used as a decorator.
    name : str, optional
        The name, by default that of the class.

    Returns
    -------
    type or value
        The kind itself, or a decorator for it.

    Examples
    --------
    >>> from kernelmesh.numerics.kernels import Gaussian
    >>> register("kernel", Gaussian) is Gaussian  # registering again is harmless
    True
    """
    _check_role("register", role)
    if kind is None:
        return lambda kind: register(role, kind, name=name)
    if not getattr(kind, "__module__", "").startswith("kernelmesh."):
        importlib.import_module(ROLES[role])  # so that built-in kinds come first, and others cannot take their names
    name = name or str(getattr(kind, "__name__", ""))
    if (not name.isidentifier() and not re.fullmatch(r"[a-z0-9-]+", name)) or name == "tuple":
        raise InvalidArgument("register", "name", "be a class name, or letters and dashes", name)
    for other in _SETTINGS if role in _SETTINGS else (role,):  # files give the name of a kind without its role
        there = _known[other].get(name)
        if there is not None and (other, _origin(there)) != (role, _origin(kind)):
            raise InvalidArgument("register", "name", f"not be taken by another {other}", name)
    _known[role][name] = kind
    return kind


def _origin(kind: Any) -> Any:
    """Where a kind was defined, since reloading a module defines it again."""
    return (kind.__module__, kind.__qualname__) if hasattr(kind, "__qualname__") else id(kind)


def kinds(role: str) -> dict[str, Any]:
    """All kinds of a role by name: first the built-in ones, then those of other packages.

    Parameters
    ----------
    role : str
        One of those of `register`.

    Returns
    -------
    dict
        The registered classes by name.

    Examples
    --------
    >>> kinds("loss")["Hinge"].__name__
    'Hinge'
    """
    _load_own("kinds", role)
    _load_plugins()
    return dict(_known[role])


def find(role: str, name: str) -> Any:
    """One kind by name, or None; plugins are loaded only for names that are not built in, since finding them takes time.

    >>> find("loss", "Hinge").__name__
    'Hinge'
    """
    _load_own("find", role)
    if name not in _known[role]:
        _load_plugins()
    return _known[role].get(name)


def _check_role(owner: str, role: str) -> None:
    if role not in ROLES:
        raise InvalidArgument(owner, "role", f"be one of {', '.join(ROLES)}", role)


def _load_own(owner: str, role: str) -> None:
    """Import the module that registers the built-in kinds of a role."""
    _check_role(owner, role)
    importlib.import_module(ROLES[role])


@cache
def _plugins() -> list[Any]:
    """The plugins that have not been loaded yet."""
    from importlib import metadata  # which takes as long to import as half of NumPy

    return list(metadata.entry_points(group="kernelmesh"))


def _load_plugins() -> None:
    while plugins := _plugins():
        entry = plugins.pop(0)  # before loading, since the module may look up names itself
        try:
            entry.load()
        except Exception as error:  # a broken plugin must not break kernelmesh
            warnings.warn(f"kernelmesh: the plugin {entry.name} ({entry.value}) cannot be loaded: {error}", stacklevel=2)


def kebab(name: str) -> str:
    """The name of a class on the command line.

    >>> kebab("SecondOrder")
    'second-order'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


_ROLE_NAMES = {role.capitalize(): role for role in ("kernel", "loss", "schedule", "compression", "learner")}


def role_of(field: dataclasses.Field[Any]) -> str | None:
    """The role of a field's value, from its annotation; None for plain numbers, strings and the like.

    >>> from kernelmesh.protocols import Penalty
    >>> [role_of(field) for field in dataclasses.fields(Penalty)]
    ['schedule', None]
    """
    words = re.findall(r"\w+", field.type.__name__ if isinstance(field.type, type) else str(field.type))
    return next((_ROLE_NAMES[word] for word in words if word in _ROLE_NAMES), None)


def describe(value: Any) -> Any:
    """Convert settings to JSON-compatible data.

    >>> from kernelmesh import Gaussian
    >>> describe(Gaussian(bandwidth=2.0))
    {'kind': 'Gaussian', 'bandwidth': 2.0}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"kind": "tuple", "items": [describe(item) for item in value]}
    if hasattr(value, "item") and not getattr(value, "ndim", 1):  # a NumPy number
        return value.item()
    names = [name for role in _SETTINGS for name, kind in _known[role].items() if kind is type(value)]
    if names and dataclasses.is_dataclass(value):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"kind": names[0], **fields}
    remedy = f'register("kernel", {type(value).__name__}) registers a kernel; likewise for other roles'
    raise InvalidArgument("settings", "each part", "be a dataclass of a registered kind to be saved", value, remedy=remedy)


def restore(description: Any, *, role: str | None = None) -> Any:
    """Convert a description back to settings, validating each of them.

    A kind must have the expected role: `role`, if given, and within another kind that of its field.

    >>> restore({'kind': 'Gaussian', 'bandwidth': 2.0}, role="kernel")
    Gaussian(bandwidth=2.0)
    >>> restore({'kind': 'Gaussian', 'bandwidth': 2.0}, role="loss")
    Traceback (most recent call last):
    kernelmesh.errors.UnreadableFile: settings: kind must be that of a loss, got Gaussian, a kernel
    """
    if role is not None:
        _check_role("restore", role)
    return _restore(description, role, "settings: kind must be that of")


def _restore(description: Any, role: str | None, rule: str) -> Any:
    """`rule` is the beginning of the error about a kind of the wrong role."""
    if not isinstance(description, dict):
        return description
    fields = dict(description)
    name = fields.pop("kind", None)
    if name == "tuple" and isinstance(fields.get("items"), list):
        return tuple(_restore(item, role, rule) for item in fields["items"])
    kind = _find_kind(name, role, rule)
    roles = {field.name: role_of(field) for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    fields = {key: _restore(value, roles.get(key), f"{name}: {key} must be") for key, value in fields.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise UnreadableFile(f"settings: {name} cannot have {format_value(fields)} ({error})") from None


def _find_kind(name: Any, role: str | None, rule: str) -> Any:
    """The kind named by a description, which must have this role."""
    found = {each: kinds(each) for each in _SETTINGS}
    playing = [each for each, known in found.items() if isinstance(name, str) and name in known]
    if not playing:
        known = sorted({each for other in _SETTINGS if role in (None, other) for each in found[other]})
        remedy = "if it is your own, first import the module that registers it"
        raise UnreadableFile(f"settings: kind must be one of {', '.join(known)}, got {format_value(name)}; {remedy}")
    if role is not None and role not in playing:
        raise UnreadableFile(f"{rule} a {role}, got {name}, a {playing[0]}")
    return found[role or playing[-1]][name]


def fingerprint(description: Any) -> int:
    """A 63-bit number that is the same for equal descriptions, in every process and on every host.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2.0, "a": 1})
    True
    """
    plain = json.loads(json.dumps(description), parse_int=float)
    text = json.dumps(plain, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
