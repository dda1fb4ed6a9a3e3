"""The laws that every kernel, loss, learning rule, protocol and carrier obeys, as checks for your own.

A check raises `AssertionError` with a sentence that says which law was broken and how. None of them needs a test framework.

    def test_cosine():
        check_kernel(Cosine(frequency=2.0))
"""

from kernelmesh.testing.carriers import check_carrier
from kernelmesh.testing.kernels import check_kernel
from kernelmesh.testing.losses import check_loss
from kernelmesh.testing.protocols import check_consensus
from kernelmesh.testing.rules import check_rule

__all__ = ["check_carrier", "check_consensus", "check_kernel", "check_loss", "check_rule"]
