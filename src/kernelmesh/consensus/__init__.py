"""How agents come to agree: one file per protocol, without I/O and without knowing who carries the messages."""

from kernelmesh.consensus.base import Combining, Consensus, Edge, Edges, Explicit, Heard, Relaying, StepInputs
from kernelmesh.consensus.diffusion import Diffusion
from kernelmesh.consensus.exact_diffusion import ExactDiffusion
from kernelmesh.consensus.hilbert import Hilbert
from kernelmesh.consensus.local import Local
from kernelmesh.consensus.penalty import Penalty
from kernelmesh.consensus.proximal import Proximal
from kernelmesh.consensus.symmetric import Symmetric

__all__ = [
    "Combining",
    "Consensus",
    "Diffusion",
    "Edge",
    "Edges",
    "ExactDiffusion",
    "Explicit",
    "Heard",
    "Hilbert",
    "Local",
    "Penalty",
    "Proximal",
    "Relaying",
    "StepInputs",
    "Symmetric",
]
