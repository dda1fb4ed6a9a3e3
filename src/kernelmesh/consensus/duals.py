"""Duals of the two ends of an edge: opposite bit for bit, and computed only once if both ends are in one process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.messages import Offer
from kernelmesh.numerics import compiled
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.kernels import Kernel
from kernelmesh.numerics.statistics import Statistics

__all__ = ["Compact", "Shared", "digest", "half_of", "opposite"]

# The attributes under which an expansion caches derived values, which are not part of its value.
_TWIN, _DIGEST, _ORIGIN, _HALF = "dual_twin", "dual_digest", "dual_origin", "dual_half"


def opposite(dual: Expansion) -> Expansion:
    """−λ over the same points; the opposite of that is λ itself. Statistics are negated on demand.

    >>> from kernelmesh import Gaussian
    >>> dual = Expansion(Gaussian(), np.array([[0.0]]), np.array([[2.0]]))
    >>> opposite(dual).weights, opposite(opposite(dual)) is dual
    (array([[-2.]]), True)
    """
    twin: Expansion | None = dual.__dict__.get(_TWIN)
    if twin is None:
        if isinstance(dual, Statistics):
            twin = object.__new__(_Opposite)
            twin.__dict__.update(kernel=dual.kernel, centers=dual.centers)
        else:
            twin = Expansion.trusted(dual.kernel, dual.centers, -dual.weights)
        twin.__dict__[_TWIN] = dual
    return twin


class _Opposite(Statistics):
    """−(Θ, β), without memory of its own: each edge has an M × M matrix, and both ends may be in this process."""

    @property
    def weights(self) -> Floats:
        return _read_only(-self.__dict__[_TWIN].weights)

    @property
    def moments(self) -> Floats:
        return _read_only(-self.__dict__[_TWIN].moments)


class Compact(Statistics):
    """Statistics that store one triangle of Θ, because there is one for each edge; the full matrix is built on demand.

    >>> from kernelmesh import Gaussian
    >>> dual = Compact.over(Gaussian(), np.array([[0.0], [1.0]]), np.zeros((2, 1)), np.array([2.0, 1.0, 3.0]))
    >>> dual.moments
    array([[2., 1.],
           [1., 3.]])
    """

    @classmethod
    def over(cls, kernel: Kernel, centers: Floats, weights: Floats, half: Floats) -> Compact:
        """From valid arrays that are not modified elsewhere."""
        self = object.__new__(cls)
        self.__dict__.update(kernel=kernel, centers=_read_only(centers), weights=_read_only(weights))
        self.__dict__[_HALF] = _read_only(half)
        return self

    @property
    def moments(self) -> Floats:
        return _read_only(compiled.symmetric.whole(self.__dict__[_HALF], self.order))


def half_of(dual: Statistics) -> Floats:
    """The lower triangle of Θ."""
    found: Floats | None = dual.__dict__.get(_HALF)
    return compiled.symmetric.lower_half(dual.moments) if found is None else found


def _read_only(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def digest(dual: Expansion) -> int:
    """A digest of a dual regardless of its sign: equal at both ends as long as their duals are opposite."""
    origin = dual.__dict__.get(_TWIN, dual)
    found: int | None = origin.__dict__.get(_DIGEST)
    if found is None:
        data = hashlib.blake2b(origin.centers.ravel().data, digest_size=8)
        if isinstance(origin, Statistics):
            # hashing M² numbers would take longer than averaging them, so only the XOR of each column's bits is hashed
            data.update(compiled.symmetric.folded(origin.weights.view(np.uint64)).data)
            data.update(compiled.symmetric.folded_half(half_of(origin), origin.order).data)
        else:
            data.update(np.abs(origin.weights).ravel().data)
        found = int.from_bytes(data.digest(), "big") >> 1
        origin.__dict__[_DIGEST] = found
    return found


class Shared:
    """A weak cache of duals by their inputs: the second end of an edge reuses the dual of the first.

    Inputs are immutable values, compared by identity. In a simulation, both ends have the same ones. An end with others,
    because it was restored or runs in another process, computes its dual itself, with the same result.
    """

    def __init__(self) -> None:
        self._found: WeakValueDictionary[tuple[int, int], Expansion] = WeakValueDictionary()

    def take(self, before: Expansion | None, first: Offer, second: Offer, *settings: Any) -> Expansion | None:
        """The dual computed from these inputs, if it is still alive."""
        found = self._found.get((id(first.weights), id(second.weights)))
        if found is None:
            return None
        origin: _Origin = found.__dict__[_ORIGIN]
        same = origin.first is first.weights and origin.second is second.weights and origin.settings == settings
        return found if same and (before is None if origin.before is None else origin.before() is before) else None

    def keep(self, found: Expansion, before: Expansion | None, first: Offer, second: Offer, *settings: Any) -> None:
        """Remember the inputs of a dual as long as the dual is alive."""
        # a weak reference to the previous dual, because otherwise each dual would keep all earlier ones alive
        origin = None if before is None else ref(before)
        found.__dict__[_ORIGIN] = _Origin(origin, first.weights, second.weights, settings)
        self._found[id(first.weights), id(second.weights)] = found


@dataclass(frozen=True, eq=False)
class _Origin:
    """The inputs of a dual, compared by identity: a copy of the dual has no origin."""

    before: ref[Expansion] | None = None
    first: Floats | None = None
    second: Floats | None = None
    settings: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[_Origin], tuple[()]]:
        return _Origin, ()
