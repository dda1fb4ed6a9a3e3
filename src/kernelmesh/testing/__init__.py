"""Checks for your own kernels, losses, learners, protocols and carriers: the laws of each role.

A failed check raises an `AssertionError` that says which law is broken and how. The checks need no test framework.

    def test_cosine():
        check_kernel(Cosine(frequency=2.0))
"""

from kernelmesh.testing.carriers import check_carrier
from kernelmesh.testing.kernels import check_kernel
from kernelmesh.testing.learners import check_learner
from kernelmesh.testing.losses import check_loss
from kernelmesh.testing.protocols import check_protocol

__all__ = ["check_carrier", "check_kernel", "check_learner", "check_loss", "check_protocol"]
