"""Who carries the messages. Runtimes know no mathematics; the simulation defines what a round is."""

from kernelmesh.runtimes.conditions import Conditions
from kernelmesh.runtimes.simulation import Round, simulate

__all__ = ["Conditions", "Round", "simulate"]
