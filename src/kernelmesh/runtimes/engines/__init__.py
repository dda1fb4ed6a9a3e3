"""Engines run the agents of a simulation: in this process, in worker processes, or on a cluster (`runtimes.ray`)."""

from kernelmesh.runtimes.engines.base import Engine, InProcess, LostShard
from kernelmesh.runtimes.engines.processes import Processes

__all__ = ["Engine", "InProcess", "LostShard", "Processes"]
