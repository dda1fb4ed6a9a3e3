"""The protocols by name, with settings tuned for an experiment's network."""

import dataclasses
import inspect
import math
from typing import Annotated

from kernelmesh.errors import InvalidArgument
from kernelmesh.protocols import ConsensusProtocol, Penalty, Tuning
from kernelmesh.registry import kebab, kinds
from kernelmesh.schema import one_of

__all__ = ["CAPPED", "ProtocolName", "check_every", "describe_protocols", "protocol", "protocols", "shares", "takes_every"]

CAPPED = "capped-penalty"
"""`penalty` with c capped at half of what is stable, whatever other limit is set."""
_IMPLICIT = "implicit-penalty"
_VARIANTS = {
    _IMPLICIT: "`penalty` with a step that solves for the penalty, which is stable for any c.",
    CAPPED: "`penalty` with the penalty capped at half of the stability limit.",
}
_SAFE = 0.5


def protocols() -> dict[str, type[ConsensusProtocol]]:
    """All registered protocols by the names that the command line has for them.

    >>> list(protocols())[:3]
    ['local', 'penalty', 'implicit-penalty']
    """
    known = {kebab(name): kind for name, kind in kinds("protocol").items()} | {_IMPLICIT: Penalty}
    return {name: known.pop(name) for name in ("local", "penalty", _IMPLICIT, "hilbert", "diffusion", "relay")} | known


def describe_protocols() -> dict[str, str]:
    """What each name of `protocol` stands for: the line at the top of its file."""
    pages = {name: inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) for name, kind in protocols().items()}
    lines = {name: (page or "").partition("\n")[0] for name, page in pages.items()}
    return lines | _VARIANTS


def _check_name(owner: str, argument: str, value: object) -> str:
    """A name that `protocol` knows."""
    return str(one_of(*protocols(), CAPPED)(owner, argument, value))


ProtocolName = Annotated[str, _check_name]


def protocol(name: str, tuning: Tuning) -> ConsensusProtocol:
    """A protocol, set up for a network."""
    if name == CAPPED:
        return Penalty.tuned(dataclasses.replace(tuning, limit=_SAFE))
    if name == _IMPLICIT:
        return dataclasses.replace(Penalty.tuned(dataclasses.replace(tuning, limit=math.inf)), implicit=True)
    return protocols()[name].tuned(tuning)


def shares(name: str) -> bool:
    """Whether agents add up sums over their samples, so that they learn by `landmarks`.

    >>> shares("relay"), shares("diffusion")
    (True, False)
    """
    return getattr(protocols().get(name), "shares", False)


def takes_every(name: str) -> bool:
    """Whether a protocol leaves open in which rounds agents send what they have learned.

    >>> takes_every("diffusion"), takes_every("penalty")
    (True, False)
    """
    return "every" in getattr(protocols().get(name), "__dataclass_fields__", ())


def check_every(owner: str, every: int, name: str) -> None:
    """Refuse to leave rounds out with a protocol that cannot."""
    if every > 1 and not takes_every(name):
        remedy = "only protocols that exchange functions or sums can skip rounds"
        raise InvalidArgument(owner, "every", f"be 1 with {name}", every, remedy=remedy)
