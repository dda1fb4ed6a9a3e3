"""The protocols by name, with settings tuned for an experiment's network."""

import dataclasses
import inspect
from typing import Annotated

from kernelmesh.consensus import Consensus, Penalty, Tuning
from kernelmesh.errors import InvalidArgument
from kernelmesh.registry import kebab, kinds
from kernelmesh.schema import one_of

__all__ = ["CAPPED", "ProtocolName", "check_every", "describe_protocols", "protocol", "protocols", "takes_every"]

CAPPED = "capped-penalty"
"""`penalty` with c capped at half of what is stable, whatever other limit is set."""
_SAFE = 0.5


def protocols() -> dict[str, type[Consensus]]:
    """All registered protocols by the names that the command line has for them.

    >>> list(protocols())[:2]
    ['local', 'penalty']
    """
    known = {kebab(name): kind for name, kind in kinds("consensus").items()}
    return {name: known.pop(name) for name in ("local", "penalty", "hilbert", "diffusion")} | known


def describe_protocols() -> dict[str, str]:
    """What each name of `protocol` stands for: the line at the top of its file."""
    pages = {name: inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) for name, kind in protocols().items()}
    lines = {name: (page or "").partition("\n")[0] for name, page in pages.items()}
    return lines | {CAPPED: "`penalty` with the penalty capped at half of the stability limit."}


def _check_name(owner: str, argument: str, value: object) -> str:
    """A name that `protocol` knows."""
    return str(one_of(*protocols(), CAPPED)(owner, argument, value))


ProtocolName = Annotated[str, _check_name]


def protocol(name: str, tuning: Tuning) -> Consensus:
    """A protocol, set up for a network."""
    if name == CAPPED:
        return Penalty.tuned(dataclasses.replace(tuning, limit=_SAFE))
    return protocols()[name].tuned(tuning)


def takes_every(name: str) -> bool:
    """Whether a protocol leaves open in which rounds agents talk.

    >>> takes_every("diffusion"), takes_every("penalty")
    (True, False)
    """
    return "every" in getattr(protocols().get(name), "__dataclass_fields__", ())


def check_every(owner: str, every: int, name: str) -> None:
    """Refuse to leave rounds out with a protocol that cannot."""
    if every > 1 and not takes_every(name):
        remedy = "only protocols that exchange functions can skip rounds"
        raise InvalidArgument(owner, "every", f"be 1 with {name}", every, remedy=remedy)
