"""Consensus protocols, one file each, without I/O and independent of the transport."""

from kernelmesh.protocols.base import ConsensusProtocol, Heard, StepInputs, Tuning
from kernelmesh.protocols.diffusion import Diffusion
from kernelmesh.protocols.hilbert import Hilbert
from kernelmesh.protocols.local import Local
from kernelmesh.protocols.penalty import Penalty
from kernelmesh.protocols.relay import Relay

__all__ = ["ConsensusProtocol", "Diffusion", "Heard", "Hilbert", "Local", "Penalty", "Relay", "StepInputs", "Tuning"]
