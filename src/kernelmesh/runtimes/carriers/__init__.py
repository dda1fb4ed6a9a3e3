"""Who moves bytes between agents: the role, and a carrier within one process. `runtimes.zenoh` has the other one."""

from kernelmesh.runtimes.carriers.base import Carrier
from kernelmesh.runtimes.carriers.memory import MemoryCarrier, MemoryNetwork

__all__ = ["Carrier", "MemoryCarrier", "MemoryNetwork"]
