"""Engines run the agents of a simulation in other processes: workers on this machine, or a cluster (`runtimes.ray`)."""

from kernelmesh.runtimes.engines.processes import Processes
from kernelmesh.runtimes.engines.spread import LostShard
from kernelmesh.runtimes.simulation import Engine

__all__ = ["Engine", "LostShard", "Processes"]
