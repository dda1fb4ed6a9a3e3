"""Carriers move bytes between agents: the interface, and a carrier within one process. The other is in `runtimes.zenoh`."""

from kernelmesh.runtimes.carriers.base import Carrier
from kernelmesh.runtimes.carriers.memory import MemoryCarrier, MemoryNetwork

__all__ = ["Carrier", "MemoryCarrier", "MemoryNetwork"]
