"""The covariance of a second-order learner: represented by a factor, and formed only when all of it is needed."""

from __future__ import annotations

from typing import cast

import numpy as np

from kernelmesh.checks import Floats
from kernelmesh.numerics.products import product

__all__ = ["Covariance"]


class Covariance:
    """R = P (A⁻¹ − GᵀG) P with A = L Lᵀ: an immutable value, represented by L, P and G, or by R itself.

    A mini-batch of B points only needs κ(X, Z) P A⁻¹, which takes O(M² B) with L; R takes O(M³).

    >>> half = Covariance.factored(np.array([[2.0]]), np.array([[1.0]]))
    >>> half.solved(np.array([[1.0]])), half.less(np.array([[0.1]])).matrix
    (array([[0.25]]), array([[0.24]]))
    """

    def __init__(self, matrix: Floats) -> None:
        self._matrix: Floats | None = matrix
        self._factors: tuple[Floats, Floats] | None = None
        self._lost: Floats | None = None

    @classmethod
    def factored(cls, root: Floats, inverse: Floats, lost: Floats | None = None) -> Covariance:
        """From L, P and G."""
        self = cls.__new__(cls)
        self._matrix, self._factors, self._lost = None, (root, inverse), lost
        return self

    @property
    def matrix(self) -> Floats:
        """R, M × M."""
        if self._matrix is None:
            from scipy.linalg import solve_triangular

            assert self._factors is not None
            root, inverse = self._factors
            half = np.ascontiguousarray(solve_triangular(root, inverse, lower=True, check_finite=False))
            whole = product(half.T, half)
            whole = 0.5 * (whole + whole.T)
            if self._lost is not None:
                lost = product(self._lost, inverse)
                whole -= product(lost.T, lost)
            self._matrix = whole
        return self._matrix

    def solved(self, lifted: Floats) -> Floats | None:
        """κ(X, Z) P A⁻¹, given κ(X, Z) P; None unless R is represented by L and P alone."""
        # the result must not depend on whether R was computed before, because that would round differently
        if self._factors is None or self._lost is not None:
            return None
        from scipy.linalg import lapack

        return cast(Floats, lapack.dpotrs(self._factors[0], lifted.T, lower=1)[0].T)

    def less(self, lost: Floats) -> Covariance:
        """R − P GᵀG P for another G if R is represented by L and P alone, otherwise R − GᵀG."""
        if self._factors is not None and self._lost is None:
            return Covariance.factored(*self._factors, lost)
        return Covariance(self.matrix - product(lost.T, lost))
