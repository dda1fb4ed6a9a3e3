"""The protocols and the learners by the names that the command line has for them."""

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from kernelmesh import ConsensusProtocol, Hinge, InvalidArgument, Learner, Logistic, Loss, Penalty, Tuning, kinds
from kernelmesh_experiments.settings import one_of

__all__ = ["CAPPED", "LOSSES", "LearnerName", "ProtocolName", "check_every", "describe_learners", "describe_protocols"]
__all__ += ["learners", "protocol", "protocols", "reply", "takes_every"]

LOSSES: dict[str, Loss] = {"logistic": Logistic(), "hinge": Hinge()}
CAPPED = "capped-penalty"
"""`penalty` with c capped at half of what is stable, whatever other limit is set."""
_IMPLICIT = "implicit-penalty"
_VARIANTS = {
    _IMPLICIT: "`penalty` with a step that solves for the penalty, which is stable for any c.",
    CAPPED: "`penalty` with the penalty capped at half of the stability limit.",
}


def _named(role: str, *first: str, **more: Any) -> dict[str, Any]:
    """The kinds of a role by name, some of them first."""
    known = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower(): kind for name, kind in kinds(role).items()} | more
    return {name: known.pop(name) for name in first} | known


def protocols() -> dict[str, type[ConsensusProtocol]]:
    """All registered protocols by name.

    >>> list(protocols())[:3]
    ['local', 'penalty', 'implicit-penalty']
    """
    order = ("local", "penalty", _IMPLICIT, "hilbert", "diffusion", "relay")
    return _named("protocol", *order, **{_IMPLICIT: Penalty})


def learners() -> dict[str, type[Learner]]:
    """All registered learners by name, the paper's first.

    >>> list(learners())[:3]
    ['gradient', 'averaged', 'second-order']
    """
    return _named("learner", "gradient", "averaged", "second-order", "landmarks")


def _first_lines(known: Mapping[str, type[Any]]) -> dict[str, str]:
    pages = {name: inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) for name, kind in known.items()}
    return {name: (page or "").partition("\n")[0] for name, page in pages.items()}


def describe_protocols() -> dict[str, str]:
    """What each name of `protocol` stands for: the line at the top of its file."""
    return _first_lines(protocols()) | _VARIANTS


def describe_learners() -> dict[str, str]:
    """What each name of `learner` stands for."""
    return _first_lines(learners())


def _check_protocol(owner: str, argument: str, value: object) -> None:
    one_of(*protocols(), CAPPED)(owner, argument, value)


def _check_learner(owner: str, argument: str, value: object) -> None:
    one_of(*learners())(owner, argument, value)


ProtocolName = Annotated[str, _check_protocol]
LearnerName = Annotated[str, _check_learner]


def protocol(name: str, tuning: Tuning) -> ConsensusProtocol:
    """A protocol, set up for a network."""
    if name == CAPPED:
        return Penalty.tuned(dataclasses.replace(tuning, limit=0.5))
    if name == _IMPLICIT:
        return dataclasses.replace(Penalty.tuned(dataclasses.replace(tuning, limit=math.inf)), implicit=True)
    return protocols()[name].tuned(tuning)


def _kind(name: str) -> type[ConsensusProtocol]:
    return Penalty if name == CAPPED else protocols()[name]


def reply(name: str) -> Any:
    """The type of the messages that agents learn from with a protocol; None if they are silent."""
    return _kind(name).reply


def takes_every(name: str) -> bool:
    """Whether a protocol leaves open in which rounds agents send what they have learned.

    >>> takes_every("diffusion"), takes_every("penalty")
    (True, False)
    """
    return "every" in getattr(_kind(name), "__dataclass_fields__", ())


def check_every(owner: str, every: int, name: str) -> None:
    """Refuse to leave rounds out with a protocol that cannot."""
    if every > 1 and not takes_every(name):
        remedy = "only protocols that exchange functions or sums can skip rounds"
        raise InvalidArgument(owner, "every", f"be 1 with {name}", every, remedy=remedy)
