"""Which kinds there are of every role, by name, and settings as plain data.

A kind is registered once, beside its definition, and is then known everywhere: in files, in an agent's TOML, in
`kernelmesh run --protocol`, in help texts. Packages of others register theirs in the same way; one with an entry point

    [project.entry-points.kernelmesh]
    anything = "their_package.their_module"

has that module imported when somebody first asks for a name.
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
    "compression": "kernelmesh.numerics.shared_dictionary",
    "graph": "kernelmesh.numerics.graphs",
    "consensus": "kernelmesh.consensus",
    "rule": "kernelmesh.rules",
    "screening": "kernelmesh.screening",
    "stream": "kernelmesh.streams",
    "attack": "kernelmesh.runtimes.attacks",
    "experiment": "kernelmesh.experiments",
}
"""Every role, and the module whose import registers the kinds that come with kernelmesh."""

# the roles that files may name
_SETTINGS = ("kernel", "loss", "schedule", "compression", "graph", "consensus", "rule", "screening")

_T = TypeVar("_T")
_known: dict[str, dict[str, Any]] = {role: {} for role in ROLES}


@overload
def register(role: str, kind: _T, *, name: str | None = None) -> _T: ...
@overload
def register(role: str, *, name: str | None = None) -> Callable[[_T], _T]: ...
def register(role: str, kind: Any = None, *, name: str | None = None) -> Any:
    """Make a kind known by its name, everywhere: in files, in an agent's TOML, in help texts; also a decorator.

    Parameters
    ----------
    role : str
        One of `ROLES`: "kernel", "loss", "schedule", "compression", "graph", "consensus", "rule", "screening", "stream",
        "attack", "experiment".
    kind : type or value, optional
        What to register; left out where this is used as a decorator.
    name : str, optional
        What it is called, by default the name of the class.

    Returns
    -------
    type or value
        The kind itself, or a decorator for it.

    Examples
    --------
    >>> from kernelmesh.numerics.kernels import Gaussian
    >>> register("kernel", Gaussian) is Gaussian  # once more does no harm
    True
    """
    _check_role("register", role)
    if kind is None:
        return lambda kind: register(role, kind, name=name)
    if not getattr(kind, "__module__", "").startswith("kernelmesh."):
        importlib.import_module(ROLES[role])  # so that ours come first, and others cannot take their names
    name = name or str(getattr(kind, "__name__", ""))
    if (not name.isidentifier() and not re.fullmatch(r"[a-z0-9-]+", name)) or name == "tuple":
        raise InvalidArgument("register", "name", "be a class name, or letters and dashes", name)
    for other in _SETTINGS if role in _SETTINGS else (role,):  # files name a kind without its role
        there = _known[other].get(name)
        if there is not None and (other, _origin(there)) != (role, _origin(kind)):
            raise InvalidArgument("register", "name", f"not be taken by another {other}", name)
    _known[role][name] = kind
    return kind


def _origin(kind: Any) -> Any:
    """Where a kind was defined, for those that may be defined there once more when a module is loaded again."""
    return (kind.__module__, kind.__qualname__) if hasattr(kind, "__qualname__") else id(kind)


def kinds(role: str) -> dict[str, Any]:
    """All kinds of a role by name: those that come with kernelmesh, then those of others.

    >>> kinds("loss")["Hinge"].__name__
    'Hinge'
    """
    _load_own("kinds", role)
    _load_plugins()
    return dict(_known[role])


def find(role: str, name: str) -> Any:
    """One kind by name, or None; plugins, which take time to look for, are loaded only for a name that is not ours.

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
    """Import the module that registers the kinds of a role that come with kernelmesh."""
    _check_role(owner, role)
    importlib.import_module(ROLES[role])


@cache
def _plugins() -> list[Any]:
    """Those that have yet to be loaded."""
    from importlib import metadata  # which takes as long to import as half of NumPy

    return list(metadata.entry_points(group="kernelmesh"))


def _load_plugins() -> None:
    while plugins := _plugins():
        entry = plugins.pop(0)  # before it is loaded: it may ask for names itself
        try:
            entry.load()
        except Exception as error:  # of somebody else's making, and no reason for ours not to work
            warnings.warn(f"kernelmesh: the plugin {entry.name} ({entry.value}) cannot be loaded: {error}", stacklevel=2)


def kebab(name: str) -> str:
    """The name of a class as the command line has it.

    >>> kebab("ExactDiffusion")
    'exact-diffusion'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


_ROLE_NAMES = {role.capitalize(): role for role in ("kernel", "loss", "schedule", "compression", "rule")}


def role_of(field: dataclasses.Field[Any]) -> str | None:
    """The role that the value of a field plays, by its annotation; None for plain numbers, texts and the like.

    >>> from kernelmesh.consensus import Penalty
    >>> [role_of(field) for field in dataclasses.fields(Penalty)]
    ['schedule']
    """
    words = re.findall(r"\w+", field.type.__name__ if isinstance(field.type, type) else str(field.type))
    return next((_ROLE_NAMES[word] for word in words if word in _ROLE_NAMES), None)


def describe(value: Any) -> Any:
    """Turn settings into something JSON can hold.

    >>> from kernelmesh import Gaussian
    >>> describe(Gaussian(bandwidth=2.0))
    {'kind': 'Gaussian', 'bandwidth': 2.0}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"kind": "tuple", "items": [describe(item) for item in value]}
    if hasattr(value, "item") and not getattr(value, "ndim", 1):  # a number of NumPy's
        return value.item()
    names = [name for role in _SETTINGS for name, kind in _known[role].items() if kind is type(value)]
    if names and dataclasses.is_dataclass(value):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"kind": names[0], **fields}
    remedy = f'register("kernel", {type(value).__name__}) makes a kernel known; likewise for other roles'
    raise InvalidArgument("settings", "each part", "be a dataclass of a registered kind to be saved", value, remedy=remedy)


def restore(description: Any, *, role: str | None = None) -> Any:
    """Turn a description back into settings, checking every one of them as if it had just been written.

    A kind must play the role that is expected of it: `role`, if one is given, and within another kind that of its field.

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
    """`rule` begins the error about a kind of another role: who must have what there."""
    if not isinstance(description, dict):
        return description
    fields = dict(description)
    name = fields.pop("kind", None)
    if name == "tuple" and isinstance(fields.get("items"), list):
        return tuple(_restore(item, role, rule) for item in fields["items"])
    kind = _find_kind(name, role, rule)
    roles = {field.name: role_of(field) for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    # files from before version 4 have British spelling
    fields = {key.replace("neighbours", "neighbors"): value for key, value in fields.items()}
    fields = {key: _restore(value, roles.get(key), f"{name}: {key} must be") for key, value in fields.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise UnreadableFile(f"settings: {name} cannot have {format_value(fields)} ({error})") from None


def _find_kind(name: Any, role: str | None, rule: str) -> Any:
    """The kind that a description names; it must play the role."""
    found = {each: kinds(each) for each in _SETTINGS}
    playing = [each for each, known in found.items() if isinstance(name, str) and name in known]
    if not playing:
        known = sorted({each for other in _SETTINGS if role in (None, other) for each in found[other]})
        remedy = "if it is your own, import the module that registers it first"
        raise UnreadableFile(f"settings: kind must be one of {', '.join(known)}, got {format_value(name)}; {remedy}")
    if role is not None and role not in playing:
        raise UnreadableFile(f"{rule} a {role}, got {name}, a {playing[0]}")
    return found[role or playing[-1]][name]


def fingerprint(description: Any) -> int:
    """A 63-bit number that is the same for equal descriptions, in every process and on every host.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    text = json.dumps(description, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
