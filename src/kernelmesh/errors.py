"""Everything that kernelmesh raises on purpose: one tree, whose members carry their facts as fields.

Each error is also the built-in one that users expect (`ValueError`, `ConnectionError`, …), so that code which has
never heard of kernelmesh can handle it.
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
    """A description of a value that an error shows as it is, without quotes.

    >>> str(InvalidArgument("fit", "X", "have 2 columns", Verbatim("shape (3, 1)")))
    'fit: X must have 2 columns, got shape (3, 1)'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Missing(enum.Enum):
    """Nothing where something is required; an enumeration, so that there is one of it in every process."""

    MISSING = "nothing"

    def __repr__(self) -> str:
        return self.value


MISSING = _Missing.MISSING
"""The value of an argument that is required and was not given."""


def format_value(value: object) -> str:
    """A value as errors show it: its repr, cut where it is long.

    >>> format_value("x" * 200)[-3:]
    '...'
    """
    item = getattr(value, "item", None) if type(value).__module__ == "numpy" and not getattr(value, "ndim", 1) else None
    text = repr(value if item is None else item())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


class KernelMeshError(Exception):
    """The root of all errors that kernelmesh raises on purpose.

    Examples
    --------
    >>> issubclass(InvalidArgument, KernelMeshError) and issubclass(InvalidArgument, ValueError)
    True
    """


class InvalidArgument(KernelMeshError, ValueError):
    """Something from outside breaks a rule: `Owner: argument must <rule>, got <value>`, then the remedy, if there is one.

    Of an argument that was not given, it says `Owner: argument is missing`, then the remedy.

    Parameters
    ----------
    owner : str
        The function or class that was called.
    argument : str
        What was passed to it.
    rule : str
        What follows on "must".
    value : object
        What was found instead; `MISSING` for nothing.
    remedy : str
        What to do about it; may be empty.

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
        """Everything that follows on the argument: what is wrong with it, and the remedy."""
        text = "is missing" if self.value is MISSING else f"must {self.rule}, got {format_value(self.value)}"
        return f"{text}; {self.remedy}" if self.remedy else text

    def owned_by(self, owner: str) -> InvalidArgument:
        """The same error in the name of another owner: users know what they called, not what that is built from."""
        return InvalidArgument(owner, self.argument, self.rule, self.value, remedy=self.remedy)

    def __str__(self) -> str:
        return f"{self.owner}: {self.argument} {self.predicate}"

    def __reduce__(self) -> tuple[Any, ...]:
        value = self.value
        try:
            pickle.dumps(value)
        except Exception:  # a value may be anything, and its error must still leave a worker process
            value = Verbatim(format_value(value))
        return _restore_invalid_argument, (self.owner, self.argument, self.rule, value, self.remedy)


def _restore_invalid_argument(owner: str, argument: str, rule: str, value: object, remedy: str) -> InvalidArgument:
    return InvalidArgument(owner, argument, rule, value, remedy=remedy)


class InvalidRow(KernelMeshError, ValueError):
    """A row of data that cannot be used: which column, what it must be, and the value.

    Examples
    --------
    >>> issubclass(InvalidRow, ValueError)
    True
    """


class UnreadableFile(KernelMeshError, ValueError):
    """A file that is damaged, of another version, or not of this program.

    Examples
    --------
    >>> issubclass(UnreadableFile, ValueError)
    True
    """


class RefusedMessage(KernelMeshError, ValueError):
    """Bytes that are not a message this program understands.

    Parameters
    ----------
    rule : str
        What was broken, the same for all messages of this kind.
    found : object
        What was found instead, if that is worth telling.

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
    """The agent did not answer: not running, not reachable, or not for this client.

    Examples
    --------
    >>> issubclass(UnreachableAgent, ConnectionError)
    True
    """


class MissingExtra(KernelMeshError, ImportError):
    """Something was asked for that needs packages which are not installed.

    Parameters
    ----------
    what : str
        What was asked for, in the plural.
    extra : str
        The extra of kernelmesh that brings the packages.

    Examples
    --------
    >>> str(MissingExtra("Parquet files", "parquet"))
    "Parquet files need packages that are not installed; pip install 'kernelmesh[parquet]'"
    """

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} need packages that are not installed; pip install 'kernelmesh[{extra}]'")

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingExtra, (self.what, self.extra)


class Problem(NamedTuple):
    """One mistake in a configuration file."""

    path: str
    line: int
    """Counted from 1; 0 where no line is to blame."""
    key: str
    """Where in the file, such as `model.kernel`; empty for the file as a whole."""
    predicate: str
    """What follows on the key: what is wrong with it."""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.key or 'the file'} {self.predicate}"


class InvalidConfig(KernelMeshError, ValueError):
    """Everything that is wrong with a configuration file, one problem per line.

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

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidConfig, (self.problems,)


class Diverged(KernelMeshError, ArithmeticError):
    """The function left all bounds; the state before the step is untouched and can still be used.

    Parameters
    ----------
    agent : Hashable
        The agent's name.
    samples : int
        The samples that it had seen.
    step_size, penalty : float
        What was in force.
    reason : str
        What was seen.

    Examples
    --------
    >>> error = Diverged(agent="north", samples=64, step_size=9.0, penalty=0.0, reason="the loss is 1e+06")
    >>> str(error)  # doctest: +ELLIPSIS
    "agent 'north' diverged at sample 64 with step size 9 and penalty 0: the loss is 1e+06; lower the step size; ..."
    """

    def __init__(self, *, agent: Hashable, samples: int, step_size: float, penalty: float, reason: str) -> None:
        self.agent, self.samples, self.step_size, self.penalty, self.reason = agent, samples, step_size, penalty, reason
        remedy = "lower the step size; stable ones are below about 2 / κ(x, x)"
        if penalty > 0:
            remedy = "lower or cap the penalty (Doubling has a ceiling), or lower the step size"
        rates = f" with step size {step_size:g} and penalty {penalty:g}"
        if step_size == 0:  # of a rule that takes none
            rates, remedy = "", "raise the regularization, or scale the points and targets"
        super().__init__(f"agent {agent!r} diverged at sample {samples}{rates}: {reason}; {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_diverged, (self.agent, self.samples, self.step_size, self.penalty, self.reason)


def _restore_diverged(agent: Hashable, samples: int, step_size: float, penalty: float, reason: str) -> Diverged:
    return Diverged(agent=agent, samples=samples, step_size=step_size, penalty=penalty, reason=reason)


class UnstablePenalty(UserWarning):
    """The penalty will be too large for the step size and the network: the run is likely to diverge.

    Examples
    --------
    >>> issubclass(UnstablePenalty, UserWarning)
    True
    """


class ScaleWarning(UserWarning):
    """Features of very different scales, which a kernel that weighs all of them alike cannot do justice to.

    Examples
    --------
    >>> issubclass(ScaleWarning, UserWarning)
    True
    """
