"""Who carries the messages. Runtimes know no mathematics; the simulation defines what a round is."""

from kernelmesh.runtimes.faults import Faults
from kernelmesh.runtimes.simulation import Round, simulate

__all__ = ["Faults", "Round", "simulate"]
