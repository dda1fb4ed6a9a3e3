"""How agents come to agree: one file per protocol, without I/O and without knowing who carries the messages."""

from kernelmesh.consensus.local import Local
from kernelmesh.consensus.penalty import Penalty
from kernelmesh.consensus.role import Consensus, Moment

__all__ = ["Consensus", "Local", "Moment", "Penalty"]
