"""The errors and warnings of kernelmesh, in one hierarchy; their details are available as fields.

Each error also derives from the built-in error that users expect (`ValueError`, `ConnectionError`, …), so that code which
does not know kernelmesh can handle it.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

__all__ = ["MISSING", "Diverged", "InvalidArgument", "InvalidConfig", "InvalidRow", "KernelMeshError", "MissingExtra"]
__all__ += ["Problem", "RefusedMessage", "ScaleWarning", "UnreachableAgent", "UnreadableFile", "UnstablePenalty"]
__all__ += ["Verbatim", "format_value"]

_LONGEST = 120


class Verbatim(str):
    """A description of a value that an error shows verbatim, without quotes.

    >>> str(InvalidArgument("fit", "X", "have 2 columns", Verbatim("shape (3, 1)")))
    'fit: X must have 2 columns, got shape (3, 1)'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Missing(enum.Enum):
    """The type of `MISSING`; an enumeration, so that it is a singleton in every process."""

    MISSING = "nothing"

    def __repr__(self) -> str:
        return self.value


MISSING = _Missing.MISSING
"""The value of a required argument that was not given."""


def format_value(value: object) -> str:
    """A value as shown in errors: its repr, truncated if long.

    >>> format_value("x" * 200)[-3:]
    '...'
    """
    item = getattr(value, "item", None) if type(value).__module__ == "numpy" and not getattr(value, "ndim", 1) else None
    text = repr(value if item is None else item())
    longest = 8 * _LONGEST if isinstance(value, Verbatim) else _LONGEST  # descriptions of ours contain whole paths
    return text if len(text) <= longest else text[: longest - 3] + "..."


class KernelMeshError(Exception):
    """The base class of all kernelmesh errors.

    Examples
    --------
    >>> issubclass(InvalidArgument, KernelMeshError) and issubclass(InvalidArgument, ValueError)
    True
    """

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: _picklable(value) for name, value in vars(self).items()}
        return _restore, (type(self), tuple(map(_picklable, self.args)), fields)


def _restore(kind: type[KernelMeshError], args: tuple[Any, ...], fields: dict[str, Any]) -> KernelMeshError:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


def _picklable(value: object) -> object:
    """The value, or its description: its error must get out of a worker process."""
    try:
        pickle.dumps(value)
    except Exception:  # of any kind, whatever the value
        return Verbatim(format_value(value))
    return value


class InvalidArgument(KernelMeshError, ValueError):
    """Invalid input: `Owner: argument must <rule>, got <value>`, followed by the remedy, if there is one.

    For an argument that was not given: `Owner: argument is missing`, followed by the remedy.

    Parameters
    ----------
    owner : str
        The function or class that was called.
    argument : str
        The argument concerned.
    rule : str
        The rule, as it follows "must".
    value : object
        The value that was given; `MISSING` if there was none.
    remedy : str
        How to fix it; may be empty.

    Examples
    --------
    >>> str(InvalidArgument("Gaussian", "bandwidth", "be > 0", -1))
    'Gaussian: bandwidth must be > 0, got -1'
    """

    def __init__(self, owner: str, argument: str, rule: str, value: object, *, remedy: str = "") -> None:
        self.owner, self.argument, self.rule, self.value, self.remedy = owner, argument, rule, value, remedy
        super().__init__(owner, argument, rule, value, remedy)

    @property
    def predicate(self) -> str:
        """The message after the argument: what is wrong, and the remedy."""
        text = "is missing" if self.value is MISSING else f"must {self.rule}, got {format_value(self.value)}"
        return f"{text}; {self.remedy}" if self.remedy else text

    def owned_by(self, owner: str) -> InvalidArgument:
        """The same error for another owner: users know what they called, not its internals."""
        return InvalidArgument(owner, self.argument, self.rule, self.value, remedy=self.remedy)

    def __str__(self) -> str:
        return f"{self.owner}: {self.argument} {self.predicate}"


class InvalidRow(KernelMeshError, ValueError):
    """An invalid row of data: the column, the rule, and the value.

    Examples
    --------
    >>> issubclass(InvalidRow, ValueError)
    True
    """


class UnreadableFile(KernelMeshError, ValueError):
    """A file that is damaged, has an unsupported version, or is not a kernelmesh file.

    Examples
    --------
    >>> issubclass(UnreadableFile, ValueError)
    True
    """


class RefusedMessage(KernelMeshError, ValueError):
    """An invalid message.

    Parameters
    ----------
    rule : str
        The rule that was violated.
    found : object
        What was found instead, if relevant.

    Examples
    --------
    >>> str(RefusedMessage("message: must be at most 10 bytes", 12))
    'message: must be at most 10 bytes, got 12'
    """

    def __init__(self, rule: str, found: object = None) -> None:
        self.rule, self.found = rule, None if found is None else str(found)
        super().__init__(rule, self.found)

    def __str__(self) -> str:
        return self.rule if self.found is None else f"{self.rule}, got {self.found}"


class UnreachableAgent(KernelMeshError, ConnectionError):
    """The agent did not answer: it is not running, not reachable, or does not accept this client.

    Examples
    --------
    >>> issubclass(UnreachableAgent, ConnectionError)
    True
    """


class MissingExtra(KernelMeshError, ImportError):
    """A feature needs packages that are not installed.

    Parameters
    ----------
    what : str
        The feature, in the plural.
    extra : str
        The extra of kernelmesh that installs them.

    Examples
    --------
    >>> str(MissingExtra("Parquet files", "parquet"))
    "Parquet files need packages that are not installed; pip install 'kernelmesh[parquet]'"
    """

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} need packages that are not installed; pip install 'kernelmesh[{extra}]'")


class Problem(NamedTuple):
    """One mistake in a configuration file."""

    path: str
    line: int
    """Counted from 1; 0 if no particular line is at fault."""
    key: str
    """The key, such as `model.kernel`; empty for the file as a whole."""
    predicate: str
    """The message after the key: what is wrong with it."""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.key or 'the file'} {self.predicate}"


class InvalidConfig(KernelMeshError, ValueError):
    """All problems of a configuration file, one per line.

    Parameters
    ----------
    problems : sequence of Problem
        The problems, each with its path, line, key and predicate.

    Examples
    --------
    >>> str(InvalidConfig([Problem("a.toml", 3, "model.dimension", "must be an integer >= 1, got 0")]))
    'a.toml:3: model.dimension must be an integer >= 1, got 0'
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Diverged(KernelMeshError, ArithmeticError):
    """Learning diverged; the state before the step is unchanged and can still be used.

    Parameters
    ----------
    agent : Hashable
        The agent's name.
    samples : int
        The number of samples it had seen.
    step_size, penalty : float
        The values in use.
    reason : str
        What was observed.

    Examples
    --------
    >>> error = Diverged(agent="north", samples=64, step_size=9.0, penalty=0.0, reason="the loss is 1e+06")
    >>> str(error)  # doctest: +ELLIPSIS
    "agent 'north' diverged at sample 64 with step size 9 and penalty 0: the loss is 1e+06; lower the step size; ..."
    """

    def __init__(self, *, agent: Hashable, samples: int, step_size: float, penalty: float, reason: str) -> None:
        self.agent, self.samples, self.step_size, self.penalty, self.reason = agent, samples, step_size, penalty, reason
        remedy = "lower the step size; it is stable below about 2 / κ(x, x)"
        if penalty > 0:
            remedy = "lower or cap the penalty (Doubling has a ceiling), or lower the step size"
        rates = f" with step size {step_size:g} and penalty {penalty:g}"
        if step_size == 0:  # of a learner that has none
            rates, remedy = "", "raise the regularization, or scale the points and targets"
        super().__init__(f"agent {agent!r} diverged at sample {samples}{rates}: {reason}; {remedy}")


class UnstablePenalty(UserWarning):
    """The penalty will become too large for the step size and the network: the run is likely to diverge.

    Examples
    --------
    >>> issubclass(UnstablePenalty, UserWarning)
    True
    """


class ScaleWarning(UserWarning):
    """Features that need scaling: the kernel treats all features alike.

    Examples
    --------
    >>> issubclass(ScaleWarning, UserWarning)
    True
    """
