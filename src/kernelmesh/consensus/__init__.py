"""Consensus protocols, one file each, without I/O and independent of the transport."""

from kernelmesh.consensus.base import Consensus, Exchange, Heard, StepInputs, Tuning
from kernelmesh.consensus.diffusion import Diffusion
from kernelmesh.consensus.hilbert import Hilbert
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.penalty import Penalty
from kernelmesh.consensus.relay import Relay

__all__ = ["Consensus", "Diffusion", "Exchange", "Heard", "Hilbert", "Local", "Penalty", "Relay", "StepInputs", "Tuning"]
