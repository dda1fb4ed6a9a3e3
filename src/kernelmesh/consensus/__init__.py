"""Consensus protocols, one file each, without I/O and independent of the transport."""

from kernelmesh.consensus.base import Consensus, EdgeMemories, EdgeMemory, Exchange, Heard, StepInputs, Tuning
from kernelmesh.consensus.diffusion import Diffusion
from kernelmesh.consensus.exact_diffusion import ExactDiffusion
from kernelmesh.consensus.hilbert import Hilbert
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.penalty import Penalty
from kernelmesh.consensus.proximal import Proximal
from kernelmesh.consensus.shared_diffusion import SharedDiffusion
from kernelmesh.consensus.shared_statistics import SharedStatistics
from kernelmesh.consensus.symmetric import Symmetric

__all__ = ["Consensus", "Diffusion", "EdgeMemories", "EdgeMemory", "ExactDiffusion", "Exchange", "Heard", "Hilbert", "Local"]
__all__ += ["Penalty", "Proximal", "SharedDiffusion", "SharedStatistics", "StepInputs", "Symmetric", "Tuning"]
